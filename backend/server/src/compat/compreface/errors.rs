//! Errors as CompreFace reports them: an HTTP status, a number and a message.
use crate::{ApiError, Code};
use axum::Json;
use axum::body::to_bytes;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

/// Maximum size of a problem document of this service in bytes.
const MAX_PROBLEM_BYTES: usize = 64 << 10;

/// The numbers of CompreFace (`CommonExceptionCode.java`) that this service uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Number {
    Undefined = 0,
    ServiceNotFound = 10,
    MissingHeader = 20,
    NotAnImage = 21,
    Invalid = 26,
    NoFace = 28,
    TooManyFaces = 31,
    MissingParameter = 33,
    MissingPart = 34,
    WrongCount = 37,
    Unavailable = 41,
    SubjectNotFound = 42,
    SubjectExists = 43,
    ImageNotFound = 44,
}

/// The body of an error.
#[derive(Serialize)]
struct Body {
    message: String,
    code: u16,
}

/// The failure of an operation.
#[derive(Debug)]
pub(super) enum Failure {
    /// An error that CompreFace has and the API of this service does not have.
    Own(StatusCode, Number, String),
    /// An error of this service, which [`translate`] converts.
    Api(ApiError),
}

pub(super) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub(super) fn subject_not_found(name: &str) -> Self {
        Self::Own(StatusCode::NOT_FOUND, Number::SubjectNotFound, format!("Subject {name} not found"))
    }

    pub(super) fn image_not_found(id: impl std::fmt::Display) -> Self {
        Self::Own(StatusCode::NOT_FOUND, Number::ImageNotFound, format!("Image {id} not found"))
    }

    pub(super) fn bad_request(number: Number, message: impl Into<String>) -> Self {
        Self::Own(StatusCode::BAD_REQUEST, number, message.into())
    }
}

impl<E: Into<ApiError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Api(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Self::Own(status, number, message) => {
                (status, Json(Body { message, code: number as u16 })).into_response()
            }
            // `translate` converts it, like the errors of the middleware.
            Self::Api(error) => error.into_response(),
        }
    }
}

/// Returns the status and the number for a code of this service. CompreFace uses 400 for most
/// errors of a request. Other statuses are kept, so that clients and proxies can act on them.
fn describe(code: Code) -> (StatusCode, Number) {
    let bad_request = |number| (StatusCode::BAD_REQUEST, number);
    match code {
        Code::NoFace => bad_request(Number::NoFace),
        Code::NoSuchFace => bad_request(Number::TooManyFaces),
        Code::NotAnImage
        | Code::UnsupportedFormat
        | Code::NeedsFfmpeg
        | Code::CorruptImage
        | Code::ImageTooLarge
        | Code::BadBase64
        | Code::UnsupportedMediaType => bad_request(Number::NotAnImage),
        Code::MissingImage | Code::UnknownPart | Code::BadMultipart => bad_request(Number::MissingPart),
        Code::BadQuery | Code::BadId | Code::InvalidField | Code::BadJson | Code::BadBody => {
            bad_request(Number::Invalid)
        }
        Code::Unauthorized => (code.status(), Number::ServiceNotFound),
        Code::Timeout | Code::NotReady | Code::DatabaseUnavailable | Code::Internal => {
            (code.status(), Number::Unavailable)
        }
        _ => (code.status(), Number::Undefined),
    }
}

/// The fields of a problem document that determine the message.
#[derive(Deserialize)]
struct Problem {
    detail: String,
    reason: Option<String>,
}

/// Converts a problem document to an error of CompreFace. Headers such as `Retry-After` are kept.
pub(in crate::compat) async fn translate(response: Response) -> Response {
    let Some(code) = response.extensions().get::<Code>().copied() else { return response };
    let (mut parts, body) = response.into_parts();
    let problem = to_bytes(body, MAX_PROBLEM_BYTES)
        .await
        .ok()
        .and_then(|bytes| serde_json::from_slice::<Problem>(&bytes).ok());
    let (mut status, mut number) = describe(code);
    let has_no_key = code == Code::Unauthorized
        && problem.as_ref().is_some_and(|problem| problem.reason.as_deref() == Some(crate::auth::NO_KEY));
    if has_no_key {
        (status, number) = (StatusCode::BAD_REQUEST, Number::MissingHeader);
    }
    let message = match problem {
        _ if has_no_key => "Missing header: x-api-key".to_owned(),
        _ if code == Code::NoFace => "No face is found in the given image".to_owned(),
        _ if number == Number::TooManyFaces => "More than one face in the source image".to_owned(),
        Some(problem) => problem.detail,
        None => code.title().to_owned(),
    };
    parts.status = status;
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.remove(header::CONTENT_TYPE);
    let (json, body) = Json(Body { message, code: number as u16 }).into_response().into_parts();
    parts.headers.extend(json.headers);
    Response::from_parts(parts, body)
}
