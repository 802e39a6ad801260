//! Tests the common properties of all responses, the problems that are not specific to one
//! operation, and the limits on the structure of JSON bodies.
use crate::support::images::png;
use crate::support::{App, Models, Options, field, problem};
use reqwest::{Method, StatusCode};
use serde_json::json;
use server::Config;
use std::time::Duration;

#[testing::test]
async fn unknown_path_returns_404_and_wrong_method_405() {
    let app = App::spawn().await;
    problem(app.get("/nowhere").await, 404, "route_not_found").await;
    problem(app.get("/faces/").await, 404, "route_not_found").await;
    let request = app.client.request(Method::PUT, format!("{}/faces", app.url));
    let response = request.send().await.unwrap();
    assert!(response.headers()["allow"].to_str().unwrap().contains("GET"));
    problem(response, 405, "method_not_allowed").await;
    problem(app.get("/faces/detect").await, 405, "method_not_allowed").await;
}

#[testing::test]
async fn valid_request_id_is_kept_and_invalid_one_replaced() {
    let app = App::spawn().await;
    let send = async |id: &str| {
        let request = app.client.get(format!("{}/health/live", app.url)).header("x-request-id", id);
        request.send().await.unwrap().headers()["x-request-id"].to_str().unwrap().to_owned()
    };
    assert_eq!(send("trace-1:2.3_4").await, "trace-1:2.3_4");
    for bad in ["two words", "<script>", &"x".repeat(200)] {
        let created = send(bad).await;
        assert_eq!(uuid::Uuid::parse_str(&created).unwrap().get_version_num(), 7, "{created}");
    }
}

#[testing::test]
async fn every_response_has_security_headers() {
    let app = App::spawn().await;
    for path in ["/faces", "/nowhere", "/health/live", "/", "/docs/", "/openapi.json"] {
        let response = app.get(path).await;
        let headers = response.headers();
        assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
        assert_eq!(headers["x-frame-options"], "DENY", "{path}");
        assert_eq!(headers["referrer-policy"], "no-referrer", "{path}");
        assert!(
            headers["content-security-policy"].to_str().unwrap().contains("default-src 'none'"),
            "{path}"
        );
        assert!(headers.contains_key("x-request-id"), "{path}");
        assert!(!headers.contains_key("access-control-allow-origin"), "{path}");
    }
    assert_eq!(app.get("/faces").await.headers()["cache-control"], "no-store");
}

#[testing::test]
async fn only_configured_origins_receive_cors_header() {
    let config = Config { allow_origins: vec!["https://page.example".into()], ..Config::default() };
    let app = App::spawn_with(Options { config, ..Options::default() }).await;
    let send = async |origin: &str| {
        let request = app.client.get(format!("{}/health/live", app.url)).header("origin", origin);
        let response = request.send().await.unwrap();
        response.headers().get("access-control-allow-origin").map(|value| value.to_str().unwrap().to_owned())
    };
    assert_eq!(send("https://page.example").await.as_deref(), Some("https://page.example"));
    assert_eq!(send("https://elsewhere.example").await, None);
}

#[testing::test]
async fn analysis_over_limit_returns_429_with_retry_after() {
    let config = Config { max_analyses: 1, request_timeout: Duration::from_secs(30), ..Config::default() };
    let app = App::spawn_with(Options { config, ..Options::default() }).await;
    let site = crate::support::site::Site::new(&[]).await;
    // The server of this batch's image delays its response, so the batch occupies the only permit.
    let body = json!({"images": [{"url": format!("{}/held.jpg", site.url)}]});
    let (client, url) = (app.client.clone(), format!("{}/faces/detect/batch", app.url));
    let batch = tokio::spawn(async move { client.post(url).json(&body).send().await.unwrap() });
    let refused = loop {
        let response = app.post_raw("/faces/detect", "image/png", png(32, 32)).await;
        if response.status() != StatusCode::OK {
            break response;
        }
        tokio::task::yield_now().await;
    };
    assert!(refused.headers()["retry-after"].to_str().unwrap().parse::<u64>().unwrap() >= 1);
    problem(refused, 429, "overloaded").await;

    site.release.notify_one();
    let response = crate::support::ok(batch.await.unwrap()).await;
    assert_eq!(response["results"][0]["problem"]["reason"], "http_404");
    crate::support::ok(app.post_raw("/faces/detect", "image/png", png(32, 32)).await).await;
}

#[testing::test]
async fn slow_response_times_out_with_503() {
    let config = Config { request_timeout: Duration::from_millis(200), ..Config::default() };
    let app = App::spawn_with(Options { config, ..Options::default() }).await;
    let site = crate::support::site::Site::new(&[]).await;
    let body = json!({"url": format!("{}/held.jpg", site.url)});
    problem(app.post_json("/faces/detect", &body).await, 503, "timeout").await;
}

#[testing::test]
async fn nul_character_is_rejected_before_database_call() {
    let app = App::spawn().await;
    for path in
        ["/faces?collection=a%00", "/subjects?name=%00", "/jobs?kind=scan%00", "/crawls?collection=%00"]
    {
        problem(app.get(path).await, 400, "bad_query").await;
    }
    problem(app.get("/collections/a%00b").await, 404, "not_found").await;
    for (path, body) in [
        ("/subjects", json!({"name": "Ada", "collection": "a\0"})),
        ("/subjects", json!({"metadata": {"team": ["a\0"]}})),
        ("/subjects", json!({"metadata": {"te\0am": 1}})),
        ("/faces/search", json!({"embedding": [], "collection": "\0"})),
        ("/erasures", json!({"url": "http://example.org/", "collection": "\0"})),
        ("/crawls", json!({"seeds": ["http://example.org/"], "scope": "list", "allow": ["\0"]})),
    ] {
        problem(app.post_json(path, &body).await, 422, "invalid_field").await;
    }
}

#[testing::test]
async fn array_body_is_rejected_instead_of_object() {
    let app = App::spawn().await;
    let url = format!("{}/collections/default", app.url);
    let response = app.client.patch(url).json(&json!([null, null])).send().await.unwrap();
    problem(response, 422, "invalid_field").await;
    for (path, body) in [
        ("/subjects", json!(["Ada", null, null, null])),
        ("/crawls", json!([["http://example.org/"]])),
        ("/faces/detect", json!(["http://example.org/portrait.jpg", null])),
    ] {
        problem(app.post_json(path, &body).await, 422, "invalid_field").await;
    }
}

#[test]
fn error_codes_are_unique_and_have_error_status() {
    let names: std::collections::HashSet<&str> = server::Code::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(names.len(), server::Code::ALL.len(), "every code has its own name");
    for code in server::Code::ALL {
        assert!(code.status().is_client_error() || code.status().is_server_error(), "{}", code.as_str());
        assert!(code.as_str().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'));
    }
}

/// Maximum number of values in a body, including arrays and objects (`extract::json`).
const MAX_VALUES: usize = 20_000;

async fn fixture_app() -> App {
    App::spawn_with(Options { worker: false, models: Models::Fixture, ..Options::default() }).await
}

#[testing::test]
async fn json_body_with_too_many_values_is_rejected_early() {
    let app = fixture_app().await;
    // The object, the array and the string are also counted as values.
    let body = |zeros: usize| {
        let zeros = vec!["0"; zeros].join(",");
        format!(r#"{{"images":[{zeros}],"x":"\u0000"}}"#).into_bytes()
    };
    let path = "/faces/detect/batch";
    let response = app.post_raw(path, "application/json", body(MAX_VALUES - 3)).await;
    let error = problem(response, 422, "invalid_field").await;
    assert_eq!(field(&error), "x", "{error}");
    let response = app.post_raw(path, "application/json", body(MAX_VALUES - 2)).await;
    let error = problem(response, 422, "invalid_field").await;
    assert_eq!(error["allowed"], json!([format!("at most {MAX_VALUES} values")]), "{error}");
}

#[testing::test]
async fn batch_with_too_many_images_is_rejected() {
    let app = fixture_app().await;
    let images = |count| json!({"images": vec![json!({"image_base64": "AA=="}); count]});
    let response = app.post_json("/faces/detect/batch", &images(65)).await;
    let error = problem(response, 413, "too_many_images").await;
    assert_eq!((field(&error), &error["allowed"]), ("images", &json!(["1 to 64 images"])));
}

#[testing::test]
async fn excessive_nesting_and_repeated_keys_are_rejected() {
    let app = fixture_app().await;
    let nested = |depth: usize| {
        format!(r#"{{"metadata":{}{}}}"#, r#"{"a":"#.repeat(depth), "0".to_owned() + &"}".repeat(depth))
    };
    let send = async |text: String| app.post_raw("/subjects", "application/json", text.into_bytes()).await;
    // The body itself is counted as one level.
    assert_eq!(send(nested(31)).await.status(), 201);
    let error = problem(send(nested(32)).await, 422, "invalid_field").await;
    assert_eq!(error["allowed"], json!(["at most 32 levels"]), "{error}");
    problem(send(nested(10_000)).await, 422, "invalid_field").await;
    for (text, name) in [
        (r#"{"metadata":{"a":1,"b":2,"a":3}}"#, "metadata.a"),
        (r#"{"metadata":[{"a":1},{"\u0061":1,"a":2}]}"#, "metadata[1].a"),
        (r#"{"name":"Ada","name":"Ada"}"#, "name"),
    ] {
        let error = problem(send(text.to_owned()).await, 422, "invalid_field").await;
        assert_eq!((field(&error), &error["reason"]), (name, &json!("twice")), "{error}");
    }
}
