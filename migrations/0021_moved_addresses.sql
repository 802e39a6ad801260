-- An address that was asked for and the one that answered it stand for the same thing: an erasure by either finds what was stored.

alter table image_urls
    -- First 128 bits of the SHA-256 of the address that answered, where a redirect led to another one.
    add column final_hash uuid;

alter table image_sources
    -- The same, for as long as the image is there.
    add column final_hash uuid,
    -- Of the page's address that was asked for, where another one answered.
    add column page_asked_hash uuid;

-- What earlier versions know of redirects.
update image_sources s set final_hash = encode(substring(sha256(convert_to(v.final_url, 'UTF8')) for 16), 'hex')::uuid
from image_visits v
where v.image_id = s.image_id and v.final_url <> s.image_url
  and v.url_hash = encode(substring(sha256(convert_to(s.image_url, 'UTF8')) for 16), 'hex')::uuid;
update image_sources s set page_asked_hash = p.url_hash
from pages p
where p.crawl_id = s.crawl_id and p.final_url = s.page_url and p.final_url <> p.url;

create index image_sources_final on image_sources (final_hash) where final_hash is not null;
create index image_sources_page_asked on image_sources (page_asked_hash) where page_asked_hash is not null;
-- Earlier versions stored the addresses of enrolled pictures as they were spelled; an erasure by address reads them all.
create index image_sources_enrolled on image_sources (image_id) where kind = 'enrolment';
