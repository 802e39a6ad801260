//! Tests the check of `Origin` and `Sec-Fetch-Site`. Without keys, pages of other sites cannot
//! change anything.
use crate::support::keys::guarded;
use crate::support::site::Site;
use crate::support::{App, Models, Options, json_of, ok, pictures, problem};
use reqwest::{Method, Response, StatusCode, multipart};
use serde_json::{Value, json};
use server::Config;
use store::keys::Scope;

/// Path of a change that needs neither a body nor a row. The response to an accepted request is
/// 404.
const NOWHERE: &str = "/crawls/00000000-0000-7000-8000-000000000000/cancel";

async fn change(app: &App, headers: &[(&str, &str)]) -> Response {
    let mut request = app.client.post(format!("{}{NOWHERE}", app.url));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap()
}

#[testing::test]
async fn a_page_of_another_site_erases_nobody() {
    let app = App::spawn().await;
    let site = Site::with(&["ada.jpg", "cora.jpg"]).await;
    app.crawl(&[site.page()]).await;
    let part = multipart::Part::bytes(pictures::picture("ada_2.jpg")).file_name("picture");
    let request = app.client.post(format!("{}/erasures?threshold=-1", app.url));
    let request = request.header("origin", "http://evil.example").header("sec-fetch-site", "cross-site");
    let answer = request.multipart(multipart::Form::new().part("image", part)).send().await.unwrap();
    let refused = problem(answer, 403, "origin_not_allowed").await;
    assert_eq!((&refused["field"], &refused["value"]), (&json!("origin"), &json!("http://evil.example")));
    assert_eq!(app.get_ok("/faces").await["faces"].as_array().unwrap().len(), 2);
}

#[testing::test]
async fn only_a_page_of_this_service_and_callers_that_are_no_browser_change_anything() {
    let app = App::spawn_bare(Config::default()).await;
    let own = app.url.as_str();
    let port = own.rsplit_once(':').unwrap().1;
    let (by_name, other_port) = (format!("localhost:{port}"), "http://127.0.0.1:1");
    for headers in [
        &[][..],
        &[("origin", own)],
        &[("origin", own), ("sec-fetch-site", "same-origin")],
        &[("origin", &own.to_uppercase()), ("sec-fetch-site", "none")],
        &[("origin", &format!("http://{by_name}")), ("host", &by_name)],
        // A proxy in front of the service may terminate TLS. The host name stays the same.
        &[("origin", "https://localhost"), ("host", "localhost")],
        &[("origin", "https://localhost"), ("host", "localhost:443")],
    ] {
        problem(change(&app, headers).await, 404, "not_found").await;
    }
    for headers in [
        &[("origin", "http://evil.example")][..],
        &[("origin", "null")],
        &[("origin", "")],
        &[("origin", other_port)],
        &[("origin", "file://")],
        &[("origin", &format!("http://{by_name}"))],
        &[("origin", own), ("origin", "http://evil.example")],
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site")],
        &[("origin", own), ("sec-fetch-site", "cross-site")],
    ] {
        problem(change(&app, headers).await, 403, "origin_not_allowed").await;
    }
}

#[testing::test]
async fn every_operation_that_changes_anything_looks_at_the_origin() {
    let app = App::spawn_bare(Config::default()).await;
    let document: Value = serde_json::from_str(&server::openapi().to_json().unwrap()).unwrap();
    let mut tried = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys().filter(|method| *method != "get") {
            let method: Method = method.to_uppercase().parse().unwrap();
            let path = path.replace("{id}", "00000000-0000-7000-8000-000000000000");
            let request = app.client.request(method.clone(), format!("{}{path}", app.url));
            let answer = request.header("origin", "http://evil.example").send().await.unwrap();
            problem(answer, 403, "origin_not_allowed").await;
            tried += 1;
        }
    }
    assert!(tried > 25, "{tried}");
}

#[testing::test]
async fn origins_and_hosts_that_the_operator_names_may_change_things() {
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
        let answer = change(&app, &[("origin", origin), ("sec-fetch-site", site)]).await;
        assert_eq!(answer.status().as_u16(), if allowed { 404 } else { 403 }, "{origin} {site}");
    }
    // The rule `*` allows no origin.
    let app = App::spawn_bare(Config { public_hosts: vec!["*".parse().unwrap()], ..Config::default() }).await;
    problem(change(&app, &[("origin", "https://evil.example")]).await, 403, "origin_not_allowed").await;
}

#[testing::test]
async fn another_site_reads_nothing_either() {
    let app = App::spawn_bare(Config::default()).await;
    for path in ["/faces", "/collections", "/metrics", "/openapi.json"] {
        let request = app.client.get(format!("{}{path}", app.url)).header("origin", "http://evil.example");
        let answer = request.header("sec-fetch-site", "cross-site").send().await.unwrap();
        let headers = answer.headers();
        assert!(!headers.contains_key("access-control-allow-origin"), "{path}");
        assert_eq!(headers["cross-origin-resource-policy"], "same-origin", "{path}");
        assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
    }
    let preflight = app.client.request(Method::OPTIONS, format!("{}/erasures", app.url));
    let preflight = preflight.header("origin", "http://evil.example");
    let answer = preflight.header("access-control-request-method", "DELETE").send().await.unwrap();
    assert!(!answer.headers().contains_key("access-control-allow-origin"));
}

#[testing::test]
async fn a_key_is_proof_enough_of_who_asks() {
    let app = App::spawn_with(Options { models: Models::Fixture, ..guarded() }).await;
    let (_, key) = app.key(None, &[Scope::Admin]).await;
    let request = app.client.post(format!("{}/collections", app.url)).bearer_auth(key);
    let request = request.header("origin", "http://evil.example").json(&json!({"name": "ours"}));
    json_of(request.send().await.unwrap(), StatusCode::CREATED).await;
}

#[testing::test]
async fn a_body_says_what_it_is() {
    let app = App::spawn_bare(Config::default()).await;
    let picture = pictures::drawn(32, 32);
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
        let answer = send(path, Method::POST, picture.clone()).await;
        let refused = problem(answer, 415, "unsupported_media_type").await;
        let takes = refused["allowed"].as_array().unwrap();
        assert!(takes.contains(&json!(allowed)), "{path}: {refused}");
    }
    let answer = send("/collections/default", Method::PATCH, b"{}".to_vec()).await;
    problem(answer, 415, "unsupported_media_type").await;
    // This also applies to operations that read no body.
    let answer = send(NOWHERE, Method::POST, b"{}".to_vec()).await;
    assert_eq!(problem(answer, 415, "unsupported_media_type").await["allowed"], json!(["application/json"]));
    problem(send(NOWHERE, Method::POST, Vec::new()).await, 404, "not_found").await;
    ok(app.post_raw("/faces/detect", "application/octet-stream", picture).await).await;
}
