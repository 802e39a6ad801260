//! Text in the form in which it is stored: URLs and their hashes, free text, codes.
use crate::StoreError;
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use uuid::Uuid;

/// Maximum length in characters of free text (titles, alternative texts, error messages). Longer
/// text is truncated.
const MAX_TEXT_CHARS: usize = 2_000;

/// Returns the first 128 bits of the URL's SHA-256, which the ledgers' unique keys use. Returns the
/// nil UUID for `None`.
pub(crate) fn url_hash(url: Option<&str>) -> Uuid {
    let Some(url) = url else { return Uuid::nil() };
    let mut half = [0; 16];
    half.copy_from_slice(&Sha256::digest(url.as_bytes())[..16]);
    Uuid::from_bytes(half)
}

/// Returns the first 32 bits of a URL's hash, as `page_visits.mentions` stores them.
pub(crate) fn mention(hash: &Uuid) -> i32 {
    let [a, b, c, d, ..] = *hash.as_bytes();
    i32::from_be_bytes([a, b, c, d])
}

/// Returns a URL or path without U+0000, which Postgres cannot store.
pub(crate) fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{FFFD}")
}

/// Returns free text without U+0000 and with a limited length.
pub(crate) fn clipped(text: Option<&str>) -> Option<String> {
    text.map(|text| without_nul(&text.chars().take(MAX_TEXT_CHARS).collect::<String>()))
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
        let hash = url_hash(Some(&url));
        let first = seen.insert(hash);
        if first {
            self.ids.push(Uuid::now_v7());
            self.hashes.push(hash);
            self.urls.push(url);
        }
        first
    }
}

pub(crate) fn one_of(what: &str, value: &str, allowed: &[&str]) -> Result<(), StoreError> {
    if allowed.contains(&value) {
        return Ok(());
    }
    Err(StoreError::Invalid(format!("{value:?} is not a valid {what}; allowed: {}", allowed.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_hashes_differ_and_clipped_text_is_storable() {
        assert_eq!(url_hash(None), Uuid::nil());
        assert_ne!(url_hash(Some("http://a/")), url_hash(Some("http://a/b")));
        // printf abc | sha256sum
        assert_eq!(url_hash(Some("abc")).simple().to_string(), "ba7816bf8f01cfea414140de5dae2223");
        assert_eq!(clipped(Some("a\0b")).as_deref(), Some("a\u{FFFD}b"));
        assert_eq!(clipped(Some(&"é".repeat(3_000))).map(|text| text.chars().count()), Some(MAX_TEXT_CHARS));
    }
}
