//! Tests the field `webhook` of `POST /crawls`, the webhook secrets of collections, and who can see
//! webhook URLs. A receiver on the loopback interface receives signed messages.
use crate::support::receiver::{Receiver, SECRET};
use crate::support::site::Site;
use crate::support::{App, Json, Models, Options, field, key_options, ok, problem};
use reqwest::Method;
use serde_json::{Value, json};
use store::keys::Scope;

async fn app_with_secret() -> App {
    App::spawn_with(Options { webhook_secret: Some(SECRET), ..Options::default() }).await
}

async fn create_crawl(app: &App, seed: String, webhook: String) -> String {
    let created = app.create("/crawls", &json!({"seeds": [seed], "delay_ms": 0, "webhook": webhook})).await;
    created.text("id").to_owned()
}

#[testing::test]
async fn webhook_delivery_is_signed_and_repeated_until_accepted() {
    let app = app_with_secret().await;
    let (site, mut receiver) = (Site::new(&["ada_small.jpg"]).await, Receiver::start().await);
    let id = create_crawl(&app, site.page(), format!("{}/busy", receiver.url)).await;
    let (first, second) = (receiver.next().await, receiver.next().await);
    for message in [&first, &second] {
        assert_eq!(message.header("x-facecrawl-event"), "crawl.completed");
        assert_eq!(message.header("content-type"), "application/json");
        assert!(message.is_signed_with(SECRET));
        assert!(!message.is_signed_with("another secret of some length"));
    }
    assert_eq!(first.body, second.body);
    assert_eq!(first.header("x-facecrawl-delivery"), second.header("x-facecrawl-delivery"));

    let payload = second.json();
    assert_eq!(
        (&payload["event"], payload["delivery"].as_str()),
        (&json!("crawl.completed"), Some(second.header("x-facecrawl-delivery")))
    );
    let mut crawl = app.get_ok(&format!("/crawls/{id}")).await;
    assert_eq!((&crawl["id"], &crawl["counts"]["images"]["processed"]), (&json!(id), &json!(1)));
    for field_name in ["seeds", "seed_count", "options"] {
        crawl.as_object_mut().unwrap().remove(field_name);
    }
    assert_eq!(payload["crawl"], crawl, "the payload must contain the crawl as in the API");
}

#[testing::test]
async fn cancelled_and_failed_crawls_also_send_webhook() {
    let app = app_with_secret().await;
    let (site, mut receiver) = (Site::new(&[]).await, Receiver::start().await);
    let id = create_crawl(&app, format!("{}/held.jpg", site.url), receiver.url.clone()).await;
    site.request_arrived.notified().await;
    app.post_ok(&format!("/crawls/{id}/cancel"), &json!({})).await;
    let payload = receiver.next().await.json();
    assert_eq!((&payload["event"], &payload["crawl"]["id"]), (&json!("crawl.cancelled"), &json!(id)));

    let id = create_crawl(&app, format!("{}/text.jpg", site.url), receiver.url.clone()).await;
    let payload = receiver.next().await.json();
    assert_eq!((&payload["event"], &payload["crawl"]["id"]), (&json!("crawl.failed"), &json!(id)));
}

#[testing::test]
async fn webhook_follows_no_redirect_and_stops_after_410() {
    let app = app_with_secret().await;
    let (site, mut receiver) = (Site::new(&[]).await, Receiver::start().await);
    let missing = format!("{}/nowhere.jpg", site.url);
    create_crawl(&app, missing.clone(), format!("{}/moved", receiver.url)).await;
    for _ in 0..3 {
        assert_eq!(receiver.next().await.path, "/moved", "/elsewhere must not be requested");
    }
    create_crawl(&app, missing, format!("{}/gone", receiver.url)).await;
    while receiver.next().await.path != "/gone" {}
    let is_discarded = |jobs: &Value| {
        let jobs = jobs.list("jobs");
        jobs.iter().any(|job| job["last_error"].as_str().is_some_and(|error| error.contains("410")))
    };
    let jobs = app.poll("/jobs?kind=deliver_webhook&state=discarded", is_discarded).await;
    assert!(!jobs.to_string().contains(&receiver.url), "the URL may hold a secret: {jobs}");
}

#[testing::test]
async fn webhook_requires_secret_and_allowed_url() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let create = async |app: &App, webhook: &str| {
        app.post_json("/crawls", &json!({"seeds": ["http://127.0.0.1:9/"], "webhook": webhook})).await
    };
    let error = problem(create(&app, "http://127.0.0.1:9/hook").await, 422, "invalid_field").await;
    assert_eq!(field(&error), "webhook");
    assert!(error.text("detail").contains("WEBHOOK_SECRET"), "{error}");
    for webhook in
        ["http://169.254.169.254/latest", "http://10.0.0.1/hook", "http://user:password@127.0.0.1/hook"]
    {
        let error = problem(create(&app, webhook).await, 422, "forbidden_url").await;
        assert_eq!(field(&error), "webhook");
        assert!(!error.to_string().contains("password@"), "{error}");
    }
    for webhook in ["hook", "ftp://127.0.0.1/hook"] {
        let error = problem(create(&app, webhook).await, 422, "invalid_field").await;
        assert_eq!(field(&error), "webhook");
    }
}

/// Starts a service that requires keys, two collections with a key each, and a site without images.
async fn app_with_two_tenants() -> (App, [String; 2], Site) {
    let app = App::spawn_with(Options { webhook_secret: Some(SECRET), ..key_options() }).await;
    let scopes = [Scope::Crawl, Scope::Read, Scope::Write, Scope::Admin, Scope::Erase];
    let (_, our_key) = app.create_key(Some("ours"), &scopes).await;
    let (_, their_key) = app.create_key(Some("theirs"), &scopes).await;
    (app, [our_key, their_key], Site::new(&[]).await)
}

async fn crawl_with_key(app: &App, key: &str, site: &Site, webhook: &str) -> String {
    let body = json!({"seeds": [site.page()], "delay_ms": 0, "webhook": webhook});
    let created = app.create_as(key, "/crawls", &body).await;
    created.text("id").to_owned()
}

async fn rotate_secret(app: &App, key: &str, collection: &str, body: Value) -> Value {
    let path = format!("/collections/{collection}/webhook-secret");
    app.create_as(key, &path, &body).await
}

#[testing::test]
async fn own_collection_secret_replaces_service_secret_in_signatures() {
    let (app, [our_key, their_key], site) = app_with_two_tenants().await;
    let mut receiver = Receiver::start().await;
    let created = rotate_secret(&app, &our_key, "ours", json!({"overlap_hours": 0})).await;
    let secret = created.text("secret");
    assert!(secret.len() >= 32, "{created}");
    crawl_with_key(&app, &our_key, &site, &receiver.url).await;
    let message = receiver.next().await;
    assert!(message.is_signed_with(secret) && !message.is_signed_with(SECRET));
    crawl_with_key(&app, &their_key, &site, &receiver.url).await;
    let message = receiver.next().await;
    assert!(message.is_signed_with(SECRET) && !message.is_signed_with(secret));

    let log = app.get_as(&our_key, "/audit?action=collection.webhook_secret").await;
    assert_eq!(log.list("records").len(), 1);
    assert!(!log.to_string().contains(secret));
    assert!(!crate::erasures::dump(&app).contains(secret), "the secret must not be in the database");
}

#[testing::test]
async fn two_secrets_sign_during_rotation_overlap_only() {
    let (app, [our_key, _], site) = app_with_two_tenants().await;
    let mut receiver = Receiver::start().await;
    let secret = |created: &Value| created.text("secret").to_owned();
    let first = rotate_secret(&app, &our_key, "ours", json!({})).await;
    assert!(first["overlaps_until"].is_string(), "{first}");
    crawl_with_key(&app, &our_key, &site, &receiver.url).await;
    let message = receiver.next().await;
    assert!(message.is_signed_with(&secret(&first)) && message.is_signed_with(SECRET));

    let second = rotate_secret(&app, &our_key, "ours", json!({"overlap_hours": 1})).await;
    assert_ne!(secret(&first), secret(&second));
    crawl_with_key(&app, &our_key, &site, &receiver.url).await;
    let message = receiver.next().await;
    assert!(message.is_signed_with(&secret(&first)) && message.is_signed_with(&secret(&second)));
    assert!(!message.is_signed_with(SECRET), "at most two secrets sign a message");

    let third = rotate_secret(&app, &our_key, "ours", json!({"overlap_hours": 0})).await;
    crawl_with_key(&app, &our_key, &site, &receiver.url).await;
    let message = receiver.next().await;
    assert!(message.is_signed_with(&secret(&third)) && !message.is_signed_with(&secret(&second)));
    assert!(!message.header("x-facecrawl-signature").contains(','));
}

#[testing::test]
async fn only_collection_admin_rotates_webhook_secret() {
    let (app, [our_key, _], _site) = app_with_two_tenants().await;
    let (_, reader) = app.create_key(Some("ours"), &[Scope::Read, Scope::Write, Scope::Crawl]).await;
    let path = |name: &str| format!("/collections/{name}/webhook-secret");
    let body = json!({});
    let rotate_as = async |key: &str, name: &str| app.call(key, Method::POST, &path(name), Some(&body)).await;
    problem(rotate_as(&reader, "ours").await, 403, "scope_missing").await;
    problem(rotate_as(&our_key, "theirs").await, 404, "not_found").await;
    let response =
        app.call(&our_key, Method::POST, &path("ours"), Some(&json!({"overlap_hours": 169}))).await;
    assert_eq!(field(&problem(response, 422, "invalid_field").await), "overlap_hours");

    let without_secret = App::spawn().await;
    let error = problem(without_secret.post_json(&path("default"), &json!({})).await, 409, "conflict").await;
    assert!(error.text("detail").contains("WEBHOOK_SECRET"), "{error}");
}

#[testing::test]
async fn reader_sees_only_host_of_webhook() {
    let (app, [our_key, _], site) = app_with_two_tenants().await;
    let mut receiver = Receiver::start().await;
    let webhook = format!("{}/hooks/T0KEN?key=s3cret", receiver.url);
    let id = crawl_with_key(&app, &our_key, &site, &webhook).await;
    receiver.next().await;
    let (_, reader) = app.create_key(Some("ours"), &[Scope::Read]).await;
    for path in [format!("/crawls/{id}"), "/crawls".to_owned(), format!("/crawls/{id}/events")] {
        let text = app.call(&reader, Method::GET, &path, None).await.text().await.unwrap();
        assert!(!text.contains("T0KEN") && !text.contains("s3cret"), "{path}: {text}");
    }
    let crawl = app.get_as(&reader, &format!("/crawls/{id}")).await;
    assert_eq!(crawl["options"]["webhook"], json!(receiver.url));
    let crawl = app.get_as(&our_key, &format!("/crawls/{id}")).await;
    assert_eq!(crawl["options"]["webhook"], json!(webhook));
}

#[testing::test]
async fn events_show_webhook_token_only_to_writers() {
    let options = Options { worker: false, models: Models::Fixture, ..key_options() };
    let app = App::spawn_with(Options { webhook_secret: Some(SECRET), ..options }).await;
    let (_, crawler) = app.create_key(Some("ours"), &[Scope::Crawl]).await;
    let (_, reader) = app.create_key(Some("ours"), &[Scope::Read]).await;
    let (_, writer) = app.create_key(Some("ours"), &[Scope::Read, Scope::Write]).await;
    let webhook = "http://127.0.0.1:9/hooks/T0KEN?key=s3cret";
    let body = json!({"seeds": ["http://127.0.0.1:9/"], "webhook": webhook});
    let created = app.create_as(&crawler, "/crawls", &body).await;
    let path = format!("/crawls/{}", created.text("id"));
    let follow = async |key: &str| app.call(key, Method::GET, &format!("{path}/events"), None).await;
    let (reader_stream, writer_stream) = (follow(&reader).await, follow(&writer).await);
    // The handler loads the first event before the response begins. Later events come from the task
    // that follows the crawl.
    ok(app.call(&crawler, Method::POST, &format!("{path}/cancel"), None).await).await;
    for (stream, expected) in [(reader_stream, "http://127.0.0.1:9"), (writer_stream, webhook)] {
        let text = stream.text().await.unwrap();
        let events: Vec<Value> = text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .map(|data| serde_json::from_str(data).unwrap())
            .collect();
        let states: Vec<&str> = events.iter().map(|event| event.text("state")).collect();
        assert_eq!((states.first(), states.last()), (Some(&"running"), Some(&"cancelled")), "{text}");
        for event in &events {
            assert_eq!(event["options"]["webhook"], expected, "{text}");
        }
    }
}
