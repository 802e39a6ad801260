use crate::answer_memory::AnswerMemory;
use crate::extract::image::{ImageBody, ImageForm, ImageSource};
use crate::routes::dto::Binary;
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use inference::Priority;
use std::sync::Arc;

/// Scale of the enhanced image relative to the image in the request.
pub(crate) const SCALE_HEADER: HeaderName = HeaderName::from_static("x-enhancement-scale");
/// JPEG quality of responses. Compression at this quality adds no visible artefacts.
const JPEG_QUALITY: u8 = 95;

pub(super) const SPEC: Spec =
    Spec::needs(Scope::Analyze).problems(&[Code::PICTURE, Code::FETCHED]).limited_elsewhere();

/// Enhance an image of low resolution.
///
/// The contrast is stretched. An image whose short side is under 400 pixels is enlarged (Lanczos)
/// until that side has 640 pixels, at most four times, and sharpened (unsharp mask). A larger image
/// keeps its size. The response is PNG, or JPEG if `Accept` prefers `image/jpeg`. Nothing is
/// stored.
#[utoipa::path(
    post, path = "/images/enhance", operation_id = "enhance_image", tag = "images",
    params(("accept" = Option<String>, Header, description = "`image/png` (the default) or `image/jpeg`", example = "image/jpeg")),
    request_body(content(
        (ImageForm = "multipart/form-data"), (ImageSource = "application/json"), (Binary = "image/*"), (Binary = "application/octet-stream")
    )),
    responses(
        (status = 200, description = "The enhanced image", content((Binary = "image/png"), (Binary = "image/jpeg")), headers(("vary"), ("x-enhancement-scale"))),
    ),
)]
pub(super) async fn enhance_image(
    State(state): State<AppState>,
    headers: HeaderMap,
    ImageBody(bytes): ImageBody,
) -> Result<Response, ApiError> {
    let jpeg = prefers_jpeg(&headers);
    let permit = state.admit(1)?;
    let enhanced = state.analyzer().enhance(bytes, Priority::Interactive).await?;
    // A slow reader keeps the file in memory, so memory is reserved before the file is encoded. The
    // file is rarely larger than its pixels.
    let pixels = u64::from(enhanced.frame.width()) * u64::from(enhanced.frame.height());
    let mut reservation = AnswerMemory::try_take(&state, pixels * vision::BYTES_PER_PIXEL)?;
    let scale = HeaderValue::from_str(&enhanced.scale.to_string()).map_err(ApiError::internal)?;
    let encode = move || {
        if jpeg {
            vision::encode::jpeg(&enhanced.frame, JPEG_QUALITY)
        } else {
            vision::encode::png(&enhanced.frame)
        }
    };
    let file = tokio::task::spawn_blocking(encode).await.map_err(ApiError::internal)?;
    drop(permit);
    reservation.shrink(file.len() as u64);
    let media = HeaderValue::from_static(if jpeg { "image/jpeg" } else { "image/png" });
    let vary = HeaderValue::from_static("accept");
    let headers = [(header::CONTENT_TYPE, media), (SCALE_HEADER, scale), (header::VARY, vary)];
    // `middleware::answers` keeps the reservation until the file has been sent.
    Ok((headers, Extension(Arc::new(reservation)), file).into_response())
}

/// Returns whether `Accept` gives JPEG more weight than PNG (RFC 9110, 12.5.1). A client that lists
/// neither receives PNG.
fn prefers_jpeg(headers: &HeaderMap) -> bool {
    let ranges: Vec<(String, f32)> = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|range| {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default().to_ascii_lowercase();
            let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok());
            (media, weight.unwrap_or(1.0))
        })
        .collect();
    // The most specific media range that matches determines the weight.
    let weight = |media: &str| {
        let of = |range: &str| ranges.iter().find(|(name, _)| name == range).map(|(_, weight)| *weight);
        of(media).or_else(|| of("image/*")).or_else(|| of("*/*")).unwrap_or(0.0)
    };
    weight("image/jpeg") > weight("image/png")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn accept_decides_between_the_two() {
        let prefers = |accept: &str| {
            let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_str(accept).unwrap())]);
            prefers_jpeg(&headers)
        };
        for accept in ["image/jpeg", "image/jpeg, image/png;q=0.5", "IMAGE/JPEG", "image/png;q=0, image/*"] {
            assert!(prefers(accept), "{accept}");
        }
        for accept in
            ["", "*/*", "image/*", "image/png, image/jpeg;q=0.9", "image/jpeg;q=0", "text/html", ";;,"]
        {
            assert!(!prefers(accept), "{accept}");
        }
    }
}
