//! Reads, inserts and deletes images, and finds candidates for near-duplicates. The candidates
//! include every image that `vision::PerceptualHashes::is_near` accepts.
//!
//! Each 64-bit hash is divided into four bands of 16 bits, with an index per band. If at most
//! [`NEAR_PHASH_BITS`] bits of phash differ, at least one band differs in at most two bits. (Three
//! or more in each band would be at least twelve bits.) The query looks up these 137 values of
//! every band. If at most [`WATERMARK_DHASH_BITS`] bits of dhash differ, at least one band differs
//! in at most one bit, which gives 17 values.
pub mod sources;
pub mod storing;
pub(crate) mod supersede;
use crate::StoreError;
use crate::blobs::deletions::enqueue_blob_deletions;
use crate::blobs::parts::{FaceParts, ImageParts, NewImageParts};
use crate::db::deletions::set_tombstones;
pub use crate::images::sources::{MAX_SOURCES, Source};
use crate::index::scope::push_images_of_crawl;
use crate::store::Images;
use sqlx::{AssertSqlSafe, PgConnection, PgExecutor, Postgres, QueryBuilder};
use std::collections::HashSet;
use time::OffsetDateTime;
use uuid::Uuid;

#[derive(Clone, Debug)]
pub struct NewImage {
    /// Its id (UUIDv7).
    pub id: Uuid,
    /// SHA-256 of the file.
    pub sha256: [u8; 32],
    /// Perceptual hash (DCT).
    pub phash: i64,
    /// Perceptual hash (gradients).
    pub dhash: i64,
    /// Perceptual hash (mean).
    pub ahash: i64,
    /// Width of the upright image in pixels.
    pub width: i32,
    /// Height of the upright image in pixels.
    pub height: i32,
    /// File format, such as `jpeg`.
    pub format: String,
    pub bytes: i64,
    /// Clockwise rotation in degrees that makes the faces upright.
    pub rotation: i32,
    /// Its blob.
    pub parts: Option<NewImageParts>,
}

#[derive(Clone, Debug, serde::Serialize, sqlx::FromRow)]
pub struct Image {
    pub id: Uuid,
    pub collection_id: Uuid,
    pub collection: String,
    /// SHA-256 of the file; for the frame of a video, of the video's id and the time.
    pub sha256: Vec<u8>,
    /// Perceptual hash (DCT); `None` for the frame of a video, like the other hashes.
    pub phash: Option<i64>,
    pub dhash: Option<i64>,
    pub ahash: Option<i64>,
    /// Width of the upright image in pixels.
    pub width: i32,
    /// Height of the upright image in pixels.
    pub height: i32,
    /// File format, such as `jpeg`; `video_frame` for the frame of a video.
    pub format: String,
    /// Size of the file in bytes; 0 for the frame of a video.
    pub bytes: i64,
    /// Clockwise rotation in degrees that makes the faces upright.
    pub rotation: i32,
    pub face_count: i32,
    /// Where its thumbnail is.
    #[serde(skip)]
    #[sqlx(flatten)]
    pub parts: ImageParts,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// A stored image with the bytes of an incoming file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownImage {
    pub id: Uuid,
    pub face_count: i32,
}

#[derive(Clone, Debug, Default)]
pub struct ImageFilter {
    pub collection: String,
    /// Only images found by this crawl.
    pub crawl_id: Option<Uuid>,
    /// Only images with faces (`true`) or without (`false`).
    pub has_faces: Option<bool>,
}

/// Maximum number of candidates that `store.images().near_candidates` returns.
const MAX_CANDIDATES: i64 = 64;

macro_rules! select_images {
    ($tail:literal) => {
        concat!(
            "select i.id, i.collection_id, c.name as collection, i.sha256, i.phash, i.dhash, i.ahash, i.width, i.height, ",
            "i.format, i.bytes, i.rotation, i.face_count, i.parts_key, i.thumbnail_bytes, i.thumbnail_key, i.created_at ",
            "from images i join collections c on c.id = i.collection_id ",
            $tail
        )
    };
}

impl Images<'_> {
    /// Returns whether the collection has suppressions, and the stored image with these bytes.
    pub async fn known(
        self,
        collection: Uuid,
        sha256: &[u8; 32],
    ) -> Result<(bool, Option<KnownImage>), StoreError> {
        let (has_suppressions, id, face_count): (bool, Option<Uuid>, Option<i32>) = sqlx::query_as(
            "select exists(select from suppressions where collection_id = $1), i.id, i.face_count
             from (values (1)) one left join images i on i.collection_id = $1 and i.sha256 = $2",
        )
        .bind(collection)
        .bind(sha256.as_slice())
        .fetch_one(&self.0.pool)
        .await?;
        Ok((has_suppressions, id.zip(face_count).map(|(id, face_count)| KnownImage { id, face_count })))
    }

    /// Returns images of the collection that may be near-duplicates, nearest first. The distance is
    /// the number of differing bits of phash plus dhash. The caller decides with
    /// `vision::PerceptualHashes::is_near`.
    ///
    /// The candidates are all images whose phash differs in at most [`NEAR_PHASH_BITS`] bits. They
    /// also include all images whose dhash differs in at most [`WATERMARK_DHASH_BITS`] bits and
    /// whose phash differs in at most [`WATERMARK_PHASH_BITS`]. At most the 64 nearest are
    /// returned.
    pub async fn near_candidates(
        self,
        executor: impl PgExecutor<'_>,
        collection: Uuid,
        phash: i64,
        dhash: i64,
    ) -> Result<Vec<Image>, StoreError> {
        // Built at run time, because several queries share the part for candidates.
        let sql = format!(
            "{} where i.id in ({})
             order by bit_count((i.phash # $2)::bit(64)) + bit_count((i.dhash # $3)::bit(64)), i.id limit $4",
            select_images!(""),
            candidates_sql("images", &CandidateHashes::PARAMETERS)
        );
        Ok(sqlx::query_as(AssertSqlSafe(sql))
            .bind(collection)
            .bind(phash)
            .bind(dhash)
            .bind(MAX_CANDIDATES)
            .fetch_all(executor)
            .await?)
    }

    /// Acquires advisory locks with these keys and holds them until the transaction ends.
    /// Transactions that must see each other's changes use the same keys. The keys are locked in
    /// order, which prevents deadlocks.
    pub async fn lock_near_keys(self, conn: &mut PgConnection, keys: &[i64]) -> Result<(), StoreError> {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        sqlx::query("select pg_advisory_xact_lock(key) from unnest($1::bigint[]) as locks(key)")
            .bind(&keys)
            .execute(conn)
            .await?;
        Ok(())
    }

    /// Inserts an image. Returns `Err` with the id of the existing image if the collection already
    /// contains the same bytes. Waits for other transactions that insert the same bytes.
    pub async fn insert(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        image: &NewImage,
    ) -> Result<Result<(), Uuid>, StoreError> {
        // The existing row may be deleted before it can be read. The insert is then retried.
        for _ in 0..3 {
            if !insert_rows(conn, vec![(collection, image, 0)]).await?.is_empty() {
                return Ok(Ok(()));
            }
            // `for share` prevents the existing image from being deleted or replaced before this
            // transaction has linked to it.
            let existing = sqlx::query_scalar(
                "select id from images where collection_id = $1 and sha256 = $2 for share",
            )
            .bind(collection)
            .bind(image.sha256.as_slice())
            .fetch_optional(&mut *conn)
            .await?;
            if let Some(existing) = existing {
                return Ok(Err(existing));
            }
        }
        Err(StoreError::Conflict("the same image is stored and deleted repeatedly; try again".into()))
    }

    pub async fn get(self, id: Uuid) -> Result<Image, StoreError> {
        sqlx::query_as(select_images!("where i.id = $1 and ($2::uuid is null or i.collection_id = $2)"))
            .bind(id)
            .bind(self.0.collection_scope)
            .fetch_optional(&self.0.pool)
            .await?
            .ok_or_else(|| StoreError::not_found("image", id))
    }

    /// Returns images, newest first.
    pub async fn list(
        self,
        filter: &ImageFilter,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<Image>, StoreError> {
        let collection = self.0.collections().get(&filter.collection).await?.id;
        let mut query = QueryBuilder::<Postgres>::new(select_images!("where i.collection_id = "));
        query.push_bind(collection);
        if let Some(crawl) = filter.crawl_id {
            query.push(" and i.id in ");
            push_images_of_crawl(&mut query, crawl);
        }
        if let Some(has_faces) = filter.has_faces {
            query.push(" and (i.face_count > 0) = ").push_bind(has_faces);
        }
        if let Some(before) = before {
            query.push(" and i.id < ").push_bind(before);
        }
        query.push(" order by i.id desc limit ").push_bind(limit.max(0));
        Ok(query.build_query_as().fetch_all(&self.0.pool).await?)
    }

    /// Returns images by id, oldest first. Missing images are omitted.
    pub(crate) async fn by_ids(self, ids: &[Uuid]) -> Result<Vec<Image>, StoreError> {
        Ok(sqlx::query_as(select_images!("where i.id = any($1) order by i.id"))
            .bind(ids)
            .fetch_all(&self.0.pool)
            .await?)
    }
}

/// Inserts images with their collection and the number of their faces, and returns the ids of the
/// inserted ones. An image is not inserted if its collection contains the same bytes.
async fn insert_rows(
    conn: &mut PgConnection,
    mut rows: Vec<(Uuid, &NewImage, usize)>,
) -> Result<HashSet<Uuid>, StoreError> {
    // All transactions insert in the same order, which prevents deadlocks.
    rows.sort_by_key(|(collection, image, _)| (*collection, image.sha256));
    macro_rules! column {
        ($get:expr) => {
            rows.iter().map(|(_, image, _)| *image).map($get).collect::<Vec<_>>()
        };
    }
    let face_counts = rows.iter().map(|(.., count)| i32::try_from(*count).unwrap_or(i32::MAX));
    let inserted: Vec<Uuid> = sqlx::query_scalar(
        "insert into images (id, collection_id, sha256, phash, dhash, ahash, width, height, format, bytes, rotation,
                             parts_key, thumbnail_bytes, face_count)
         select * from unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bigint[], $7::int[],
                              $8::int[], $9::text[], $10::bigint[], $11::int[], $12::text[], $13::int[], $14::int[])
         on conflict (collection_id, sha256) do nothing returning id",
    )
    .bind(column!(|image| image.id))
    .bind(rows.iter().map(|(collection, ..)| *collection).collect::<Vec<Uuid>>())
    .bind(column!(|image| image.sha256.as_slice()))
    .bind(column!(|image| image.phash))
    .bind(column!(|image| image.dhash))
    .bind(column!(|image| image.ahash))
    .bind(column!(|image| image.width))
    .bind(column!(|image| image.height))
    .bind(column!(|image| image.format.as_str()))
    .bind(column!(|image| image.bytes))
    .bind(column!(|image| image.rotation))
    .bind(column!(|image| image.parts.as_ref().map(|parts| parts.key.as_str())))
    .bind(column!(|image| image.parts.as_ref().map(|parts| parts.thumbnail_bytes)))
    .bind(face_counts.collect::<Vec<i32>>())
    .fetch_all(conn)
    .await?;
    Ok(inserted.into_iter().collect())
}

/// Maximum number of differing phash bits of a candidate, regardless of its dhash.
pub const NEAR_PHASH_BITS: u32 = 11;
/// Maximum number of dhash bits in which an image and its copy with a watermark differ. A watermark
/// changes many bits of the phash.
pub const WATERMARK_DHASH_BITS: u32 = 4;
/// Maximum number of phash bits in which an image and its copy with a watermark differ.
pub const WATERMARK_PHASH_BITS: u32 = 24;

/// SQL expressions of the image for which [`candidates_sql`] searches.
pub(crate) struct CandidateHashes {
    pub(crate) collection: &'static str,
    pub(crate) phash: &'static str,
    pub(crate) dhash: &'static str,
}

impl CandidateHashes {
    /// The first three parameters of a statement.
    pub(crate) const PARAMETERS: Self = Self { collection: "$1", phash: "$2::bigint", dhash: "$3::bigint" };
}

/// Builds a query for the ids of candidates in `table`.
pub(crate) fn candidates_sql(table: &str, hashes: &CandidateHashes) -> String {
    let CandidateHashes { collection, phash, dhash } = hashes;
    let distance = |column: &str, hash: &str| format!("bit_count(({column} # {hash})::bit(64))");
    let is_near = format!("{} <= {NEAR_PHASH_BITS}", distance("phash", phash));
    let is_watermarked = format!(
        "{} <= {WATERMARK_DHASH_BITS} and {} <= {WATERMARK_PHASH_BITS}",
        distance("dhash", dhash),
        distance("phash", phash)
    );
    // The database computes the values of each band, so that the statement has few parameters. The
    // planner does not know these values, so it does not estimate the rows for each value. These
    // estimates would take longer than the execution.
    //
    // Each branch checks the distances itself with an index-only scan, because hundreds of rows per
    // million share a band without being near.
    let branch = |column: &str, hash: &str, band: usize, max_bits: u32, condition: &str| {
        let shift = 48 - 16 * band;
        let column = if shift == 0 { column.to_owned() } else { format!("({column} >> {shift})") };
        let masks = near_masks(max_bits).iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        format!(
            "select id from {table} where collection_id = {collection} and phash is not null
                 and ({column} & 65535) = any(array(
                     select (({hash} >> {shift}) & 65535) # mask from unnest('{{{masks}}}'::bigint[]) as masks (mask)))
                 and {condition}"
        )
    };
    let by_phash = (0..4).map(|band| branch("phash", phash, band, 2, &is_near));
    let by_dhash = (0..4).map(|band| branch("dhash", dhash, band, 1, &is_watermarked));
    by_phash.chain(by_dhash).collect::<Vec<String>>().join(" union ")
}

/// Returns all 16-bit values with at most `max_bits` set bits. `max_bits` is one or two.
fn near_masks(max_bits: u32) -> Vec<i64> {
    let mut masks = vec![0];
    for first in 0..16 {
        masks.push(1 << first);
        if max_bits > 1 {
            masks.extend((0..first).map(|second| (1 << first) | (1 << second)));
        }
    }
    masks
}

impl Images<'_> {
    /// Deletes an image with its faces and sources. Ledger rows that led to the image are kept, but
    /// no longer refer to it. Returns the blob keys to delete after the commit.
    pub async fn delete(self, conn: &mut PgConnection, id: Uuid) -> Result<Vec<String>, StoreError> {
        let ids: Vec<Uuid> = sqlx::query_scalar(
            "select id from images where id = $1 and ($2::uuid is null or collection_id = $2) for update",
        )
        .bind(id)
        .bind(self.0.collection_scope)
        .fetch_all(&mut *conn)
        .await?;
        set_tombstones(conn, &ids, &ids).await?;
        let (deleted, keys) = delete_images(conn, &ids).await?;
        if deleted == 0 {
            return Err(StoreError::not_found("image", id));
        }
        enqueue_blob_deletions(conn, keys).await
    }
}

/// Locks images in id order. A transaction that locks several of these locks them in the order
/// subjects, images, faces, assignments.
pub(crate) async fn lock_images(conn: &mut PgConnection, ids: &[Uuid]) -> Result<(), StoreError> {
    sqlx::query("select 1 from images where id = any($1) order by id for update")
        .bind(ids)
        .execute(conn)
        .await?;
    Ok(())
}

/// Deletes images with all dependent rows. Returns their number and all their blob keys.
pub(crate) async fn delete_images(
    conn: &mut PgConnection,
    ids: &[Uuid],
) -> Result<(u64, Vec<String>), StoreError> {
    // No transaction can add a face to a locked image.
    lock_images(conn, ids).await?;
    let faces: Vec<FaceParts> = sqlx::query_as(
        "delete from faces where image_id = any($1)
         returning parts_key, parts_offset, crop_bytes, chip_bytes, crop_key, chip_key",
    )
    .bind(ids)
    .fetch_all(&mut *conn)
    .await?;
    let images: Vec<ImageParts> = sqlx::query_as(
        "delete from images where id = any($1) returning parts_key, thumbnail_bytes, thumbnail_key",
    )
    .bind(ids)
    .fetch_all(conn)
    .await?;
    let deleted = images.len() as u64;
    let keys = faces.iter().flat_map(FaceParts::keys);
    Ok((deleted, keys.chain(images.iter().flat_map(ImageParts::keys)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_masks_contain_each_value_once() {
        for (max_bits, count) in [(1, 17), (2, 137)] {
            let mut masks = near_masks(max_bits);
            assert!(masks.iter().all(|mask| mask.count_ones() <= max_bits && *mask < 1 << 16));
            masks.sort_unstable();
            masks.dedup();
            assert_eq!(masks.len(), count);
        }
    }
}
