//! What the connection itself does: versions of HTTP, and fetches that are dropped half-way.

use crate::support::{Recorder, Site, local_config};
use axum::Router;
use axum::routing::get;
use crawler::fetch::Kind;
use crawler::{Fetcher, Request};
use std::sync::Arc;
use tokio::sync::Notify;

#[tokio::test]
async fn a_dropped_fetch_ends_its_hop() {
    let arrived = Arc::new(Notify::new());
    let signal = arrived.clone();
    let site = Site::start(Router::new().route(
        "/hangs",
        get(move || async move {
            signal.notify_one();
            std::future::pending::<()>().await;
        }),
    ))
    .await;
    let fetcher = Fetcher::new(&local_config());
    let policy = Recorder::default();
    {
        let fetch = fetcher.fetch(Request::new(site.url("/hangs"), Kind::Page), &policy);
        tokio::pin!(fetch);
        tokio::select! {
            answer = &mut fetch => panic!("{answer:?}"),
            () = arrived.notified() => {}
        }
        assert_eq!(policy.lines(), ["admit /hangs"]);
    }
    assert_eq!(policy.lines(), ["admit /hangs", "abandoned /hangs"]);
}
