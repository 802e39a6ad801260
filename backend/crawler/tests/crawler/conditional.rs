use crate::support::{Site, local_config};
use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect};
use axum::routing::get;
use crawler::fetch::{AnyHop, Kind};
use crawler::{Fetcher, Request, Validators};
use url::Url;

#[tokio::test]
async fn conditional_requests() {
    let handler = |headers: HeaderMap| async move {
        let sent = |name| headers.get(name).and_then(|v: &header::HeaderValue| v.to_str().ok());
        if sent("if-none-match") == Some("\"v1\"") || sent("if-modified-since") == Some("yesterday") {
            return (StatusCode::NOT_MODIFIED, [("etag", "\"v1\"")]).into_response();
        }
        "new".into_response()
    };
    let site = Site::start(
        Router::new()
            .route("/", get(handler))
            .route("/moved", get(|| async { Redirect::to("/") }))
            .route("/always", get(|| async { StatusCode::NOT_MODIFIED })),
    )
    .await;
    let fetcher = Fetcher::new(&local_config());
    let request = Request::new(site.url("/"), Kind::Page);
    let asking = |url: Url, etag: Option<&str>, date: Option<&str>| {
        let (etag, last_modified) = (etag.map(Into::into), date.map(Into::into));
        Request { validators: Some(Validators { url, etag, last_modified }), ..request.clone() }
    };
    let own = || request.url.clone();
    for conditional in [asking(own(), Some("\"v1\""), None), asking(own(), None, Some("yesterday"))] {
        let answer = fetcher.fetch(conditional, &AnyHop).await.unwrap();
        assert_eq!((answer.status, answer.body.len()), (304, 0));
        assert_eq!(answer.etag.as_deref(), Some("\"v1\""));
    }
    let other = asking(own(), Some("\"v0\""), None);
    assert_eq!(fetcher.fetch(other, &AnyHop).await.unwrap().status, 200);
    // Validators apply to the URL that they came from, even after a redirect.
    let elsewhere = asking(site.url("/elsewhere"), Some("\"v1\""), None);
    assert_eq!(fetcher.fetch(elsewhere, &AnyHop).await.unwrap().status, 200);
    let moved = Request { url: site.url("/moved"), ..asking(own(), Some("\"v1\""), None) };
    assert_eq!(fetcher.fetch(moved, &AnyHop).await.unwrap().status, 304);
    // An invalid header value is omitted. A 304 response to an unconditional request is an error.
    let odd = asking(own(), Some("\"v1\"\r\nx: y"), None);
    assert_eq!(fetcher.fetch(odd, &AnyHop).await.unwrap().status, 200);
    assert_eq!(
        fetcher
            .fetch(Request::new(site.url("/always"), Kind::Page), &AnyHop)
            .await
            .unwrap_err()
            .reason()
            .code(),
        "http_304"
    );
}
