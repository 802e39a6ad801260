//! Opaque cursors: the last id of a page, newest first.
use crate::{ApiError, Code};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use uuid::Uuid;

/// The id before which the next page begins.
pub(crate) fn decode(cursor: Option<&str>) -> Result<Option<Uuid>, ApiError> {
    let Some(text) = cursor else { return Ok(None) };
    URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| Uuid::from_slice(&bytes).ok()).map(Some).ok_or_else(
        || {
            ApiError::new(Code::BadQuery, "cursor: not one that this service handed out")
                .field("cursor")
                .value(text)
                .allowed(["the next_cursor of an earlier answer"])
        },
    )
}

/// Cuts a list that was asked for with one row too many to `limit`, and answers the cursor of the next page if there is one.
pub(crate) fn cut<T>(rows: &mut Vec<T>, limit: i64, id: impl Fn(&T) -> Uuid) -> Option<String> {
    let limit = usize::try_from(limit).unwrap_or(0);
    if rows.len() <= limit {
        return None;
    }
    rows.truncate(limit);
    rows.last().map(|row| URL_SAFE_NO_PAD.encode(id(row)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_cursor_comes_back_as_the_id_it_stands_for() {
        let ids: Vec<Uuid> = (0..3).map(|_| Uuid::now_v7()).collect();
        let mut rows = ids.clone();
        let cursor = cut(&mut rows, 2, |id| *id);
        assert_eq!(rows, ids[..2]);
        assert_eq!(decode(cursor.as_deref()).unwrap(), Some(ids[1]));
        assert_eq!(cut(&mut rows, 2, |id| *id), None);
    }

    #[test]
    fn strange_cursors_are_refused() {
        for text in ["", "x", "????", "AAAA", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"] {
            assert_eq!(decode(Some(text)).unwrap_err().code(), Code::BadQuery, "{text}");
        }
    }
}
