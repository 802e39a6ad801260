//! Measures the quality of images in requests, and enhances them. Nothing is stored.
use crate::auth::Caller;
use crate::extract::image::{ImageBody, ImageForm, ImageSource};
use crate::extract::{Query, Score};
use crate::routes::shared::analysis::{DetectedFace, ImageInfo, ProfileParam, Timings, analyze};
use crate::routes::shared::values::Binary;
use crate::{ApiError, AppState, Code, Result, Scope, Spec};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use inference::Priority;
use pipeline::{AnalyzeOptions, profile_of};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

pub(super) const ANALYZE: Spec =
    Spec::needs(Scope::Analyze).problems(&[Code::IMAGE, Code::FETCHED]).skip_connection_limit();

/// Options of a quality report.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct QualityParams {
    /// Minimum `det_score` of a face.
    #[param(value_type = Option<f32>, minimum = 0.1, maximum = 1)]
    min_score: Option<Score>,
    /// Quality profile that determines `quality.passed`; the default is that of the collection,
    /// else of the service.
    #[param(inline, value_type = Option<ProfileParam>)]
    quality_profile: Option<vision::Profile>,
    /// Use the quality profile of this collection; the default is the collection of the key.
    collection: Option<String>,
}

/// Grey-level statistics of the whole image, computed as in OpenCV (BT.601 grey; Laplacian and 3x3
/// Sobel).
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"laplacian_variance": 337.4, "tenengrad": 4766.1, "mean": 135.5, "std": 51.6, "clipped": 0.0002}))]
pub(super) struct Statistics {
    /// Variance of the Laplacian. Low values indicate blur.
    laplacian_variance: f64,
    /// Mean squared Sobel gradient.
    tenengrad: f64,
    /// Mean grey level, 0 to 255.
    mean: f64,
    /// Standard deviation of the grey level.
    std: f64,
    /// Share of pixels with a grey level of at most 5 or at least 250, 0 to 1.
    clipped: f64,
}

/// The quality of an image.
#[derive(Serialize, ToSchema)]
pub(super) struct QualityAnswer {
    image: ImageInfo,
    statistics: Statistics,
    /// The faces with their quality, by descending score.
    faces: Vec<DetectedFace>,
    timings_ms: Timings,
}

/// Measure the quality of an image and of the faces in it.
///
/// Nothing is stored.
#[utoipa::path(
    post, path = "/images/quality", operation_id = "report_quality", tag = "images",
    params(QualityParams),
    request_body(content(
        (ImageForm = "multipart/form-data"), (ImageSource = "application/json"), (Binary = "image/*"), (Binary = "application/octet-stream")
    )),
    responses((status = 200, description = "The quality of the image and of its faces", body = QualityAnswer)),
)]
pub(super) async fn report_quality(
    state: AppState,
    caller: Caller,
    Query(params): Query<QualityParams>,
    ImageBody(bytes): ImageBody,
) -> Result<Json<QualityAnswer>> {
    let collection = caller.settings_collection(params.collection.as_deref()).await?;
    let options = AnalyzeOptions {
        min_score: params.min_score.map(Score::get),
        embeddings: false,
        quality: true,
        quality_profile: params.quality_profile.or_else(|| collection.as_ref().and_then(profile_of)),
        ..AnalyzeOptions::default()
    };
    let analysis = analyze(&state, bytes, &options).await?;
    let analyzer = state.analyzer();
    let grey = analyzer.pixels().statistics(analysis.frame.clone(), Priority::Interactive).await?.output;
    Ok(Json(QualityAnswer {
        image: ImageInfo::new(&analysis),
        statistics: Statistics {
            laplacian_variance: grey.laplacian_variance,
            tenengrad: grey.tenengrad,
            mean: grey.mean,
            std: grey.std,
            clipped: grey.clipped,
        },
        faces: analysis.faces.iter().map(|face| DetectedFace::new(face, false)).collect(),
        timings_ms: analysis.timings.into(),
    }))
}

/// Scale of the enhanced image relative to the image in the request.
const SCALE_HEADER: HeaderName = HeaderName::from_static("x-enhancement-scale");
/// JPEG quality of responses. Compression at this quality adds no visible artefacts.
const JPEG_QUALITY: u8 = 95;

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
    state: AppState,
    headers: HeaderMap,
    ImageBody(bytes): ImageBody,
) -> Result<Response> {
    let jpeg = prefers_jpeg(&headers);
    let permit = state.analyses.admit(1)?;
    let enhanced = state.analyzer().enhance(bytes, Priority::Interactive).await?;
    // A slow reader keeps the file in memory, so memory is reserved before the file is encoded. The
    // file is rarely larger than its pixels.
    let pixels = u64::from(enhanced.frame.width()) * u64::from(enhanced.frame.height());
    let mut reservation = state.response_memory.try_acquire(pixels * vision::BYTES_PER_PIXEL)?;
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
    // `middleware::limits` keeps the reservation until the file has been sent.
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
        let find = |range: &str| ranges.iter().find(|(name, _)| name == range).map(|(_, weight)| *weight);
        find(media).or_else(|| find("image/*")).or_else(|| find("*/*")).unwrap_or(0.0)
    };
    weight("image/jpeg") > weight("image/png")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn accept_header_selects_jpeg_or_png() {
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
