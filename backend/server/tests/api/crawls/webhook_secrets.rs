//! Tests the webhook secrets of collections, their rotation, and who can see webhook URLs.
use super::webhook::{Receiver, SECRET};
use crate::support::keys::guarded;
use crate::support::site::Site;
use crate::support::{App, Models, Options, field, json_of, ok, problem};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use store::keys::Scope;

/// Starts a service that requires keys, two collections with a key each, and a site without images.
async fn tenants() -> (App, [String; 2], Site) {
    let app = App::spawn_with(Options { webhook_secret: Some(SECRET), ..guarded() }).await;
    let scopes = [Scope::Crawl, Scope::Read, Scope::Write, Scope::Admin, Scope::Erase];
    let (_, ours) = app.key(Some("ours"), &scopes).await;
    let (_, theirs) = app.key(Some("theirs"), &scopes).await;
    (app, [ours, theirs], Site::with(&[]).await)
}

async fn crawl(app: &App, key: &str, site: &Site, webhook: &str) -> String {
    let body = json!({"seeds": [site.page()], "delay_ms": 0, "webhook": webhook});
    let created =
        json_of(app.ask(key, Method::POST, "/crawls", Some(&body)).await, StatusCode::CREATED).await;
    created["id"].as_str().unwrap().to_owned()
}

async fn rotate(app: &App, key: &str, collection: &str, body: Value) -> Value {
    let path = format!("/collections/{collection}/webhook-secret");
    json_of(app.ask(key, Method::POST, &path, Some(&body)).await, StatusCode::CREATED).await
}

#[testing::test]
async fn a_collection_with_its_own_secret_signs_with_that_and_the_others_with_the_services() {
    let (app, [ours, theirs], site) = tenants().await;
    let mut receiver = Receiver::start().await;
    let made = rotate(&app, &ours, "ours", json!({"overlap_hours": 0})).await;
    let secret = made["secret"].as_str().unwrap();
    assert!(secret.len() >= 32, "{made}");
    crawl(&app, &ours, &site, &receiver.url).await;
    let message = receiver.next().await;
    assert!(message.is_signed_with(secret) && !message.is_signed_with(SECRET));
    crawl(&app, &theirs, &site, &receiver.url).await;
    let message = receiver.next().await;
    assert!(message.is_signed_with(SECRET) && !message.is_signed_with(secret));

    let log = ok(app.ask(&ours, Method::GET, "/audit?action=collection.webhook_secret", None).await).await;
    assert_eq!(log["records"].as_array().unwrap().len(), 1);
    assert!(!log.to_string().contains(secret));
    assert!(!crate::erased::dump(&app).contains(secret), "the secret must not be in the database");
}

#[testing::test]
async fn two_secrets_sign_during_a_rotation_and_one_after_it() {
    let (app, [ours, _], site) = tenants().await;
    let mut receiver = Receiver::start().await;
    let secret = |made: &Value| made["secret"].as_str().unwrap().to_owned();
    let first = rotate(&app, &ours, "ours", json!({})).await;
    assert!(first["overlaps_until"].is_string(), "{first}");
    crawl(&app, &ours, &site, &receiver.url).await;
    let message = receiver.next().await;
    assert!(message.is_signed_with(&secret(&first)) && message.is_signed_with(SECRET));

    let second = rotate(&app, &ours, "ours", json!({"overlap_hours": 1})).await;
    assert_ne!(secret(&first), secret(&second));
    crawl(&app, &ours, &site, &receiver.url).await;
    let message = receiver.next().await;
    assert!(message.is_signed_with(&secret(&first)) && message.is_signed_with(&secret(&second)));
    assert!(!message.is_signed_with(SECRET), "at most two secrets sign a message");

    let third = rotate(&app, &ours, "ours", json!({"overlap_hours": 0})).await;
    crawl(&app, &ours, &site, &receiver.url).await;
    let message = receiver.next().await;
    assert!(message.is_signed_with(&secret(&third)) && !message.is_signed_with(&secret(&second)));
    assert!(!message.header("x-facecrawl-signature").contains(','));
}

#[testing::test]
async fn only_an_admin_of_the_collection_makes_its_secret() {
    let (app, [ours, _], _site) = tenants().await;
    let (_, reader) = app.key(Some("ours"), &[Scope::Read, Scope::Write, Scope::Crawl]).await;
    let path = |name: &str| format!("/collections/{name}/webhook-secret");
    let body = json!({});
    let ask = async |key: &str, name: &str| app.ask(key, Method::POST, &path(name), Some(&body)).await;
    problem(ask(&reader, "ours").await, 403, "scope_missing").await;
    problem(ask(&ours, "theirs").await, 404, "not_found").await;
    let body = json!({"overlap_hours": 169});
    let wrong = app.ask(&ours, Method::POST, &path("ours"), Some(&body)).await;
    assert_eq!(field(&problem(wrong, 422, "invalid_field").await), "overlap_hours");

    let silent = App::spawn().await;
    let refused = problem(silent.post_json(&path("default"), &json!({})).await, 409, "conflict").await;
    assert!(refused["detail"].as_str().unwrap().contains("WEBHOOK_SECRET"), "{refused}");
}

#[testing::test]
async fn who_may_not_write_sees_the_host_of_a_webhook_and_no_more() {
    let (app, [ours, _], site) = tenants().await;
    let mut receiver = Receiver::start().await;
    let webhook = format!("{}/hooks/T0KEN?key=s3cret", receiver.url);
    let id = crawl(&app, &ours, &site, &webhook).await;
    receiver.next().await;
    let (_, reader) = app.key(Some("ours"), &[Scope::Read]).await;
    for path in [format!("/crawls/{id}"), "/crawls".to_owned(), format!("/crawls/{id}/events")] {
        let text = app.ask(&reader, Method::GET, &path, None).await.text().await.unwrap();
        assert!(!text.contains("T0KEN") && !text.contains("s3cret"), "{path}: {text}");
    }
    let shown = ok(app.ask(&reader, Method::GET, &format!("/crawls/{id}"), None).await).await;
    assert_eq!(shown["options"]["webhook"], json!(receiver.url));
    let shown = ok(app.ask(&ours, Method::GET, &format!("/crawls/{id}"), None).await).await;
    assert_eq!(shown["options"]["webhook"], json!(webhook));
}

#[testing::test]
async fn events_of_a_crawl_that_goes_on_show_the_token_to_those_who_may_write_alone() {
    let options = Options { worker: false, models: Models::Fixture, ..guarded() };
    let app = App::spawn_with(Options { webhook_secret: Some(SECRET), ..options }).await;
    let (_, crawler) = app.key(Some("ours"), &[Scope::Crawl]).await;
    let (_, reader) = app.key(Some("ours"), &[Scope::Read]).await;
    let (_, writer) = app.key(Some("ours"), &[Scope::Read, Scope::Write]).await;
    let webhook = "http://127.0.0.1:9/hooks/T0KEN?key=s3cret";
    let body = json!({"seeds": ["http://127.0.0.1:9/"], "webhook": webhook});
    let created = app.ask(&crawler, Method::POST, "/crawls", Some(&body)).await;
    let created = json_of(created, StatusCode::CREATED).await;
    let path = format!("/crawls/{}", created["id"].as_str().unwrap());
    let follow = async |key: &str| app.ask(key, Method::GET, &format!("{path}/events"), None).await;
    let (read, write) = (follow(&reader).await, follow(&writer).await);
    // The handler loads the first event before the response begins. Later events come from the task
    // that follows the crawl.
    ok(app.ask(&crawler, Method::POST, &format!("{path}/cancel"), None).await).await;
    for (stream, shown) in [(read, "http://127.0.0.1:9"), (write, webhook)] {
        let text = stream.text().await.unwrap();
        let events: Vec<Value> = text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .map(|data| serde_json::from_str(data).unwrap())
            .collect();
        let states: Vec<&str> = events.iter().map(|event| event["state"].as_str().unwrap()).collect();
        assert_eq!((states.first(), states.last()), (Some(&"running"), Some(&"cancelled")), "{text}");
        for event in &events {
            assert_eq!(event["options"]["webhook"], shown, "{text}");
        }
    }
}
