use super::Api;
use crate::request::with_deadline;
use crate::{ApiError, Code};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::time::{Duration, Instant};

/// Maximum time of an upload. The operation ends slow uploads earlier.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(3600);

/// Limits the time until the head of the response. The body of a stream (events) may take longer.
/// An upload has an hour.
pub(crate) async fn layer(State(api): State<Api>, request: Request, next: Next) -> Response {
    let uploads = api.operations.of(&request).is_some_and(|operation| operation.spec.uploads);
    let limit = if uploads { UPLOAD_TIMEOUT } else { api.state.config.request_timeout };
    let deadline = Instant::now() + limit;
    let answer = with_deadline(deadline, next.run(request));
    tokio::time::timeout_at(deadline.into(), answer).await.unwrap_or_else(|_| {
        ApiError::new(Code::Timeout, format!("the request did not finish within {limit:?} and was cancelled"))
            .into_response()
    })
}
