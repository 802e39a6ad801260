//! The stable codes.
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
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// As it stands in the document.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The HTTP status that goes with it.
            pub fn status(self) -> StatusCode {
                match self { $(Self::$variant => StatusCode::$status,)* }
            }

            /// What it means.
            pub fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }
        }
    };
}

impl Code {
    /// Problems with a picture itself.
    pub(crate) const PICTURE: &'static [Self] = &[
        Self::NotAnImage,
        Self::UnsupportedFormat,
        Self::CorruptImage,
        Self::ImageTooLarge,
        Self::BadBase64,
        Self::NotReady,
    ];
    /// Problems with a picture that the service fetches.
    pub(crate) const FETCHED: &'static [Self] = &[Self::BadUrl, Self::ForbiddenUrl, Self::UrlUnreachable];
    /// Problems where an operation takes one face of a picture.
    pub(crate) const FACE: &'static [Self] = &[Self::NoFace, Self::NoSuchFace];
}

codes! {
    /// The content is no image.
    NotAnImage = "not_an_image", UNSUPPORTED_MEDIA_TYPE, "The content is not an image";
    /// An image format that is not built in.
    UnsupportedFormat = "unsupported_format", UNSUPPORTED_MEDIA_TYPE, "The image format is not supported";
    /// Truncated or damaged.
    CorruptImage = "corrupt_image", UNPROCESSABLE_ENTITY, "The image is truncated or corrupt";
    /// Too many pixels.
    ImageTooLarge = "image_too_large", PAYLOAD_TOO_LARGE, "The image has too many pixels";
    /// Too many bytes.
    TooManyBytes = "too_many_bytes", PAYLOAD_TOO_LARGE, "Too many bytes";
    /// Too many images in a batch.
    TooManyImages = "too_many_images", PAYLOAD_TOO_LARGE, "Too many images";
    /// No image in the request.
    MissingImage = "missing_image", BAD_REQUEST, "An image is missing";
    /// A multipart part that the operation does not know.
    UnknownPart = "unknown_part", BAD_REQUEST, "An unknown multipart part";
    /// A multipart body that cannot be read.
    BadMultipart = "bad_multipart", BAD_REQUEST, "The multipart body is malformed";
    /// A body whose end did not come, or whose framing is broken.
    BadBody = "bad_body", BAD_REQUEST, "The body could not be read";
    /// The body is no JSON.
    BadJson = "bad_json", BAD_REQUEST, "The body is not JSON";
    /// A field of a JSON body is missing, unknown or out of range.
    InvalidField = "invalid_field", UNPROCESSABLE_ENTITY, "A field is wrong";
    /// Not base64.
    BadBase64 = "bad_base64", UNPROCESSABLE_ENTITY, "The text is not base64";
    /// Not an http or https URL.
    BadUrl = "bad_url", UNPROCESSABLE_ENTITY, "Not a usable URL";
    /// The URL guard refused.
    ForbiddenUrl = "forbidden_url", UNPROCESSABLE_ENTITY, "The URL is not allowed";
    /// The image behind a URL could not be fetched; `reason` says why.
    UrlUnreachable = "url_unreachable", UNPROCESSABLE_ENTITY, "The URL could not be fetched";
    /// A query parameter is unknown or has a wrong value.
    BadQuery = "bad_query", BAD_REQUEST, "A query parameter is wrong";
    /// An id in the path that is no UUID.
    BadId = "bad_id", BAD_REQUEST, "The id is not a UUID";
    /// A picture in which no face was found.
    NoFace = "no_face", UNPROCESSABLE_ENTITY, "No face was found";
    /// A face index beyond the faces found.
    NoSuchFace = "no_such_face", UNPROCESSABLE_ENTITY, "The picture has fewer faces";
    /// A face that is not good enough to be enrolled; `errors` has the reasons.
    LowQuality = "low_quality", UNPROCESSABLE_ENTITY, "The face does not meet the quality profile";
    /// A stored face whose embedding is of another model than the one in use.
    ModelMismatch = "model_mismatch", CONFLICT, "The embedding is of another model";
    /// A body of a type that the operation does not take.
    UnsupportedMediaType = "unsupported_media_type", UNSUPPORTED_MEDIA_TYPE, "The content type is not supported";
    /// The path exists, with other methods.
    MethodNotAllowed = "method_not_allowed", METHOD_NOT_ALLOWED, "The method is not allowed here";
    /// No key, or one that does not work; `reason` says which: `missing`, `unknown`, `expired`, `revoked`, `scheme`, `twice`.
    Unauthorized = "unauthorized", UNAUTHORIZED, "A key is needed";
    /// The key does not allow this operation.
    ScopeMissing = "scope_missing", FORBIDDEN, "The key does not allow this";
    /// Without keys: the request names a host that is not this service's.
    HostNotAllowed = "host_not_allowed", MISDIRECTED_REQUEST, "The host is not this service's";
    /// Without keys: a page of another site asks for a change.
    OriginNotAllowed = "origin_not_allowed", FORBIDDEN, "Another site may change nothing here";
    /// So much would be deleted that the call needs the token of a dry run; `reason` says what is
    /// wrong with the one that was sent: `missing`, `mismatch`, `expired`, `grown`.
    ConfirmationNeeded = "confirmation_needed", PRECONDITION_REQUIRED, "The call has to be confirmed";
    /// No such path.
    RouteNotFound = "route_not_found", NOT_FOUND, "There is nothing at this path";
    /// No such thing.
    NotFound = "not_found", NOT_FOUND, "There is no such thing";
    /// The state of the thing does not allow the change.
    Conflict = "conflict", CONFLICT, "The state does not allow this";
    /// The key has used up its requests of this minute; come back after `Retry-After`.
    RateLimited = "rate_limited", TOO_MANY_REQUESTS, "The key's rate is used up";
    /// Come back after `Retry-After`.
    Overloaded = "overloaded", TOO_MANY_REQUESTS, "The service is overloaded";
    /// The answer took too long.
    Timeout = "timeout", SERVICE_UNAVAILABLE, "The answer took too long";
    /// Starting, stopping, or a part is down.
    NotReady = "not_ready", SERVICE_UNAVAILABLE, "The service is not ready";
    /// The database is away, or its answer never came; with `reason` `outcome_unknown` the change may have been made.
    DatabaseUnavailable = "database_unavailable", SERVICE_UNAVAILABLE, "The database is unavailable";
    /// Our mistake.
    Internal = "internal", INTERNAL_SERVER_ERROR, "The service failed";
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Listed in the OpenAPI document, so that clients can be generated with them.
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
