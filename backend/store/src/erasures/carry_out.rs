//! Carries out a planned erasure, and repeats erasures after a backup is restored.
//!
//! Only an erasure deletes people and clusters that have no faces left, with their names, external
//! ids and metadata. The deletion of a face or an image does not delete people. After a backup is
//! restored, only the people in the deletion log are deleted.
use super::{Plan, PlannedFace};
use crate::StoreError;
use crate::blobs::deletions::enqueue_blob_deletions;
use crate::blobs::parts::{FaceParts, ImageParts};
use crate::db::deletions::{ErasureOutcome, LedgerJobs, set_tombstones};
use crate::db::values::to_box;
use crate::erasures::traces::Traces;
use crate::faces::CROP_MARGIN;
use crate::images::delete_images;
use crate::store::Erasures;
use crate::videos::{delete_ended_files, delete_video_rows, frames_of};
use sqlx::{AssertSqlSafe, FromRow, PgConnection};
use std::collections::{BTreeMap, HashSet};
use uuid::Uuid;

/// Number of images that one statement deletes, with all dependent rows.
const IMAGES_PER_STATEMENT: usize = 1_000;

impl Erasures<'_> {
    /// Carries out a plan in the transaction that created it. Also removes the URLs of erased
    /// images, and of videos without remaining faces, from ledger rows and from all other records
    /// of where they were found.
    pub async fn carry_out(self, conn: &mut PgConnection, plan: &Plan) -> Result<ErasureOutcome, StoreError> {
        let faces = plan.faces.iter().map(|face| &face.id);
        let deleted_ids: Vec<Uuid> =
            faces.chain(&plan.images).chain(&plan.subjects).chain(&plan.videos).copied().collect();
        let affected = plan.faces.iter().map(|face| &face.image_id);
        let affected: Vec<Uuid> = affected.chain(&plan.images).copied().collect();
        set_tombstones(conn, &deleted_ids, &affected).await?;
        let mut keys = Vec::new();
        let mut traces = Traces::new(plan.collection);
        let mut videos = Vec::new();
        for images in plan.images.chunks(IMAGES_PER_STATEMENT) {
            let query = "select distinct video_id from video_frames where image_id = any($1)";
            let video_ids: Vec<Uuid> = sqlx::query_scalar(query).bind(images).fetch_all(&mut *conn).await?;
            videos.extend(video_ids);
            traces.erase_image_traces(conn, images).await?;
            keys.extend(delete_images(conn, images).await?.1);
        }
        let mut without_address = without_frames(conn, &videos).await?;
        without_address.extend(&plan.videos);
        traces.erase_video_traces(conn, &without_address).await?;
        keys.extend(delete_video_rows(conn, &plan.videos).await?);
        if !plan.addresses.is_empty() {
            traces.erase_addresses(conn, &plan.addresses).await?;
        }
        traces.finish(conn).await?;
        let erased_images: HashSet<Uuid> = plan.images.iter().copied().collect();
        let mut by_image: BTreeMap<Uuid, Vec<&PlannedFace>> = BTreeMap::new();
        for face in plan.faces.iter().filter(|face| !erased_images.contains(&face.image_id)) {
            by_image.entry(face.image_id).or_default().push(face);
        }
        for (image, faces) in by_image {
            keys.extend(erase_faces(conn, image, &faces).await?);
        }
        // The file of a failed video shows the erased faces.
        delete_ended_files(conn, &videos).await?;
        sqlx::query("delete from subjects where id = any($1)")
            .bind(&plan.subjects)
            .execute(&mut *conn)
            .await?;
        Ok(ErasureOutcome { blobs: enqueue_blob_deletions(conn, keys).await?, jobs: traces.jobs })
    }
}

/// Erases single faces of an image that is kept.
async fn erase_faces(
    conn: &mut PgConnection,
    image: Uuid,
    faces: &[&PlannedFace],
) -> Result<Vec<String>, StoreError> {
    let ids: Vec<Uuid> = faces.iter().map(|face| face.id).collect();
    let deleted: Vec<FaceParts> = sqlx::query_as(
        "delete from faces where id = any($1)
         returning parts_key, parts_offset, crop_bytes, chip_bytes, crop_key, chip_key",
    )
    .bind(&ids)
    .fetch_all(&mut *conn)
    .await?;
    let mut keys: Vec<String> = deleted.iter().flat_map(FaceParts::keys).collect();
    keys.extend(erase_from_neighbours(conn, image, faces).await?);
    let stored: ImageParts =
        sqlx::query_as("select parts_key, thumbnail_bytes, thumbnail_key from images where id = $1")
            .bind(image)
            .fetch_one(&mut *conn)
            .await?;
    keys.extend(stored.keys());
    sqlx::query(
        "update images set thumbnail_bytes = case when parts_key is not null then 0 end, thumbnail_key = null,
                           face_count = (select count(*) from faces where image_id = $1)
         where id = $1",
    )
    .bind(image)
    .execute(conn)
    .await?;
    Ok(keys)
}

/// Removes the crops and chips of remaining faces that contain a part of an erased face, and
/// returns the keys of their blobs. They cannot be recreated, because original images are not kept.
/// A face without its chip keeps its embedding.
async fn erase_from_neighbours(
    conn: &mut PgConnection,
    image: Uuid,
    faces: &[&PlannedFace],
) -> Result<Vec<String>, StoreError> {
    let neighbours: Vec<Neighbour> = sqlx::query_as(
        "select f.id, bbox, landmarks, coalesce(f.parts_key, i.parts_key) as parts_key, parts_offset, crop_bytes, chip_bytes,
                crop_key, chip_key
         from faces f join images i on i.id = f.image_id where image_id = $1",
    )
    .bind(image)
    .fetch_all(&mut *conn)
    .await?;
    let (mut without_crop, mut without_chip, mut keys) = (Vec::new(), Vec::new(), Vec::new());
    for neighbour in neighbours {
        let bbox = to_box(&neighbour.bbox);
        let in_crop = faces.iter().any(|face| crop_contains(bbox, face.bbox));
        let in_chip = faces.iter().any(|face| chip_contains(&neighbour.landmarks, face.bbox));
        without_crop.extend(in_crop.then_some(neighbour.id));
        without_chip.extend(in_chip.then_some(neighbour.id));
        let parts = [(in_crop, neighbour.parts.crop()), (in_chip, neighbour.parts.chip())];
        keys.extend(parts.into_iter().filter(|(erased, _)| *erased).filter_map(|(_, part)| Some(part?.key)));
    }
    for (statement, ids) in [
        // The chip follows the crop.
        (
            "update faces set crop_key = null, parts_offset = parts_offset + crop_bytes,
                              crop_bytes = case when crop_bytes is not null then 0 end
             where id = any($1)",
            without_crop,
        ),
        (
            "update faces set chip_key = null, chip_bytes = case when chip_bytes is not null then 0 end where id = any($1)",
            without_chip,
        ),
    ] {
        sqlx::query(statement).bind(ids).execute(&mut *conn).await?;
    }
    Ok(keys)
}

#[derive(FromRow)]
struct Neighbour {
    id: Uuid,
    bbox: Vec<f32>,
    landmarks: Vec<f32>,
    #[sqlx(flatten)]
    parts: FaceParts,
}

/// Returns `true` if the crop of the box `face` contains a part of the box `erased`.
fn crop_contains(face: [f32; 4], erased: [f32; 4]) -> bool {
    let border = CROP_MARGIN * face[2].max(face[3]) + 1.0;
    let is_disjoint = |axis: usize| {
        let (low, high) = (face[axis] - border, face[axis] + face[axis + 2] + border);
        erased[axis] >= high || erased[axis] + erased[axis + 2] <= low
    };
    !is_disjoint(0) && !is_disjoint(1)
}

/// Landmark positions in a chip.
const TEMPLATE: [[f64; 2]; 5] =
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]];
const CHIP_SIDE: f64 = 112.0;
/// Margin, in pixels of the image, from which interpolation can add pixels to the edge of a chip,
/// even if the image was upscaled first.
const INTERPOLATION_MARGIN: f64 = 4.0;

/// Returns `true` if the chip of a face with these landmarks may contain a part of `erased`.
/// `landmarks` are x, y pairs; `erased` is a box: x, y, width, height. Also returns `true` if no
/// chip can be cut from the landmarks.
fn chip_contains(landmarks: &[f32], erased: [f32; 4]) -> bool {
    let Some([left, top, right, bottom]) = footprint(landmarks) else { return true };
    let [x, y, width, height] = erased.map(f64::from);
    x < right + INTERPOLATION_MARGIN
        && x + width > left - INTERPOLATION_MARGIN
        && y < bottom + INTERPOLATION_MARGIN
        && y + height > top - INTERPOLATION_MARGIN
}

/// Returns the bounding box of a chip: left, top, right, bottom in pixels of the image.
fn footprint(landmarks: &[f32]) -> Option<[f64; 4]> {
    let from: Vec<[f64; 2]> =
        landmarks.as_chunks::<2>().0.iter().map(|[x, y]| [f64::from(*x), f64::from(*y)]).collect();
    let mean = |points: &[[f64; 2]], axis: usize| points.iter().map(|point| point[axis]).sum::<f64>() / 5.0;
    let (fx, fy) = (mean(&from, 0), mean(&from, 1));
    let (tx, ty) = (mean(&TEMPLATE, 0), mean(&TEMPLATE, 1));
    let (mut along, mut across, mut spread) = (0.0, 0.0, 0.0);
    for (f, t) in from.iter().zip(&TEMPLATE) {
        let (ux, uy, vx, vy) = (f[0] - fx, f[1] - fy, t[0] - tx, t[1] - ty);
        along += ux * vx + uy * vy;
        across += ux * vy - uy * vx;
        spread += ux * ux + uy * uy;
    }
    let (a, b) = (along / spread, across / spread);
    let square = a * a + b * b;
    if from.len() != 5 || !square.is_finite() || square < 1e-12 {
        return None;
    }
    let corners = [[0.0, 0.0], [CHIP_SIDE, 0.0], [0.0, CHIP_SIDE], [CHIP_SIDE, CHIP_SIDE]].map(|[u, v]| {
        let (du, dv) = (u - tx, v - ty);
        [fx + (a * du + b * dv) / square, fy + (a * dv - b * du) / square]
    });
    let min = |axis: usize| corners.iter().map(|corner| corner[axis]).fold(f64::INFINITY, f64::min);
    let max = |axis: usize| corners.iter().map(|corner| corner[axis]).fold(f64::NEG_INFINITY, f64::max);
    Some([min(0), min(1), max(0), max(1)])
}

/// Returns the ended videos that have no frames left, and the videos of the same files, which have
/// the same addresses.
async fn without_frames(conn: &mut PgConnection, videos: &[Uuid]) -> Result<Vec<Uuid>, StoreError> {
    Ok(sqlx::query_scalar(
        "with empty as (
             select id from videos v where id = any($1) and finished_at is not null
             and not exists (select 1 from video_frames f where f.video_id = v.id))
         select id from videos where id in (select id from empty) or original_id in (select id from empty)
         order by id for update",
    )
    .bind(videos)
    .fetch_all(conn)
    .await?)
}

/// Maximum number of faces, images, subjects and videos (each) per call of
/// `store.erasures().reapply`.
const BATCH: i64 = 500;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepeatedErasure {
    /// Number of faces, including those of whole images.
    pub faces: u64,
    /// Number of whole images.
    pub images: u64,
    pub subjects: u64,
    pub videos: u64,
    /// Number of pages and image URLs whose addresses were erased.
    pub addresses: u64,
    /// Blobs to delete after the commit.
    pub blobs: Vec<String>,
    /// Jobs whose records contain an erased URL. Clear these records in the same transaction.
    pub jobs: LedgerJobs,
}

impl RepeatedErasure {
    pub fn is_empty(&self) -> bool {
        self.faces + self.images + self.subjects + self.videos + self.addresses == 0
    }
}

impl Erasures<'_> {
    /// Deletes rows of the collection that have tombstones, as an erasure would. Call it until the
    /// result is empty. Reads every row of the collection, without a statement timeout.
    pub async fn reapply(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
    ) -> Result<RepeatedErasure, StoreError> {
        sqlx::query("set local statement_timeout = 0").execute(&mut *conn).await?;
        self.0.suppressions().lock(conn, collection, true).await?;
        let mut images = rows_with_tombstones(conn, "images", collection).await?;
        let faces = rows_with_tombstones(conn, "faces", collection).await?;
        let subjects = rows_with_tombstones(conn, "subjects", collection).await?;
        let mut videos = Vec::new();
        // A video has many frames, so it is deleted after them.
        if (images.len() as i64) < BATCH {
            videos = rows_with_tombstones(conn, "videos", collection).await?;
            images.extend(frames_of(conn, &videos).await?);
        }
        // The erasure of an image also erases the address of its row, so addresses come last.
        let mut addresses = Vec::new();
        if images.is_empty() {
            for table in ["pages", "image_urls"] {
                addresses.extend(addresses_with_tombstones(conn, table, collection).await?);
            }
        }
        let mut plan = Plan { videos, ..Plan::from_rows(conn, collection, &images, &faces, subjects).await? };
        plan.addresses.clone_from(&addresses);
        let (faces, images) = (plan.faces.len() as u64, plan.images.len() as u64);
        let (subjects, videos) = (plan.subjects.len() as u64, plan.videos.len() as u64);
        let ErasureOutcome { blobs, jobs } = self.carry_out(conn, &plan).await?;
        let addresses = addresses.len() as u64;
        Ok(RepeatedErasure { faces, images, subjects, videos, addresses, blobs, jobs })
    }
}

/// Returns the rows of the collection in a table that have tombstones.
async fn rows_with_tombstones(
    conn: &mut PgConnection,
    table: &'static str,
    collection: Uuid,
) -> Result<Vec<Uuid>, StoreError> {
    // Built at run time from the name of the table, which is one of four constants.
    let sql = format!(
        "select r.id from {table} r join tombstones t on t.digest = sha256(uuid_send(r.id))
         where r.collection_id = $1 order by r.id limit $2"
    );
    Ok(sqlx::query_scalar(AssertSqlSafe(sql)).bind(collection).bind(BATCH).fetch_all(conn).await?)
}

/// Returns the addresses of ended rows of a ledger that have tombstones and are not erased.
async fn addresses_with_tombstones(
    conn: &mut PgConnection,
    table: &'static str,
    collection: Uuid,
) -> Result<Vec<String>, StoreError> {
    // Only the rows that led to no image can still be erased by their address.
    let without_image = if table == "image_urls" { "and r.image_id is null" } else { "" };
    // Built at run time from the name of the table, which is one of two constants.
    let sql = format!(
        "select distinct r.url from crawls c join {table} r on r.crawl_id = c.id
         join tombstones t on t.digest = sha256(uuid_send(r.id))
         where c.collection_id = $1 and r.state <> 'queued' and r.url <> 'erased:' || r.id {without_image}
         order by r.url limit $2"
    );
    Ok(sqlx::query_scalar(AssertSqlSafe(sql)).bind(collection).bind(BATCH).fetch_all(conn).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chip_shows_only_boxes_overlapping_its_footprint() {
        // Scale 2 and an offset: the chip covers x from 100 to 324 and y from 50 to 274.
        let landmarks: Vec<f32> =
            TEMPLATE.iter().flat_map(|[x, y]| [(100.0 + 2.0 * x) as f32, (50.0 + 2.0 * y) as f32]).collect();
        for (x, shown) in [(330.0, false), (327.0, true), (200.0, true), (40.0, false), (50.0, true)] {
            assert_eq!(chip_contains(&landmarks, [x, 100.0, 50.0, 50.0]), shown, "{x}");
        }
        assert!(!chip_contains(&landmarks, [200.0, 280.0, 50.0, 50.0]));
        assert!(
            chip_contains(&[1.0; 10], [900.0, 900.0, 5.0, 5.0]),
            "a chip with degenerate landmarks may contain any box"
        );
        assert!(chip_contains(&[], [900.0, 900.0, 5.0, 5.0]));
    }
}
