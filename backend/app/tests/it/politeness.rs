//! Tests two processes that crawl a site with a delay of one second. This is the only test that
//! measures time; the site measures it.
#![cfg(unix)]

use crate::common::process::TestFolder;
use crate::common::service::{Service, get};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Uri, header};
use axum::response::{Html, IntoResponse, Response};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testing::{MAX_WAIT, TestDatabase};
use tokio::sync::watch;

const DELAY: Duration = Duration::from_secs(1);
/// Both processes try to claim each page when it is due, and either can be first. With this number
/// of pages, it is very unlikely that one process fetches all of them.
const PAGES: usize = 14;

#[derive(Clone)]
struct Arrival {
    at: Instant,
    path: String,
    agent: String,
}

/// Records every arrival before it responds.
type Site = Arc<watch::Sender<Vec<Arrival>>>;

async fn answer(State(site): State<Site>, uri: Uri, headers: HeaderMap) -> Response {
    let at = Instant::now();
    let agent = headers[header::USER_AGENT].to_str().unwrap().to_owned();
    let path = uri.path().to_owned();
    site.send_modify(|arrivals| arrivals.push(Arrival { at, path: path.clone(), agent }));
    match path.as_str() {
        "/robots.txt" => "user-agent: *\ncrawl-delay: 1".into_response(),
        _ => Html((0..PAGES).map(|n| format!("<a href=/{n}>{n}</a>")).collect::<String>()).into_response(),
    }
}

#[testing::needs(slow)]
#[testing::test(flavor = "multi_thread")]
async fn two_processes_together_keep_the_delay_that_a_site_asks_for_also_when_one_is_killed() {
    let site: Site = Arc::new(watch::Sender::new(Vec::new()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().fallback(answer).with_state(site.clone());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });

    let database = TestDatabase::create().await;
    let place = TestFolder::new();
    place.run(&["models", "fetch"]).expect(0);
    let start = |name: &str| {
        let mut command = place.facecrawl(&["up", "--port", "0"]);
        command.env("DATABASE_URL", database.url());
        // The crawler's own delay is 0, so the delay comes only from robots.txt.
        command.env("CRAWL_ALLOW_PRIVATE", "127.0.0.0/8").env("CRAWL_DELAY_MS", "0");
        command.env("CRAWL_USER_AGENT", format!("facecrawl/{name}"));
        Service::start(&mut command)
    };
    let (one, mut two) = (start("one"), start("two"));
    // There are two seeds, so that both processes find at the same time that no robots.txt is
    // stored.
    let _already = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let body = json!({"seeds": [format!("{origin}/0"), format!("{origin}/1")]});
    let created = client.post(format!("{}/crawls", one.base)).json(&body).send().await.unwrap();
    let created: Value = created.json().await.unwrap();
    let id = created["id"].as_str().unwrap().to_owned();

    // The process is killed during the crawl, as soon as both have sent requests.
    let agents = |arrivals: &[Arrival]| -> HashSet<String> {
        arrivals.iter().map(|arrival| arrival.agent.clone()).collect()
    };
    let mut arrivals = site.subscribe();
    let both = arrivals.wait_for(|arrivals| arrivals.len() >= 4 && agents(arrivals).len() == 2);
    tokio::time::timeout(MAX_WAIT, both).await.expect("only one process sent requests").unwrap();
    two.signal(Signal::KILL);
    let _ = two.ended();
    // A politeness permit expires after a minute. So that the test does not wait that long, the
    // current permit expires 15 seconds after it was granted. If it belongs to the other process,
    // 15 seconds are enough to fetch its page. The jobs of the killed process return immediately.
    database.execute("update hosts set granted_at = granted_at - interval '45 seconds'").await;
    database
        .execute("update jobs set lease_until = now() - interval '1 second' where state = 'running'")
        .await;
    let two = start("three");
    let deadline = Instant::now() + MAX_WAIT;
    let crawl = loop {
        let (_, answer) = get(&format!("{}/crawls/{id}", two.base)).await;
        let answer: Value = serde_json::from_str(&answer).unwrap();
        if answer["state"] != "running" {
            break answer;
        }
        assert!(Instant::now() < deadline, "{answer:#}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!((&crawl["state"], &crawl["counts"]["pages"]["fetched"]), (&json!("completed"), &json!(PAGES)));
    let arrivals = site.borrow().clone();
    let log: Vec<String> =
        (arrivals.iter()).map(|a| format!("{:?} {} {}", a.at - arrivals[0].at, a.agent, a.path)).collect();
    assert!(arrivals.windows(2).all(|pair| pair[1].at - pair[0].at >= DELAY), "{log:#?}");
    assert_eq!(arrivals.iter().filter(|arrival| arrival.path == "/robots.txt").count(), 1, "{log:#?}");
}
