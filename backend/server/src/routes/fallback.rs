//! Contains the responses for paths and methods without an operation.
use crate::{ApiError, Code};
use axum::http::{Method, Uri};

pub(crate) async fn no_route(uri: Uri) -> ApiError {
    ApiError::new(Code::RouteNotFound, format!("the path {} does not exist; see /docs", uri.path()))
}

/// Responds to a request for an unknown path of a process without an API.
pub(crate) async fn no_status_route(uri: Uri) -> ApiError {
    let detail = format!(
        "the path {} does not exist; a worker serves only /health/live, /health/ready and /metrics",
        uri.path()
    );
    ApiError::new(Code::RouteNotFound, detail)
}

pub(crate) async fn no_method(method: Method, uri: Uri) -> ApiError {
    ApiError::new(Code::MethodNotAllowed, format!("{method} is not allowed at {}", uri.path()))
}
