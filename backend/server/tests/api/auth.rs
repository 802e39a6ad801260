//! Tests which requests each key allows, and which data it can access.
use crate::support::keys::{guarded, tenant_scopes};
use crate::support::site::Site;
use crate::support::{App, json_of, ok, problem};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use store::keys::Scope;

/// Returns every operation that requires a key, with its scope in the OpenAPI document, if any.
fn guarded_operations() -> Vec<(Method, String, Option<Scope>)> {
    let document: Value = serde_json::from_str(&server::openapi().to_json().unwrap()).unwrap();
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let Some(scopes) = operation["security"][0]["bearer"].as_array() else { continue };
            let scope = scopes.first().map(|name| Scope::parse(name.as_str().unwrap()).unwrap());
            let path = path.replace("{id}", "00000000-0000-7000-8000-000000000000");
            found.push((method.to_uppercase().parse().unwrap(), path, scope));
        }
    }
    found
}

#[testing::test]
async fn without_a_key_only_health_and_the_pages_answer() {
    let app = App::spawn_with(guarded()).await;
    for path in ["/", "/assets/page.css", "/health/live", "/health/ready", "/openapi.json", "/docs/"] {
        assert_eq!(app.get(path).await.status(), StatusCode::OK, "{path}");
    }
    problem(app.get("/nowhere").await, 404, "route_not_found").await;
    let operations = guarded_operations();
    assert!(operations.len() > 20, "{operations:?}");
    for (method, path, _) in operations {
        let response = app.client.request(method.clone(), format!("{}{path}", app.url)).send().await.unwrap();
        assert_eq!(response.headers()["www-authenticate"], "Bearer realm=\"facecrawl\"", "{method} {path}");
        let refused = problem(response, 401, "unauthorized").await;
        assert_eq!(refused["reason"], "missing");
    }
}

#[testing::test]
async fn a_key_opens_what_its_scopes_name_and_nothing_else() {
    let app = App::spawn_with(guarded()).await;
    let (_, all) = app.key(None, Scope::ALL).await;
    for (method, path, scope) in guarded_operations() {
        let status = app.ask(&all, method.clone(), &path, None).await.status().as_u16();
        assert!(status != 401 && status != 403, "{method} {path}: {status}");
        let Some(scope) = scope else { continue };

        let others: Vec<Scope> = Scope::ALL.iter().copied().filter(|other| *other != scope).collect();
        let (_, lacking) = app.key(None, &others).await;
        let response = app.ask(&lacking, method.clone(), &path, None).await;
        let challenge = response.headers()["www-authenticate"].to_str().unwrap().to_owned();
        let refused = problem(response, 403, "scope_missing").await;
        assert!(refused["detail"].as_str().unwrap().contains(scope.as_str()), "{method} {path}: {refused}");
        assert!(challenge.contains(&format!("scope=\"{scope}\"")), "{challenge}");
    }
}

#[testing::test]
async fn the_document_of_a_service_with_keys_lets_nobody_in_without_one() {
    let app = App::spawn_with(guarded()).await;
    let document = app.get_ok("/openapi.json").await;
    for (method, path, _) in guarded_operations() {
        let path = path.replace("00000000-0000-7000-8000-000000000000", "{id}");
        let ways = &document["paths"][&path][method.as_str().to_lowercase()]["security"];
        assert_eq!(ways.as_array().map(Vec::len), Some(2), "{method} {path}: {ways}");
        assert!(!ways.as_array().unwrap().contains(&json!({})), "{method} {path}: {ways}");
    }
}

#[testing::test]
async fn keys_that_do_not_work_are_told_apart() {
    let app = App::spawn_with(guarded()).await;
    let refused = async |key: &str, reason: &str| {
        let response = app.ask(key, Method::GET, "/crawls", None).await;
        assert!(response.headers()["www-authenticate"].to_str().unwrap().contains("invalid_token"));
        let refused = problem(response, 401, "unauthorized").await;
        assert_eq!(refused["reason"], reason, "{refused}");
        assert!(!refused.to_string().contains(key), "{refused}");
    };
    refused("fc_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "unknown").await;
    refused("secret", "unknown").await;

    let (_, key) = app.key(None, &[Scope::Read]).await;
    app.database.execute("update api_keys set expires_at = now()").await;
    refused(&key, "expired").await;

    let (revoked, key) = app.key(None, &[Scope::Read]).await;
    ok(app.ask(&key, Method::GET, "/crawls", None).await).await;
    let store = &app.state.services.store;
    let mut tx = store.begin().await.unwrap();
    store.revoke_key(tx.conn(), revoked.id, false).await.unwrap();
    tx.commit().await.unwrap();
    // A process that has just checked the key may accept it for a few more seconds.
    while app.ask(&key, Method::GET, "/crawls", None).await.status() == StatusCode::OK {
        tokio::task::yield_now().await;
    }
    refused(&key, "revoked").await;
}

#[testing::test]
async fn a_key_is_sent_in_either_header_and_its_use_is_noted() {
    let app = App::spawn_with(guarded()).await;
    let (made, key) = app.key(None, &[Scope::Read]).await;
    assert_eq!(made.last_used_at, None);
    assert!(key.starts_with(&made.prefix) && made.prefix.len() < 12, "{}", made.prefix);
    let url = format!("{}/collections", app.url);
    let response = app.client.get(&url).header("x-api-key", &key).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let response = app.client.get(&url).bearer_auth(&key).header("x-api-key", &key).send().await.unwrap();
    assert_eq!(problem(response, 401, "unauthorized").await["reason"], "twice");
    let store = &app.state.services.store;
    while store.keys(None, 1).await.unwrap()[0].last_used_at.is_none() {
        tokio::task::yield_now().await;
    }
}

#[testing::test]
async fn a_bound_key_means_its_own_collection() {
    let app = App::spawn_with(guarded()).await;
    let (_, ours) = app.key(Some("ours"), &tenant_scopes()).await;
    app.key(Some("theirs"), &tenant_scopes()).await;
    let listed = ok(app.ask(&ours, Method::GET, "/collections", None).await).await;
    assert_eq!(listed["collections"].as_array().unwrap().len(), 1);
    assert_eq!(listed["collections"][0]["name"], "ours");
    for path in ["/faces", "/images"] {
        ok(app.ask(&ours, Method::GET, path, None).await).await;
        ok(app.ask(&ours, Method::GET, &format!("{path}?collection=ours"), None).await).await;
        for other in ["theirs", "default", "nobodys"] {
            let response = app.ask(&ours, Method::GET, &format!("{path}?collection={other}"), None).await;
            problem(response, 404, "not_found").await;
        }
    }
    // A tenant may not see data of the whole service. A scope that was written directly into the
    // table does not change that.
    app.database.execute("update api_keys set scopes = scopes || 'system'::text").await;
    let (_, late) = app.key(Some("ours"), &tenant_scopes()).await;
    app.database.execute("update api_keys set scopes = scopes || 'system'::text").await;
    for path in ["/jobs", "/gpu", "/metrics"] {
        problem(app.ask(&late, Method::GET, path, None).await, 403, "scope_missing").await;
    }
}

#[testing::test]
async fn a_key_that_has_used_up_its_minute_is_told_when_to_come_back() {
    let app = App::spawn_with(guarded()).await;
    let (made, key) = app.key(None, &[Scope::Read]).await;
    app.database.execute("update api_keys set requests_per_minute = 2").await;
    let (_, free) = app.key(None, &[Scope::Read]).await;
    for left in [1, 0] {
        let response = app.ask(&key, Method::GET, "/collections", None).await;
        assert_eq!(response.headers()["ratelimit-policy"], "\"key\";q=2;w=60");
        assert!(
            response.headers()["ratelimit"].to_str().unwrap().starts_with(&format!("\"key\";r={left};t="))
        );
        ok(response).await;
    }
    let response = app.ask(&key, Method::GET, "/collections", None).await;
    let wait: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=30).contains(&wait), "{wait}");
    assert!(response.headers()["ratelimit"].to_str().unwrap().starts_with("\"key\";r=0;t="));
    problem(response, 429, "rate_limited").await;
    // Other keys still work. A key without a rate limit has no rate limit headers.
    let response = app.ask(&free, Method::GET, "/collections", None).await;
    assert!(!response.headers().contains_key("ratelimit"), "{}", made.id);
    ok(response).await;
}

#[testing::test]
async fn who_follows_a_crawl_is_cut_off_when_the_key_is_revoked() {
    let app = App::spawn_with(guarded()).await;
    let site = Site::with(&[]).await;
    let (made, key) = app.key(Some("ours"), &tenant_scopes()).await;
    let body = json!({"seeds": [format!("{}/held", site.url)], "delay_ms": 0});
    let crawl = json_of(app.ask(&key, Method::POST, "/crawls", Some(&body)).await, StatusCode::CREATED).await;
    let path = format!("/crawls/{}/events", crawl["id"].as_str().unwrap());
    let mut events = app.ask(&key, Method::GET, &path, None).await;
    assert!(events.chunk().await.unwrap().is_some());
    let store = &app.state.services.store;
    let mut tx = store.begin().await.unwrap();
    store.revoke_key(tx.conn(), made.id, false).await.unwrap();
    tx.commit().await.unwrap();
    // The crawl does not end, but the stream does.
    while events.chunk().await.unwrap().is_some() {}
    assert_eq!(
        store.crawl(crawl["id"].as_str().unwrap().parse().unwrap()).await.unwrap().state,
        domain::CrawlState::Running
    );
}

#[testing::test]
async fn a_key_to_one_collection_is_challenged_where_all_are_needed() {
    let app = App::spawn_with(guarded()).await;
    let (_, ours) = app.key(Some("ours"), &tenant_scopes()).await;
    let response = app.ask(&ours, Method::POST, "/collections", Some(&json!({"name": "more"}))).await;
    assert!(response.headers()["www-authenticate"].to_str().unwrap().contains("scope=\"admin\""));
    let refused = problem(response, 403, "scope_missing").await;
    assert!(refused["detail"].as_str().unwrap().contains("all collections"), "{refused}");
}
