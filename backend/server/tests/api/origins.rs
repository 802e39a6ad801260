//! Tests the checks of `Host`, `Origin` and `Sec-Fetch-Site`, and that responses do not reveal
//! addresses of the internal network.
use crate::support::site::Site;
use crate::support::{
    App, Json, Models, Options, document, images, key_options, ok, operations, problem, to_json,
};
use reqwest::{Method, Response, StatusCode, multipart};
use serde_json::json;
use server::Config;
use store::keys::Scope;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Path of a change that needs neither a body nor a row. The response to an accepted request is
/// 404.
const NOWHERE: &str = "/crawls/00000000-0000-7000-8000-000000000000/cancel";

async fn send_change(app: &App, headers: &[(&str, &str)]) -> Response {
    let mut request = app.client.post(format!("{}{NOWHERE}", app.url));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap()
}

#[testing::test]
async fn cross_site_page_cannot_erase_faces() {
    let (app, _site, _) = App::with_crawl(&["ada.jpg", "cora.jpg"]).await;
    let part = multipart::Part::bytes(images::drawing("ada_2.jpg")).file_name("picture");
    let request = app.client.post(format!("{}/erasures?threshold=-1", app.url));
    let request = request.header("origin", "http://evil.example").header("sec-fetch-site", "cross-site");
    let response = request.multipart(multipart::Form::new().part("image", part)).send().await.unwrap();
    let error = problem(response, 403, "origin_not_allowed").await;
    assert_eq!((&error["field"], &error["value"]), (&json!("origin"), &json!("http://evil.example")));
    assert_eq!(app.get_ok("/faces").await.list("faces").len(), 2);
}

#[testing::test]
async fn only_same_origin_pages_and_non_browsers_change_data() {
    let app = App::spawn_bare(Config::default()).await;
    let own_origin = app.url.as_str();
    let port = own_origin.rsplit_once(':').unwrap().1;
    let (localhost, other_port) = (format!("localhost:{port}"), "http://127.0.0.1:1");
    for headers in [
        &[][..],
        &[("origin", own_origin)],
        &[("origin", own_origin), ("sec-fetch-site", "same-origin")],
        &[("origin", &own_origin.to_uppercase()), ("sec-fetch-site", "none")],
        &[("origin", &format!("http://{localhost}")), ("host", &localhost)],
        // A proxy in front of the service may terminate TLS. The host name stays the same.
        &[("origin", "https://localhost"), ("host", "localhost")],
        &[("origin", "https://localhost"), ("host", "localhost:443")],
    ] {
        problem(send_change(&app, headers).await, 404, "not_found").await;
    }
    for headers in [
        &[("origin", "http://evil.example")][..],
        &[("origin", "null")],
        &[("origin", "")],
        &[("origin", other_port)],
        &[("origin", "file://")],
        &[("origin", &format!("http://{localhost}"))],
        &[("origin", own_origin), ("origin", "http://evil.example")],
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site")],
        &[("origin", own_origin), ("sec-fetch-site", "cross-site")],
    ] {
        problem(send_change(&app, headers).await, 403, "origin_not_allowed").await;
    }
}

#[testing::test]
async fn every_changing_operation_checks_origin() {
    let app = App::spawn_bare(Config::default()).await;
    let document = document();
    let mut request_count = 0;
    for (method, path, _) in operations(&document) {
        if method == Method::GET {
            continue;
        }
        let path = path.replace("{id}", "00000000-0000-7000-8000-000000000000");
        let request = app.client.request(method, format!("{}{path}", app.url));
        let response = request.header("origin", "http://evil.example").send().await.unwrap();
        problem(response, 403, "origin_not_allowed").await;
        request_count += 1;
    }
    assert!(request_count > 25, "{request_count}");
}

#[testing::test]
async fn configured_origins_and_hosts_may_change_data() {
    let config = Config {
        allow_origins: vec!["https://app.example".into()],
        public_hosts: vec!["faces.example".parse().unwrap(), "db.example:8443".parse().unwrap()],
        ..Config::default()
    };
    let app = App::spawn_bare(config).await;
    for (origin, site, allowed) in [
        ("https://app.example", "cross-site", true),
        ("https://app.example:444", "cross-site", false),
        // A proxy may replace `Host` with the address of the service.
        ("https://faces.example", "same-origin", true),
        ("https://faces.example", "cross-site", false),
        ("https://faces.example:8443", "same-origin", false),
        ("https://db.example:8443", "same-origin", true),
        ("https://db.example", "same-origin", false),
    ] {
        let response = send_change(&app, &[("origin", origin), ("sec-fetch-site", site)]).await;
        assert_eq!(response.status().as_u16(), if allowed { 404 } else { 403 }, "{origin} {site}");
    }
    // The rule `*` allows no origin.
    let app = App::spawn_bare(Config { public_hosts: vec!["*".parse().unwrap()], ..Config::default() }).await;
    problem(send_change(&app, &[("origin", "https://evil.example")]).await, 403, "origin_not_allowed").await;
}

#[testing::test]
async fn responses_deny_cross_site_reads() {
    let app = App::spawn_bare(Config::default()).await;
    for path in ["/faces", "/collections", "/metrics", "/openapi.json"] {
        let request = app.client.get(format!("{}{path}", app.url)).header("origin", "http://evil.example");
        let response = request.header("sec-fetch-site", "cross-site").send().await.unwrap();
        let headers = response.headers();
        assert!(!headers.contains_key("access-control-allow-origin"), "{path}");
        assert_eq!(headers["cross-origin-resource-policy"], "same-origin", "{path}");
        assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
    }
    let preflight = app.client.request(Method::OPTIONS, format!("{}/erasures", app.url));
    let preflight = preflight.header("origin", "http://evil.example");
    let response = preflight.header("access-control-request-method", "DELETE").send().await.unwrap();
    assert!(!response.headers().contains_key("access-control-allow-origin"));
}

#[testing::test]
async fn request_with_key_may_have_any_origin() {
    let app = App::spawn_with(Options { models: Models::Fixture, ..key_options() }).await;
    let (_, key) = app.create_key(None, &[Scope::Admin]).await;
    let request = app.client.post(format!("{}/collections", app.url)).bearer_auth(key);
    let request = request.header("origin", "http://evil.example").json(&json!({"name": "ours"}));
    to_json(request.send().await.unwrap(), StatusCode::CREATED).await;
}

#[testing::test]
async fn body_without_supported_content_type_is_rejected() {
    let app = App::spawn_bare(Config::default()).await;
    let image = images::png(32, 32);
    let send = async |path: &str, method: Method, body: Vec<u8>| {
        app.client.request(method, format!("{}{path}", app.url)).body(body).send().await.unwrap()
    };
    for (path, allowed) in [
        ("/faces/detect", "multipart/form-data"),
        ("/faces/detect/batch", "multipart/form-data"),
        ("/faces/compare", "multipart/form-data"),
        ("/faces/search", "multipart/form-data"),
        ("/images/enhance", "multipart/form-data"),
        ("/erasures", "multipart/form-data"),
        ("/crawls", "application/json"),
    ] {
        let response = send(path, Method::POST, image.clone()).await;
        let error = problem(response, 415, "unsupported_media_type").await;
        let allowed_types = error.list("allowed");
        assert!(allowed_types.contains(&json!(allowed)), "{path}: {error}");
    }
    let response = send("/collections/default", Method::PATCH, b"{}".to_vec()).await;
    problem(response, 415, "unsupported_media_type").await;
    // This also applies to operations that read no body.
    let response = send(NOWHERE, Method::POST, b"{}".to_vec()).await;
    let error = problem(response, 415, "unsupported_media_type").await;
    assert_eq!(error["allowed"], json!(["application/json"]));
    problem(send(NOWHERE, Method::POST, Vec::new()).await, 404, "not_found").await;
    ok(app.post_raw("/faces/detect", "application/octet-stream", image).await).await;
}

async fn get_with_host(app: &App, path: &str, host: &str) -> Response {
    app.client.get(format!("{}{path}", app.url)).header("host", host).send().await.unwrap()
}

/// Sends a raw request and returns the status line of the response.
async fn status_of(app: &App, head: &str) -> String {
    let mut stream = TcpStream::connect(app.url.strip_prefix("http://").unwrap()).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response.lines().next().unwrap_or_default().to_owned()
}

#[testing::test]
async fn foreign_host_is_rejected_and_loopback_host_accepted() {
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
        assert_eq!(get_with_host(&app, "/faces", host).await.status(), StatusCode::OK, "{host}");
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
        let error = problem(get_with_host(&app, "/faces", host).await, 421, "host_not_allowed").await;
        assert!(error.text("detail").contains("PUBLIC_HOSTS"), "{host}: {error}");
        problem(get_with_host(&app, "/", host).await, 421, "host_not_allowed").await;
        problem(get_with_host(&app, "/metrics", host).await, 421, "host_not_allowed").await;
        // Load balancers send arbitrary host names, and health checks reveal no personal data.
        ok(get_with_host(&app, "/health/live", host).await).await;
    }
}

#[testing::test]
async fn request_requires_exactly_one_matching_host() {
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
async fn configured_public_hosts_are_accepted() {
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
        assert_eq!(get_with_host(&app, "/faces", host).await.status().as_u16(), status, "{host}");
    }
    let app = App::spawn_bare(Config { public_hosts: vec!["*".parse().unwrap()], ..Config::default() }).await;
    assert_eq!(get_with_host(&app, "/faces", "any.example").await.status(), StatusCode::OK);
}

#[testing::test]
async fn ip_host_must_match_listen_address() {
    let listen = "192.0.2.7".parse().unwrap();
    let app = App::spawn_bare(Config { listen, ..Config::default() }).await;
    assert_eq!(get_with_host(&app, "/faces", "192.0.2.7:8080").await.status(), StatusCode::OK);
    problem(get_with_host(&app, "/faces", "192.0.2.8:8080").await, 421, "host_not_allowed").await;
    // DNS rebinding requires a name, so addresses are allowed.
    let listen = "0.0.0.0".parse().unwrap();
    let app = App::spawn_bare(Config { listen, ..Config::default() }).await;
    for host in ["192.0.2.8:8080", "[2001:db8::1]:8080"] {
        assert_eq!(get_with_host(&app, "/faces", host).await.status(), StatusCode::OK, "{host}");
    }
    problem(get_with_host(&app, "/faces", "evil.example").await, 421, "host_not_allowed").await;
}

#[testing::test]
async fn any_host_is_accepted_when_keys_are_required() {
    let app = App::spawn_with(Options { models: Models::Fixture, ..key_options() }).await;
    let (_, key) = app.create_key(None, &[Scope::Read]).await;
    let request = app.client.get(format!("{}/faces", app.url)).header("host", "faces.example");
    assert_eq!(request.bearer_auth(key).send().await.unwrap().status(), StatusCode::OK);
}

#[testing::test]
async fn forbidden_address_is_not_revealed_in_response() {
    let app = App::spawn().await;
    // These addresses are outside of the range that the tests allow. Address literals are not
    // resolved.
    for url in ["http://10.11.12.13/", "http://[fd00::12]/", "http://169.254.169.254/latest/"] {
        let host = url.split('/').nth(2).unwrap().trim_matches(['[', ']']);
        let response = app.post_json("/faces/detect", &json!({"url": url})).await;
        let error = problem(response, 422, "forbidden_url").await;
        assert_eq!(error["reason"], "forbidden_address", "{error}");
        let detail = error.text("detail");
        assert!(!detail.contains(host), "{error}");
        for range in ["private", "link-local", "unique-local", "loopback"] {
            assert!(!detail.contains(range), "{error}");
        }
    }
}

#[testing::test]
async fn forbidden_address_is_not_revealed_by_crawl_or_job() {
    let app = App::spawn().await;
    let site = Site::new(&[]).await;
    let body = json!({"seeds": [format!("{}/to-metadata", site.url)], "delay_ms": 0, "scope": "list", "allow": ["169.254.169.254"]});
    let crawl = app.crawl_with(body).await;
    assert_eq!(crawl["reasons"]["forbidden_address"], 1, "{crawl}");
    let id = crawl.text("id");
    let export = app.get(&format!("/crawls/{id}/export")).await.text().await.unwrap();
    let jobs = app.get("/jobs?limit=100").await.text().await.unwrap();
    // The options of the crawl contain the address too, but they come from the caller.
    for text in [crawl["error"].to_string(), export, jobs] {
        assert!(!text.contains("link-local") && !text.contains("169.254"), "{text}");
    }
}
