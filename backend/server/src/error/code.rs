//! Contains the stable error codes with their HTTP statuses and titles. The problem documents are
//! in the parent module.
use axum::http::StatusCode;
use serde::{Serialize, Serializer};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $status:ident, $title:literal;)*) => {
        /// The stable codes of problem documents.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code { $($(#[$doc])* $variant,)* }

        impl Code {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            pub fn status(self) -> StatusCode {
                match self { $(Self::$variant => StatusCode::$status,)* }
            }

            pub fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }
        }
    };
}

impl Code {
    /// Problems with an image itself.
    pub(crate) const IMAGE: &'static [Self] = &[
        Self::NotAnImage,
        Self::UnsupportedFormat,
        Self::NeedsFfmpeg,
        Self::CorruptImage,
        Self::ImageTooLarge,
        Self::BadBase64,
        Self::NotReady,
    ];
    /// Problems with an image that the service fetches.
    pub(crate) const FETCHED: &'static [Self] = &[Self::BadUrl, Self::ForbiddenUrl, Self::UrlUnreachable];
    /// Problems of operations that use one face of an image.
    pub(crate) const FACE: &'static [Self] = &[Self::NoFace, Self::NoSuchFace];
}

codes! {
    NotAnImage = "not_an_image", UNSUPPORTED_MEDIA_TYPE, "The content is not an image";
    /// The image format, or its coding, is not supported.
    UnsupportedFormat = "unsupported_format", UNSUPPORTED_MEDIA_TYPE, "The image format is not supported";
    /// ffmpeg decodes the image format, and the service has none. `./scripts/video` installs it.
    NeedsFfmpeg = "needs_ffmpeg", UNSUPPORTED_MEDIA_TYPE, "The image format needs ffmpeg";
    CorruptImage = "corrupt_image", UNPROCESSABLE_ENTITY, "The image is truncated or corrupt";
    ImageTooLarge = "image_too_large", PAYLOAD_TOO_LARGE, "The image has too many pixels";
    TooManyBytes = "too_many_bytes", PAYLOAD_TOO_LARGE, "The image or the body has too many bytes";
    TooManyImages = "too_many_images", PAYLOAD_TOO_LARGE, "The request has too many images";
    MissingImage = "missing_image", BAD_REQUEST, "An image is missing";
    /// The operation does not accept a multipart part of this name.
    UnknownPart = "unknown_part", BAD_REQUEST, "A multipart part is unknown";
    BadMultipart = "bad_multipart", BAD_REQUEST, "The multipart body is malformed";
    /// The body is incomplete, or its framing is broken.
    BadBody = "bad_body", BAD_REQUEST, "The body could not be read";
    BadJson = "bad_json", BAD_REQUEST, "The body is not JSON";
    /// A field of a JSON body is missing, unknown or out of range.
    InvalidField = "invalid_field", UNPROCESSABLE_ENTITY, "A field is invalid";
    /// The archive is not a usable ZIP archive, or its list cannot be read.
    BadArchive = "bad_archive", UNPROCESSABLE_ENTITY, "The archive cannot be read";
    BadBase64 = "bad_base64", UNPROCESSABLE_ENTITY, "The image is not valid base64";
    /// The text is not an http or https URL.
    BadUrl = "bad_url", UNPROCESSABLE_ENTITY, "The URL is not valid";
    /// The URL guard rejected the URL.
    ForbiddenUrl = "forbidden_url", UNPROCESSABLE_ENTITY, "The URL is not allowed";
    /// The image at the URL could not be fetched. `reason` states why.
    UrlUnreachable = "url_unreachable", UNPROCESSABLE_ENTITY, "The URL could not be fetched";
    BadQuery = "bad_query", BAD_REQUEST, "A query parameter is invalid";
    BadId = "bad_id", BAD_REQUEST, "The id is not a UUID";
    NotAVideo = "not_a_video", UNSUPPORTED_MEDIA_TYPE, "The content is not a video";
    UnsupportedCodec = "unsupported_codec", UNSUPPORTED_MEDIA_TYPE, "The codec is not supported";
    CorruptVideo = "corrupt_video", UNPROCESSABLE_ENTITY, "The video is corrupt";
    /// The video is too long, or has too many pixels, frames or faces.
    VideoTooLarge = "video_too_large", PAYLOAD_TOO_LARGE, "The video is too long or too large";
    VideoUnavailable = "video_unavailable", SERVICE_UNAVAILABLE, "Videos cannot be decoded here";
    NoFace = "no_face", UNPROCESSABLE_ENTITY, "No face was found";
    /// The face index is larger than the number of faces found.
    NoSuchFace = "no_such_face", UNPROCESSABLE_ENTITY, "No face of the image has this index, or `face_index` is missing";
    /// The quality of the face is too low for enrolment. `errors` lists the reasons.
    LowQuality = "low_quality", UNPROCESSABLE_ENTITY, "The face does not meet the quality profile";
    /// The embedding of the stored face is from a different model than the current one.
    ModelMismatch = "model_mismatch", CONFLICT, "The embedding is from a different model";
    /// The operation does not accept a body of this type.
    UnsupportedMediaType = "unsupported_media_type", UNSUPPORTED_MEDIA_TYPE, "The content type is not supported";
    /// The path exists, but not with this method.
    MethodNotAllowed = "method_not_allowed", METHOD_NOT_ALLOWED, "The method is not allowed here";
    /// The request has no valid key. `reason` is one of `missing`, `unknown`, `expired`, `revoked`,
    /// `scheme`, `twice`.
    Unauthorized = "unauthorized", UNAUTHORIZED, "A valid key is required";
    ScopeMissing = "scope_missing", FORBIDDEN, "The key does not allow this operation";
    /// No keys are used, and the `Host` header contains a name that is not this service.
    HostNotAllowed = "host_not_allowed", MISDIRECTED_REQUEST, "The host name is not allowed";
    /// No keys are used, and a page of another site requests a change.
    OriginNotAllowed = "origin_not_allowed", FORBIDDEN, "The origin is not allowed";
    /// The call would delete so many rows that it requires the token of a dry run. `reason` states
    /// what is wrong with the token: `missing`, `mismatch`, `expired`, `grown`.
    ConfirmationNeeded = "confirmation_needed", PRECONDITION_REQUIRED, "The call must be confirmed";
    RouteNotFound = "route_not_found", NOT_FOUND, "The path does not exist";
    NotFound = "not_found", NOT_FOUND, "The resource does not exist";
    Conflict = "conflict", CONFLICT, "The state of the resource does not allow this";
    /// The key has used up its requests of this minute. Retry after `Retry-After`.
    RateLimited = "rate_limited", TOO_MANY_REQUESTS, "The rate limit of the key is exceeded";
    /// The service or the caller's share of it is overloaded. Retry after `Retry-After`.
    Overloaded = "overloaded", TOO_MANY_REQUESTS, "The service is overloaded";
    Timeout = "timeout", SERVICE_UNAVAILABLE, "The request timed out";
    /// The service is starting or stopping, or one of its parts is down.
    NotReady = "not_ready", SERVICE_UNAVAILABLE, "The service is not ready";
    /// The database is unavailable. With `reason` `outcome_unknown`, the change may have been
    /// committed.
    DatabaseUnavailable = "database_unavailable", SERVICE_UNAVAILABLE, "The database is unavailable";
    /// The disk has less free space than `MIN_FREE_DISK_MB`. Nothing was stored.
    DiskFull = "disk_full", INSUFFICIENT_STORAGE, "The disk is full";
    Internal = "internal", INTERNAL_SERVER_ERROR, "The service failed";
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Lists the codes in the OpenAPI document, so that generated clients define them.
impl PartialSchema for Code {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("The stable codes of problem documents."))
            .enum_values(Some(Self::ALL.iter().map(|code| code.as_str())))
            .into()
    }
}

impl ToSchema for Code {}
