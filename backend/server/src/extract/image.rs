//! Reads images from requests: as a multipart part, a raw body, or a URL or base64 in JSON. The
//! crate `crawler` has the rules for addresses, and the crate `vision` decodes the pixels.
pub(crate) use super::body::check_image;
use super::{body, json};
use crate::admission::FetchReservation;
use crate::{ApiError, AppState, Code, Result};
use axum::extract::{FromRequest, Request};
use axum::http::HeaderMap;
use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use crawler::fetch::{AnyHop, Kind};
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// Content types that can contain an image. `image/*` matches any image type.
const TYPES: &[&str] = &["multipart/form-data", "application/json", "image/*", "application/octet-stream"];

/// An image, given either by URL or as base64.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(example = json!({"url": "https://example.org/portrait.jpg"}))]
pub(crate) enum ImageSource {
    /// An image that the service fetches.
    Url(ImageByUrl),
    /// An image in the request.
    Base64(ImageAsBase64),
}

/// An image that the service fetches, under the same guard as the crawler.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImageByUrl {
    /// An http or https URL.
    #[schema(format = Uri)]
    url: String,
}

/// An image in the request.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImageAsBase64 {
    /// Standard or URL-safe alphabet, with or without padding; a `data:` prefix is accepted.
    pub(super) image_base64: String,
}

impl ImageSource {
    pub(crate) fn from_url(url: String) -> Self {
        Self::Url(ImageByUrl { url })
    }

    pub(crate) fn from_base64(image_base64: String) -> Self {
        Self::Base64(ImageAsBase64 { image_base64 })
    }
}

impl<'de> Deserialize<'de> for ImageSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            url: Option<String>,
            image_base64: Option<String>,
        }
        match Fields::deserialize(deserializer)? {
            Fields { url: Some(url), image_base64: None } => Ok(Self::from_url(url)),
            Fields { url: None, image_base64: Some(text) } => Ok(Self::from_base64(text)),
            _ => Err(D::Error::invalid_value(Unexpected::Map, &"exactly one of `url` and `image_base64`")),
        }
    }
}

/// Returns the value of the only field of a body that has one.
///
/// # Errors
/// Fails with 422 if not exactly one of `fields` has a value.
pub(crate) fn exactly_one<T, const N: usize>(fields: &[&str], values: [Option<T>; N]) -> Result<T> {
    let mut values = values.into_iter().flatten();
    match (values.next(), values.next()) {
        (Some(value), None) => Ok(value),
        _ => {
            let message = format!("exactly one of {} is required", fields.join(", "));
            Err(ApiError::new(Code::InvalidField, message).allowed(fields.iter().copied()))
        }
    }
}

/// A multipart body with one image.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only describes the body in the OpenAPI document")]
pub(crate) struct ImageForm {
    /// The file.
    #[schema(value_type = String, format = Binary, content_media_type = "application/octet-stream", example = "@portrait.jpg")]
    image: Vec<u8>,
}

/// How a body contains its images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFormat {
    Multipart,
    Json,
    Raw,
}

impl BodyFormat {
    /// Returns the format for the content type.
    ///
    /// # Errors
    /// Fails with 415 for any other content type, or if there is none. A page of another site can
    /// send a body without a type, or with one of the three form types, and the browser does not
    /// make a CORS preflight.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Result<Self> {
        let media = json::media_type(headers);
        match media.as_str() {
            "multipart/form-data" => Ok(Self::Multipart),
            "application/octet-stream" => Ok(Self::Raw),
            other if other.starts_with("image/") => Ok(Self::Raw),
            _ if json::is_json(headers) => Ok(Self::Json),
            _ => Err(json::unsupported(headers, TYPES)),
        }
    }
}

/// Contains the bytes of the only image of a request.
pub(crate) struct ImageBody(pub(crate) Bytes);

impl FromRequest<AppState> for ImageBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self> {
        match BodyFormat::from_headers(request.headers())? {
            BodyFormat::Json => {
                let source: ImageSource = read_json(request, state).await?;
                resolve(state, source).await.map(Self)
            }
            BodyFormat::Multipart => single_part(request, state).await.map(Self),
            BodyFormat::Raw => raw_body(request, state).await.map(Self),
        }
    }
}

/// Reads the part `image`.
pub(crate) async fn single_part(request: Request, state: &AppState) -> Result<Bytes> {
    let mut parts = image_parts(request, state, &["image"], 1).await?;
    match parts.pop() {
        Some(part) => part.image(),
        None => Err(missing_image("image", &["image"])),
    }
}

pub(crate) async fn raw_body(request: Request, state: &AppState) -> Result<Bytes> {
    let (parts, body) = request.into_parts();
    let bytes = body::read(&parts.headers, body, state.config.image_limit, "the image").await?;
    if bytes.is_empty() {
        return Err(ApiError::new(Code::MissingImage, "the body is empty; it must contain an image")
            .allowed([
                "a multipart part `image`",
                "a raw image body",
                "{\"url\": …}",
                "{\"image_base64\": …}",
            ]));
    }
    Ok(bytes)
}

/// Reads a JSON body that may contain one image.
pub(crate) async fn read_json<T: serde::de::DeserializeOwned + Send + 'static>(
    request: Request,
    state: &AppState,
) -> Result<T> {
    let (parts, body) = request.into_parts();
    json::parse(body::read(&parts.headers, body, state.config.single_body_limit(), "the body").await?).await
}

/// Reads two images from a multipart body: `image_a` and `image_b`, or two parts `image`.
pub(crate) async fn two_parts(request: Request, state: &AppState) -> Result<[Bytes; 2]> {
    const NAMES: &[&str] = &["image", "image_a", "image_b"];
    let refuse = |name: &str, reason: &str| {
        Err(ApiError::new(Code::UnknownPart, format!("the part `{name}` {reason}"))
            .field(name)
            .allowed(["image twice", "image_a and image_b"]))
    };
    let (mut a, mut b) = (None, None);
    let parts = image_parts(request, state, NAMES, 2).await?;
    if parts.iter().any(|part| part.name == "image") && parts.iter().any(|part| part.name != "image") {
        return refuse("image", "cannot be combined with `image_a` or `image_b`");
    }
    for part in parts {
        let slot = match part.name.as_str() {
            "image_a" => &mut a,
            "image_b" => &mut b,
            _ if a.is_none() => &mut a,
            _ => &mut b,
        };
        if slot.is_some() {
            return refuse(&part.name, "occurs twice");
        }
        *slot = Some(part.image()?);
    }
    match (a, b) {
        (Some(a), Some(b)) => Ok([a, b]),
        (None, _) => Err(missing_image("image_a", NAMES)),
        (_, None) => Err(missing_image("image_b", NAMES)),
    }
}

pub(crate) async fn two_sources(state: &AppState, a: ImageSource, b: ImageSource) -> Result<[Bytes; 2]> {
    let (a, b) = match (a, b) {
        (ImageSource::Url(a), ImageSource::Url(b)) => {
            let mut reservation = state.fetch_memory.acquire(2).await?;
            let first = reservation.split();
            let (a, b) = tokio::join!(fetch(state, &a.url, first), fetch(state, &b.url, reservation));
            (a.map(|(bytes, _)| bytes), b.map(|(bytes, _)| bytes))
        }
        (a, b) => tokio::join!(resolve(state, a), resolve(state, b)),
    };
    let with_name = |name: &str, error: ApiError| error.prefix_path(name);
    Ok([a.map_err(|error| with_name("a", error))?, b.map_err(|error| with_name("b", error))?])
}

/// One image of a batch: its bytes, its problem, or its source.
pub(crate) enum BatchInput {
    Part(Result<Bytes>),
    Source(ImageSource),
}

impl BatchInput {
    pub(crate) async fn bytes(self, state: &AppState) -> Result<Bytes> {
        match self {
            Self::Part(bytes) => bytes,
            Self::Source(source) => resolve(state, source).await,
        }
    }
}

/// A batch in JSON.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchBody {
    /// 1 to 64 images.
    #[schema(min_items = 1, max_items = 64)]
    images: Vec<ImageSource>,
}

/// A multipart body with several parts `image`.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only describes the body in the OpenAPI document")]
pub(crate) struct BatchForm {
    /// The files, 1 to 64 parts of this name.
    #[schema(value_type = Vec<String>, format = Binary, min_items = 1, max_items = 64, example = json!(["@portrait.jpg", "@team.jpg"]))]
    image: Vec<Vec<u8>>,
}

pub(crate) async fn read_batch(request: Request, state: &AppState) -> Result<Vec<BatchInput>> {
    let limit = state.config.batch_images;
    match BodyFormat::from_headers(request.headers())? {
        BodyFormat::Multipart => {
            let parts = image_parts(request, state, &["image"], limit).await?;
            if parts.is_empty() {
                return Err(missing_image("image", &["image"]));
            }
            Ok(parts.into_iter().map(|part| BatchInput::Part(part.image())).collect())
        }
        BodyFormat::Json => {
            let (parts, body) = request.into_parts();
            let bytes = body::read(&parts.headers, body, state.config.batch_limit, "the body").await?;
            let body: BatchBody = json::parse(bytes).await?;
            match body.images.len() {
                0 => Err(missing_image("images", &["images"])),
                n if n > limit => Err(ApiError::new(
                    Code::TooManyImages,
                    format!("the request has {n} images; at most {limit} are allowed"),
                )
                .field("images")
                .allowed([format!("1 to {limit} images")])),
                _ => Ok(body.images.into_iter().map(BatchInput::Source).collect()),
            }
        }
        BodyFormat::Raw => {
            Err(json::unsupported(request.headers(), &["multipart/form-data", "application/json"]))
        }
    }
}

async fn image_parts(
    request: Request,
    state: &AppState,
    names: &'static [&'static str],
    count: usize,
) -> Result<Vec<body::Part>> {
    let body_bytes = state.config.parts_limit(count);
    let limits = body::PartLimits { parts: names, count, part_bytes: state.config.image_limit, body_bytes };
    body::read_parts(request, limits).await
}

/// Reads the parts of a multipart body that have these names, each at most once.
pub(crate) async fn named_parts<const N: usize>(
    request: Request,
    state: &AppState,
    names: &'static [&'static str; N],
) -> Result<Vec<(String, Bytes)>> {
    let parts = image_parts(request, state, names, N).await?;
    parts.into_iter().map(|part| Ok((part.name.clone(), part.image()?))).collect()
}

/// Reads all parts of a multipart body, whatever their names, at most `count`. A part may be empty.
pub(crate) async fn form_parts(
    request: Request,
    state: &AppState,
    count: usize,
) -> Result<Vec<(String, Bytes)>> {
    let parts = image_parts(request, state, &[], count).await?;
    parts.into_iter().map(|part| Ok((part.name, part.bytes?))).collect()
}

fn missing_image(name: &str, allowed: &[&str]) -> ApiError {
    ApiError::new(Code::MissingImage, format!("`{name}` is missing"))
        .field(name)
        .allowed(allowed.iter().copied())
}

pub(crate) async fn resolve(state: &AppState, source: ImageSource) -> Result<Bytes> {
    resolve_with_urls(state, source).await.map(|(bytes, _)| bytes)
}

/// Returns the image bytes of a source. If the image was fetched, it also returns the URL of the
/// source and the URL after redirects.
pub(crate) async fn resolve_with_urls(
    state: &AppState,
    source: ImageSource,
) -> Result<(Bytes, Option<(String, String)>)> {
    match source {
        ImageSource::Url(ImageByUrl { url }) => {
            let reservation = state.fetch_memory.acquire(1).await?;
            let (bytes, fetched_from) = fetch(state, &url, reservation).await?;
            Ok((bytes, Some((url, fetched_from))))
        }
        ImageSource::Base64(ImageAsBase64 { image_base64: text }) => {
            let limit = state.config.image_limit;
            // Decoding a large image would block all other tasks of this thread.
            let decoded = tokio::task::spawn_blocking(move || decode_base64(&text, limit)).await;
            let decoded = decoded.map_err(ApiError::internal)?;
            decoded.map(|bytes| (bytes, None)).map_err(ApiError::with_current_request_id)
        }
    }
}

/// Fetches an image with the address checks of the crawler. Returns its bytes and the URL after
/// redirects.
///
/// The reserved memory shrinks to the size of the image. It is released when the last reference to
/// the bytes is dropped.
///
/// # Errors
/// Fails with 422 for a URL that is invalid, forbidden or unreachable, and with 413 for an image
/// that is too large.
async fn fetch(state: &AppState, text: &str, reservation: FetchReservation) -> Result<(Bytes, String)> {
    let url = url::Url::parse(text.trim()).map_err(|error| bad_url(text, error))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(bad_url(text, format!("the scheme `{}` is not allowed", url.scheme())));
    }
    let fetched = state
        .services
        .fetcher
        .fetch(crawler::fetch::Request::new(url, Kind::Image), &AnyHop)
        .await
        .map_err(|error| ApiError::from(error).field("url").value(text))?;
    if fetched.body.len() > state.config.image_limit {
        return Err(body::too_many_bytes("the image", state.config.image_limit).field("url"));
    }
    Ok((reservation.hold(fetched.body), fetched.url.to_string()))
}

/// Returns the problem for a text that is not the URL of a file.
pub(crate) fn bad_url(text: &str, reason: impl std::fmt::Display) -> ApiError {
    ApiError::for_field(Code::BadUrl, "url", reason).value(text).allowed(["an absolute http or https URL"])
}

const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

pub(super) fn decode_base64(text: &str, limit: usize) -> Result<Bytes> {
    let refuse = |detail: String| {
        ApiError::for_field(Code::BadBase64, "image_base64", detail)
            .allowed(["base64 of an image file", "data:image/…;base64,…"])
    };
    let text = text.trim();
    let data = if text.get(..5).is_some_and(|head| head.eq_ignore_ascii_case("data:")) {
        match text.split_once(',') {
            Some((head, data)) if head.to_ascii_lowercase().ends_with(";base64") => data,
            _ => return Err(refuse("the data: URI must contain `;base64,`".into())),
        }
    } else {
        text
    };
    // Line breaks are allowed, because the shell command `base64` inserts them.
    let digits: Vec<u8> = data.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    if digits.is_empty() {
        return Err(ApiError::new(Code::MissingImage, "`image_base64` is empty").field("image_base64"));
    }
    if digits.len() / 4 * 3 > limit + 3 {
        return Err(body::too_many_bytes("the image", limit).field("image_base64"));
    }
    let engine = if digits.iter().any(|byte| matches!(byte, b'-' | b'_')) { &URL_SAFE } else { &STANDARD };
    let bytes = engine.decode(&digits).map_err(|error| refuse(error.to_string()))?;
    if bytes.len() > limit {
        return Err(body::too_many_bytes("the image", limit).field("image_base64"));
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn common_base64_variants_are_decoded() {
        for text in [
            "+/+/AA==",
            "+/+/AA",
            "-_-_AA",
            " +/+/\nAA== ",
            "data:image/png;base64,+/+/AA==",
            "DATA:;BASE64,+/+/AA",
        ] {
            assert_eq!(decode_base64(text, 100).unwrap(), vec![0xfb, 0xff, 0xbf, 0x00], "{text}");
        }
    }

    #[test]
    fn invalid_base64_is_rejected() {
        for (text, code) in [
            ("", Code::MissingImage),
            ("data:image/png;base64,", Code::MissingImage),
            ("????", Code::BadBase64),
            ("data:image/png,abcd", Code::BadBase64),
            ("A", Code::BadBase64),
            ("é", Code::BadBase64),
        ] {
            assert_eq!(decode_base64(text, 100).unwrap_err().code(), code, "{text}");
        }
        assert_eq!(decode_base64(&"A".repeat(200), 100).unwrap_err().code(), Code::TooManyBytes);
    }

    #[test]
    fn image_source_requires_exactly_one_field() {
        assert!(json::parse_sync::<ImageSource>(br#"{"url": "http://a/b"}"#).is_ok());
        for text in ["{}", r#"{"url": "http://a", "image_base64": "AA"}"#, r#"{"path": "/etc"}"#, "[]", "1"] {
            assert_eq!(
                json::parse_sync::<ImageSource>(text.as_bytes()).unwrap_err().code(),
                Code::InvalidField
            );
        }
        let batch = json::parse_sync::<BatchBody>(br#"{"images": [{}]}"#).unwrap_err().into_problem();
        assert_eq!((batch.field.as_deref(), batch.allowed.len()), (Some("images[0]"), 1));
    }
}
