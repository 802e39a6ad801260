//! Contains one problem document per code, as the service writes it. The OpenAPI document contains
//! them as examples.
use super::{ApiError, Code, Problem};
use crawler::{FetchError, GuardError};
use pipeline::VideoAnalyzeError;
use std::net::Ipv4Addr;
use std::time::Duration;
use store::StoreError;
use video::VideoError;
use vision::DecodeError;

const REQUEST_ID: &str = "0198f1c2-3a55-7c30-9d35-6a2f5d0f6a11";

impl Problem {
    pub(crate) fn example(code: Code) -> Self {
        Self { request_id: REQUEST_ID.to_owned(), ..*example(code).into_problem() }
    }
}

fn example(code: Code) -> ApiError {
    let with_detail = |detail: &str| ApiError::new(code, detail);
    let video = |error: VideoError| VideoAnalyzeError::from(error).into();
    match code {
        Code::NotAnImage => DecodeError::NotAnImage.into(),
        Code::UnsupportedFormat => {
            DecodeError::Unsupported { format: "jpeg with arithmetic coding", reason: "no decoder supports this coding".into() }.into()
        }
        Code::NeedsFfmpeg => DecodeError::NeedsFfmpeg { format: "heic" }.into(),
        Code::NotAVideo => with_detail("the content is not a video in an accepted container"),
        Code::UnsupportedCodec => video(VideoError::Codec),
        Code::CorruptVideo => video(VideoError::Undecodable("moov atom not found".into())),
        Code::VideoTooLarge => {
            let limit = Duration::from_secs(60);
            video(VideoError::TooLong { actual: Duration::from_secs(125), limit })
        }
        Code::VideoUnavailable => with_detail("this service has no ffmpeg, which decodes videos; run ./scripts/video or set FFMPEG"),
        Code::CorruptImage => DecodeError::Corrupt { format: "jpeg", reason: "the file ends early".into() }.into(),
        Code::ImageTooLarge => {
            let (width, height, max_pixels, max_side) = (60_000, 60_000, 50_000_000, 16_384);
            DecodeError::TooLarge { width, height, max_pixels, max_side }.into()
        }
        Code::TooManyBytes => {
            with_detail("the image is longer than 26214400 bytes").allowed(["at most 26214400 bytes"])
        }
        Code::TooManyImages => {
            with_detail("the request has 65 images; at most 64 are allowed").field("images").allowed(["1 to 64 images"])
        }
        Code::MissingImage => with_detail("`image` is missing").field("image").allowed(["image"]),
        Code::UnknownPart => {
            with_detail("the part `file` is unknown; allowed: image").field("file").allowed(["image"])
        }
        Code::BadArchive => with_detail("the archive cannot be read: invalid Zip archive: Could not find EOCD"),
        Code::BadMultipart => with_detail("Invalid `boundary` for `multipart/form-data` request"),
        Code::BadBody => with_detail("the body could not be read: Invalid chunk size line"),
        Code::BadJson => with_detail("the body is not JSON: EOF while parsing an object at line 1 column 1"),
        Code::InvalidField => {
            const ALLOWED: &str = "a whole number from 1 to 1000";
            with_detail(&format!("limit: invalid value: integer `0`, expected {ALLOWED}"))
                .field("limit")
                .allowed([ALLOWED])
        }
        Code::BadBase64 => with_detail("image_base64: Invalid symbol 63, offset 0.")
            .field("image_base64")
            .allowed(["base64 of an image file", "data:image/…;base64,…"]),
        Code::BadUrl => with_detail("url: relative URL without a base")
            .field("url")
            .value("portrait.jpg")
            .allowed(["an absolute http or https URL"]),
        Code::ForbiddenUrl => {
            let (address, range) = (Ipv4Addr::new(169, 254, 169, 254).into(), "link-local");
            let error = FetchError::Guard(GuardError::Address { address, range });
            ApiError::not_fetched(&error).field("url").value("http://169.254.169.254/latest/")
        }
        Code::UrlUnreachable => ApiError::not_fetched(&FetchError::Status { status: 404, retry_after: None })
            .field("url")
            .value("https://example.org/gone.jpg"),
        Code::BadQuery => {
            const ALLOWED: &str = "a whole number from 1 to 1000";
            with_detail(&format!("limit: invalid value: integer `0`, expected {ALLOWED}"))
                .field("limit")
                .value("0")
                .allowed([ALLOWED])
        }
        Code::BadId => with_detail("id: `abc` is not a UUID").field("id").value("abc").allowed(["a UUID"]),
        Code::NoFace => with_detail("no face was found in `image`").field("image"),
        Code::NoSuchFace => {
            with_detail("`image` has 2 faces; there is no face with index 5").field("image").value("5").allowed(["0 to 1"])
        }
        Code::LowQuality => with_detail("the face does not meet the profile strict: too_blurry, too_small")
            .field("image")
            .allowed(["a face that meets the profile strict", "a different quality_profile", "force=true"])
            .errors(vec!["too_blurry".into(), "too_small".into()]),
        Code::ModelMismatch => {
            with_detail("the embedding of the face is from the model mobilefacenet; the current model is sface").field("face_id")
        }
        Code::UnsupportedMediaType => with_detail("the content type is `text/plain`; allowed: application/json")
            .field("content-type")
            .value("text/plain")
            .allowed(["application/json"]),
        Code::MethodNotAllowed => with_detail("PUT is not allowed at /faces"),
        Code::Unauthorized => with_detail("this service requires a key")
            .reason("missing")
            .allowed(["Authorization: Bearer fc_…", "X-API-Key: fc_…"]),
        Code::ScopeMissing => with_detail("this operation requires the scope read, which the key does not have")
            .field("scope")
            .allowed(["a key with the scope read"]),
        Code::HostNotAllowed => {
            with_detail("the name in `Host` is not a name of this service; the operator can allow it with PUBLIC_HOSTS")
                .field("host")
                .value("faces.example.org")
        }
        Code::OriginNotAllowed => {
            with_detail("pages of other sites must not send changes; the operator can allow an origin with ALLOW_ORIGINS")
                .field("origin")
                .value("https://elsewhere.example.org")
        }
        Code::ConfirmationNeeded => with_detail("5130 rows would be deleted permanently, which is more than CONFIRM_ABOVE (100), and the call has no `confirm`; repeat the call with dry_run=true, then send it with the `confirm` of that response")
            .field("confirm")
            .allowed(["`confirm` of the same call with dry_run=true"])
            .reason("missing"),
        Code::RouteNotFound => with_detail("the path /nowhere does not exist; see /docs"),
        Code::NotFound => with_detail("there is no face 0198f1c2-7d10-7000-8000-4a6f1f6e2b03"),
        Code::Conflict => with_detail("the crawl is running; cancel it first"),
        Code::RateLimited => with_detail("the key has used all of its 60 requests per minute"),
        Code::Overloaded => with_detail("too many analyses are in progress"),
        Code::Timeout => with_detail("the request did not finish within 60s and was cancelled"),
        Code::NotReady => {
            const REASON: &str = "the database does not respond";
            with_detail(REASON).errors(vec![REASON.into()])
        }
        Code::DatabaseUnavailable => ApiError::unavailable(),
        Code::DiskFull => StoreError::DiskFull { reserve_mb: 1024 }.into(),
        Code::Internal => ApiError::internal_response(),
    }
}
