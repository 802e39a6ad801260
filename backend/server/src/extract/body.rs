//! Reads bodies and multipart parts with a size limit, so that the caller still receives the error
//! response.
//!
//! If a server closes a connection while the caller sends, the unread bytes cause a reset. Many
//! clients then lose the response. The rest of a body that exceeds its limit is therefore read and
//! discarded for a short time before the response.
use crate::admission::ReservationError;
use crate::{ApiError, Code, Result};
use axum::body::{Body, BodyDataStream};
use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Request};
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use std::time::Duration;

/// Maximum number of bytes above the limit that are read and discarded before the response.
const DISCARD_BYTES: usize = 64 << 20;
/// Maximum time for which bytes above the limit are read and discarded.
const DISCARD_TIME: Duration = Duration::from_secs(5);

/// Marks the end of a limited body that was longer than allowed.
#[derive(Debug, thiserror::Error)]
#[error("the body is longer than {limit} bytes")]
pub(super) struct BodyTooLong {
    pub(super) limit: usize,
}

pub(crate) fn too_many_bytes(name: &str, limit: usize) -> ApiError {
    ApiError::new(Code::TooManyBytes, format!("{name} is longer than {limit} bytes"))
        .allowed([format!("at most {limit} bytes")])
}

/// Returns the length of the body that the caller announces, or 0.
pub(crate) fn content_length(headers: &HeaderMap) -> u64 {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    length.and_then(|length| length.parse().ok()).unwrap_or(0)
}

/// Rejects a body by its `Content-Length` if reading it would be useless: if the caller waits for
/// permission to send (`Expect: 100-continue`), or if the body is longer than the server would
/// discard.
///
/// # Errors
/// Fails with 413 `too_many_bytes`.
pub(super) fn check_length(headers: &HeaderMap, limit: usize, name: &str) -> Result<()> {
    let length = content_length(headers);
    let is_useless = length > limit as u64
        && (headers.contains_key(header::EXPECT) || length > (limit + DISCARD_BYTES) as u64);
    if is_useless { Err(too_many_bytes(name, limit)) } else { Ok(()) }
}

/// Returns the body, which ends with the error `TooLong` after `limit` bytes. The rest of the body
/// is discarded before the error.
pub(super) fn limit_body(body: Body, limit: usize) -> Body {
    let state = (body.into_data_stream(), 0_usize);
    Body::from_stream(futures::stream::try_unfold(state, move |(mut stream, received)| async move {
        let Some(chunk) = stream.next().await else { return Ok(None) };
        let chunk = chunk?;
        let received = received + chunk.len();
        if received <= limit {
            return Ok(Some((chunk, (stream, received))));
        }
        discard_rest(&mut stream).await;
        Err(axum::Error::new(BodyTooLong { limit }))
    }))
}

/// Returns the body of an upload, which ends with an error after `limit` bytes. Errors call it
/// `name`.
///
/// # Errors
/// Fails with 413 if the announced length is far above the limit.
pub(crate) fn limit_upload(request: Request, limit: usize, name: &str) -> Result<Body> {
    check_length(request.headers(), limit, name)?;
    Ok(limit_body(request.into_body(), limit))
}

/// Converts an error of a body of [`limit_upload`].
pub(crate) fn upload_error(error: &(dyn std::error::Error + 'static), limit: usize, name: &str) -> ApiError {
    if is_too_long(error) {
        return too_many_bytes(name, limit);
    }
    ApiError::new(Code::BadBody, format!("{name} could not be read: {error}"))
}

/// Reads and discards a body, up to `DISCARD_BYTES` and `DISCARD_TIME`.
pub(crate) async fn discard_rest(stream: &mut BodyDataStream) {
    let reading = async {
        let mut discarded = 0;
        while let Some(Ok(chunk)) = stream.next().await {
            discarded += chunk.len();
            if discarded > DISCARD_BYTES {
                break;
            }
        }
    };
    // The response is the same whether the body ends in time or not.
    let _ = tokio::time::timeout(DISCARD_TIME, reading).await;
}

/// Discards an unneeded body, so that its sender receives the response. If the caller waits for
/// permission to send, nothing is read.
pub(crate) async fn discard_body(request: Request) {
    if !request.headers().contains_key(header::EXPECT) {
        discard_rest(&mut request.into_body().into_data_stream()).await;
    }
}

pub(super) fn is_too_long(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |e| e.source()).any(|e| e.is::<BodyTooLong>())
}

/// Returns the problem if the cause of an error is missing memory for the body.
pub(super) fn reservation_error(error: &(dyn std::error::Error + 'static)) -> Option<ApiError> {
    let mut causes = std::iter::successors(Some(error), |e| e.source());
    causes.find_map(|cause| cause.downcast_ref::<ReservationError>()).cloned().map(ApiError::from)
}

/// Reads the whole body. Errors call it `name`.
///
/// # Errors
/// Fails with 413 for more than `limit` bytes, 429 if there is no memory for the body, and 400 if
/// it cannot be read.
pub(super) async fn read(headers: &HeaderMap, body: Body, limit: usize, name: &str) -> Result<Bytes> {
    check_length(headers, limit, name)?;
    let mut stream = limit_body(body, limit).into_data_stream();
    let mut first: Option<Bytes> = None;
    let mut buffer = BytesMut::new();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| {
            if is_too_long(&error) {
                return too_many_bytes(name, limit);
            }
            reservation_error(&error).unwrap_or_else(|| {
                ApiError::new(Code::BadBody, format!("the body could not be read: {error}"))
            })
        })?;
        match first.take() {
            None if buffer.is_empty() => first = Some(chunk),
            None => buffer.extend_from_slice(&chunk),
            Some(previous) => {
                buffer.extend_from_slice(&previous);
                buffer.extend_from_slice(&chunk);
            }
        }
    }
    Ok(first.unwrap_or_else(|| buffer.freeze()))
}

/// Reads the whole body of a request. Errors call it `name`.
///
/// # Errors
/// Fails with 413 for more than `limit` bytes, 429 if there is no memory for the body, and 400 if
/// it cannot be read.
pub(crate) async fn read_whole(request: Request, limit: usize, name: &str) -> Result<Bytes> {
    let (parts, body) = request.into_parts();
    read(&parts.headers, body, limit, name).await
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PartLimits {
    /// Accepted part names. Empty: any name.
    pub(super) parts: &'static [&'static str],
    pub(super) count: usize,
    pub(super) part_bytes: usize,
    pub(super) body_bytes: usize,
}

#[derive(Debug)]
pub(super) struct Part {
    pub(super) name: String,
    /// The bytes, or the reason why this part cannot be used. A batch reports an error per image.
    pub(super) bytes: Result<Bytes>,
}

impl Part {
    /// Returns the bytes of an image.
    ///
    /// # Errors
    /// Fails with `missing_image` if the part is empty.
    pub(super) fn image(self) -> Result<Bytes> {
        let bytes = self.bytes?;
        check_image(&self.name, &bytes)?;
        Ok(bytes)
    }
}

/// Fails with `missing_image` if the part with this name is empty.
pub(crate) fn check_image(name: &str, bytes: &Bytes) -> Result<()> {
    if !bytes.is_empty() {
        return Ok(());
    }
    Err(ApiError::new(Code::MissingImage, format!("the part `{name}` is empty")).field(name))
}

/// Reads all parts in order. An unknown part or too many parts are errors of the whole body. After
/// such an error, the rest of the body is read and discarded, so that the caller has sent
/// everything before the response.
pub(super) async fn read_parts(request: Request, limits: PartLimits) -> Result<Vec<Part>> {
    check_length(request.headers(), limits.body_bytes, "the body")?;
    let mut request = request.map(|inner| limit_body(inner, limits.body_bytes));
    // `limit_body` limits the body. The default limit of axum (2 MB) would be too small.
    DefaultBodyLimit::disable().apply(&mut request);
    let mut multipart = Multipart::from_request(request, &())
        .await
        .map_err(|rejection| ApiError::new(Code::BadMultipart, rejection.body_text()))?;
    let mut parts = Vec::new();
    let mut error = None;
    while let Some(mut field) =
        multipart.next_field().await.map_err(|error| multipart_error(&error, limits))?
    {
        let name = field.name().unwrap_or_default().to_owned();
        if !limits.parts.is_empty() && !limits.parts.contains(&name.as_str()) {
            error.get_or_insert_with(|| unknown_part(&name, limits.parts));
        } else if parts.len() == limits.count {
            error.get_or_insert_with(|| {
                ApiError::new(
                    Code::TooManyImages,
                    format!("the request has more than {} images", limits.count),
                )
                .field(&name)
                .allowed([format!("at most {} images", limits.count)])
            });
        }
        let bytes = read_part(&mut field, if error.is_some() { 0 } else { limits.part_bytes }, &name)
            .await
            .map_err(|error| multipart_error(&error, limits))?;
        if error.is_none() {
            parts.push(Part { name, bytes });
        }
    }
    error.map_or(Ok(parts), Err)
}

/// Returns the bytes of a part. A part above the limit is still read to its end.
async fn read_part(field: &mut Field<'_>, limit: usize, name: &str) -> Result<Result<Bytes>, MultipartError> {
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
    Ok(Ok(bytes.freeze()))
}

fn unknown_part(name: &str, allowed: &[&str]) -> ApiError {
    ApiError::new(Code::UnknownPart, format!("the part `{name}` is unknown; allowed: {}", allowed.join(", ")))
        .field(name)
        .allowed(allowed.iter().copied())
}

fn multipart_error(error: &MultipartError, limits: PartLimits) -> ApiError {
    if is_too_long(error) {
        return too_many_bytes("the body", limits.body_bytes);
    }
    reservation_error(error).unwrap_or_else(|| ApiError::new(Code::BadMultipart, error.body_text()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn chunks(sizes: &[usize]) -> Body {
        let chunks: Vec<Result<Bytes, axum::Error>> =
            sizes.iter().enumerate().map(|(i, n)| Ok(Bytes::from(vec![i as u8; *n]))).collect();
        Body::from_stream(futures::stream::iter(chunks))
    }

    #[tokio::test]
    async fn body_within_limit_is_read_completely() {
        for sizes in [&[][..], &[10], &[4, 6], &[1, 2, 3, 4]] {
            let read = read(&HeaderMap::new(), chunks(sizes), 10, "the body").await.unwrap();
            let expected: Vec<u8> =
                sizes.iter().enumerate().flat_map(|(i, n)| std::iter::repeat_n(i as u8, *n)).collect();
            assert_eq!(read, expected);
        }
    }

    #[tokio::test]
    async fn body_over_limit_by_one_byte_is_rejected() {
        let error = read(&HeaderMap::new(), chunks(&[4, 7]), 10, "the image").await.unwrap_err();
        assert_eq!(error.code(), Code::TooManyBytes);
        assert!(error.to_string().contains("10 bytes"));
    }

    #[test]
    fn oversized_body_with_expect_header_is_rejected_at_once() {
        let header_map = |pairs: &[(header::HeaderName, &str)]| {
            pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect::<HeaderMap>()
        };
        let expect = (header::EXPECT, "100-continue");
        for (headers, is_rejected) in [
            (header_map(&[]), false),
            (header_map(&[(header::CONTENT_LENGTH, "10"), expect.clone()]), false),
            (header_map(&[(header::CONTENT_LENGTH, "11"), expect]), true),
            // Without `Expect`, a small excess is read and discarded, so that the caller receives
            // the response.
            (header_map(&[(header::CONTENT_LENGTH, "11")]), false),
            (header_map(&[(header::CONTENT_LENGTH, "1000000000000")]), true),
        ] {
            assert_eq!(check_length(&headers, 10, "the body").is_err(), is_rejected, "{headers:?}");
        }
    }
}
