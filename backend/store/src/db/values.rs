//! Converts values to and from their stored form: URLs and their hashes, free text, boxes,
//! embeddings.
use crate::StoreError;
use half::f16;
use pgvector::HalfVector;
use sha2::{Digest, Sha256};
use sqlx::Row;
use sqlx::postgres::PgRow;
use std::collections::HashSet;
use uuid::Uuid;

/// Maximum length in characters of free text (titles, alternative texts, error messages). Longer
/// text is truncated.
const MAX_CHARS: usize = 2_000;

/// Returns the first 128 bits of the SHA-256 of a URL in its stored form, which the ledgers' unique
/// keys use.
pub(crate) fn url_hash(url: &str) -> Uuid {
    let mut prefix = [0; 16];
    prefix.copy_from_slice(&Sha256::digest(without_nul(url))[..16]);
    Uuid::from_bytes(prefix)
}

pub(crate) fn url_hashes(urls: impl IntoIterator<Item: AsRef<str>>) -> Vec<Uuid> {
    urls.into_iter().map(|url| url_hash(url.as_ref())).collect()
}

/// Returns the hash of a page's URL; the nil UUID for an image that was found on no page.
pub(crate) fn page_hash(url: Option<&str>) -> Uuid {
    url.map_or(Uuid::nil(), url_hash)
}

/// Returns the first 32 bits of a URL's hash, as `page_visits.mentions` stores them.
pub(crate) fn short_hash(hash: &Uuid) -> i32 {
    let [a, b, c, d, ..] = *hash.as_bytes();
    i32::from_be_bytes([a, b, c, d])
}

/// Returns a URL or path without U+0000, which Postgres cannot store.
pub(crate) fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{FFFD}")
}

/// Returns free text without U+0000 and with a limited length.
pub(crate) fn to_storable(text: Option<&str>) -> Option<String> {
    text.map(|text| without_nul(&text.chars().take(MAX_CHARS).collect::<String>()))
}

/// Distinct URLs as columns for `unnest`, with ids in input order.
#[derive(Default)]
pub(crate) struct NewRows {
    pub(crate) ids: Vec<Uuid>,
    pub(crate) urls: Vec<String>,
    pub(crate) hashes: Vec<Uuid>,
}

impl NewRows {
    /// Adds a URL. Returns `false` if it was added before.
    pub(crate) fn push(&mut self, seen: &mut HashSet<Uuid>, url: &str) -> bool {
        let url = without_nul(url);
        let hash = url_hash(&url);
        let is_new = seen.insert(hash);
        if is_new {
            self.ids.push(Uuid::now_v7());
            self.hashes.push(hash);
            self.urls.push(url);
        }
        is_new
    }
}

pub(crate) fn check_one_of(field: &str, value: &str, allowed: &[&str]) -> Result<(), StoreError> {
    if allowed.contains(&value) {
        return Ok(());
    }
    Err(StoreError::Invalid(format!("{value:?} is not a valid {field}; allowed: {}", allowed.join(", "))))
}

/// Returns the numbers of a box: x, y, width, height.
pub(crate) fn to_box(numbers: &[f32]) -> [f32; 4] {
    std::array::from_fn(|index| numbers.get(index).copied().unwrap_or_default())
}

/// Returns the column `bbox` of a face as fractions of the image. The columns `width` and `height`
/// contain the image size.
pub(crate) fn region(row: &PgRow) -> Result<[f32; 4], sqlx::Error> {
    let [x, y, w, h] = to_box(&row.try_get::<Vec<f32>, _>("bbox")?);
    let side = |column| Ok::<f32, sqlx::Error>(row.try_get::<i32, _>(column)?.max(1) as f32);
    let (width, height) = (side("width")?, side("height")?);
    Ok([x / width, y / height, w / width, h / height])
}

pub(crate) fn halfvec(embedding: &[f32]) -> HalfVector {
    HalfVector::from(embedding.iter().copied().map(f16::from_f32).collect::<Vec<f16>>())
}

pub(crate) fn floats(embedding: &HalfVector) -> Vec<f32> {
    embedding.as_slice().iter().copied().map(f16::to_f32).collect()
}

/// Fails with `Invalid` unless the embedding can be compared. The embedding must have the model's
/// length and finite components, and must not be zero after rounding to half precision.
pub(crate) fn check_embedding(embedding: &[f32], model: &str, dimensions: i32) -> Result<(), StoreError> {
    if embedding.len() != dimensions as usize {
        return Err(StoreError::Invalid(format!(
            "the embedding has {} components; the model {model} requires {dimensions}",
            embedding.len()
        )));
    }
    if embedding.iter().any(|component| !f16::from_f32(*component).is_finite()) {
        return Err(StoreError::Invalid("the embedding has a component that is not a finite number".into()));
    }
    if embedding.iter().all(|component| f16::from_f32(*component) == f16::ZERO) {
        return Err(StoreError::Invalid("all components of the embedding are zero".into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_hashes_differ_and_truncated_text_is_storable() {
        assert_eq!(page_hash(None), Uuid::nil());
        assert_ne!(url_hash("http://a/"), url_hash("http://a/b"));
        // printf abc | sha256sum
        assert_eq!(url_hash("abc").simple().to_string(), "ba7816bf8f01cfea414140de5dae2223");
        assert_eq!(to_storable(Some("a\0b")).as_deref(), Some("a\u{FFFD}b"));
        assert_eq!(to_storable(Some(&"é".repeat(3_000))).map(|text| text.chars().count()), Some(MAX_CHARS));
    }
}
