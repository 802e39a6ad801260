//! No request waits for ever.
use crate::{ApiError, AppState, Code};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Bounds the time to the head of the answer; a body that streams (events) may go on.
pub(crate) async fn layer(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let limit = state.config.request_timeout;
    tokio::time::timeout(limit, next.run(request)).await.unwrap_or_else(|_| {
        ApiError::new(Code::Timeout, format!("no answer within {limit:?}; the work was given up"))
            .into_response()
    })
}
