//! Plans an erasure: finds the data to delete and the required suppressions.
use super::Target;
use crate::StoreError;
use crate::db::values::{check_embedding, to_box, url_hashes, without_nul};
use crate::erasures::similar_faces;
use crate::erasures::suppressions::Suppression;
use crate::index::AllSimilar;
use crate::store::Erasures;
use crate::videos::crawled::videos_at;
use crate::videos::frames_of;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, FromRow, PgConnection, Row};
use std::collections::{HashMap, HashSet};
use uuid::Uuid;

/// Number of images whose rows and faces one step of a plan reads.
const IMAGES_PER_STEP: usize = 1_000;

/// A face to be erased. It has no embedding, because a plan can have a million faces.
#[derive(Clone, Debug)]
pub struct PlannedFace {
    pub id: Uuid,
    pub image_id: Uuid,
    /// Cosine similarity to the likeness, if the request contains one.
    pub similarity: Option<f32>,
    /// Whether the request itself covers this face. `false` for faces that are erased only because
    /// their image is.
    pub is_requested: bool,
    pub(super) bbox: [f32; 4],
}

#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Faces, including those of completely erased images.
    pub faces: Vec<PlannedFace>,
    /// Images that are erased completely.
    pub images: Vec<Uuid>,
    /// Number of faces of other embedding models, which could not be compared with the likeness.
    pub not_compared: i64,
    /// Suppressions of whole images and videos, and of single faces of other images.
    pub suppressions: Vec<Suppression>,
    /// People and clusters to erase: the requested one, and those that would have no faces.
    pub subjects: Vec<Uuid>,
    /// Videos that are erased completely: the requested one, those whose file is at the requested
    /// URL or that were found on the page with that URL, and other videos of the same files.
    pub videos: Vec<Uuid>,
    pub(crate) collection: Uuid,
    /// All spellings of the requested URL, if the request contains one.
    pub(crate) addresses: Vec<String>,
}

impl FromRow<'_, PgRow> for PlannedFace {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.try_get("id")?,
            image_id: row.try_get("image_id")?,
            similarity: row.try_get::<Option<f64>, _>("similarity")?.map(|cosine| cosine as f32),
            is_requested: false,
            bbox: to_box(&row.try_get::<Vec<f32>, _>("bbox")?),
        })
    }
}

#[derive(FromRow)]
struct ImageRow {
    id: Uuid,
    sha256: Vec<u8>,
    /// `None` for the frame of a video, like the other hashes.
    phash: Option<i64>,
    dhash: Option<i64>,
    ahash: Option<i64>,
    width: i32,
    height: i32,
    /// SHA-256 of the video's file, for a frame.
    video_sha256: Option<Vec<u8>>,
    at_us: Option<i64>,
}

impl ImageRow {
    /// Returns the suppression of one face, or of the whole image if `bbox` is `None`. A frame has
    /// no file that could be found again, so its faces are suppressed individually.
    fn suppression(&self, bbox: Option<[f32; 4]>) -> Option<Suppression> {
        let (width, height) = (self.width.max(1) as f32, self.height.max(1) as f32);
        let region = bbox.map(|[x, y, w, h]| [x / width, y / height, w / width, h / height]);
        if let Some(at_us) = self.at_us {
            let sha256 = self.video_sha256.clone()?;
            return Some(Suppression::VideoFace { sha256, at_us, region: region? });
        }
        Some(Suppression::Image {
            sha256: self.sha256.clone(),
            phash: self.phash?,
            dhash: self.dhash?,
            ahash: self.ahash?,
            region,
        })
    }
}

impl Erasures<'_> {
    /// Finds the data that the erasure deletes, and locks the images until the transaction ends.
    ///
    /// # Errors
    /// Fails with `NotFound` if the face, image or subject is not in the collection, and with
    /// `Invalid` if the embedding does not fit its model.
    pub async fn plan(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        target: &Target,
    ) -> Result<Plan, StoreError> {
        if self.0.collection_scope.is_some_and(|scope| scope != collection) {
            return Err(StoreError::not_found("collection", collection));
        }
        // Uses the transaction's own connection: all other connections may be waiting for the lock.
        let model = match target {
            Target::Likeness { embedding, model_id, .. } => {
                let model = self.0.models().get_in(&mut *conn, *model_id).await?;
                check_embedding(embedding, &model.name, model.dimensions)?;
                Some(model)
            }
            _ => None,
        };
        self.0.suppressions().lock(conn, collection, true).await?;
        let mut plan = Plan { collection, ..Plan::default() };
        if let Target::Url(spellings) = target {
            plan.addresses.extend(spellings.iter().map(|url| without_nul(url)));
        }
        let requested_images = match target {
            Target::Image(image) => vec![*image],
            Target::Url(_) => {
                let hashes = AddressHashes::read(conn, collection, &plan.addresses).await?;
                let AddressHashes { requested, all } = &hashes;
                let found = videos_at(conn, collection, &plan.addresses, all, requested).await?;
                plan.videos = videos_of_same_files(conn, collection, &found).await?;
                let mut images = images_at(conn, collection, &plan.addresses, &hashes).await?;
                images.extend(frames_of(conn, &plan.videos).await?);
                images
            }
            Target::Video(video) => {
                plan.videos = videos_of_same_files(conn, collection, &[*video]).await?;
                if plan.videos.is_empty() {
                    return Err(StoreError::not_found("video", video));
                }
                frames_of(conn, &plan.videos).await?
            }
            _ => Vec::new(),
        };
        let faces = match target {
            Target::Likeness { embedding, model_id, threshold } => {
                let query = "select count(*) from faces where collection_id = $1 and model_id <> $2";
                let query = sqlx::query_scalar(query).bind(collection).bind(model_id);
                plan.not_compared = query.fetch_one(&mut *conn).await?;
                match &model {
                    Some(model) => {
                        let (probe, threshold) = (embedding.as_slice(), *threshold);
                        let query = AllSimilar { collection_id: collection, model, probe, threshold };
                        similar_faces(self.0.index.as_ref(), conn, &query).await?
                    }
                    None => Vec::new(),
                }
            }
            Target::Face(face) => faces_where(conn, collection, "f.id = any($2)", &[*face]).await?,
            Target::Subject(subject) => {
                plan.subjects.push(*subject);
                let locked = "select 1 from subjects where collection_id = $1 and id = $2 for update";
                let locked = sqlx::query(locked).bind(collection).bind(subject).execute(&mut *conn).await?;
                if locked.rows_affected() == 0 {
                    return Err(StoreError::not_found("subject", subject));
                }
                let assigned = "f.id in (select face_id from subject_faces where collection_id = $1 and subject_id = any($2))";
                faces_where(conn, collection, assigned, &[*subject]).await?
            }
            Target::Image(_) | Target::Video(_) | Target::Url(_) => Vec::new(),
        };
        if let (Target::Face(face), true) = (target, faces.is_empty()) {
            return Err(StoreError::not_found("face", face));
        }
        let faces = add_track_faces(conn, collection, &requested_images, faces).await?;
        let subjects = lock_subjects_of(conn, collection, &requested_images, &faces).await?;
        plan.add_affected_images(conn, collection, &requested_images, faces).await?;
        plan.add_subjects_without_faces(conn, &subjects).await?;
        plan.suppress_files(conn, matches!(target, Target::Video(_))).await?;
        if let (Target::Image(image), true) = (target, plan.images.is_empty()) {
            return Err(StoreError::not_found("image", image));
        }
        Ok(plan)
    }
}

impl Plan {
    /// Plans the deletion of these images, faces and people of a collection. Its suppression lock
    /// must be held.
    pub(crate) async fn from_rows(
        conn: &mut PgConnection,
        collection: Uuid,
        images: &[Uuid],
        faces: &[Uuid],
        subjects: Vec<Uuid>,
    ) -> Result<Self, StoreError> {
        let faces = faces_where(conn, collection, "f.id = any($2)", faces).await?;
        let mut plan = Self { subjects, collection, ..Self::default() };
        plan.add_affected_images(conn, collection, images, faces).await?;
        Ok(plan)
    }

    /// Locks the requested images and the images of the faces, and adds the data that is deleted
    /// with them.
    async fn add_affected_images(
        &mut self,
        conn: &mut PgConnection,
        collection: Uuid,
        requested_images: &[Uuid],
        faces: Vec<PlannedFace>,
    ) -> Result<(), StoreError> {
        let mut affected: Vec<Uuid> =
            requested_images.iter().copied().chain(faces.iter().map(|face| face.image_id)).collect();
        // All transactions lock images in this order, which prevents deadlocks.
        affected.sort_unstable();
        affected.dedup();
        let requested = Requested {
            images: requested_images.iter().copied().collect(),
            faces: faces.into_iter().map(|face| (face.id, face.similarity)).collect(),
        };
        for ids in affected.chunks(IMAGES_PER_STEP) {
            let images: Vec<ImageRow> = sqlx::query_as(
                "select i.id, i.sha256, i.phash, i.dhash, i.ahash, i.width, i.height, v.sha256 as video_sha256, f.at_us
                 from images i left join video_frames f on f.image_id = i.id left join videos v on v.id = f.video_id
                 where i.collection_id = $1 and i.id = any($2) order by i.id for update of i",
            )
            .bind(collection)
            .bind(ids)
            .fetch_all(&mut *conn)
            .await?;
            let ids: Vec<Uuid> = images.iter().map(|image| image.id).collect();
            let faces_of_images = faces_where(conn, collection, "f.image_id = any($2)", &ids).await?;
            self.add_images(&requested, images, faces_of_images);
        }
        Ok(())
    }

    /// Adds the images to be erased completely, the faces to be erased, and the suppressions of
    /// images. `faces` are the faces of these images.
    fn add_images(&mut self, requested: &Requested, images: Vec<ImageRow>, faces: Vec<PlannedFace>) {
        let mut by_image: HashMap<Uuid, Vec<PlannedFace>> = HashMap::new();
        for face in faces {
            by_image.entry(face.image_id).or_default().push(face);
        }
        for image in images {
            let faces = by_image.remove(&image.id).unwrap_or_default();
            let is_requested = requested.images.contains(&image.id);
            let is_whole = is_requested || faces.iter().all(|face| requested.faces.contains_key(&face.id));
            if is_whole {
                self.images.push(image.id);
                self.suppressions.extend(image.suppression(None));
            }
            for face in faces {
                let similarity = requested.faces.get(&face.id).copied();
                let is_single = !is_whole && similarity.is_some();
                if is_single || (is_whole && image.at_us.is_some()) {
                    self.suppressions.extend(image.suppression(Some(face.bbox)));
                }
                if is_whole || similarity.is_some() {
                    let is_requested = is_requested || similarity.is_some();
                    self.faces.push(PlannedFace { similarity: similarity.flatten(), is_requested, ..face });
                }
            }
        }
    }
}

/// Adds the other faces of the tracks of the given faces and images. A track shows one person, so
/// no part of it must remain.
async fn add_track_faces(
    conn: &mut PgConnection,
    collection: Uuid,
    images: &[Uuid],
    mut faces: Vec<PlannedFace>,
) -> Result<Vec<PlannedFace>, StoreError> {
    let ids: Vec<Uuid> = faces.iter().map(|face| face.id).collect();
    let on_tracks: Vec<Uuid> = sqlx::query_scalar(
        "select distinct other.face_id from (
             select track_id from track_faces where face_id = any($1)
             union select s.track_id from faces f join track_faces s on s.face_id = f.id where f.image_id = any($2)) t
         join track_faces other on other.collection_id = $3 and other.track_id = t.track_id",
    )
    .bind(&ids)
    .bind(images)
    .bind(collection)
    .fetch_all(&mut *conn)
    .await?;
    let known: HashSet<Uuid> = ids.into_iter().collect();
    let new: Vec<Uuid> = on_tracks.into_iter().filter(|id| !known.contains(id)).collect();
    if !new.is_empty() {
        faces.extend(faces_where(conn, collection, "f.id = any($2)", &new).await?);
        faces.sort_unstable_by_key(|face| face.id);
    }
    Ok(faces)
}

/// The requested faces and images, without the other faces of whole images.
struct Requested {
    images: HashSet<Uuid>,
    /// Face ids with their similarity to a likeness, if the request contains one.
    faces: HashMap<Uuid, Option<f32>>,
}

async fn faces_where(
    conn: &mut PgConnection,
    collection: Uuid,
    condition: &'static str,
    ids: &[Uuid],
) -> Result<Vec<PlannedFace>, StoreError> {
    // Built at run time from a condition, which is a constant of the caller.
    let sql = format!(
        "select f.id, f.image_id, f.bbox, null::float8 as similarity
         from faces f where f.collection_id = $1 and {condition} order by f.id"
    );
    Ok(sqlx::query_as(AssertSqlSafe(sql)).bind(collection).bind(ids).fetch_all(conn).await?)
}

struct AddressHashes {
    /// Hashes of the requested addresses.
    requested: Vec<Uuid>,
    /// These hashes, and the hashes of the URLs after redirects.
    all: Vec<Uuid>,
}

impl AddressHashes {
    async fn read(conn: &mut PgConnection, collection: Uuid, urls: &[String]) -> Result<Self, StoreError> {
        let requested = url_hashes(urls);
        // Several URLs can redirect to one page, and a sighting records only the first of them. So
        // sightings are also matched by the page's URL after redirects.
        let pages: Vec<String> = sqlx::query_scalar(
            "select distinct p.final_url from crawls c join pages p on p.crawl_id = c.id
             where c.collection_id = $1 and p.url_hash = any($2) and p.final_url is not null",
        )
        .bind(collection)
        .bind(&requested)
        .fetch_all(conn)
        .await?;
        Ok(Self { all: requested.iter().copied().chain(url_hashes(pages)).collect(), requested })
    }
}

/// Returns the images of the collection that were found at one of the URLs or on the page with that
/// URL. Matches requested URLs and URLs after redirects.
async fn images_at(
    conn: &mut PgConnection,
    collection: Uuid,
    addresses: &[String],
    hashes: &AddressHashes,
) -> Result<Vec<Uuid>, StoreError> {
    Ok(sqlx::query_scalar(
        "select i.id from images i join (
             select s.image_id from unnest($2::text[]) as a (url)
                 join image_sources s on md5(s.image_url) = md5(a.url) and s.image_url = a.url where s.image_id is not null
             union select image_id from image_sources where page_hash = any($3) and image_id is not null
             union select image_id from image_sources where final_hash = any($4) and image_id is not null
             union select image_id from image_sources where page_asked_hash = any($4) and image_id is not null
             union select u.image_id from crawls c join image_urls u on u.crawl_id = c.id
                 where c.collection_id = $1 and u.url_hash = any($4) and u.image_id is not null) found on found.image_id = i.id
         where i.collection_id = $1",
    )
    .bind(collection)
    .bind(addresses)
    .bind(&hashes.all)
    .bind(&hashes.requested)
    .fetch_all(conn)
    .await?)
}

/// Locks and returns the videos and all other videos of the same files in the collection: their
/// originals, duplicates, and attempts that were cancelled or failed. Empty if none of `videos`
/// exists.
pub(super) async fn videos_of_same_files(
    conn: &mut PgConnection,
    collection: Uuid,
    videos: &[Uuid],
) -> Result<Vec<Uuid>, StoreError> {
    if videos.is_empty() {
        return Ok(Vec::new());
    }
    Ok(sqlx::query_scalar(
        "with requested as (select id, original_id from videos where collection_id = $1 and id = any($2)),
             known as (
             select v.id, v.sha256 from videos v
             where v.collection_id = $1
               and v.id in (select id from requested union select original_id from requested)),
             files as (
             select id from known
             union select v.id from known k join videos v on v.collection_id = $1 and v.sha256 = k.sha256)
         select v.id from videos v
         where v.collection_id = $1
           and (v.id in (select id from files) or v.original_id in (select id from files))
         order by v.id for update",
    )
    .bind(collection)
    .bind(videos)
    .fetch_all(conn)
    .await?)
}

#[derive(FromRow)]
struct FileRow {
    sha256: Option<Vec<u8>>,
    original_id: Option<Uuid>,
    source_url: Option<String>,
    /// Hash of the address after redirects, if it differs from `source_url`.
    final_hash: Option<Uuid>,
}

impl Plan {
    /// Adds suppressions of the files of the videos, which replace the suppressions of single faces
    /// in these files. With `include_addresses`, also adds suppressions of the addresses of the
    /// videos, so that a crawl does not fetch a suppressed file again. The address of a video whose
    /// file is not known yet is suppressed in both cases.
    pub(super) async fn suppress_files(
        &mut self,
        conn: &mut PgConnection,
        include_addresses: bool,
    ) -> Result<(), StoreError> {
        if self.videos.is_empty() {
            return Ok(());
        }
        let rows: Vec<FileRow> = sqlx::query_as(
            "select sha256, original_id, source_url, final_hash from videos where id = any($1) order by id",
        )
        .bind(&self.videos)
        .fetch_all(conn)
        .await?;
        let files: HashSet<Vec<u8>> = rows.iter().filter_map(|row| row.sha256.clone()).collect();
        self.suppressions.retain(|known| match known {
            Suppression::VideoFace { sha256, .. } => !files.contains(sha256),
            _ => true,
        });
        self.suppressions.extend(files.into_iter().map(|sha256| Suppression::VideoFile { sha256 }));
        let is_unread = |row: &FileRow| row.sha256.is_none() && row.original_id.is_none();
        for row in rows.into_iter().filter(|row| include_addresses || is_unread(row)) {
            // The path of a local file may later belong to another file.
            let address = row.source_url.filter(|address| address.starts_with("http"));
            self.suppressions.extend(address.map(Suppression::Url));
            self.suppressions.extend(row.final_hash.map(Suppression::UrlHash));
        }
        Ok(())
    }
}

/// Locks and returns the subjects of these faces and of the faces of these images. Call it before
/// images are locked, because all transactions lock subjects first.
async fn lock_subjects_of(
    conn: &mut PgConnection,
    collection: Uuid,
    images: &[Uuid],
    faces: &[PlannedFace],
) -> Result<Vec<Uuid>, StoreError> {
    let faces: Vec<Uuid> = faces.iter().map(|face| face.id).collect();
    Ok(sqlx::query_scalar(
        "select id from subjects where collection_id = $1 and id in (
             select sf.subject_id from unnest($2::uuid[]) as erased (image_id)
                 join faces f on f.image_id = erased.image_id join subject_faces sf on sf.face_id = f.id
             union
             select sf.subject_id from unnest($3::uuid[]) as erased (face_id)
                 join subject_faces sf on sf.face_id = erased.face_id)
         order by id for update",
    )
    .bind(collection)
    .bind(images)
    .bind(faces)
    .fetch_all(conn)
    .await?)
}

impl Plan {
    /// Adds those of the locked subjects whose faces are all to be erased.
    pub(super) async fn add_subjects_without_faces(
        &mut self,
        conn: &mut PgConnection,
        locked: &[Uuid],
    ) -> Result<(), StoreError> {
        let faces: Vec<Uuid> = self.faces.iter().map(|face| face.id).collect();
        let without_faces: Vec<Uuid> = sqlx::query_scalar(
            "select sf.subject_id from subject_faces sf
                 left join unnest($3::uuid[]) as erased (face_id) on erased.face_id = sf.face_id
             where sf.collection_id = $1 and sf.subject_id = any($2)
             group by sf.subject_id having count(*) = count(erased.face_id) order by sf.subject_id",
        )
        .bind(self.collection)
        .bind(locked)
        .bind(faces)
        .fetch_all(conn)
        .await?;
        // The plan already contains the requested subject.
        let new: Vec<Uuid> = without_faces.into_iter().filter(|id| !self.subjects.contains(id)).collect();
        self.subjects.extend(new);
        Ok(())
    }
}
