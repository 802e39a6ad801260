//! Carries out a planned erasure.
use super::chip::chip_shows;
use super::{Plan, PlannedFace};
use crate::blobs::deletions::enqueue_blob_deletions;
use crate::erasures::deletion::delete_images;
use crate::erasures::tombstones;
use crate::erasures::traces::videos::{emptied, videos_of_frames};
use crate::erasures::traces::{LedgerJobs, Traces};
use crate::faces::CROP_MARGIN;
use crate::videos::{delete_video_rows, drop_files_of_ended};
use crate::{Store, StoreError};
use sqlx::{FromRow, PgConnection};
use std::collections::{BTreeMap, HashSet};
use uuid::Uuid;

/// Number of images that one statement deletes, with all dependent rows.
const IMAGES: usize = 1_000;

impl Store {
    /// Carries out a plan in the transaction that created it. Also removes the URLs of erased
    /// images, and of videos without remaining faces, from ledger rows and from all other records
    /// of where they were found.
    pub async fn carry_out(&self, conn: &mut PgConnection, plan: &Plan) -> Result<CarriedOut, StoreError> {
        let faces = plan.faces.iter().map(|face| &face.id);
        let gone: Vec<Uuid> =
            faces.chain(&plan.images).chain(&plan.subjects).chain(&plan.videos).copied().collect();
        let touched = plan.faces.iter().map(|face| &face.image_id);
        let touched: Vec<Uuid> = touched.chain(&plan.images).copied().collect();
        tombstones::set(conn, &gone, &touched).await?;
        let mut keys = Vec::new();
        let mut traces = Traces::new(plan.collection);
        let mut videos = Vec::new();
        for images in plan.images.chunks(IMAGES) {
            videos.extend(videos_of_frames(conn, images).await?);
            traces.erase_image_traces(conn, images).await?;
            keys.extend(delete_images(conn, images).await?.1);
        }
        let mut without_address = emptied(conn, &videos).await?;
        without_address.extend(&plan.videos);
        traces.erase_video_traces(conn, &without_address).await?;
        keys.extend(delete_video_rows(conn, &plan.videos).await?);
        if !plan.addresses.is_empty() {
            traces.erase_addresses_of_images(conn, &plan.addresses).await?;
            traces.erase_page_traces(conn, &plan.addresses).await?;
        }
        traces.finish(conn).await?;
        let whole: HashSet<Uuid> = plan.images.iter().copied().collect();
        let mut single: BTreeMap<Uuid, Vec<&PlannedFace>> = BTreeMap::new();
        for face in plan.faces.iter().filter(|face| !whole.contains(&face.image_id)) {
            single.entry(face.image_id).or_default().push(face);
        }
        for (image, faces) in single {
            keys.extend(erase_faces(conn, image, &faces).await?);
        }
        // The file of a failed video shows the erased faces.
        drop_files_of_ended(conn, &videos).await?;
        sqlx::query("delete from subjects where id = any($1)")
            .bind(&plan.subjects)
            .execute(&mut *conn)
            .await?;
        Ok(CarriedOut { blobs: enqueue_blob_deletions(conn, keys).await?, jobs: traces.jobs })
    }
}

/// The remaining work for the caller of [`Store::carry_out`].
#[derive(Clone, Debug, Default)]
pub struct CarriedOut {
    /// Blobs to delete after the commit.
    pub blobs: Vec<String>,
    /// Jobs whose records contain an erased URL. Clear these records in the same transaction.
    pub jobs: LedgerJobs,
}

/// Erases single faces of an image that is kept.
async fn erase_faces(
    conn: &mut PgConnection,
    image: Uuid,
    faces: &[&PlannedFace],
) -> Result<Vec<String>, StoreError> {
    let ids: Vec<Uuid> = faces.iter().map(|face| face.id).collect();
    let gone: Vec<(Option<String>, Option<String>)> =
        sqlx::query_as("delete from faces where id = any($1) returning chip_key, crop_key")
            .bind(&ids)
            .fetch_all(&mut *conn)
            .await?;
    let mut keys: Vec<Option<String>> = gone.into_iter().flat_map(|(chip, crop)| [chip, crop]).collect();
    keys.extend(erase_in_neighbours(conn, image, faces).await?);
    let thumbnail: Option<String> = sqlx::query_scalar("select thumbnail_key from images where id = $1")
        .bind(image)
        .fetch_one(&mut *conn)
        .await?;
    keys.push(thumbnail);
    sqlx::query(
        "update images set thumbnail_key = null, face_count = (select count(*) from faces where image_id = $1)
         where id = $1",
    )
    .bind(image)
    .execute(conn)
    .await?;
    Ok(keys.into_iter().flatten().collect())
}

/// Removes those crops and chips of the remaining faces that contain a part of an erased face, and
/// returns their keys. The service cannot cut them again, because it does not keep originals. A
/// face without its chip keeps its embedding.
async fn erase_in_neighbours(
    conn: &mut PgConnection,
    image: Uuid,
    faces: &[&PlannedFace],
) -> Result<Vec<Option<String>>, StoreError> {
    let others: Vec<Neighbour> =
        sqlx::query_as("select id, bbox, landmarks, crop_key, chip_key from faces where image_id = $1")
            .bind(image)
            .fetch_all(&mut *conn)
            .await?;
    let (mut without_crop, mut without_chip, mut keys) = (Vec::new(), Vec::new(), Vec::new());
    for other in others {
        let bbox = std::array::from_fn(|at| other.bbox.get(at).copied().unwrap_or_default());
        if faces.iter().any(|face| shows(bbox, face.bbox)) {
            without_crop.push(other.id);
            keys.push(other.crop_key);
        }
        if faces.iter().any(|face| chip_shows(&other.landmarks, face.bbox)) {
            without_chip.push(other.id);
            keys.push(other.chip_key);
        }
    }
    for (statement, ids) in [
        ("update faces set crop_key = null where id = any($1)", without_crop),
        ("update faces set chip_key = null where id = any($1)", without_chip),
    ] {
        sqlx::query(statement).bind(ids).execute(&mut *conn).await?;
    }
    Ok(keys)
}

/// A remaining face of the same image.
#[derive(FromRow)]
struct Neighbour {
    id: Uuid,
    bbox: Vec<f32>,
    landmarks: Vec<f32>,
    crop_key: Option<String>,
    chip_key: Option<String>,
}

/// Returns `true` if the crop of the face in box `of` contains a part of the box `other`.
fn shows(of: [f32; 4], other: [f32; 4]) -> bool {
    let border = CROP_MARGIN * of[2].max(of[3]) + 1.0;
    let apart = |at: usize| {
        let (low, high) = (of[at] - border, of[at] + of[at + 2] + border);
        other[at] >= high || other[at] + other[at + 2] <= low
    };
    !apart(0) && !apart(1)
}
