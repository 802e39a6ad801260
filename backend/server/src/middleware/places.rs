//! Keeps one caller from using every database connection. Other limits per caller are where the
//! resource is used.
use crate::AppState;
use crate::auth::{Access, Operations};
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;

/// Operations that take long but hardly use the database. The limits on analyses and event streams
/// apply to them instead.
const ELSEWHERE: [&str; 6] = [
    "/faces/detect",
    "/faces/detect/batch",
    "/faces/compare",
    "/images/enhance",
    "/images/quality",
    "/crawls/{id}/events",
];

/// Limits the running requests of a caller to three quarters of the database connections. Further
/// requests wait, at most until their deadline.
pub(crate) async fn layer(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default();
    let is_open = Operations::shared().access(request.method(), path) == Some(Access::Open);
    if is_open || ELSEWHERE.contains(&path) {
        return next.run(request).await;
    }
    let mut place = state.places.open();
    place.begin(1).await;
    next.run(request).await
}
