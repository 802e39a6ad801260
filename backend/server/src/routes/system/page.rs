//! `GET /`: a small page to try detection on.
use crate::AppState;
use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

/// The page and what it loads; everything is part of the binary.
pub(crate) fn router() -> Router<AppState> {
    Router::new()
        .route("/", get(|| file("text/html; charset=utf-8", include_str!("../../assets/index.html"))))
        .route(
            "/assets/page.css",
            get(|| file("text/css; charset=utf-8", include_str!("../../assets/page.css"))),
        )
        .route(
            "/assets/page.js",
            get(|| file("text/javascript; charset=utf-8", include_str!("../../assets/page.js"))),
        )
}

async fn file(content_type: &'static str, text: &'static str) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, content_type)], text)
}
