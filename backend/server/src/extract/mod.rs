//! Reads parameters, ids, JSON and images from requests. Every error describes the cause and the
//! allowed values. Handlers are in `routes`.
mod body;
mod cursor;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub(crate) mod image;
mod json;
mod typed;
mod uri;
mod values;

pub(crate) use body::{
    content_length, discard_body, discard_rest, limit_upload, read_whole, too_many_bytes, upload_error,
};
pub(crate) use cursor::List;
pub(crate) use json::{Json, is_json, media_type, read_small_json, unsupported};
pub(crate) use uri::{Id, NameOrId, Query, SubjectFace, parse as parse_query};
pub(crate) use values::{
    Bounded, Cosine, DetSize, Fraction, Score, double_option, interval, site, time, uuid,
};
