//! One caller cannot occupy every connection to the database.
use crate::AppState;
use crate::auth::{Access, Operations};
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;

/// Operations that hardly ask the database and take long otherwise: their own limits are those of
/// analyses and of event streams.
const ELSEWHERE: [&str; 6] = [
    "/faces/detect",
    "/faces/detect/batch",
    "/faces/compare",
    "/images/enhance",
    "/images/quality",
    "/crawls/{id}/events",
];

/// Lets a caller have three quarters as many requests under way as there are connections to the
/// database. Further ones wait, and not beyond the request's deadline.
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
