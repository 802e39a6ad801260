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

-- Earlier versions took images for near duplicates that show other people. Without its
-- validators, the next crawl fetches such a file in full and decides again.
delete from image_visits v
using crawls c join image_urls u on u.crawl_id = c.id
where u.reason = 'near_duplicate' and v.collection_id = c.collection_id and v.url_hash = u.url_hash;
