-- Suppressions of images are bound to the erased faces. A row with a region then has a masked
-- sketch, and suppresses only images that are near and show this face. Rows of earlier versions
-- have no such sketch: they suppress by the perceptual hashes and the region alone.
alter table suppressions
    -- The image was erased as a whole. Its other faces have rows of their own. A row without a
    -- region always means a whole image.
    add column whole_image boolean not null default false,
    add constraint suppressions_whole_image check (not whole_image or (region is not null and sketch is not null and at_us is null));

-- Sketches of people only. Those of faces in images are found by the hashes of the image.
drop index suppressions_sketch;
create index suppressions_person on suppressions (collection_id, model_id) where sketch is not null and sha256 is null;

-- Earlier versions took images for near duplicates that show other people. Without validators, the
-- next crawl fetches such a file in full and decides again. An address keeps its validators if its
-- file was stored as the image itself.
delete from image_visits v
where not exists (
    select from image_urls u join crawls c on c.id = u.crawl_id
    where c.collection_id = v.collection_id and u.url_hash = v.url_hash and u.image_id = v.image_id
      and u.state = 'processed');
