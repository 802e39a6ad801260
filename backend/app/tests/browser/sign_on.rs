//! Tests the web page for people whom a proxy signs on (`AUTH=proxy`).
use crate::stage::Stage;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use axum::response::Response;
use reqwest::Client;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;

/// A proxy that forwards all requests to the service, for a person whose groups can change.
#[derive(Clone)]
struct Proxy {
    service: String,
    client: Client,
    groups: Arc<Mutex<&'static str>>,
}

impl Proxy {
    /// Starts a proxy. Returns it and its address.
    async fn start(service: &str, groups: &'static str) -> (Self, String) {
        let client = Client::builder().no_proxy().build().unwrap();
        let proxy = Self { service: service.to_owned(), client, groups: Arc::new(Mutex::new(groups)) };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(forward).with_state(proxy.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (proxy, address)
    }
}

async fn forward(State(proxy): State<Proxy>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let groups = *proxy.groups.lock().unwrap();
    let mut headers = parts.headers;
    headers.insert("x-forwarded-user", "ada@example.org".parse().unwrap());
    headers.insert("x-forwarded-groups", groups.parse().unwrap());
    let url = format!("{}{}", proxy.service, parts.uri.path_and_query().unwrap());
    let body = to_bytes(body, 10 << 20).await.unwrap();
    let answer = proxy.client.request(parts.method, url).headers(headers).body(body).send().await.unwrap();
    let mut response = Response::new(Body::empty());
    *response.status_mut() = answer.status();
    *response.headers_mut() = answer.headers().clone();
    response.headers_mut().remove(CONTENT_LENGTH);
    response.headers_mut().remove(TRANSFER_ENCODING);
    *response.body_mut() = Body::from_stream(answer.bytes_stream());
    response
}

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn signed_on_person_sees_own_name_and_allowed_views() {
    let groups = "editors=analyze+read+search+write+crawl@default,admins=all";
    let variables =
        [("AUTH", "proxy"), ("AUTH_PROXY_ADDRESSES", "127.0.0.1/32"), ("AUTH_PROXY_GROUPS", groups)];
    let mut stage = Stage::with_environment(&variables).await;
    let (proxy, address) = Proxy::start(&stage.service.base, "editors").await;
    stage.service.base = address;
    let browser = &stage.browser;

    stage.open("/people", "People").await;
    browser.until("document.getElementById('person').textContent === 'ada@example.org'").await;
    assert!(browser.run("return document.getElementById('key').hidden").await.as_bool().unwrap());
    stage.check_view("signed-on").await;
    // The groups lack a scope. The view names it, and asks for no key.
    stage.open("/audit", "Audit log").await;
    browser.until_text(".empty", "Your groups allow analyze, read, search, crawl, write").await;
    stage.check_view("signed-on-missing-scope").await;

    // Other groups apply to the next request, and the audit log names the person.
    *proxy.groups.lock().unwrap() = "admins";
    // Only the hash differs from the current address, so the page would not be loaded again.
    browser.load("about:blank").await;
    stage.open("/keys/new", "New key").await;
    browser.type_into("[name=name]", "a program").await;
    browser.run("document.getElementById('scope-read').click()").await;
    browser.click_text("Create key").await;
    browser.until("document.querySelector('input.secret')?.value.startsWith('fc_')").await;
    browser.click_text("Done").await;
    stage.open("/audit", "Audit log").await;
    browser.until_text("a.held-by", "ada@example.org").await;
    stage.check_window("audit-with-person").await;
    browser.run("document.querySelector('a.held-by').click()").await;
    browser.until_text("a.button", "One person").await;
    browser.until_text("tbody tr", "ada@example.org").await;
}
