//! Encodes and decodes opaque cursors. A cursor contains the key of the last row of a page, and a
//! hash of its list.
use crate::{ApiError, Code, Result};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use std::fmt::Debug;
use uuid::Uuid;

/// A key that identifies and orders rows.
pub(crate) trait CursorKey: Sized {
    fn to_bytes(&self) -> Vec<u8>;
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
}

impl CursorKey for Uuid {
    fn to_bytes(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::from_slice(bytes).ok()
    }
}

impl CursorKey for i64 {
    fn to_bytes(&self) -> Vec<u8> {
        self.to_be_bytes().to_vec()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self::from_be_bytes)
    }
}

/// A time in microseconds, and an id among rows of the same time.
impl CursorKey for (i64, Uuid) {
    fn to_bytes(&self) -> Vec<u8> {
        [self.0.to_bytes(), self.1.to_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (time, id) = bytes.split_at_checked(size_of::<i64>())?;
        Some((i64::from_bytes(time)?, Uuid::from_bytes(id.try_into().ok()?)))
    }
}

/// Length of the hash of a list in its cursors, in bytes.
const LIST_BYTES: usize = 4;

/// A list with its filters. Its cursors are valid for no other list and for no other filters.
pub(crate) struct List([u8; LIST_BYTES]);

impl List {
    /// Creates a list. `filters` contains all values that select its rows, except the limit.
    ///
    /// Their debug texts are compared. If an update of the program changes these texts, cursors of
    /// the previous version are rejected.
    pub(crate) fn new(name: &str, filters: impl Debug) -> Self {
        let digest = Sha256::digest(format!("{name}\n{filters:?}"));
        Self(std::array::from_fn(|index| digest[index]))
    }

    /// Decodes the key after which the next page begins.
    ///
    /// # Errors
    /// Fails with 400 `bad_query` for a text that is not a cursor, and for a cursor of another list
    /// or of other filters.
    pub(crate) fn decode_cursor<K: CursorKey>(&self, cursor: Option<&str>) -> Result<Option<K>> {
        let Some(text) = cursor else { return Ok(None) };
        let refuse = |reason: &str| {
            ApiError::for_field(Code::BadQuery, "cursor", reason)
                .value(text)
                .allowed(["the next_cursor of an earlier response for the same list and filters"])
        };
        let bytes = URL_SAFE_NO_PAD.decode(text).unwrap_or_default();
        let (list, key) = bytes.split_at_checked(LIST_BYTES).unwrap_or_default();
        let Some(key) = K::from_bytes(key) else {
            return Err(refuse("the value is not a cursor of this list"));
        };
        if list != self.0 {
            return Err(refuse(
                "the value is a cursor of another list, or of the same list with other filters",
            ));
        }
        Ok(Some(key))
    }

    /// Cuts `rows` to `limit` and returns the cursor of the next page. Returns `None` if there is
    /// no next page. The caller must have selected `limit + 1` rows.
    pub(crate) fn paginate<T, K: CursorKey>(
        &self,
        rows: &mut Vec<T>,
        limit: i64,
        key: impl Fn(&T) -> K,
    ) -> Option<String> {
        let limit = usize::try_from(limit).unwrap_or(0);
        if rows.len() <= limit {
            return None;
        }
        rows.truncate(limit);
        rows.last().map(|row| self.encode_cursor(&key(row)))
    }

    /// Returns the cursor of the page that begins after `key`.
    pub(crate) fn encode_cursor(&self, key: &impl CursorKey) -> String {
        URL_SAFE_NO_PAD.encode([&self.0[..], &key.to_bytes()].concat())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn cursor_decodes_to_encoded_id() {
        let ids: Vec<Uuid> = (0..3).map(|_| Uuid::now_v7()).collect();
        let (mut rows, list) = (ids.clone(), List::new("faces", "all"));
        let cursor = list.paginate(&mut rows, 2, |id| *id);
        assert_eq!(rows, ids[..2]);
        assert_eq!(list.decode_cursor(cursor.as_deref()).unwrap(), Some(ids[1]));
        assert_eq!(list.paginate(&mut rows, 2, |id| *id), None);
    }

    #[test]
    fn malformed_cursor_is_rejected() {
        for text in ["", "x", "????", "AAAA", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"] {
            let error = List::new("faces", "all").decode_cursor::<Uuid>(Some(text)).unwrap_err();
            assert_eq!(error.code(), Code::BadQuery, "{text}");
        }
    }

    #[test]
    fn cursor_of_other_list_or_filter_is_rejected() {
        let id = Uuid::now_v7();
        let cursor = List::new("faces", "all").paginate(&mut vec![id, id], 1, |id| *id).unwrap();
        for list in [List::new("images", "all"), List::new("faces", "some")] {
            let problem = list.decode_cursor::<Uuid>(Some(&cursor)).unwrap_err().into_problem();
            assert_eq!((problem.code, problem.field.as_deref()), (Code::BadQuery, Some("cursor")));
            assert!(problem.detail.contains("another list"), "{}", problem.detail);
        }
    }
}
