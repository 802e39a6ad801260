//! Tests that no caller can hold all of a shared resource.
use crate::support::keys::guarded;
use crate::support::pictures::drawn;
use crate::support::{App, Models, Options, elsewhere, json_of, problem};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use reqwest::{Method, Response, StatusCode};
use serde_json::json;
use server::Config;
use std::time::{Duration, Instant};
use store::keys::Scope;
use testing::TableLock;
use tokio::net::{TcpListener, TcpStream};

async fn spawn(options: Options) -> App {
    App::spawn_with(Options { worker: false, models: Models::Fixture, ..options }).await
}

/// Sends a batch of images by URL from a host that never responds. Returns after the service has
/// connected, with the request and the host's side of the first connection.
async fn fetch_slowly(app: &App, pictures: usize) -> (tokio::task::JoinHandle<u16>, TcpStream) {
    let host = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/a.jpg", host.local_addr().unwrap());
    let body = json!({"images": vec![json!({"url": url}); pictures]});
    let request = app.client.post(format!("{}/faces/detect/batch", app.url)).json(&body);
    let sent = tokio::spawn(async move { request.send().await.unwrap().status().as_u16() });
    let (connection, _) = host.accept().await.unwrap();
    (sent, connection)
}

#[testing::test]
async fn slow_addresses_of_one_caller_leave_room_for_the_pictures_of_others() {
    let config = Config { max_analyses: 8, ..Config::default() };
    let app = spawn(Options { config, ..Options::default() }).await;
    // These are three quarters of the analyses that may wait.
    let held = [fetch_slowly(&app, 3).await, fetch_slowly(&app, 3).await];
    problem(app.post_raw("/faces/detect", "image/png", drawn(64, 64)).await, 429, "overloaded").await;
    let other = elsewhere().post(format!("{}/faces/detect", app.url)).header("content-type", "image/png");
    assert_eq!(other.body(drawn(64, 64)).send().await.unwrap().status(), StatusCode::OK);
    for (sent, connection) in held {
        sent.abort();
        drop(connection);
    }
    // The aborted requests release their permits, so the caller's next request is admitted.
    let start = Instant::now();
    while app.post_raw("/faces/detect", "image/png", drawn(64, 64)).await.status() != StatusCode::OK {
        assert!(start.elapsed() < Duration::from_secs(60), "the places are not released");
    }
}

/// Sends more requests than the share of a caller. Each of them needs the locked table. Checks that
/// only the share waits for it, and that another caller is answered.
async fn leave_connections<F: Future<Output = Response>>(
    app: &App,
    mut lock: TableLock,
    send: impl Fn(u32) -> F,
    expected: StatusCode,
) {
    let all = app.state.services.store.pool().options().get_max_connections();
    let share = i64::from(all - all / 4);
    let mut slow: FuturesUnordered<_> = (0..all + 4).map(send).collect();
    let start = Instant::now();
    while lock.waiting().await < share {
        // Polling sends the requests. The lock prevents the service from responding to any of them.
        assert!(slow.next().now_or_never().is_none());
        assert!(start.elapsed() < Duration::from_secs(60), "{} statements wait", lock.waiting().await);
        tokio::task::yield_now().await;
    }
    let others = elsewhere().get(format!("{}/audit?limit=1", app.url)).send().await.unwrap();
    assert_eq!(others.status(), StatusCode::OK);
    assert_eq!(lock.waiting().await, share, "the other requests of the caller wait");
    lock.release().await;
    while let Some(answer) = slow.next().await {
        assert_eq!(answer.status(), expected);
    }
}

#[testing::test]
async fn slow_statements_of_one_caller_leave_connections_for_others() {
    let app = spawn(Options::default()).await;
    let lock = app.database.lock_faces().await;
    leave_connections(&app, lock, |_| app.get("/faces?limit=1"), StatusCode::OK).await;
}

#[testing::needs(video)]
#[testing::test]
async fn videos_by_url_of_one_caller_leave_connections_for_others() {
    let app = spawn(Options { videos: true, ..Options::default() }).await;
    let lock = app.database.lock_videos().await;
    let (app, address) = (&app, |n| json!({"url": format!("http://127.0.0.1:9/{n}.mp4")}));
    let add = |n| async move { app.post_json("/videos", &address(n)).await };
    leave_connections(app, lock, add, StatusCode::ACCEPTED).await;
}

#[testing::test]
async fn all_keys_to_a_collection_have_one_share() {
    let config = Config { max_streams: 1, ..guarded().config };
    let app = spawn(Options { config, ..guarded() }).await;
    let scopes = [Scope::Read, Scope::Crawl];
    let ((_, one), (_, two)) = (app.key(Some("press"), &scopes).await, app.key(Some("press"), &scopes).await);
    let body = json!({"seeds": ["http://127.0.0.1:9/"]});
    let created = app.ask(&one, Method::POST, "/crawls", Some(&body)).await;
    let created = json_of(created, StatusCode::CREATED).await;
    let path = format!("/crawls/{}/events", created["id"].as_str().unwrap());
    let _first = app.ask(&one, Method::GET, &path, None).await;
    problem(app.ask(&two, Method::GET, &path, None).await, 429, "overloaded").await;
    let (_, all) = app.key(None, &scopes).await;
    assert_eq!(app.ask(&all, Method::GET, &path, None).await.status(), StatusCode::OK);
}
