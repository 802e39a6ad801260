//! Reads images from multipart bodies.
use super::body::{self, too_many_bytes};
use crate::{ApiError, Code};
use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Request};
use bytes::{Bytes, BytesMut};

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Accepted part names.
    pub(super) parts: &'static [&'static str],
    pub(super) count: usize,
    pub(super) part_bytes: usize,
    pub(super) body_bytes: usize,
}

#[derive(Debug)]
pub(super) struct Part {
    pub(super) name: String,
    /// The bytes of the image, or why this part cannot be used. A batch reports an error per image.
    pub(super) bytes: Result<Bytes, ApiError>,
}

/// Reads all parts in order. An unknown part or too many parts are errors of the whole body. After
/// such an error, the rest of the body is read and discarded, so that the caller has sent
/// everything before the response.
pub(super) async fn read(request: Request, limits: Limits) -> Result<Vec<Part>, ApiError> {
    body::check_length(request.headers(), limits.body_bytes, "the body")?;
    let mut request = request.map(|inner| body::limited(inner, limits.body_bytes));
    // `limited` bounds the body. The default limit of axum (2 MB) would be too small.
    DefaultBodyLimit::disable().apply(&mut request);
    let mut multipart = Multipart::from_request(request, &())
        .await
        .map_err(|rejection| ApiError::new(Code::BadMultipart, rejection.body_text()))?;
    let mut parts = Vec::new();
    let mut fault = None;
    while let Some(mut field) = multipart.next_field().await.map_err(|error| refuse(&error, limits))? {
        let name = field.name().unwrap_or_default().to_owned();
        if !limits.parts.contains(&name.as_str()) {
            fault.get_or_insert_with(|| unknown(&name, limits.parts));
        } else if parts.len() == limits.count {
            fault.get_or_insert_with(|| {
                ApiError::new(
                    Code::TooManyImages,
                    format!("the request has more than {} images", limits.count),
                )
                .field(&name)
                .allowed([format!("at most {} images", limits.count)])
            });
        }
        let bytes = collect(&mut field, if fault.is_some() { 0 } else { limits.part_bytes }, &name)
            .await
            .map_err(|error| refuse(&error, limits))?;
        if fault.is_none() {
            parts.push(Part { name, bytes });
        }
    }
    fault.map_or(Ok(parts), Err)
}

/// Returns the bytes of a part. A part above the limit is still read to its end.
async fn collect(
    field: &mut Field<'_>,
    limit: usize,
    name: &str,
) -> Result<Result<Bytes, ApiError>, MultipartError> {
    let mut bytes = BytesMut::new();
    let mut is_too_long = false;
    while let Some(chunk) = field.chunk().await? {
        is_too_long |= bytes.len() + chunk.len() > limit;
        if !is_too_long {
            bytes.extend_from_slice(&chunk);
        }
    }
    if is_too_long {
        return Ok(Err(too_many_bytes("the image", limit).field(name)));
    }
    if bytes.is_empty() {
        return Ok(Err(ApiError::new(Code::MissingImage, format!("the part `{name}` is empty")).field(name)));
    }
    Ok(Ok(bytes.freeze()))
}

fn unknown(name: &str, allowed: &[&str]) -> ApiError {
    ApiError::new(Code::UnknownPart, format!("the part `{name}` is unknown; allowed: {}", allowed.join(", ")))
        .field(name)
        .allowed(allowed.iter().copied())
}

fn refuse(error: &MultipartError, limits: Limits) -> ApiError {
    if body::is_too_long(error) {
        return too_many_bytes("the body", limits.body_bytes);
    }
    body::reservation_error(error).unwrap_or_else(|| ApiError::new(Code::BadMultipart, error.body_text()))
}
