//! Reads what callers send: parameters, ids, JSON and images. Every error states what was wrong and
//! what is allowed. Handlers are in `routes`.
mod body;
pub(crate) mod cursor;
mod fetched;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub(crate) mod image;
mod json;
mod multipart;
mod path;
mod query;
mod structure;
pub(crate) mod values;

pub(crate) use body::{discard_rest, drop_unread, limited_upload, upload_error};
pub(crate) use json::{Json, is_json, media_type, read_small_json, unsupported};
pub(crate) use path::{Id, NameOrId, SubjectFace};
pub(crate) use query::Query;

/// Message for a NUL character, which Postgres cannot store. Extractors reject it, so that no
/// operation has to check for it.
const NUL: &str = "it contains a NUL character";
const NO_NUL: &str = "text without NUL";
