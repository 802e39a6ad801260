//! Turns a panic in a handler into a 500 response, so that the connection stays open.
use crate::ApiError;
use axum::response::{IntoResponse, Response};
use std::any::Any;

/// Converts the payload of a panic to a problem. The payload is logged and not sent.
pub(crate) fn answer(payload: Box<dyn Any + Send + 'static>) -> Response {
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a message");
    ApiError::internal(format!("panic: {text}")).into_response()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::middleware::request_id;
    use axum::Router;
    use axum::body::{Body, to_bytes};
    use axum::http::{Request, StatusCode};
    use axum::routing::get;
    use tower::ServiceExt;
    use tower_http::catch_panic::CatchPanicLayer;

    #[tokio::test]
    async fn a_panic_is_a_problem_that_tells_the_caller_nothing_but_the_request_id() {
        async fn broken() -> StatusCode {
            panic!("the secret is 42")
        }
        let router = Router::new()
            .route("/", get(broken))
            .layer(CatchPanicLayer::custom(super::answer))
            .layer(axum::middleware::from_fn(request_id::layer));
        let request = Request::get("/").header("x-request-id", "abc").body(Body::empty()).unwrap();
        let response = router.oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(response.headers()["x-request-id"], "abc");
        let body = to_bytes(response.into_body(), 10_000).await.unwrap();
        let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((&problem["code"], &problem["request_id"]), (&"internal".into(), &"abc".into()));
        assert!(!String::from_utf8_lossy(&body).contains("42"));
    }
}
