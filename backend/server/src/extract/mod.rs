//! What comes in: parameters, ids, JSON and images. Every refusal names what was wrong and what is allowed.
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
mod shape;
pub(crate) mod values;

pub(crate) use body::{drop_unread, linger};
pub(crate) use json::{Json, is_json, unsupported};
pub(crate) use path::{Id, NameOrId, SubjectFace};
pub(crate) use query::Query;

/// Said of a NUL character, which the database cannot hold; refused where texts come in, so that no operation has to think of it.
const NUL: &str = "it has a NUL character";
const NO_NUL: &str = "text without NUL";
