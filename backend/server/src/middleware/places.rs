//! Keeps one caller from occupying every connection to the database.
use crate::{AppState, operation};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

/// Limits the running requests of a caller to three quarters of the connections to the database.
/// Further requests wait until their deadline at most.
pub(crate) async fn layer(State(state): State<AppState>, request: Request, next: Next) -> Response {
    if operation::of(&request).is_some_and(|operation| !operation.spec.takes_place) {
        return next.run(request).await;
    }
    let mut place = state.places.open();
    place.begin(1).await;
    next.run(request).await
}
