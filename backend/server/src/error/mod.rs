//! Contains the errors of the API as problem documents (RFC 9457).
//!
//! Every error has a stable `code` and describes the cause and the allowed values. The errors of
//! other crates are converted in `convert`. Each operation documents its own problems.
mod code;
mod convert;
mod example;

pub use code::Code;

use crate::request;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::time::Duration;
use store::db::transient::{Cause, Transient};
use utoipa::ToSchema;

/// Value of `Retry-After` while the database is unavailable.
const DATABASE_RETRY_AFTER: Duration = Duration::from_secs(5);

/// Maximum length of `detail` in characters. The detail can repeat a part of the request.
const MAX_DETAIL_CHARS: usize = 1000;
/// Maximum length of `field` and of `value`, in characters.
const MAX_VALUE_CHARS: usize = 200;

/// Removes the middle of a text of more than `limit` characters. Both ends are kept, because
/// serde's messages begin with the received value and end with the allowed values.
fn shorten(text: &mut String, limit: usize) {
    if text.len() <= limit || text.chars().count() <= limit {
        return;
    }
    let half = limit / 2;
    let position = |(position, _): (usize, char)| position;
    let head = text.char_indices().nth(half).map_or(0, position);
    let tail = text.char_indices().nth_back(half - 2).map_or(text.len(), position);
    text.replace_range(head..tail, "…");
    text.shrink_to_fit();
}

/// The body of every error response, `application/problem+json`.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "type": "urn:facecrawl:problem:bad_query", "title": "A query parameter is invalid", "status": 400, "code": "bad_query",
    "detail": "limit: invalid value: integer `0`, expected a whole number from 1 to 1000",
    "request_id": "0198f1c2-3a55-7c30-9d35-6a2f5d0f6a11", "field": "limit", "value": "0", "allowed": ["a whole number from 1 to 1000"]
}))]
pub struct Problem {
    /// A URN that identifies the code and ends with it.
    pub r#type: String,
    /// What the code means, the same for every occurrence.
    pub title: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// Stable, machine-readable error code.
    pub code: Code,
    /// Description of this occurrence.
    pub detail: String,
    /// Id of the request, also sent in the header `x-request-id`. Include it in support requests.
    pub request_id: String,
    /// The parameter, field, part or image that is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Its value as sent, truncated to 200 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// What would have been accepted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<String>,
    /// A more specific code, such as the crawler's reason why a URL could not be fetched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// One sentence per error, if there are several errors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    #[serde(skip)]
    retry_after: Option<Duration>,
    #[serde(skip)]
    challenge: Option<String>,
    #[serde(skip)]
    cause: Option<Cause>,
}

pub(crate) type Result<T, E = ApiError> = std::result::Result<T, E>;

#[derive(Clone, Debug, thiserror::Error)]
#[error("{}: {}", .0.code.as_str(), .0.detail)]
pub struct ApiError(Box<Problem>);

impl ApiError {
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let mut detail = detail.into();
        shorten(&mut detail, MAX_DETAIL_CHARS);
        Self(Box::new(Problem {
            r#type: format!("urn:facecrawl:problem:{}", code.as_str()),
            title: code.title(),
            status: code.status().as_u16(),
            code,
            detail,
            request_id: request::id(),
            field: None,
            value: None,
            allowed: Vec::new(),
            reason: None,
            errors: Vec::new(),
            retry_after: None,
            challenge: None,
            cause: None,
        }))
    }

    /// Returns a problem with one field or parameter, which `detail` names.
    pub(crate) fn for_field(code: Code, field: &str, reason: impl std::fmt::Display) -> Self {
        Self::new(code, format!("{field}: {reason}")).field(field)
    }

    #[must_use]
    pub fn field(mut self, field: impl Into<String>) -> Self {
        let mut field = field.into();
        shorten(&mut field, MAX_VALUE_CHARS);
        self.0.field = Some(field);
        self
    }

    #[must_use]
    pub fn value(mut self, value: impl AsRef<str>) -> Self {
        self.0.value = Some(value.as_ref().chars().take(MAX_VALUE_CHARS).collect());
        self
    }

    #[must_use]
    pub fn allowed<T: Into<String>>(mut self, allowed: impl IntoIterator<Item = T>) -> Self {
        self.0.allowed = allowed.into_iter().map(Into::into).collect();
        self
    }

    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.0.reason = Some(reason.into());
        self
    }

    #[must_use]
    pub fn errors(mut self, errors: Vec<String>) -> Self {
        self.0.errors = errors;
        self
    }

    /// Records which of several images has the problem, such as `a` or `images[3]`.
    #[must_use]
    pub fn prefix_path(mut self, parent: &str) -> Self {
        self.0.field = Some(match self.0.field.take() {
            Some(field) => format!("{parent}.{field}"),
            None => parent.to_owned(),
        });
        self
    }

    /// Sets the id of the current request. Use it for an error that was created on another thread.
    pub(crate) fn with_current_request_id(mut self) -> Self {
        self.0.request_id = request::id();
        self
    }

    /// Returns a 429 error with `Retry-After`.
    pub fn overloaded(detail: impl Into<String>, retry_after: Duration) -> Self {
        Self::new(Code::Overloaded, detail).retry_after(retry_after)
    }

    #[must_use]
    pub(crate) fn retry_after(mut self, wait: Duration) -> Self {
        self.0.retry_after = Some(wait);
        self
    }

    #[must_use]
    pub(crate) fn challenge(mut self, challenge: String) -> Self {
        self.0.challenge = Some(challenge);
        self
    }

    /// Returns a 500 error. The cause is logged with the request id and is not sent to the caller.
    pub fn internal(cause: impl std::fmt::Display) -> Self {
        tracing::error!(request_id = request::id(), error = %cause, "request failed");
        Self::internal_response()
    }

    /// Returns the 500 response for callers, without the cause.
    fn internal_response() -> Self {
        Self::new(Code::Internal, "the service failed; its log contains the cause with this request id")
    }

    /// Returns a 503 error for a database that is unavailable. The error is logged.
    pub(crate) fn database(cause: Cause, error: &dyn std::fmt::Display) -> Self {
        tracing::warn!(request_id = request::id(), %error, "the database is unavailable");
        let mut problem = Self::unavailable();
        problem.0.cause = Some(cause);
        problem
    }

    /// Returns the 503 response for callers while the database is unavailable.
    fn unavailable() -> Self {
        let detail = "the database is temporarily unavailable; nothing was changed";
        Self::new(Code::DatabaseUnavailable, detail).retry_after(DATABASE_RETRY_AFTER)
    }

    /// Returns a 503 error for a change whose commit may or may not have succeeded.
    pub(crate) fn outcome_unknown(error: &dyn std::fmt::Display) -> Self {
        tracing::error!(request_id = request::id(), %error, "commit outcome unknown");
        let detail = "the connection to the database was lost during the change; check whether the change was made before you repeat the request";
        Self::new(Code::DatabaseUnavailable, detail).reason("outcome_unknown")
    }

    pub fn not_found(resource: &str, id: impl std::fmt::Display) -> Self {
        Self::new(Code::NotFound, format!("there is no {resource} {id}"))
    }

    pub fn code(&self) -> Code {
        self.0.code
    }

    /// Returns the document, for responses that contain problems (a batch).
    pub fn into_problem(self) -> Box<Problem> {
        self.0
    }
}

impl Transient for ApiError {
    fn cause(&self) -> Option<Cause> {
        self.0.cause
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.0.code.status();
        let body = serde_json::to_vec(&self.0).expect("a problem always serializes");
        let mut response = (status, body).into_response();
        // The APIs of other servers convert the problem.
        response.extensions_mut().insert(self.0.code);
        if let Some(cause) = self.0.cause {
            // Reports to the retry layer that the failure is transient.
            response.extensions_mut().insert(cause);
        }
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(wait) = self.0.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(wait.as_secs_f64().ceil().max(1.0) as u64));
        }
        if let Some(challenge) = self.0.challenge.and_then(|text| HeaderValue::try_from(text).ok()) {
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}
