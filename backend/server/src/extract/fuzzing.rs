//! Contains entry points for the fuzz targets, which read JSON and multipart bodies without a
//! running service. They call the functions of the extractors and contain no further logic.
use super::image::{ImageAsBase64, ImageSource, decode_base64};
use super::{body, json, uri};
use crate::{ApiError, Code, Result};
use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use bytes::Bytes;
use serde::de::DeserializeOwned;

pub const MAX_VALUES: usize = json::MAX_VALUES;
pub const MAX_DEPTH: usize = json::MAX_DEPTH;
/// Part names that [`multipart`] accepts.
pub const PART_NAMES: &[&str] = &["image", "image_a", "image_b"];

/// Checks the structure of a text. A text that is not JSON passes.
pub fn check_structure(text: &[u8]) -> Result<()> {
    json::read(text)
        .map(drop)
        .or_else(|error| if error.code() == Code::BadJson { Ok(()) } else { Err(error) })
}

pub(crate) fn body<T: DeserializeOwned>(text: &[u8]) -> Result<T> {
    json::parse_sync(text)
}

pub(crate) fn parameters<T: DeserializeOwned>(text: &str) -> Result<T> {
    uri::parse(text)
}

/// Decodes an image in a body. Fails for an image that is given by URL.
pub(crate) fn decode_image(source: ImageSource, limit: usize) -> Result<Bytes> {
    match source {
        ImageSource::Base64(ImageAsBase64 { image_base64 }) => decode_base64(&image_base64, limit),
        ImageSource::Url(_) => Err(ApiError::internal("an image by URL is fetched, not decoded")),
    }
}

#[derive(Debug)]
pub struct Part {
    pub name: String,
    /// The content of the part, or the reason why it cannot be used.
    pub bytes: Result<Bytes>,
}

#[derive(Clone, Copy, Debug)]
pub struct PartLimits {
    pub count: usize,
    pub part_bytes: usize,
    pub body_bytes: usize,
}

/// Reads a multipart body that arrives in `chunks`.
///
/// # Errors
/// Fails with 400, 413 or 422, like the image operations.
pub async fn multipart(content_type: &str, chunks: Vec<Bytes>, limits: PartLimits) -> Result<Vec<Part>> {
    let chunks = futures::stream::iter(chunks.into_iter().map(Ok::<_, std::convert::Infallible>));
    let request = Request::post("/")
        .header(header::CONTENT_TYPE, content_type)
        .body(Body::from_stream(chunks))
        .map_err(ApiError::internal)?;
    let PartLimits { count, part_bytes, body_bytes } = limits;
    let limits = body::PartLimits { parts: PART_NAMES, count, part_bytes, body_bytes };
    let parts = body::read_parts(request, limits).await?;
    Ok(parts.into_iter().map(|part| Part { name: part.name.clone(), bytes: part.image() }).collect())
}
