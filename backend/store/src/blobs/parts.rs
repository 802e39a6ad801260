//! Several files in one blob: the thumbnail of an image, and then the crop and the chip of each of
//! its faces. The rows contain where each part begins and how long it is. Blobs of earlier releases
//! contain one file each.
//!
//! If a part is deleted, the parts that remain are written to a new blob, and the old blob is
//! deleted.
use crate::db::transient::retried;
use crate::store::BlobKeys;
use crate::{Blobs, StoreError};
use bytes::{Bytes, BytesMut};
use futures::stream::{self, StreamExt, TryStreamExt};
use sqlx::{FromRow, PgConnection};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use uuid::Uuid;

/// Folder of blobs with several files.
const KIND: &str = "parts";
const MAX_CONCURRENT_READS: usize = 8;
/// Number of images whose blobs are rewritten concurrently.
const MAX_CONCURRENT_REWRITES: usize = 4;

/// A file in the blob store.
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

/// The thumbnail of a new image (JPEG): the first bytes of a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewThumbnail {
    pub key: String,
    /// Its length in bytes, at least 1.
    pub bytes: i32,
}

/// The crop and the chip of a new face. The chip follows the crop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFaceParts {
    pub key: String,
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
        match (&self.parts_key, &self.thumbnail_key) {
            (Some(key), _) => BlobPart::part(key, 0, self.thumbnail_bytes?, "image/jpeg"),
            (None, key) => key.as_deref().map(BlobPart::whole),
        }
    }

    pub(crate) fn into_keys(self) -> impl Iterator<Item = String> {
        [self.parts_key, self.thumbnail_key].into_iter().flatten()
    }
}

/// Where the crop and the chip of a stored face are.
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
        match (&self.parts_key, &self.crop_key) {
            (Some(key), _) => BlobPart::part(key, self.parts_offset?, self.crop_bytes?, "image/jpeg"),
            (None, key) => key.as_deref().map(BlobPart::whole),
        }
    }

    /// Returns `None` if the face has no chip.
    pub fn chip(&self) -> Option<BlobPart> {
        match (&self.parts_key, &self.chip_key) {
            (Some(key), _) => {
                let offset = self.parts_offset?.saturating_add(self.crop_bytes?);
                BlobPart::part(key, offset, self.chip_bytes?, "image/png")
            }
            (None, key) => key.as_deref().map(BlobPart::whole),
        }
    }

    pub(crate) fn into_keys(self) -> impl Iterator<Item = String> {
        [self.parts_key, self.crop_key, self.chip_key].into_iter().flatten()
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
        self.put(KIND, "bin", bytes).await
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

#[derive(FromRow)]
struct FaceRow {
    id: Uuid,
    #[sqlx(flatten)]
    parts: FaceParts,
}

/// The remaining files of an image, and their new places.
struct NewParts {
    content: BytesMut,
    thumbnail_bytes: i32,
    /// Offset, length of the crop and length of the chip of each face.
    faces: Vec<(i32, i32, i32)>,
}

impl BlobKeys<'_> {
    /// Writes the parts that rows refer to into new blobs, for all images that use one of these
    /// blobs. Changes nothing for an image that uses all parts of its blob. Returns the keys of the
    /// blobs of images that have a missing file, and changes nothing for these images.
    pub(super) async fn rewrite_remaining_parts(
        self,
        blobs: &Blobs,
        keys: &[&str],
    ) -> Result<BTreeSet<String>, StoreError> {
        let images: Vec<(Uuid, String)> = sqlx::query_as(
            "select id, parts_key from images where parts_key = any($1)
             union select image_id, parts_key from faces where parts_key = any($1)",
        )
        .bind(keys)
        .fetch_all(&self.0.pool)
        .await?;
        let rewritten = stream::iter(images)
            .map(|(image, key)| async move {
                Ok::<_, StoreError>(self.rewrite(blobs, image).await?.is_none().then_some(key))
            })
            .buffer_unordered(MAX_CONCURRENT_REWRITES);
        rewritten.try_filter_map(|incomplete| async move { Ok(incomplete) }).try_collect().await
    }

    /// Moves files that an earlier release stored as separate blobs into one blob for each image.
    /// Takes at most `limit` files, by key, after the key `after`. Returns the number of changed
    /// images and the last key, or `None` after the last file. Images with a missing file stay
    /// unchanged.
    ///
    /// # Errors
    /// Fails with the errors of the database and of the blob store. Images that were moved stay
    /// moved.
    pub async fn move_separate_files(
        self,
        blobs: &Blobs,
        after: &str,
        limit: i64,
    ) -> Result<(u64, Option<String>), StoreError> {
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
        let rewritten: Vec<Option<Vec<String>>> = stream::iter(images)
            .map(|image| self.rewrite(blobs, image))
            .buffer_unordered(MAX_CONCURRENT_REWRITES)
            .try_collect()
            .await?;
        let moved = rewritten.iter().flatten().count() as u64;
        let unused = rewritten.into_iter().flatten().flatten().collect::<Vec<String>>();
        self.delete(blobs, &unused).await?;
        Ok((moved, last))
    }

    /// Writes the files of an image into one blob. Returns the keys of the blobs that the image no
    /// longer uses, or `None` without a change if a file is missing: it may be restored later.
    async fn rewrite(self, blobs: &Blobs, image: Uuid) -> Result<Option<Vec<String>>, StoreError> {
        retried("rewrite_blob", || self.rewrite_image(blobs, image)).await
    }

    async fn rewrite_image(self, blobs: &Blobs, image: Uuid) -> Result<Option<Vec<String>>, StoreError> {
        let mut tx = self.0.begin().await?;
        let stored: Option<ImageParts> = sqlx::query_as(
            "select parts_key, thumbnail_bytes, thumbnail_key from images where id = $1 for no key update",
        )
        .bind(image)
        .fetch_optional(tx.conn())
        .await?;
        let Some(stored) = stored else { return Ok(Some(Vec::new())) };
        let mut faces: Vec<FaceRow> = sqlx::query_as(
            "select id, parts_key, parts_offset, crop_bytes, chip_bytes, crop_key, chip_key from faces
             where image_id = $1 order by id for no key update",
        )
        .bind(image)
        .fetch_all(tx.conn())
        .await?;
        // The order of the parts stays the same, so that a complete blob gets its own key.
        faces.sort_by(|a, b| {
            let place = |face: &FaceRow| (face.parts.parts_key.clone(), face.parts.parts_offset);
            place(a).cmp(&place(b))
        });
        let Some(parts) = remaining_parts(blobs, &stored, &faces).await? else {
            tracing::warn!(%image, "a file of an image is missing; its blob is not rewritten");
            return Ok(None);
        };
        let content = parts.content.freeze();
        let key = match content.is_empty() {
            true => None,
            false => Some(blobs.put_parts(content.clone()).await?),
        };
        let new_image = ImageParts {
            parts_key: key.clone().filter(|_| parts.thumbnail_bytes > 0),
            thumbnail_bytes: Some(parts.thumbnail_bytes).filter(|bytes| *bytes > 0),
            thumbnail_key: None,
        };
        let new_faces = parts.faces.iter().map(|&(offset, crop, chip)| {
            let key = key.clone().filter(|_| crop + chip > 0);
            let or_null = |value| key.is_some().then_some(value);
            FaceParts {
                parts_offset: or_null(offset),
                crop_bytes: or_null(crop),
                chip_bytes: or_null(chip),
                parts_key: key,
                ..FaceParts::default()
            }
        });
        let new_faces: Vec<FaceParts> = new_faces.collect();
        let is_unchanged = stored == new_image && faces.iter().map(|face| &face.parts).eq(&new_faces);
        if is_unchanged {
            return Ok(Some(Vec::new()));
        }
        set_parts(tx.conn(), image, &new_image, &faces, &new_faces).await?;
        if let Some(key) = &key {
            let deleted = self.prevent_deletion(tx.conn(), std::slice::from_ref(key)).await?;
            if !deleted.is_empty() {
                blobs.put_parts(content).await?;
            }
        }
        let mut unused: BTreeSet<String> = stored.into_keys().collect();
        unused.extend(faces.into_iter().flat_map(|face| face.parts.into_keys()));
        unused.retain(|unused| Some(unused) != key.as_ref());
        let unused: Vec<String> = unused.into_iter().collect();
        self.record_deletions(tx.conn(), unused.clone()).await?;
        tx.commit().await?;
        Ok(Some(unused))
    }
}

/// Reads the files of an image. Returns `None` if one of them is missing.
async fn remaining_parts(
    blobs: &Blobs,
    image: &ImageParts,
    faces: &[FaceRow],
) -> Result<Option<NewParts>, StoreError> {
    let keys: BTreeSet<String> = image
        .clone()
        .into_keys()
        .chain(faces.iter().flat_map(|face| face.parts.clone().into_keys()))
        .collect();
    let contents: BTreeMap<String, Bytes> = stream::iter(keys)
        .map(|key| async move { Ok::<_, StoreError>(blobs.get(&key).await?.map(|bytes| (key, bytes))) })
        .buffered(MAX_CONCURRENT_READS)
        .try_filter_map(|found| async move { Ok(found) })
        .try_collect()
        .await?;
    let mut new = NewParts { content: BytesMut::new(), thumbnail_bytes: 0, faces: Vec::new() };
    let mut add = |part: Option<BlobPart>| -> Option<i32> {
        let Some(part) = part else { return Some(0) };
        let blob = contents.get(&part.key)?;
        let bytes = match part.range {
            Some(range) => blob.get(range.start as usize..range.end as usize)?,
            None => blob,
        };
        new.content.extend_from_slice(bytes);
        i32::try_from(bytes.len()).ok()
    };
    let mut places = || {
        let thumbnail = add(image.thumbnail())?;
        let mut offset = thumbnail;
        let faces = faces.iter().map(|face| {
            let place = (offset, add(face.parts.crop())?, add(face.parts.chip())?);
            offset += place.1 + place.2;
            Some(place)
        });
        Some((thumbnail, faces.collect::<Option<Vec<_>>>()?))
    };
    let Some((thumbnail_bytes, places)) = places() else { return Ok(None) };
    Ok(Some(NewParts { thumbnail_bytes, faces: places, ..new }))
}

async fn set_parts(
    conn: &mut PgConnection,
    image: Uuid,
    new_image: &ImageParts,
    faces: &[FaceRow],
    new_faces: &[FaceParts],
) -> Result<(), StoreError> {
    sqlx::query("update images set parts_key = $2, thumbnail_bytes = $3, thumbnail_key = null where id = $1")
        .bind(image)
        .bind(&new_image.parts_key)
        .bind(new_image.thumbnail_bytes)
        .execute(&mut *conn)
        .await?;
    macro_rules! column {
        ($name:ident) => {
            new_faces.iter().map(|face| face.$name.clone()).collect::<Vec<_>>()
        };
    }
    sqlx::query(
        "update faces f set parts_key = n.parts_key, parts_offset = n.parts_offset, crop_bytes = n.crop_bytes,
                            chip_bytes = n.chip_bytes, crop_key = null, chip_key = null
         from unnest($1::uuid[], $2::text[], $3::int[], $4::int[], $5::int[])
              as n (id, parts_key, parts_offset, crop_bytes, chip_bytes)
         where f.id = n.id",
    )
    .bind(faces.iter().map(|face| face.id).collect::<Vec<Uuid>>())
    .bind(column!(parts_key))
    .bind(column!(parts_offset))
    .bind(column!(crop_bytes))
    .bind(column!(chip_bytes))
    .execute(conn)
    .await?;
    Ok(())
}
