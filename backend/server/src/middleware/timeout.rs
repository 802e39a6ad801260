//! Limits the time of every request.
use crate::request::with_deadline;
use crate::{ApiError, AppState, Code};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::time::Instant;

/// Limits the time until the head of the response. The body of a stream (events) may take longer.
pub(crate) async fn layer(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let limit = state.config.request_timeout;
    let deadline = Instant::now() + limit;
    let answer = with_deadline(deadline, next.run(request));
    tokio::time::timeout_at(deadline.into(), answer).await.unwrap_or_else(|_| {
        ApiError::new(Code::Timeout, format!("the request did not finish within {limit:?} and was cancelled"))
            .into_response()
    })
}
