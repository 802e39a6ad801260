//! Repeats a read request whose database call failed with a transient error, so that the caller
//! does not see the error.
use axum::body::Body;
use axum::extract::Request;
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use store::db::transient::{Cause, Transient};
use store::retried;

/// A response that reports a database failure.
struct Failed(Response, Cause);

impl Transient for Failed {
    fn cause(&self) -> Option<Cause> {
        Some(self.1)
    }
}

/// Runs the handler again for `GET` and `HEAD`, which change nothing. For other methods, handlers
/// repeat the safe part of their work themselves.
pub(crate) async fn layer(request: Request, next: Next) -> Response {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let (head, body) = request.into_parts();
    // The body of a read request has no meaning, so it is dropped here.
    drop(body);
    let response = retried("api_read", || {
        let (head, next) = (head.clone(), next.clone());
        async move {
            let response = next.run(Request::from_parts(head, Body::empty())).await;
            match response.extensions().get::<Cause>().copied() {
                Some(cause) => Err(Failed(response, cause)),
                None => Ok(response),
            }
        }
    });
    response.await.unwrap_or_else(|Failed(response, _)| response)
}
