//! Several files in one blob: the thumbnail of an image, and then the crop and the chip of each of
//! its faces. The rows contain where each part begins and how long it is. Blobs of earlier releases
//! contain one file each.
//!
//! Every byte of such a blob belongs to a row, or the blob is recorded for deletion. If a part is
//! deleted, the parts that remain are written to a new blob, and the old blob is deleted.
use crate::db::transient::retried;
use crate::store::BlobKeys;
use crate::{Blobs, StoreError, Tx};
use bytes::{Bytes, BytesMut};
use futures::stream::{self, StreamExt, TryStreamExt};
use sha2::{Digest, Sha256};
use sqlx::{FromRow, PgConnection};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use tokio::sync::Semaphore;
use uuid::Uuid;

/// Folder of blobs with several files.
const KIND: &str = "parts";
const EXTENSION: &str = "bin";
const MAX_CONCURRENT_READS: usize = 8;
/// Number of images whose blobs this process rewrites concurrently.
const MAX_CONCURRENT_REWRITES: usize = 4;
static REWRITES: Semaphore = Semaphore::const_new(MAX_CONCURRENT_REWRITES);
/// Maximum number of attempts to rewrite the blob of an image that other transactions change.
const MAX_ATTEMPTS: usize = 5;

/// A file in a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobPart {
    pub key: String,
    /// Its bytes in the blob; `None` if the blob contains only this file.
    pub range: Option<Range<u64>>,
    /// Its media type, such as `image/jpeg`.
    pub media_type: &'static str,
}

impl BlobPart {
    fn whole(key: &str) -> Self {
        let media_type = match key.rsplit_once('.').map(|(_, extension)| extension) {
            Some("jpg" | "jpeg") => "image/jpeg",
            Some("png") => "image/png",
            Some("webp") => "image/webp",
            _ => "application/octet-stream",
        };
        Self { key: key.to_owned(), range: None, media_type }
    }

    fn part(key: &str, offset: i32, bytes: i32, media_type: &'static str) -> Option<Self> {
        let (start, bytes) = (u64::from(offset.unsigned_abs()), u64::from(bytes.unsigned_abs()));
        (bytes > 0).then(|| Self { key: key.to_owned(), range: Some(start..start + bytes), media_type })
    }
}

/// The blob of a new image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewImageParts {
    pub key: String,
    /// Length of the thumbnail (JPEG) at the beginning of the blob, in bytes; 0 without a
    /// thumbnail.
    pub thumbnail_bytes: i32,
}

/// The crop and the chip of a new face. The chip follows the crop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFaceParts {
    /// The blob, if it is not that of the image.
    pub own_key: Option<String>,
    /// Where the crop begins, in bytes.
    pub offset: i32,
    /// Length of the crop (JPEG) in bytes.
    pub crop_bytes: i32,
    /// Length of the aligned chip (PNG, 112x112) in bytes.
    pub chip_bytes: i32,
}

/// Where the thumbnail of a stored image is.
#[derive(Clone, Debug, Default, PartialEq, Eq, FromRow)]
pub struct ImageParts {
    parts_key: Option<String>,
    thumbnail_bytes: Option<i32>,
    thumbnail_key: Option<String>,
}

impl ImageParts {
    /// Returns `None` if the image has no thumbnail.
    pub fn thumbnail(&self) -> Option<BlobPart> {
        let part = self.parts_key.as_ref().zip(self.thumbnail_bytes);
        part.and_then(|(key, bytes)| BlobPart::part(key, 0, bytes, "image/jpeg"))
            .or_else(|| self.thumbnail_key.as_deref().map(BlobPart::whole))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = String> + use<> {
        [self.parts_key.clone(), self.thumbnail_key.clone()].into_iter().flatten()
    }
}

/// Where the crop and the chip of a stored face are. `parts_key` is the blob that contains them. It
/// is `None` if the row was read without its image and the face has no own blob.
#[derive(Clone, Debug, Default, PartialEq, Eq, FromRow)]
pub struct FaceParts {
    parts_key: Option<String>,
    parts_offset: Option<i32>,
    crop_bytes: Option<i32>,
    chip_bytes: Option<i32>,
    crop_key: Option<String>,
    chip_key: Option<String>,
}

impl FaceParts {
    /// Returns `None` if the face has no crop.
    pub fn crop(&self) -> Option<BlobPart> {
        match self.parts_offset {
            Some(offset) => {
                BlobPart::part(self.parts_key.as_deref()?, offset, self.crop_bytes?, "image/jpeg")
            }
            None => self.crop_key.as_deref().map(BlobPart::whole),
        }
    }

    /// Returns `None` if the face has no chip.
    pub fn chip(&self) -> Option<BlobPart> {
        match self.parts_offset {
            Some(offset) => {
                let offset = offset.saturating_add(self.crop_bytes?);
                BlobPart::part(self.parts_key.as_deref()?, offset, self.chip_bytes?, "image/png")
            }
            None => self.chip_key.as_deref().map(BlobPart::whole),
        }
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = String> + use<> {
        [self.parts_key.clone(), self.crop_key.clone(), self.chip_key.clone()].into_iter().flatten()
    }
}

/// Returns whether a blob contains several files.
pub(super) fn has_parts(key: &str) -> bool {
    key.split('/').next() == Some(KIND)
}

impl Blobs {
    /// Stores a blob with several files and returns its key.
    ///
    /// # Errors
    /// Fails with the errors of [`Blobs::put`].
    pub async fn put_parts(&self, bytes: Bytes) -> Result<String, StoreError> {
        self.put(KIND, EXTENSION, bytes).await
    }

    /// Returns a file, or `None` if its blob does not exist.
    ///
    /// # Errors
    /// Fails with `Invalid` if no blob can have this key, and with `Blob` if the blob is shorter
    /// than the range.
    pub async fn get_part(&self, part: &BlobPart) -> Result<Option<Bytes>, StoreError> {
        match &part.range {
            Some(range) => self.get_range(&part.key, range.clone()).await,
            None => self.get(&part.key).await,
        }
    }
}

#[derive(PartialEq, FromRow)]
struct FaceRow {
    id: Uuid,
    #[sqlx(flatten)]
    parts: FaceParts,
}

/// The locations of all files of an image, as its rows contain them.
#[derive(PartialEq)]
struct Places {
    image: ImageParts,
    /// In the order of their files.
    faces: Vec<FaceRow>,
}

impl Places {
    /// Returns `None` if the image does not exist.
    async fn read(conn: &mut PgConnection, image: Uuid) -> Result<Option<Self>, StoreError> {
        let Some(image_parts) =
            sqlx::query_as("select parts_key, thumbnail_bytes, thumbnail_key from images where id = $1")
                .bind(image)
                .fetch_optional(&mut *conn)
                .await?
        else {
            return Ok(None);
        };
        let faces: Vec<FaceRow> = sqlx::query_as(
            "select id, parts_key, parts_offset, crop_bytes, chip_bytes, crop_key, chip_key from faces
             where image_id = $1 order by parts_key nulls first, parts_offset, id",
        )
        .bind(image)
        .fetch_all(conn)
        .await?;
        Ok(Some(Self { image: image_parts, faces }))
    }

    fn keys(&self) -> BTreeSet<String> {
        self.image.keys().chain(self.faces.iter().flat_map(|face| face.parts.keys())).collect()
    }

    /// Returns the number of bytes that rows use at the start of the image's blob. Returns `None`
    /// if they leave a gap or use another blob.
    fn used_without_gap(&self) -> Option<u64> {
        let mut used = self.image.thumbnail_bytes?;
        if self.image.thumbnail_key.is_some() {
            return None;
        }
        for FaceRow { parts, .. } in &self.faces {
            let (offset, crop, chip) = (parts.parts_offset?, parts.crop_bytes?, parts.chip_bytes?);
            if parts.parts_key.is_some() || offset != used {
                return None;
            }
            used = used.checked_add(crop)?.checked_add(chip)?;
        }
        u64::try_from(used).ok()
    }
}

/// The result of an attempt to write the files of an image into one blob.
enum Rewrite {
    /// The keys of the blobs that the image no longer uses; empty if nothing changed.
    Done(Vec<String>),
    /// The blob of the image is missing. It may be restored later.
    Missing,
    /// The rows changed in the meantime.
    Changed,
}

impl BlobKeys<'_> {
    /// Writes the parts that rows refer to into new blobs, for all images that use one of these
    /// blobs. Changes nothing for an image that uses all parts of its blob. Returns the keys of the
    /// blobs that could not be rewritten, and the first error.
    pub(super) async fn rewrite_remaining_parts(
        self,
        blobs: &Blobs,
        keys: &[String],
    ) -> Result<(BTreeSet<String>, Option<StoreError>), StoreError> {
        let references: Vec<(Uuid, String)> = sqlx::query_as(
            "select id, parts_key from images where parts_key = any($1)
             union select image_id, parts_key from faces where parts_key = any($1)",
        )
        .bind(keys)
        .fetch_all(&self.0.pool)
        .await?;
        let mut images: BTreeMap<Uuid, Vec<String>> = BTreeMap::new();
        for (image, key) in references {
            images.entry(image).or_default().push(key);
        }
        let mut rewrites = stream::iter(images)
            .map(|(image, keys)| async move { (self.rewrite(blobs, image).await, keys) })
            .buffer_unordered(MAX_CONCURRENT_REWRITES);
        let (mut incomplete, mut first_error) = (BTreeSet::new(), None);
        while let Some((rewritten, keys)) = rewrites.next().await {
            match rewritten {
                Ok(Some(_)) => {}
                Ok(None) => incomplete.extend(keys),
                Err(error) => {
                    incomplete.extend(keys);
                    first_error.get_or_insert(error);
                }
            }
        }
        Ok((incomplete, first_error))
    }

    /// Moves files that an earlier release stored as separate blobs into one blob for each image.
    /// Takes at most `limit` files, by key, after the key `after`. Returns the number of changed
    /// images and the last key, or `None` after the last file and while a backup is written. Files
    /// whose blobs are missing stay where they were.
    ///
    /// # Errors
    /// Fails with the errors of the database, and of [`Self::delete`]. Images that were moved stay
    /// moved.
    pub async fn move_separate_files(
        self,
        blobs: &Blobs,
        after: &str,
        limit: i64,
    ) -> Result<(u64, Option<String>), StoreError> {
        let mut lock = self.0.begin().await?;
        let locked: bool = sqlx::query_scalar(
            "select pg_try_advisory_xact_lock(hashtextextended('facecrawl.move_files', 0))",
        )
        .fetch_one(lock.conn())
        .await?;
        if !locked {
            return Ok((0, None));
        }
        let files: Vec<(String, Uuid)> = sqlx::query_as(
            "select key, image_id from (
                 (select thumbnail_key as key, id as image_id from images where thumbnail_key > $1 order by 1 limit $2)
                 union all (select crop_key, image_id from faces where crop_key > $1 order by 1 limit $2)
                 union all (select chip_key, image_id from faces where chip_key > $1 order by 1 limit $2)) files
             order by key limit $2",
        )
        .bind(after)
        .bind(limit)
        .fetch_all(&self.0.pool)
        .await?;
        let last = files.last().map(|(key, _)| key.clone());
        let images: BTreeSet<Uuid> = files.into_iter().map(|(_, image)| image).collect();
        let mut rewrites = stream::iter(images)
            .map(|image| async move { (image, self.rewrite(blobs, image).await) })
            .buffer_unordered(MAX_CONCURRENT_REWRITES);
        let (mut moved, mut unused) = (0, Vec::new());
        while let Some((image, rewritten)) = rewrites.next().await {
            match rewritten {
                Ok(keys) => {
                    let keys = keys.unwrap_or_default();
                    moved += u64::from(!keys.is_empty());
                    unused.extend(keys);
                }
                Err(error) => tracing::warn!(%image, %error, "failed to move the files of an image"),
            }
        }
        self.delete(blobs, &unused).await?;
        Ok((moved, last))
    }

    /// Prevents [`Self::move_separate_files`] until the returned transaction ends. A backup calls
    /// it, because it copies the blobs after the rows.
    pub async fn prevent_moves(self) -> Result<Tx, StoreError> {
        let mut lock = self.0.begin().await?;
        sqlx::query("set local idle_in_transaction_session_timeout = 0").execute(lock.conn()).await?;
        sqlx::query("select pg_advisory_xact_lock_shared(hashtextextended('facecrawl.move_files', 0))")
            .execute(lock.conn())
            .await?;
        Ok(lock)
    }

    /// Writes the files of an image into one blob. Returns the keys of the blobs that the image no
    /// longer uses, or `None` if nothing changed because its blob is missing.
    async fn rewrite(self, blobs: &Blobs, image: Uuid) -> Result<Option<Vec<String>>, StoreError> {
        let _permit = REWRITES.acquire().await;
        // Deletions must also be possible if the disk is full.
        let blobs = blobs.without_reserve();
        for _ in 0..MAX_ATTEMPTS {
            match retried("rewrite_blob", || self.rewrite_once(&blobs, image)).await? {
                Rewrite::Done(unused) => return Ok(Some(unused)),
                Rewrite::Missing => {
                    tracing::warn!(%image, "blob of an image is missing; not rewritten");
                    return Ok(None);
                }
                Rewrite::Changed => {}
            }
        }
        Err(StoreError::Conflict("the faces of an image change repeatedly; try again".into()))
    }

    /// Reads and writes blobs outside a transaction, because a slow blob store must not block
    /// others.
    async fn rewrite_once(self, blobs: &Blobs, image: Uuid) -> Result<Rewrite, StoreError> {
        let mut conn = self.0.pool.acquire().await?;
        let Some(old) = Places::read(&mut conn, image).await? else { return Ok(Rewrite::Done(Vec::new())) };
        drop(conn);
        if let (Some(used), Some(key)) = (old.used_without_gap(), &old.image.parts_key)
            && blobs.size(key).await? == Some(used)
        {
            return Ok(Rewrite::Done(Vec::new()));
        }
        let Some((content, new)) = remaining_files(blobs, &old).await? else { return Ok(Rewrite::Missing) };
        if new == old {
            return Ok(Rewrite::Done(Vec::new()));
        }
        if new.image.parts_key.is_some() {
            blobs.put_parts(content.clone()).await?;
        }
        let mut tx = self.0.begin().await?;
        sqlx::query("select 1 from images where id = $1 for no key update")
            .bind(image)
            .execute(tx.conn())
            .await?;
        sqlx::query("select 1 from faces where image_id = $1 order by id for no key update")
            .bind(image)
            .execute(tx.conn())
            .await?;
        if Places::read(tx.conn(), image).await?.as_ref() != Some(&old) {
            return Ok(Rewrite::Changed);
        }
        set_places(tx.conn(), image, &old, &new).await?;
        if let Some(key) = &new.image.parts_key
            && !self.prevent_deletion(tx.conn(), std::slice::from_ref(key)).await?.is_empty()
        {
            blobs.put_parts(content).await?;
        }
        let unused: Vec<String> = old.keys().difference(&new.keys()).cloned().collect();
        self.record_deletions(tx.conn(), unused.clone()).await?;
        tx.commit().await?;
        Ok(Rewrite::Done(unused))
    }
}

/// The content of a new blob.
#[derive(Default)]
struct Content(BytesMut);

impl Content {
    fn len(&self) -> i32 {
        i32::try_from(self.0.len()).unwrap_or(i32::MAX)
    }

    /// Appends a range of a blob and returns its length. Appends nothing if the blob is too short.
    fn append(&mut self, blob: &Bytes, part: Option<BlobPart>) -> i32 {
        let Some(part) = part else { return 0 };
        let bytes = match part.range {
            Some(range) => blob.get(range.start as usize..range.end as usize).unwrap_or_default(),
            None => blob,
        };
        self.0.extend_from_slice(bytes);
        i32::try_from(bytes.len()).unwrap_or(i32::MAX)
    }
}

/// Returns the content of a new blob, and the new places of the files of an image. Files whose own
/// blobs are missing stay where they are. Returns `None` if the blob of the image is missing.
async fn remaining_files(blobs: &Blobs, old: &Places) -> Result<Option<(Bytes, Places)>, StoreError> {
    let contents: BTreeMap<String, Bytes> = stream::iter(old.keys())
        .map(|key| async move { Ok::<_, StoreError>(blobs.get(&key).await?.map(|bytes| (key, bytes))) })
        .buffered(MAX_CONCURRENT_READS)
        .try_filter_map(|found| async move { Ok(found) })
        .try_collect()
        .await?;
    let image_key = old.image.parts_key.as_ref();
    if image_key.is_some_and(|key| !contents.contains_key(key)) {
        return Ok(None);
    }
    let mut content = Content::default();
    let mut image = ImageParts::default();
    let mut thumbnail_bytes = 0;
    if let Some(thumbnail) = old.image.thumbnail() {
        match contents.get(&thumbnail.key) {
            Some(blob) => thumbnail_bytes = content.append(blob, Some(thumbnail)),
            None => image.thumbnail_key = Some(thumbnail.key),
        }
    }
    let mut faces = Vec::new();
    for FaceRow { id, parts } in &old.faces {
        let mut located = parts.clone();
        if located.parts_offset.is_some() && located.parts_key.is_none() {
            located.parts_key = image_key.cloned();
        }
        let files = [located.crop(), located.chip()];
        let blob_of = |file: &Option<BlobPart>| file.as_ref().map(|file| contents.get(&file.key));
        let parts = match files.each_ref().map(blob_of) {
            [Some(None), _] | [_, Some(None)] => parts.clone(),
            [None, None] => FaceParts::default(),
            found => {
                let offset = content.len();
                let lengths = files.into_iter().zip(found).map(|(file, blob)| match blob.flatten() {
                    Some(blob) => content.append(blob, file),
                    None => 0,
                });
                match lengths.collect::<Vec<i32>>()[..] {
                    [crop_bytes, chip_bytes] if content.len() > offset => FaceParts {
                        parts_offset: Some(offset),
                        crop_bytes: Some(crop_bytes),
                        chip_bytes: Some(chip_bytes),
                        ..FaceParts::default()
                    },
                    // The blob is damaged.
                    _ => FaceParts::default(),
                }
            }
        };
        faces.push(FaceRow { id: *id, parts });
    }
    let content = content.0.freeze();
    if !content.is_empty() {
        image.parts_key = Some(Blobs::key_of(KIND, EXTENSION, &Sha256::digest(&content).into()));
        image.thumbnail_bytes = Some(thumbnail_bytes);
    }
    Ok(Some((content, Places { image, faces })))
}

async fn set_places(
    conn: &mut PgConnection,
    image: Uuid,
    old: &Places,
    new: &Places,
) -> Result<(), StoreError> {
    sqlx::query("update images set parts_key = $2, thumbnail_bytes = $3, thumbnail_key = $4 where id = $1")
        .bind(image)
        .bind(&new.image.parts_key)
        .bind(new.image.thumbnail_bytes)
        .bind(&new.image.thumbnail_key)
        .execute(&mut *conn)
        .await?;
    let changed = old.faces.iter().zip(&new.faces).filter(|(old, new)| old != new);
    let changed: Vec<&FaceRow> = changed.map(|(_, new)| new).collect();
    macro_rules! column {
        ($name:ident) => {
            changed.iter().map(|face| face.parts.$name).collect::<Vec<_>>()
        };
    }
    // A changed face has no file outside the blob of its image.
    sqlx::query(
        "update faces f set parts_key = null, parts_offset = n.parts_offset, crop_bytes = n.crop_bytes,
                            chip_bytes = n.chip_bytes, crop_key = null, chip_key = null
         from unnest($1::uuid[], $2::int[], $3::int[], $4::int[]) as n (id, parts_offset, crop_bytes, chip_bytes)
         where f.id = n.id",
    )
    .bind(changed.iter().map(|face| face.id).collect::<Vec<Uuid>>())
    .bind(column!(parts_offset))
    .bind(column!(crop_bytes))
    .bind(column!(chip_bytes))
    .execute(conn)
    .await?;
    Ok(())
}
