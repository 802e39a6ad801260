//! Tests the check of `Host`, which prevents DNS rebinding. Without keys, the service accepts only
//! requests whose `Host` names the service.
use crate::support::keys::guarded;
use crate::support::{App, Models, Options, ok, problem};
use reqwest::{Response, StatusCode};
use server::Config;
use store::keys::Scope;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn ask(app: &App, path: &str, host: &str) -> Response {
    app.client.get(format!("{}{path}", app.url)).header("host", host).send().await.unwrap()
}

/// Sends a raw request and returns the status line of the response.
async fn status_of(app: &App, head: &str) -> String {
    let mut stream = TcpStream::connect(app.url.strip_prefix("http://").unwrap()).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

#[testing::test]
async fn names_of_others_are_refused_and_loopback_names_are_not() {
    let app = App::spawn_bare(Config::default()).await;
    for host in [
        "localhost",
        "LOCALHOST:8080",
        "localhost.",
        "page.localhost:3000",
        "127.0.0.1",
        "127.9.9.9:80",
        "[::1]",
        "[::1]:8080",
    ] {
        assert_eq!(ask(&app, "/faces", host).await.status(), StatusCode::OK, "{host}");
    }
    for host in [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "notlocalhost",
        "127.0.0.1.evil.example",
        "128.0.0.1",
        "203.0.113.7:8080",
        "[::2]",
        "[::1",
        "localhost:x",
        "user@localhost",
        "",
    ] {
        let refused = problem(ask(&app, "/faces", host).await, 421, "host_not_allowed").await;
        assert!(refused["detail"].as_str().unwrap().contains("PUBLIC_HOSTS"), "{host}: {refused}");
        problem(ask(&app, "/", host).await, 421, "host_not_allowed").await;
        problem(ask(&app, "/metrics", host).await, 421, "host_not_allowed").await;
        // Load balancers send arbitrary host names, and health reveals nothing about people.
        ok(ask(&app, "/health/live", host).await).await;
    }
}

#[testing::test]
async fn a_request_names_one_host_and_its_target_no_other() {
    let app = App::spawn_bare(Config::default()).await;
    let end = "connection: close\r\n\r\n";
    let twice = "GET /faces HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n";
    let twice = status_of(&app, &format!("{twice}{end}")).await;
    assert!(twice.contains(" 421 "), "{twice}");
    let none = status_of(&app, &format!("GET /faces HTTP/1.0\r\n{end}")).await;
    assert!(none.contains(" 421 "), "{none}");
    let target = "GET http://evil.example/faces HTTP/1.1\r\nhost: localhost\r\n";
    let target = status_of(&app, &format!("{target}{end}")).await;
    assert!(target.contains(" 421 "), "{target}");
}

#[testing::test]
async fn the_operator_names_further_hosts() {
    let public_hosts = vec!["Faces.Example".parse().unwrap(), "db.example:8443".parse().unwrap()];
    let app = App::spawn_bare(Config { public_hosts, ..Config::default() }).await;
    for (host, status) in [
        ("faces.example", 200),
        ("faces.example:9000", 200),
        ("sub.faces.example", 421),
        ("db.example:8443", 200),
        ("db.example:8444", 421),
        ("db.example", 421),
        ("127.0.0.1", 200),
    ] {
        assert_eq!(ask(&app, "/faces", host).await.status().as_u16(), status, "{host}");
    }
    let app = App::spawn_bare(Config { public_hosts: vec!["*".parse().unwrap()], ..Config::default() }).await;
    assert_eq!(ask(&app, "/faces", "any.example").await.status(), StatusCode::OK);
}

#[testing::test]
async fn an_address_is_allowed_where_the_service_listens_on_it_or_on_all() {
    let listen = "192.0.2.7".parse().unwrap();
    let app = App::spawn_bare(Config { listen, ..Config::default() }).await;
    assert_eq!(ask(&app, "/faces", "192.0.2.7:8080").await.status(), StatusCode::OK);
    problem(ask(&app, "/faces", "192.0.2.8:8080").await, 421, "host_not_allowed").await;
    // DNS rebinding requires a name, so addresses are allowed.
    let listen = "0.0.0.0".parse().unwrap();
    let app = App::spawn_bare(Config { listen, ..Config::default() }).await;
    for host in ["192.0.2.8:8080", "[2001:db8::1]:8080"] {
        assert_eq!(ask(&app, "/faces", host).await.status(), StatusCode::OK, "{host}");
    }
    problem(ask(&app, "/faces", "evil.example").await, 421, "host_not_allowed").await;
}

#[testing::test]
async fn where_a_key_is_asked_for_any_host_will_do() {
    let app = App::spawn_with(Options { models: Models::Fixture, ..guarded() }).await;
    let (_, key) = app.key(None, &[Scope::Read]).await;
    let request = app.client.get(format!("{}/faces", app.url)).header("host", "faces.example");
    assert_eq!(request.bearer_auth(key).send().await.unwrap().status(), StatusCode::OK);
}
