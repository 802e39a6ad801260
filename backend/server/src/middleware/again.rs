//! A read whose database failed for a moment is done again: the caller never sees it.
use axum::body::Body;
use axum::extract::Request;
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use store::retried;
use store::transient::{Cause, Transient};

/// An answer that says that the database failed.
struct Failed(Response, Cause);

impl Transient for Failed {
    fn cause(&self) -> Option<Cause> {
        Some(self.1)
    }
}

/// `GET` and `HEAD` change nothing, so the whole handler can run again. Other methods repeat, where that is safe, only the part that is.
pub(crate) async fn layer(request: Request, next: Next) -> Response {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let (head, body) = request.into_parts();
    // What a reading request carries has no meaning; it is dropped here.
    drop(body);
    let answered = retried("api_read", || {
        let (head, next) = (head.clone(), next.clone());
        async move {
            let response = next.run(Request::from_parts(head, Body::empty())).await;
            match response.extensions().get::<Cause>().copied() {
                Some(cause) => Err(Failed(response, cause)),
                None => Ok(response),
            }
        }
    });
    answered.await.unwrap_or_else(|Failed(response, _)| response)
}
