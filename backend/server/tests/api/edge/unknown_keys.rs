//! Keys that nobody made: each address may try some, and then the database is not asked any more.
use crate::support::keys::guarded;
use crate::support::{App, Models, Options, problem};
use reqwest::{Client, Method, Response, StatusCode};
use server::Config;
use store::keys::Scope;

const TRIES: u32 = 5;

async fn spawn() -> App {
    let config = Config { unknown_keys_per_minute: TRIES, ..guarded().config };
    App::spawn_with(Options { config, worker: false, models: Models::Fixture, ..guarded() }).await
}

/// A key of the right form that nobody made.
fn unknown(number: u32) -> String {
    format!("fc_{number:A>42}A")
}

async fn from(client: &Client, app: &App, key: &str) -> Response {
    client.get(format!("{}/crawls", app.url)).bearer_auth(key).send().await.unwrap()
}

#[tokio::test]
async fn an_address_that_tries_keys_is_refused_without_asking_the_database() {
    let app = spawn().await;
    let (_, key) = app.key(None, &[Scope::Read]).await;
    assert_eq!(app.ask(&key, Method::GET, "/crawls", None).await.status(), StatusCode::OK);
    for number in 0..TRIES {
        let refused = from(&app.client, &app, &unknown(number)).await;
        assert_eq!(problem(refused, 401, "unauthorized").await["reason"], "unknown");
    }
    let refused = from(&app.client, &app, &unknown(TRIES)).await;
    assert!(refused.headers().contains_key("retry-after"));
    problem(refused, 429, "rate_limited").await;
    // Another address still has its own tries.
    let address = "127.0.0.2".parse::<std::net::IpAddr>().unwrap();
    let elsewhere = Client::builder().local_address(address).build().unwrap();
    problem(from(&elsewhere, &app, &unknown(0)).await, 401, "unauthorized").await;

    // With no table of keys, whoever is asked about it fails.
    app.database.execute("alter table api_keys rename to hidden").await;
    problem(from(&app.client, &app, &unknown(0)).await, 429, "rate_limited").await;
    let asked = from(&elsewhere, &app, &unknown(1)).await.status().as_u16();
    assert!(asked >= 500, "{asked}");
    app.database.execute("alter table hidden rename to api_keys").await;

    // A key that worked here before is asked about, whatever others try from the same address.
    assert_eq!(app.ask(&key, Method::GET, "/crawls", None).await.status(), StatusCode::OK);
}
