-- The near-duplicate rule knows two ways in which pictures are near: few differing bits of phash, or at most four of dhash with up to 24 of
-- phash (a mark in a corner). The bands of 0002 find the first. The second is found by bands of dhash: two hashes at most seven bits apart
-- have, by the pigeonhole principle, a band of 16 that differs in at most one bit, so probing the 17 values of each band finds every one of
-- them. Both hashes are in the index: the distances are judged there. What is stored already is found from now on, too.
create index images_dhash_band_0 on images (collection_id, ((dhash >> 48) & 65535)) include (dhash, phash, id);
create index images_dhash_band_1 on images (collection_id, ((dhash >> 32) & 65535)) include (dhash, phash, id);
create index images_dhash_band_2 on images (collection_id, ((dhash >> 16) & 65535)) include (dhash, phash, id);
create index images_dhash_band_3 on images (collection_id, (dhash & 65535)) include (dhash, phash, id);
create index suppressions_dhash_band_0 on suppressions (collection_id, ((dhash >> 48) & 65535)) include (dhash, phash, id) where phash is not null;
create index suppressions_dhash_band_1 on suppressions (collection_id, ((dhash >> 32) & 65535)) include (dhash, phash, id) where phash is not null;
create index suppressions_dhash_band_2 on suppressions (collection_id, ((dhash >> 16) & 65535)) include (dhash, phash, id) where phash is not null;
create index suppressions_dhash_band_3 on suppressions (collection_id, (dhash & 65535)) include (dhash, phash, id) where phash is not null;
