-- Stops older programs.
-- Older programs would delete the blobs of new images, because they do not know the columns that
-- refer to them.
--
-- One blob for each image: its thumbnail, and then the crop and the chip of each face, which lie
-- side by side. Rows of earlier releases refer to a blob of each file (`thumbnail_key`, `crop_key`,
-- `chip_key`) until a worker has moved these files into one blob.

alter table images
    add column parts_key text,
    -- Length of the thumbnail, which is at the beginning of the blob; 0 without a thumbnail.
    add column thumbnail_bytes int,
    add constraint images_parts check (num_nulls(parts_key, thumbnail_bytes) in (0, 2)) not valid;
alter table faces
    -- Null for a face whose files are in the blob of its image. If the blob of an image is written
    -- again, its faces then change no indexed column, so no index gets new entries.
    add column parts_key text,
    add column parts_offset int,
    -- Lengths of the crop, and of the chip, which follows it; 0 if it was deleted.
    add column crop_bytes int,
    add column chip_bytes int,
    add constraint faces_parts check (
        num_nulls(parts_offset, crop_bytes, chip_bytes) in (0, 3) and (parts_key is null or parts_offset is not null)) not valid;

create index images_parts_key on images (parts_key) where parts_key is not null;
create index faces_parts_key on faces (parts_key) where parts_key is not null;
