//! Tests requests with keys that do not exist. The service looks up at most two of them at a time,
//! and they do not block valid keys.
use crate::support::keys::guarded;
use crate::support::{App, Models, Options, problem};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use reqwest::{Method, Response, StatusCode};
use store::keys::Scope;

async fn spawn() -> App {
    App::spawn_with(Options { worker: false, models: Models::Fixture, ..guarded() }).await
}

/// Returns a key of the correct form that does not exist.
fn unknown(number: usize) -> String {
    format!("fc_{number:A>42}A")
}

async fn ask(app: &App, key: &str) -> Response {
    app.ask(key, Method::GET, "/crawls", None).await
}

#[testing::test]
async fn invented_keys_do_not_lock_out_a_key_that_was_not_seen_yet() {
    let app = spawn().await;
    let (_, key) = app.key(None, &[Scope::Read]).await;
    // All requests come from one address, as behind a proxy.
    for number in 0..200 {
        let refused = ask(&app, &unknown(number)).await;
        assert_eq!(problem(refused, 401, "unauthorized").await["reason"], "unknown");
    }
    assert_eq!(ask(&app, &key).await.status(), StatusCode::OK);
}

#[testing::test]
async fn two_look_ups_of_invented_keys_run_at_a_time_and_the_others_wait_or_are_refused() {
    const SENT: usize = 250;
    let app = spawn().await;
    // This lock lets look-ups start, but not finish.
    let lock = app.database.hold("lock table api_keys in access exclusive mode").await;
    let keys: Vec<String> = (0..SENT).map(unknown).collect();
    let mut answers: FuturesUnordered<_> = keys.iter().map(|key| ask(&app, key)).collect();
    for _ in 0..SENT - 2 {
        let refused = answers.next().await.unwrap();
        assert!(refused.headers().contains_key("retry-after"));
        problem(refused, 429, "rate_limited").await;
    }
    let waiting = "select count(*) from pg_locks l join pg_database d on d.oid = l.database
                   where not l.granted and d.datname = current_database() and l.relation = 'api_keys'::regclass";
    assert_eq!(app.database.number(waiting).await, 2);
    lock.commit().await.unwrap();
    while let Some(answer) = answers.next().await {
        problem(answer, 401, "unauthorized").await;
    }
    // The queue is empty again.
    let (_, key) = app.key(None, &[Scope::Read]).await;
    assert_eq!(ask(&app, &key).await.status(), StatusCode::OK);
}
