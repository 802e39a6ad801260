//! Sends requests to the service of a test, and reads its responses.
use super::site::Site;
use super::{App, DEADLINE, key_options};
use domain::{StreamKind, StreamStore};
use reqwest::{Method, Response, StatusCode, multipart};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use store::crawls::pages::NewImageUrl;
use store::keys::{ApiKey, NewKey, Scope};
use store::streams::ConfiguredStream;
use store::videos::NewVideo;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

/// An id that no resource has.
pub(crate) const FAKE_ID: &str = "00000000-0000-7000-8000-000000000000";

impl App {
    pub(crate) async fn get(&self, path: &str) -> Response {
        self.client.get(format!("{}{path}", self.url)).send().await.unwrap()
    }

    pub(crate) async fn delete(&self, path: &str) -> Response {
        self.client.delete(format!("{}{path}", self.url)).send().await.unwrap()
    }

    pub(crate) async fn post_json(&self, path: &str, body: &Value) -> Response {
        self.client.post(format!("{}{path}", self.url)).json(body).send().await.unwrap()
    }

    /// Sends a request that must create a resource, and returns the resource.
    pub(crate) async fn create(&self, path: &str, body: &Value) -> Value {
        to_json(self.post_json(path, body).await, StatusCode::CREATED).await
    }

    pub(crate) async fn post_ok(&self, path: &str, body: &Value) -> Value {
        ok(self.post_json(path, body).await).await
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Response {
        self.client.patch(format!("{}{path}", self.url)).json(body).send().await.unwrap()
    }

    pub(crate) async fn post_raw(&self, path: &str, content_type: &str, body: Vec<u8>) -> Response {
        let request = self.client.post(format!("{}{path}", self.url));
        request.header("content-type", content_type).body(body).send().await.unwrap()
    }

    /// Sends multipart parts with file names, as a browser does.
    pub(crate) async fn post_parts(&self, path: &str, parts: &[(&str, Vec<u8>)]) -> Response {
        let mut form = multipart::Form::new();
        for (name, bytes) in parts {
            let part = multipart::Part::bytes(bytes.clone()).file_name("picture");
            form = form.part((*name).to_owned(), part);
        }
        self.client.post(format!("{}{path}", self.url)).multipart(form).send().await.unwrap()
    }

    pub(crate) async fn get_ok(&self, path: &str) -> Value {
        ok(self.get(path).await).await
    }

    /// Crawls `seeds` without delays to the end and returns the crawl.
    pub(crate) async fn crawl(&self, seeds: &[String]) -> Value {
        self.crawl_with(json!({"seeds": seeds})).await
    }

    /// Starts a service and a site with these images, and crawls the site. Returns the crawl too.
    pub(crate) async fn with_crawl(images: &[&str]) -> (Self, Site, Value) {
        let (app, site) = (Self::spawn().await, Site::new(images).await);
        let crawl = app.crawl(&[site.page()]).await;
        (app, site, crawl)
    }

    /// Works like [`Self::crawl`], with all fields of the request.
    pub(crate) async fn crawl_with(&self, body: Value) -> Value {
        let created = self.create("/crawls", &merge(json!({"delay_ms": 0}), body)).await;
        self.wait_for_crawl(created.text("id")).await
    }

    /// Creates a crawl that does not change in a service without a worker. Returns its path.
    pub(crate) async fn idle_crawl(&self) -> String {
        let created = self.create("/crawls", &json!({"seeds": ["http://127.0.0.1:9/"]})).await;
        format!("/crawls/{}", created.text("id"))
    }

    pub(crate) async fn wait_for_crawl(&self, id: &str) -> Value {
        self.poll(&format!("/crawls/{id}"), |crawl| {
            matches!(crawl["state"].as_str(), Some("completed" | "cancelled" | "failed"))
        })
        .await
    }

    /// Returns the value of a gauge. The name includes the labels, if any.
    pub(crate) async fn gauge(&self, name: &str) -> f64 {
        let text = self.get("/metrics").await.text().await.unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("{name} is not in\n{text}")).parse().unwrap()
    }

    /// Waits until a gauge satisfies `condition`, and returns its value.
    pub(crate) async fn poll_gauge(&self, name: &str, condition: impl Fn(f64) -> bool) -> f64 {
        let start = Instant::now();
        loop {
            let value = self.gauge(name).await;
            if condition(value) {
                return value;
            }
            assert!(start.elapsed() < DEADLINE, "{name} is still {value}");
            tokio::task::yield_now().await;
        }
    }

    /// Repeats a request until its JSON satisfies `condition`.
    pub(crate) async fn poll(&self, path: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let response = self.get_ok(path).await;
            if condition(&response) {
                return response;
            }
            assert!(start.elapsed() < DEADLINE, "{path} still returns {response:#}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Starts a service that requires keys, and creates a key.
    pub(crate) async fn with_key(collection: Option<&str>, scopes: &[Scope]) -> (Self, ApiKey, String) {
        let app = Self::spawn_with(key_options()).await;
        let (created, key) = app.create_key(collection, scopes).await;
        (app, created, key)
    }

    /// Creates a key to a collection, or to all collections if `collection` is `None`. A missing
    /// collection is created.
    pub(crate) async fn create_key(&self, collection: Option<&str>, scopes: &[Scope]) -> (ApiKey, String) {
        let store = &self.state.services.store;
        let collection_id = match collection {
            Some(name) => Some(store.collections().ensure(name).await.unwrap().id),
            None => None,
        };
        let new = NewKey {
            collection_id,
            name: "a test".into(),
            scopes: scopes.to_vec(),
            requests_per_minute: None,
            expires_at: None,
            made_by: None,
        };
        self.commit(async |tx| store.keys().create(tx.conn(), &new).await).await
    }

    pub(crate) async fn call(&self, key: &str, method: Method, path: &str, body: Option<&Value>) -> Response {
        let mut request = self.client.request(method, format!("{}{path}", self.url)).bearer_auth(key);
        if let Some(body) = body {
            request = request.json(body);
        }
        request.send().await.unwrap()
    }

    pub(crate) async fn get_as(&self, key: &str, path: &str) -> Value {
        ok(self.call(key, Method::GET, path, None).await).await
    }

    /// Works like [`Self::create`], with a key.
    pub(crate) async fn create_as(&self, key: &str, path: &str, body: &Value) -> Value {
        to_json(self.call(key, Method::POST, path, Some(body)).await, StatusCode::CREATED).await
    }

    /// Crawls a page with a key, and returns the completed crawl. The default collection is that of
    /// the key. If the service requires no keys, `key` may be any string.
    pub(crate) async fn crawl_as(&self, key: &str, collection: Option<&str>, seed: &str) -> Value {
        let body = json!({"seeds": [seed], "collection": collection, "delay_ms": 0});
        let created = self.create_as(key, "/crawls", &body).await;
        let path = format!("/crawls/{}", created.text("id"));
        loop {
            let crawl = self.get_as(key, &path).await;
            if crawl["state"] == "completed" {
                return crawl;
            }
            assert_eq!(crawl["state"], "running", "{crawl}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// Returns the number of files in the blob folder.
    pub(crate) fn blob_count(&self) -> usize {
        testing::files_below(self.blob_folder.path()).len()
    }
}

/// Returns the JSON of a response that must have `status`.
pub(crate) async fn to_json(response: Response, status: StatusCode) -> Value {
    let actual = response.status();
    let text = response.text().await.unwrap();
    assert_eq!(actual, status, "{text}");
    serde_json::from_str(&text).unwrap()
}

pub(crate) async fn erase(app: &App, body: &Value) -> Value {
    app.create("/erasures", body).await
}

/// Erases with the token of a dry run. Returns the responses of the dry run and of the erasure.
pub(crate) async fn erase_confirmed(app: &App, body: &Value) -> (Value, Value) {
    let preview = app.post_ok("/erasures?dry_run=true", body).await;
    let path = format!("/erasures?confirm={}", preview.text("confirm"));
    (preview, app.create(&path, body).await)
}

/// Returns the text of an export. The response must be an attachment with this content type.
pub(crate) async fn export(app: &App, path: &str, content_type: &str) -> String {
    let response = app.get(path).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with(content_type));
    let file = response.headers()["content-disposition"].to_str().unwrap().to_owned();
    let prefix = if path.starts_with("/crawls/") { "\"crawl-" } else { "" };
    assert!(file.starts_with(&format!("attachment; filename={prefix}")), "{file}");
    response.text().await.unwrap()
}

/// Parses each line of a text as JSON.
pub(crate) fn parse_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the OpenAPI document.
pub(crate) fn document() -> Value {
    serde_json::from_str(&server::openapi().to_json().unwrap()).unwrap()
}

/// Returns every operation of the OpenAPI document with its method and path.
pub(crate) fn operations(document: &Value) -> Vec<(Method, &str, &Value)> {
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            operations.push((method.to_uppercase().parse().unwrap(), path.as_str(), operation));
        }
    }
    operations
}

/// Reads fields that must exist.
pub(crate) trait Json {
    fn list(&self, field: &str) -> &Vec<Value>;
    fn text(&self, field: &str) -> &str;
}

impl Json for Value {
    fn list(&self, field: &str) -> &Vec<Value> {
        self[field].as_array().unwrap()
    }

    fn text(&self, field: &str) -> &str {
        self[field].as_str().unwrap()
    }
}

/// Returns the body with additional fields.
pub(crate) fn merge(mut body: Value, fields: Value) -> Value {
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

pub(crate) async fn ok(response: Response) -> Value {
    to_json(response, StatusCode::OK).await
}

/// Checks the properties that all problem documents share, and returns the document.
pub(crate) async fn problem(response: Response, status: u16, code: &str) -> Value {
    let (actual, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await.unwrap();
    assert_eq!(actual, status, "{text}");
    assert_eq!(headers["content-type"], "application/problem+json", "{text}");
    let problem: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(problem["code"], code, "{text}");
    assert_eq!(problem["status"], status, "{text}");
    assert_eq!(problem["type"], format!("urn:facecrawl:problem:{code}"));
    assert_eq!(problem["request_id"], headers["x-request-id"].to_str().unwrap());
    assert!(
        !problem["title"].as_str().unwrap().is_empty() && !problem["detail"].as_str().unwrap().is_empty()
    );
    problem
}

/// Parses the time in a field of a response. The texts of two times may differ in length, so the
/// order of the texts is not that of the times.
pub(crate) fn parse_time(value: &Value) -> OffsetDateTime {
    OffsetDateTime::parse(value.as_str().unwrap(), &Rfc3339).unwrap()
}

pub(crate) fn field(problem: &Value) -> &str {
    problem["field"].as_str().unwrap_or_default()
}

/// Returns the scopes that a key to one collection can have.
pub(crate) fn tenant_scopes() -> Vec<Scope> {
    Scope::ALL.iter().copied().filter(|scope| !scope.is_service_wide()).collect()
}

/// Reads an event stream. Comments (keep-alive) are skipped.
pub(crate) struct Events {
    response: Response,
    text: String,
}

impl Events {
    pub(crate) async fn new(app: &App, path: &str) -> Self {
        Self::read(app.get(&format!("{path}/events")).await)
    }

    /// Continues a stream after the event with this id.
    pub(crate) async fn after(app: &App, path: &str, last_id: &Value) -> Self {
        let request = app.client.get(format!("{}{path}/events", app.url));
        Self::read(request.header("last-event-id", last_id.to_string()).send().await.unwrap())
    }

    fn read(response: Response) -> Self {
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, text: String::new() }
    }

    /// Returns the name and the data of the next event, or `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let line =
                    |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                let parsed = line("event: ").zip(line("data: "));
                self.text = rest.to_owned();
                if let Some((name, data)) = parsed {
                    return Some((name, serde_json::from_str(&data).unwrap()));
                }
                continue;
            }
            let chunk = self.response.chunk().await.unwrap()?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }
}

/// Returns a video without a source. All bytes of its hash are `number`.
pub(crate) fn new_video(collection: Uuid, number: u8) -> NewVideo {
    NewVideo {
        collection,
        sha256: Some([number; 32]),
        bytes: Some(1),
        source_url: None,
        source_key: None,
        scan: None,
        options: json!({}),
    }
}

/// Adds a video that no worker reads, and returns its id.
pub(crate) async fn add_video(app: &App, collection: Uuid, number: u8) -> String {
    let (store, video) = (&app.state.services.store, new_video(collection, number));
    let added = app.commit(async |tx| store.videos().insert(tx.conn(), &video).await).await;
    added.unwrap().to_string()
}

/// Returns image URLs that no page contains.
/// Adds a camera to a collection, as the configuration does. Returns its id.
pub(crate) async fn add_stream(app: &App, collection: Uuid, name: &str) -> String {
    let store = &app.state.services.store;
    let stream = ConfiguredStream {
        collection_id: collection,
        name: name.into(),
        kind: StreamKind::Rtsp,
        purpose: "A test".into(),
        store: StreamStore::Matches,
        retention_hours: 24,
        fps: 2.0,
    };
    app.commit(async |tx| store.streams().configure(tx.conn(), &[stream]).await).await;
    store.streams().list(collection).await.unwrap()[0].id.to_string()
}

pub(crate) fn image_urls(count: usize) -> Vec<NewImageUrl> {
    let url = |number| NewImageUrl {
        url: format!("http://127.0.0.1:9/{number}.jpg"),
        page_url: None,
        requested_url: None,
        alt: None,
    };
    (0..count).map(url).collect()
}
