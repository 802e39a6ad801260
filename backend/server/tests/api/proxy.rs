//! Tests sign-on by a proxy (`AUTH=proxy`): whose headers are trusted, what groups allow, and what
//! the audit log records.
use crate::support::{App, Json, Options, document, ok, operations, problem, to_json};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use server::{Auth, Config, ProxyAuth};
use store::keys::Scope;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const USER: &str = "x-forwarded-user";
const GROUPS: &str = "x-forwarded-groups";

/// Starts a service that trusts the proxies in `addresses`. The collection `press` exists.
async fn app(addresses: &str) -> App {
    let groups = "editors=read+search+write@press,erasers=erase@press,owners=all@press,grantors=keys+read@press,admins=all,ghosts=read@nowhere";
    let proxy = ProxyAuth {
        addresses: vec![addresses.parse().unwrap()],
        groups: groups.split(',').map(|group| group.parse().unwrap()).collect(),
        ..ProxyAuth::default()
    };
    let app = App::spawn_with(Options::bare(Config { auth: Auth::Proxy, proxy, ..Config::default() })).await;
    app.state.services.store.collections().ensure("press").await.unwrap();
    app
}

impl App {
    /// Builds a request as the proxy forwards it.
    fn forwarded(&self, method: Method, path: &str, user: &str, groups: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.url));
        request.header(USER, user).header(GROUPS, groups)
    }

    async fn get_for(&self, path: &str, user: &str, groups: &str) -> Response {
        self.forwarded(Method::GET, path, user, groups).send().await.unwrap()
    }
}

#[testing::test]
async fn groups_determine_scopes_and_collection() {
    let app = app("127.0.0.1/32").await;
    let current = async |groups: &str| ok(app.get_for("/keys/current", " ada ", groups).await).await;
    let editor = current("staff, editors").await;
    assert_eq!(
        editor,
        json!({"asks_for_keys": true, "key": null,
            "person": {"name": "ada", "collection": "press", "scopes": ["read", "search", "write"]}})
    );
    // Authentik separates groups by |. Further groups of the same collection add scopes.
    assert_eq!(
        current("erasers|editors").await["person"]["scopes"],
        json!(["read", "search", "write", "erase"])
    );
    // The first entry of the configuration determines the collection.
    assert_eq!(current("admins,editors").await["person"]["collection"], "press");
    assert_eq!(current("admins").await["person"]["collection"], Value::Null);

    let create = async |groups: &str, collection: Option<&str>| {
        let body = json!({"name": "Ada", "collection": collection});
        app.forwarded(Method::POST, "/subjects", "ada", groups).json(&body).send().await.unwrap()
    };
    let subject = to_json(create("editors", None).await, StatusCode::CREATED).await;
    assert_eq!(subject["collection"], "press");
    problem(create("editors", Some("default")).await, 404, "not_found").await;
    to_json(create("admins", Some("default")).await, StatusCode::CREATED).await;
    let path = format!("/subjects/{}", subject.text("id"));
    // Changes of groups take effect with the next request.
    let delete =
        async |groups: &str| app.forwarded(Method::DELETE, &path, "ada", groups).send().await.unwrap();
    let error = problem(delete("editors").await, 403, "scope_missing").await;
    assert!(error.text("detail").contains("groups"), "{error}");
    problem(delete("staff").await, 403, "scope_missing").await;
    problem(delete("").await, 403, "scope_missing").await;
    problem(delete("ghosts").await, 404, "not_found").await;
    assert_eq!(delete("erasers").await.status(), StatusCode::NO_CONTENT);
    problem(app.get_for("/gpu", "ada", "owners").await, 403, "scope_missing").await;
    ok(app.get_for("/gpu", "ada", "admins").await).await;
}

#[testing::test]
async fn headers_of_other_addresses_are_refused() {
    let app = app("10.0.0.5/32").await;
    let error = problem(app.get_for("/faces", "ada", "admins").await, 401, "unauthorized").await;
    assert_eq!((error.text("reason"), error.text("field")), ("proxy", USER));
    let only_groups =
        app.client.get(format!("{}/faces", app.url)).header(GROUPS, "admins").send().await.unwrap();
    assert_eq!(problem(only_groups, 401, "unauthorized").await["reason"], "proxy");
    // With a key too: the key of a program does not make its sender a proxy.
    let (_, key) = app.create_key(None, Scope::ALL).await;
    let with_key =
        app.forwarded(Method::GET, "/faces", "ada", "admins").bearer_auth(&key).send().await.unwrap();
    assert_eq!(problem(with_key, 401, "unauthorized").await["reason"], "proxy");
    app.get_as(&key, "/faces").await;
    // No operation of the API accepts the headers.
    for (method, path, _) in operations(&document()) {
        let path = path.replace("{id}", "00000000-0000-7000-8000-000000000000");
        let path = path.replace("{face_id}", "00000000-0000-7000-8000-000000000000");
        let response = app.forwarded(method.clone(), &path, "ada", "admins").send().await.unwrap();
        let is_open = ["/health/live", "/health/ready", "/openapi.json"].contains(&path.as_str());
        assert!(
            is_open || response.status() == StatusCode::UNAUTHORIZED,
            "{method} {path}: {}",
            response.status()
        );
    }
}

/// Sends a request as it is, and returns the status of the response.
async fn raw_status(app: &App, request: String) -> u16 {
    let mut stream = TcpStream::connect(app.url.trim_start_matches("http://")).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = vec![0; 12];
    stream.read_exact(&mut response).await.unwrap();
    std::str::from_utf8(&response[9..]).unwrap().parse().unwrap()
}

/// Other spellings of the headers, and other ways to send them, that a proxy might let through.
#[testing::test]
async fn unusual_requests_find_no_way_past_the_proxy() {
    let app = app("10.0.0.5/32").await;
    let host = app.url.trim_start_matches("http://").to_owned();
    for (target, headers) in [
        ("/faces", "X-FORWARDED-USER: ada\r\nX-Forwarded-Groups: admins"),
        ("/faces", "X_Forwarded_User: ada\r\nX_Forwarded_Groups: admins"),
        ("/faces", "Remote-User: ada\r\nRemote-Groups: admins"),
        (
            "/faces",
            "X-Forwarded-For: 10.0.0.5\r\nX-Real-IP: 10.0.0.5\r\nX-Forwarded-User: ada\r\nX-Forwarded-Groups: admins",
        ),
        ("/faces", "Forwarded: for=10.0.0.5\r\nX-Forwarded-User: ada\r\nX-Forwarded-Groups: admins"),
        ("/faces", "X-Forwarded-User:\tada\r\nX-Forwarded-Groups: admins"),
        ("/faces", "X-Forwarded-User: ada\r\n folded\r\nX-Forwarded-Groups: admins"),
        ("/faces", "Connection: X-Forwarded-User\r\nX-Forwarded-User: ada\r\nX-Forwarded-Groups: admins"),
        ("//faces", "X-Forwarded-User: ada\r\nX-Forwarded-Groups: admins"),
        ("/%66aces", "X-Forwarded-User: ada\r\nX-Forwarded-Groups: admins"),
        ("/faces/../faces", "X-Forwarded-User: ada\r\nX-Forwarded-Groups: admins"),
        ("/health/live/../../faces", "X-Forwarded-User: ada\r\nX-Forwarded-Groups: admins"),
        ("http://10.0.0.5/faces", "X-Forwarded-User: ada\r\nX-Forwarded-Groups: admins"),
    ] {
        let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n\r\n");
        let status = raw_status(&app, request).await;
        assert!([400, 401, 404, 421].contains(&status), "{target} {headers}: {status}");
    }
    // Trailers are not headers.
    let chunked = format!(
        "POST /subjects HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\
         Trailer: X-Forwarded-User, X-Forwarded-Groups\r\n\r\n2\r\n{{}}\r\n0\r\n\
         X-Forwarded-User: ada\r\nX-Forwarded-Groups: admins\r\n\r\n"
    );
    assert_eq!(raw_status(&app, chunked).await, 401);
}

#[testing::test]
async fn request_without_person_and_key_is_refused() {
    let app = app("127.0.0.1/32").await;
    let error = problem(app.get("/faces").await, 401, "unauthorized").await;
    assert_eq!(error["reason"], "missing");
    problem(app.get_for("/faces", "", "admins").await, 401, "unauthorized").await;
    let long = "x".repeat(201);
    assert_eq!(
        problem(app.get_for("/faces", &long, "admins").await, 401, "unauthorized").await["field"],
        USER
    );
    // A header that occurs twice may come from the client of the proxy.
    for header in [USER, GROUPS] {
        let twice = app.forwarded(Method::GET, "/faces", "ada", "editors").header(header, "admins");
        assert_eq!(problem(twice.send().await.unwrap(), 401, "unauthorized").await["field"], header);
    }
    // Programs keep their keys, also through the proxy.
    let (_, key) = app.create_key(Some("press"), &[Scope::Read]).await;
    app.get_as(&key, "/faces").await;
    let through_proxy = app.forwarded(Method::GET, "/keys/current", "ada", "admins").bearer_auth(&key);
    let current = ok(through_proxy.send().await.unwrap()).await;
    assert_eq!((&current["person"], &current["key"]["scopes"]), (&Value::Null, &json!(["read"])));
    ok(app.get_for("/health/live", "ada", "editors").await).await;
}

#[testing::test]
async fn pages_of_other_sites_cannot_use_the_session() {
    let app = app("127.0.0.1/32").await;
    let post = |origin: &'static str| {
        let request =
            app.forwarded(Method::POST, "/subjects", "ada", "editors").json(&json!({"name": "Ada"}));
        request.header("origin", origin)
    };
    problem(post("https://evil.example").send().await.unwrap(), 403, "origin_not_allowed").await;
    let cross_site = app.forwarded(Method::POST, "/subjects", "ada", "editors").json(&json!({"name": "Ada"}));
    let cross_site = cross_site.header("sec-fetch-site", "cross-site").send().await.unwrap();
    problem(cross_site, 403, "origin_not_allowed").await;
    let host = app.forwarded(Method::GET, "/faces", "ada", "editors").header("host", "evil.example");
    problem(host.send().await.unwrap(), 421, "host_not_allowed").await;
    // A page cannot know a key, so a request with a key may come from anywhere.
    let (_, key) = app.create_key(Some("press"), &[Scope::Write]).await;
    let request =
        app.client.post(format!("{}/subjects", app.url)).bearer_auth(key).json(&json!({"name": "Ada"}));
    let request = request.header("origin", "https://evil.example");
    to_json(request.send().await.unwrap(), StatusCode::CREATED).await;
}

#[testing::test]
async fn audit_log_names_the_person() {
    let app = app("127.0.0.1/32").await;
    let body = json!({"name": "a script", "collection": "press", "scopes": ["read"]});
    let create = async |user: &str, groups: &str, body: &Value| {
        app.forwarded(Method::POST, "/keys", user, groups).json(body).send().await.unwrap()
    };
    let created = to_json(create("ada@example.org", "owners", &body).await, StatusCode::CREATED).await;
    assert_eq!(created["key"]["made_by"], Value::Null);
    // A person grants no more than they have.
    let more = json!({"name": "a script", "collection": "press", "scopes": ["write"]});
    problem(create("ada@example.org", "grantors", &more).await, 403, "scope_missing").await;
    let everywhere = json!({"name": "a script", "collection": null, "scopes": ["read"]});
    problem(create("ada@example.org", "grantors", &everywhere).await, 403, "scope_missing").await;
    to_json(create("ben", "admins", &everywhere).await, StatusCode::CREATED).await;

    let records = async |query: &str| {
        ok(app.get_for(&format!("/audit?{query}"), "eve", "admins").await).await.list("records").to_vec()
    };
    let of_ada = records("person=ada%40example.org").await;
    assert_eq!(of_ada.len(), 1);
    assert_eq!(
        (&of_ada[0]["action"], &of_ada[0]["person"], &of_ada[0]["key_id"]),
        (&json!("key.create"), &json!("ada@example.org"), &Value::Null)
    );
    assert_eq!(records("action=key.create").await.len(), 2);
    assert!(records("person=nobody").await.is_empty());
}
