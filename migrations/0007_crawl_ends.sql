-- How crawls end that are large, and scans whose command died.

alter table crawls
    -- Until when a scan of local files counts as alive; its command moves this on. Null for a crawl of the web, whose jobs have leases.
    add column lease_until timestamptz,
    -- Cancelled, and some of its rows and jobs have not been closed yet. Whoever looks after crawls goes on with it.
    add column closing boolean not null default false,
    add constraint crawls_closing_when_cancelled check (not closing or state = 'cancelled');

-- Scans begun before there were leases: an hour for those that may be under way.
update crawls set lease_until = now() + interval '1 hour' where kind = 'scan' and state = 'running';

create index crawls_closing on crawls (id) where closing;

-- What is still queued, in id order, whatever the size of the rest.
create index pages_queued on pages (crawl_id, id) where state = 'queued';
create index image_urls_queued on image_urls (crawl_id, id) where state = 'queued';
