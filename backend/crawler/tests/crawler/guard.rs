//! Tests that no connection reaches a forbidden address. Listeners count the connections.

use crate::support::{ForbiddenListener, ScriptedDns, Site, local_config};
use axum::Router;
use axum::extract::RawQuery;
use axum::http::header;
use axum::response::Redirect;
use axum::routing::get;
use crawler::fetch::{AnyHop, Kind};
use crawler::{Config, FetchError, Fetcher, Request};
use std::sync::Arc;
use url::Url;

async fn fetch_code(fetcher: &Fetcher, url: &str) -> String {
    match fetcher.fetch(Request::new(Url::parse(url).unwrap(), Kind::Image), &AnyHop).await {
        Ok(response) => response.status.to_string(),
        Err(error) => error.reason().to_string(),
    }
}

#[tokio::test]
async fn rejects_forbidden_ip_literals_in_every_spelling() {
    let forbidden = ForbiddenListener::listen("127.0.0.1:0").await;
    let port = forbidden.address.port();
    // The port is allowed, but the address is not.
    let config = Config { ports: vec![80, 443, port], ..Config::default() };
    let fetcher = Fetcher::new(&config);
    let hosts = "127.0.0.1 127.0.0.1. 127.1 2130706433 0x7f000001 017700000001 0177.0.0.0x1 127。0。0。1 １２７．０．０．１ \
         ①②⑦.⓪.⓪.① 0ⅹ7f.1 127.0.0\u{ad}.1 2130706433. [::ffff:127.0.0.1] [::ffff:7f00:1] [::127.0.0.1] \
         [64:ff9b::7f00:1] [64:ff9b::10.0.0.1] [2002:7f00:1::] [2002:c0a8:101::1] \
         [2001:0:5db8:d70e::80ff:fffe] [::1] 0.0.0.0 [::]";
    for host in hosts.split(' ') {
        for scheme in ["http", "https"] {
            let actual = fetch_code(&fetcher, &format!("{scheme}://{host}:{port}/")).await;
            assert_eq!(actual, "forbidden_address", "{host}");
        }
    }
    assert_eq!(fetch_code(&fetcher, &format!("http://user@127.0.0.1:{port}/")).await, "forbidden_url");
    assert_eq!(fetch_code(&fetcher, &format!("ftp://127.0.0.1:{port}/")).await, "forbidden_url");
    assert_eq!(forbidden.count_connections().await, 0);
}

#[tokio::test]
async fn rejects_names_resolving_to_forbidden_addresses() {
    let forbidden = ForbiddenListener::listen("127.0.0.1:0").await;
    let port = forbidden.address.port();
    let names = ScriptedDns::default()
        .with_name("private.example", &[&["127.0.0.1"]])
        .with_name("mixed.example", &[&["93.184.215.14", "127.0.0.1"]])
        .with_name("mixed6.example", &[&["127.0.0.1", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"]])
        .with_name("mapped.example", &[&["::ffff:127.0.0.1"]])
        .with_name("nat64.example", &[&["64:ff9b::7f00:1"]])
        .with_name("metadata.example", &[&["169.254.169.254"]])
        .with_name("6to4.example", &[&["2002:7f00:1::"]])
        .with_name("teredo.example", &[&["2001:0:5db8:d70e::80ff:fffe"]])
        .with_name("gateway.example", &[&["93.184.215.14", "64:ff9b::a00:1"]])
        .with_name("zone.example", &[&["fe80::1"]])
        .with_name("xn--bcher-kva.example", &[&["127.0.0.1"]])
        .with_name("localhost", &[&["127.0.0.1", "::1"]])
        .with_name("empty.example", &[&[]]);
    let config = Config { ports: vec![port], ..Config::default() };
    let fetcher = Fetcher::with_lookup(&config, Arc::new(names));
    let hosts = "private.example PRIVATE.example. mixed.example mixed6.example mapped.example nat64.example \
         metadata.example 6to4.example teredo.example gateway.example zone.example bücher.example \
         BÜCHER。example xn--bcher-kva.example. localhost ⅼocalhost ｌｏｃａｌｈｏｓｔ";
    for host in hosts.split(' ') {
        assert_eq!(
            fetch_code(&fetcher, &format!("http://{host}:{port}/")).await,
            "forbidden_address",
            "{host}"
        );
    }
    for host in ["empty.example", "unknown.example"] {
        assert_eq!(fetch_code(&fetcher, &format!("http://{host}:{port}/")).await, "dns_failure", "{host}");
    }
    assert_eq!(forbidden.count_connections().await, 0);
}

#[tokio::test]
async fn rejects_redirects_to_forbidden_addresses() {
    let forbidden = ForbiddenListener::listen("127.0.0.2:0").await;
    let port = forbidden.address.port();
    let site = Site::start(
        Router::new()
            .route("/to", get(|RawQuery(query): RawQuery| async move { Redirect::to(&query.unwrap()) })),
    )
    .await;
    let names = ScriptedDns::default()
        .with_name("site.example", &[&["127.0.0.1"]])
        .with_name("private.example", &[&["127.0.0.2"]])
        .with_name("mixed.example", &[&["127.0.0.1", "127.0.0.2"]]);
    let config = Config { ports: vec![80, 443, port], ..local_config() };
    let fetcher = Fetcher::with_lookup(&config, Arc::new(names));
    let start = format!("http://site.example:{}/to", site.address.port());
    for target in [
        format!("http://127.0.0.2:{port}/"),
        format!("http://2130706434:{port}/"),
        format!("//[::ffff:7f00:2]:{port}/"),
        format!("http://private.example:{port}/"),
        format!("http://mixed.example:{port}/"),
        "http://169.254.169.254/latest/meta-data/".into(),
    ] {
        assert_eq!(fetch_code(&fetcher, &format!("{start}?{target}")).await, "forbidden_address", "{target}");
    }
    assert_eq!(site.requests(), 6);
    assert_eq!(forbidden.count_connections().await, 0);
}

#[tokio::test]
async fn dns_rebinding_cannot_bypass_guard() {
    // Both servers listen on the same port, so that they differ only in the address.
    let site =
        Site::start(Router::new().route("/", get(|| async { ([(header::CONNECTION, "close")], "first") })))
            .await;
    let port = site.address.port();
    let forbidden = ForbiddenListener::listen(&format!("127.0.0.2:{port}")).await;
    let names =
        Arc::new(ScriptedDns::default().with_name("rebind.example", &[&["127.0.0.1"], &["127.0.0.2"]]));
    let fetcher = Fetcher::with_lookup(&local_config(), names.clone());
    let url = format!("http://rebind.example:{port}/");
    // The fetcher connects to the address that was checked, with one look-up per connection.
    assert_eq!(fetch_code(&fetcher, &url).await, "200");
    assert_eq!(names.count_lookups("rebind.example"), 1);
    assert_eq!(fetch_code(&fetcher, &url).await, "forbidden_address");
    assert_eq!(names.count_lookups("rebind.example"), 2);
    assert_eq!(forbidden.count_connections().await, 0);
    assert_eq!(site.requests(), 1);
}

#[tokio::test]
async fn nonstandard_ports_are_open_only_in_allowed_ranges() {
    let site = Site::start(Router::new().route("/", get(|| async { "ok" }))).await;
    let port = site.address.port();
    let names = ScriptedDns::default()
        .with_name("inside.example", &[&["127.0.0.1"]])
        .with_name("outside.example", &[&["93.184.215.14"]])
        .with_name("both.example", &[&["127.0.0.1", "93.184.215.14"]])
        .with_name("localhost", &[&["::1", "127.0.0.1"]]);
    let names = Arc::new(names);
    let local = Fetcher::with_lookup(&local_config(), names.clone());
    assert_eq!(fetch_code(&local, &format!("http://127.0.0.1:{port}/")).await, "200");
    assert_eq!(fetch_code(&local, &format!("http://inside.example:{port}/")).await, "200");
    assert_eq!(fetch_code(&local, &format!("http://localhost:{port}/")).await, "200");
    assert_eq!(fetch_code(&local, &format!("http://outside.example:{port}/")).await, "forbidden_url");
    assert_eq!(fetch_code(&local, &format!("http://both.example:{port}/")).await, "forbidden_url");
    assert_eq!(fetch_code(&local, &format!("http://93.184.215.14:{port}/")).await, "forbidden_url");

    let public = Fetcher::with_lookup(&Config::default(), names);
    assert_eq!(fetch_code(&public, &format!("http://inside.example:{port}/")).await, "forbidden_url");
    let error = public
        .fetch(Request::new(Url::parse("http://127.0.0.1/").unwrap(), Kind::Page), &AnyHop)
        .await
        .unwrap_err();
    assert!(matches!(error, FetchError::Guard(_)));
    // API callers see this message in responses, in jobs and in the log of a webhook.
    assert_eq!(error.to_string(), "the host of the URL has an IP address that is not allowed");
}

#[tokio::test]
async fn fetcher_ignores_proxy_environment_variables() {
    // Reqwest reads these variables when a client is built, unless it is configured not to. They
    // are set only in a child process.
    if std::env::var_os("CRAWLER_TEST_CHILD").is_some() {
        let url = std::env::var("CRAWLER_TEST_URL").unwrap();
        assert_eq!(fetch_code(&Fetcher::new(&local_config()), &url).await, "200");
        return;
    }
    let site = Site::start(Router::new().route("/", get(|| async { "ok" }))).await;
    let proxy = ForbiddenListener::listen("127.0.0.1:0").await;
    let child = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "guard::fetcher_ignores_proxy_environment_variables"])
        .env("CRAWLER_TEST_CHILD", "1")
        .env("CRAWLER_TEST_URL", site.url("/").as_str())
        .envs(
            ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"]
                .map(|name| (name, format!("http://{}", proxy.address))),
        )
        .output()
        .await
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    assert_eq!(site.requests(), 1);
    assert_eq!(proxy.count_connections().await, 0);
}
