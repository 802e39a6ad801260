-- Chips of neighbouring faces that were cut before an erased face was painted over can still show it. Where an erasure of earlier versions
-- keeps a face out of a picture that stays, its place in the picture is known: chips that may overlap it go. A chip reaches less than the
-- larger side of its face's box beyond that box, so some that show nothing of it go, too; their faces keep their embeddings.
with shown as (
    select f.id, f.chip_key
    from suppressions s
    join images i on i.collection_id = s.collection_id and i.sha256 = s.sha256
    join faces f on f.image_id = i.id
    cross join lateral (select greatest(f.bbox[3], f.bbox[4]) as reach) r
    where s.region is not null and f.chip_key is not null
      and s.region[1] * i.width < f.bbox[1] + f.bbox[3] + r.reach
      and (s.region[1] + s.region[3]) * i.width > f.bbox[1] - r.reach
      and s.region[2] * i.height < f.bbox[2] + f.bbox[4] + r.reach
      and (s.region[2] + s.region[4]) * i.height > f.bbox[2] - r.reach
), noted as (
    insert into blob_deletions (key) select distinct chip_key from shown
    on conflict (key) do update set requested_at = now(), deleted_at = null
)
update faces f set chip_key = null from shown where f.id = shown.id;
