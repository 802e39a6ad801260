//! Prevents one caller from using every database connection. Other limits per caller are
//! implemented where the resource is used.
use super::Api;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

/// Limits the running requests of a caller to three quarters of the database connections. Further
/// requests wait, at most until their deadline.
pub(crate) async fn layer(State(api): State<Api>, request: Request, next: Next) -> Response {
    let spec = api.operations.of(&request).map(|operation| operation.spec);
    if spec.is_some_and(|spec| !spec.counts_connection(request.headers())) {
        return next.run(request).await;
    }
    let mut share = api.state.connection_shares.open();
    share.begin(1).await;
    next.run(request).await
}
