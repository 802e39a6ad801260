//! No request waits for ever.
use crate::{ApiError, AppState, Code};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::time::Instant;

tokio::task_local! {
    static DEADLINE: Instant;
}

/// When the time of the request is over that this task answers, so that work for it can be given up unstarted.
pub(crate) fn deadline() -> Option<Instant> {
    DEADLINE.try_with(|deadline| *deadline).ok()
}

/// Bounds the time to the head of the answer; a body that streams (events) may go on.
pub(crate) async fn layer(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let limit = state.config.request_timeout;
    let deadline = Instant::now() + limit;
    let answer = DEADLINE.scope(deadline, next.run(request));
    tokio::time::timeout_at(deadline.into(), answer).await.unwrap_or_else(|_| {
        ApiError::new(Code::Timeout, format!("no answer within {limit:?}; the work was given up"))
            .into_response()
    })
}
