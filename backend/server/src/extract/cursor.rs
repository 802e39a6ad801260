//! Encodes and decodes opaque cursors. A cursor contains the key of the last row of a page.
use crate::{ApiError, Code};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
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

/// Decodes the key after which the next page begins.
///
/// # Errors
/// Fails with 400 `bad_query` for a text that is not a cursor.
pub(crate) fn decode<M: CursorKey>(cursor: Option<&str>) -> Result<Option<M>, ApiError> {
    let Some(text) = cursor else { return Ok(None) };
    URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| M::from_bytes(&bytes)).map(Some).ok_or_else(|| {
        ApiError::new(Code::BadQuery, "cursor: the value is not a cursor of this service")
            .field("cursor")
            .value(text)
            .allowed(["the next_cursor of an earlier response"])
    })
}

/// Cuts `rows` to `limit` and returns the cursor of the next page. Returns `None` if there is no
/// next page. The caller must have selected `limit + 1` rows.
pub(crate) fn paginate<T, M: CursorKey>(
    rows: &mut Vec<T>,
    limit: i64,
    id: impl Fn(&T) -> M,
) -> Option<String> {
    let limit = usize::try_from(limit).unwrap_or(0);
    if rows.len() <= limit {
        return None;
    }
    rows.truncate(limit);
    rows.last().map(|row| URL_SAFE_NO_PAD.encode(id(row).to_bytes()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_cursor_comes_back_as_the_id_it_stands_for() {
        let ids: Vec<Uuid> = (0..3).map(|_| Uuid::now_v7()).collect();
        let mut rows = ids.clone();
        let cursor = paginate(&mut rows, 2, |id| *id);
        assert_eq!(rows, ids[..2]);
        assert_eq!(decode(cursor.as_deref()).unwrap(), Some(ids[1]));
        assert_eq!(paginate(&mut rows, 2, |id| *id), None);
    }

    #[test]
    fn strange_cursors_are_refused() {
        for text in ["", "x", "????", "AAAA", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"] {
            assert_eq!(decode::<Uuid>(Some(text)).unwrap_err().code(), Code::BadQuery, "{text}");
        }
    }
}
