-- Stops older programs.
-- Older programs would store the file of an erased video again.
--
-- Erasures of videos. A suppression of a whole video file has `sha256`, but neither perceptual
-- hashes nor a region.

alter table erasures
    drop constraint erasures_kind_check,
    add constraint erasures_kind_check check (kind in ('likeness', 'face', 'image', 'subject', 'url', 'video')),
    -- Null for erasures of earlier versions.
    add column videos bigint;
