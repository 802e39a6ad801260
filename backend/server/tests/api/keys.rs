//! Tests the operations on keys, what each key allows, and requests with keys that do not exist.
use crate::support::site::Site;
use crate::support::{
    App, Json, Models, Options, document, field, key_options, merge, ok, operations, problem, tenant_scopes,
};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use store::keys::{NewKey, Scope};
use time::{Duration, OffsetDateTime};

async fn create_key(app: &App, creator: &str, body: &Value) -> Value {
    app.create_as(creator, "/keys", body).await
}

#[testing::test]
async fn created_key_works_and_secret_is_shown_once() {
    let (app, operator, operator_key) = App::with_key(None, Scope::ALL).await;
    app.state.services.store.collections().ensure("press").await.unwrap();
    let body = json!({"name": " press desk ", "collection": "press", "scopes": ["search", "read", "read"], "requests_per_minute": 60});
    let created = create_key(&app, &operator_key, &body).await;
    let (secret, key) = (created.text("secret"), &created["key"]);
    assert!(secret.starts_with(key.text("prefix")), "{created}");
    assert_eq!((&key["name"], &key["collection"]), (&json!("press desk"), &json!("press")));
    assert_eq!((&key["scopes"], &key["requests_per_minute"]), (&json!(["read", "search"]), &json!(60)));
    app.get_as(secret, "/faces").await;
    problem(app.call(secret, Method::GET, "/keys", None).await, 403, "scope_missing").await;

    let listed = app.get_as(&operator_key, "/keys?limit=1").await;
    assert_eq!(listed["keys"][0]["id"], key["id"]);
    assert!(!listed.to_string().contains(secret), "{listed}");
    let cursor = listed.text("next_cursor");
    let last_page = app.get_as(&operator_key, &format!("/keys?cursor={cursor}")).await;
    assert_eq!((&last_page["keys"][0]["id"], &last_page["next_cursor"]), (&json!(operator.id), &Value::Null));
    let log = app.get_as(&operator_key, "/audit?action=key.create").await;
    let record = &log["records"][0];
    assert_eq!((&record["key_id"], &record["collection"]), (&json!(operator.id), &json!("press")));
    assert_eq!(record["detail"], json!({"key_id": key["id"], "scopes": ["read", "search"]}));
}

#[testing::test]
async fn created_key_never_exceeds_rights_of_creator() {
    let (app, _, tenant) = App::with_key(Some("press"), &[Scope::Read, Scope::Keys]).await;
    let valid_body = || json!({"name": "a", "collection": "press", "scopes": ["read"]});
    let check = async |creator: &str, changes: Value, status: u16, code: &str, name: &str| {
        let mut body = valid_body();
        for (key, value) in changes.as_object().unwrap() {
            body[key] = value.clone();
        }
        let error = problem(app.call(creator, Method::POST, "/keys", Some(&body)).await, status, code).await;
        assert_eq!(field(&error), name, "{error}");
        error
    };
    let error = check(&tenant, json!({"scopes": ["read", "erase"]}), 403, "scope_missing", "scopes").await;
    assert_eq!(error["allowed"], json!(["read", "keys"]));
    let error = check(&tenant, json!({"collection": null}), 403, "scope_missing", "collection").await;
    assert_eq!(error["allowed"], json!(["press"]));
    create_key(&app, &tenant, &valid_body()).await;

    // A key with a limit cannot create a key with a higher one or without one.
    let limited =
        json!({"name": "b", "collection": "press", "scopes": ["read", "keys"], "requests_per_minute": 60});
    let limited = create_key(&app, &tenant, &limited).await;
    let limited = limited.text("secret");
    for rate in [Value::Null, json!(61)] {
        let changes = json!({"requests_per_minute": rate});
        let error = check(limited, changes, 403, "scope_missing", "requests_per_minute").await;
        assert_eq!(error["allowed"], json!(["1 to 60"]));
    }
    create_key(&app, limited, &merge(valid_body(), json!({"requests_per_minute": 60}))).await;

    // A key with an expiry time cannot create a key that expires later or never.
    let end = OffsetDateTime::now_utc() + Duration::DAY;
    let store = &app.state.services.store;
    let new = NewKey {
        collection_id: None,
        name: "for a day".into(),
        scopes: vec![Scope::Read, Scope::Keys],
        requests_per_minute: None,
        expires_at: Some(end),
        made_by: None,
    };
    let (_, day_key) = app.commit(async |tx| store.keys().create(tx.conn(), &new).await).await;
    for expires_at in [Value::Null, json!("2099-01-01T00:00:00Z")] {
        check(&day_key, json!({"expires_at": expires_at}), 403, "scope_missing", "expires_at").await;
    }
    let hour =
        (OffsetDateTime::now_utc() + Duration::HOUR).format(&time::format_description::well_known::Rfc3339);
    create_key(
        &app,
        &day_key,
        &json!({"name": "a", "collection": null, "scopes": ["read"], "expires_at": hour.unwrap()}),
    )
    .await;

    // No caller may create these keys.
    let (_, operator) = app.create_key(None, Scope::ALL).await;
    for (changes, name) in [
        (json!({"scopes": []}), "scopes"),
        (json!({"scopes": ["system"]}), "scopes"),
        (json!({"scopes": ["root"]}), "scopes[0]"),
        (json!({"name": "  "}), "name"),
        (json!({"requests_per_minute": 0}), "requests_per_minute"),
        (json!({"expires_at": "2001-01-01T00:00:00Z"}), "expires_at"),
    ] {
        check(&operator, changes, 422, "invalid_field", name).await;
    }
    // A missing `collection` is an error, so that no caller creates a key to all collections by
    // accident.
    let without_collection = json!({"name": "a", "scopes": ["read"]});
    let response = app.call(&operator, Method::POST, "/keys", Some(&without_collection)).await;
    assert_eq!(field(&problem(response, 422, "invalid_field").await), "collection");
}

#[testing::test]
async fn revoked_key_is_rejected_and_stays_listed() {
    let (app, operator, operator_key) = App::with_key(None, &[Scope::Keys, Scope::Admin]).await;
    let (key_row, secret) = app.create_key(Some("press"), &[Scope::Read]).await;
    let path = format!("/keys/{}/revoke", key_row.id);
    let revoked = ok(app.call(&operator_key, Method::POST, &path, None).await).await;
    assert!(revoked["key"]["revoked_at"].is_string(), "{revoked}");
    assert_eq!(ok(app.call(&operator_key, Method::POST, &path, None).await).await, revoked);
    assert_eq!(
        problem(app.call(&secret, Method::GET, "/faces", None).await, 401, "unauthorized").await["reason"],
        "revoked"
    );
    let listed = app.get_as(&operator_key, "/keys").await;
    assert_eq!(listed["keys"][0], revoked["key"]);
    let log = app.get_as(&operator_key, "/audit?action=key.revoke").await;
    assert_eq!(
        (&log["records"][0]["key_id"], &log["records"][0]["detail"]["key_id"]),
        (&json!(operator.id), &json!(key_row.id))
    );
    let response = app
        .call(&operator_key, Method::POST, "/keys/00000000-0000-7000-8000-000000000000/revoke", None)
        .await;
    problem(response, 404, "not_found").await;
}

/// The holder of a leaked key can create other keys with it before anyone notices.
#[testing::test]
async fn revocation_can_include_descendant_keys() {
    let (app, _, operator) = App::with_key(None, Scope::ALL).await;
    app.state.services.store.collections().ensure("press").await.unwrap();
    let scopes = ["read", "keys"];
    let create_with = async |creator: &str, collection: Value, scopes: &[&str]| {
        let created =
            create_key(&app, creator, &json!({"name": "a", "collection": collection, "scopes": scopes}))
                .await;
        (created["key"].clone(), created.text("secret").to_owned())
    };
    let (leaked, secret) = create_with(&operator, Value::Null, &scopes).await;
    let (child, child_secret) = create_with(&secret, json!("press"), &scopes).await;
    let (grandchild, grandchild_secret) = create_with(&child_secret, json!("press"), &["read"]).await;
    let (_, unrelated_key) = create_with(&operator, json!("press"), &scopes).await;
    assert_eq!((&child["made_by"], &grandchild["made_by"]), (&leaked["id"], &child["id"]));

    let revoke = async |key: &Value, query: &str| {
        let path = format!("/keys/{}/revoke{query}", key.text("id"));
        let response = ok(app.call(&operator, Method::POST, &path, None).await).await;
        (response["descendants_revoked"].as_i64().unwrap(), response["descendants_working"].as_i64().unwrap())
    };
    // A revoked key between two others does not hide the keys that were created with it.
    assert_eq!(revoke(&child, "").await, (0, 1));
    assert_eq!(revoke(&leaked, "").await, (0, 1));
    assert_eq!(revoke(&leaked, "?descendants=true").await, (1, 0));
    assert_eq!(revoke(&leaked, "?descendants=true").await, (0, 0));
    let response = app.call(&grandchild_secret, Method::GET, "/faces", None).await;
    assert_eq!(problem(response, 401, "unauthorized").await["reason"], "revoked");
    app.get_as(&unrelated_key, "/faces").await;
    // Each revoked key appears in the audit log of its own collection.
    let log = app.get_as(&operator, "/audit?action=key.revoke&collection=press").await;
    let revoked: Vec<&Value> = log.list("records").iter().map(|record| &record["detail"]["key_id"]).collect();
    assert_eq!(revoked, [&grandchild["id"], &child["id"]]);
    let wrong = format!("/keys/{}/revoke?descendants=all", leaked.text("id"));
    problem(app.call(&operator, Method::POST, &wrong, None).await, 400, "bad_query").await;
}

/// A process accepts a checked key for some seconds. During this time the key must not create
/// another key, which would remain valid.
#[testing::test]
async fn recently_revoked_key_cannot_create_key() {
    let (app, key_row, secret) = App::with_key(None, &[Scope::Read, Scope::Keys]).await;
    app.get_as(&secret, "/keys/current").await;
    let store = &app.state.services.store;
    app.commit(async |tx| store.keys().revoke(tx.conn(), key_row.id, true).await).await;
    let body = json!({"name": "a", "collection": null, "scopes": ["read"]});
    let response = app.call(&secret, Method::POST, "/keys", Some(&body)).await;
    // While the process still accepts the key, the operation rejects it (409). Later, the
    // authentication rejects it (401).
    assert!(matches!(response.status().as_u16(), 401 | 409), "{}", response.status());
    assert_eq!(store.keys().list(None, 10).await.unwrap().len(), 1);
}

#[testing::test]
async fn caller_can_read_scopes_of_own_key() {
    let (app, created, key) = App::with_key(Some("press"), &[Scope::Analyze]).await;
    let current = app.get_as(&key, "/keys/current").await;
    assert_eq!((&current["asks_for_keys"], &current["key"]["id"]), (&json!(true), &json!(created.id)));
    assert_eq!(
        (&current["key"]["collection"], &current["key"]["scopes"]),
        (&json!("press"), &json!(["analyze"]))
    );
}

/// Otherwise a key that is created while no keys are required would remain valid after keys become
/// required.
#[testing::test]
async fn service_without_required_keys_rejects_key_changes() {
    let app = App::spawn().await;
    let (key_row, _) = app.create_key(None, &[Scope::Read]).await;
    assert_eq!(
        app.get_ok("/keys/current").await,
        json!({"asks_for_keys": false, "key": null, "person": null})
    );
    assert_eq!(app.get_ok("/keys").await["keys"][0]["id"], json!(key_row.id));
    let body = json!({"name": "a", "collection": null, "scopes": ["read"]});
    for (path, body) in [("/keys".to_owned(), Some(&body)), (format!("/keys/{}/revoke", key_row.id), None)] {
        let error = problem(app.call("any", Method::POST, &path, body).await, 409, "conflict").await;
        assert!(error["allowed"].to_string().contains("AUTH=keys"), "{error}");
    }
    assert_eq!(app.get_ok("/keys").await["keys"][0]["revoked_at"], Value::Null);
}

/// Returns every operation that requires a key, with its scope in the OpenAPI document, if any.
fn guarded_operations() -> Vec<(Method, String, Option<Scope>)> {
    let document = document();
    let mut list = Vec::new();
    for (method, path, operation) in operations(&document) {
        let Some(scopes) = operation["security"][0]["bearer"].as_array() else { continue };
        let scope = scopes.first().map(|name| Scope::parse(name.as_str().unwrap()).unwrap());
        list.push((method, path.replace("{id}", "00000000-0000-7000-8000-000000000000"), scope));
    }
    list
}

#[testing::test]
async fn only_health_and_pages_answer_without_key() {
    let app = App::spawn_with(key_options()).await;
    for path in ["/", "/assets/page.css", "/health/live", "/health/ready", "/openapi.json", "/docs/"] {
        assert_eq!(app.get(path).await.status(), StatusCode::OK, "{path}");
    }
    problem(app.get("/nowhere").await, 404, "route_not_found").await;
    let operations = guarded_operations();
    assert!(operations.len() > 20, "{operations:?}");
    for (method, path, _) in operations {
        let response = app.client.request(method.clone(), format!("{}{path}", app.url)).send().await.unwrap();
        assert_eq!(response.headers()["www-authenticate"], "Bearer realm=\"facecrawl\"", "{method} {path}");
        let error = problem(response, 401, "unauthorized").await;
        assert_eq!(error["reason"], "missing");
    }
}

#[testing::test]
async fn key_allows_only_operations_of_granted_scopes() {
    let (app, _, full_key) = App::with_key(None, Scope::ALL).await;
    for (method, path, scope) in guarded_operations() {
        let status = app.call(&full_key, method.clone(), &path, None).await.status().as_u16();
        assert!(status != 401 && status != 403, "{method} {path}: {status}");
        let Some(scope) = scope else { continue };

        let other_scopes: Vec<Scope> = Scope::ALL.iter().copied().filter(|other| *other != scope).collect();
        let (_, key_without_scope) = app.create_key(None, &other_scopes).await;
        let response = app.call(&key_without_scope, method.clone(), &path, None).await;
        let challenge = response.headers()["www-authenticate"].to_str().unwrap().to_owned();
        let error = problem(response, 403, "scope_missing").await;
        assert!(error.text("detail").contains(scope.as_str()), "{method} {path}: {error}");
        assert!(challenge.contains(&format!("scope=\"{scope}\"")), "{challenge}");
    }
}

#[testing::test]
async fn openapi_document_requires_key_for_guarded_operations() {
    let app = App::spawn_with(key_options()).await;
    let document = app.get_ok("/openapi.json").await;
    for (method, path, _) in guarded_operations() {
        let path = path.replace("00000000-0000-7000-8000-000000000000", "{id}");
        let requirements = &document["paths"][&path][method.as_str().to_lowercase()]["security"];
        assert_eq!(requirements.as_array().map(Vec::len), Some(2), "{method} {path}: {requirements}");
        assert!(!requirements.as_array().unwrap().contains(&json!({})), "{method} {path}: {requirements}");
    }
}

#[testing::test]
async fn invalid_keys_are_rejected_with_distinct_reasons() {
    let app = App::spawn_with(key_options()).await;
    let check = async |key: &str, reason: &str| {
        let response = app.call(key, Method::GET, "/crawls", None).await;
        assert!(response.headers()["www-authenticate"].to_str().unwrap().contains("invalid_token"));
        let error = problem(response, 401, "unauthorized").await;
        assert_eq!(error["reason"], reason, "{error}");
        assert!(!error.to_string().contains(key), "{error}");
    };
    check("fc_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "unknown").await;
    check("secret", "unknown").await;

    let (_, key) = app.create_key(None, &[Scope::Read]).await;
    app.database.execute("update api_keys set expires_at = now()").await;
    check(&key, "expired").await;

    let (revoked, key) = app.create_key(None, &[Scope::Read]).await;
    app.get_as(&key, "/crawls").await;
    let store = &app.state.services.store;
    app.commit(async |tx| store.keys().revoke(tx.conn(), revoked.id, false).await).await;
    // A process that has just checked the key may accept it for a few more seconds.
    while app.call(&key, Method::GET, "/crawls", None).await.status() == StatusCode::OK {
        tokio::task::yield_now().await;
    }
    check(&key, "revoked").await;
}

#[testing::test]
async fn key_is_accepted_in_either_header_and_use_recorded() {
    let (app, created, key) = App::with_key(None, &[Scope::Read]).await;
    assert_eq!(created.last_used_at, None);
    assert!(key.starts_with(&created.prefix) && created.prefix.len() < 12, "{}", created.prefix);
    let url = format!("{}/collections", app.url);
    let response = app.client.get(&url).header("x-api-key", &key).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let response = app.client.get(&url).bearer_auth(&key).header("x-api-key", &key).send().await.unwrap();
    assert_eq!(problem(response, 401, "unauthorized").await["reason"], "twice");
    let store = &app.state.services.store;
    while store.keys().list(None, 1).await.unwrap()[0].last_used_at.is_none() {
        tokio::task::yield_now().await;
    }
}

#[testing::test]
async fn bound_key_accesses_only_own_collection() {
    let (app, _, our_key) = App::with_key(Some("ours"), &tenant_scopes()).await;
    app.create_key(Some("theirs"), &tenant_scopes()).await;
    let listed = app.get_as(&our_key, "/collections").await;
    assert_eq!(listed.list("collections").len(), 1);
    assert_eq!(listed["collections"][0]["name"], "ours");
    for path in ["/faces", "/images"] {
        app.get_as(&our_key, path).await;
        app.get_as(&our_key, &format!("{path}?collection=ours")).await;
        for other in ["theirs", "default", "nobodys"] {
            let response = app.call(&our_key, Method::GET, &format!("{path}?collection={other}"), None).await;
            problem(response, 404, "not_found").await;
        }
    }
    // A tenant may not see data of the whole service. A scope that was written directly into the
    // table does not change that.
    app.database.execute("update api_keys set scopes = scopes || 'system'::text").await;
    let (_, new_key) = app.create_key(Some("ours"), &tenant_scopes()).await;
    app.database.execute("update api_keys set scopes = scopes || 'system'::text").await;
    for path in ["/jobs", "/gpu", "/metrics"] {
        problem(app.call(&new_key, Method::GET, path, None).await, 403, "scope_missing").await;
    }
}

#[testing::test]
async fn rate_limited_key_receives_retry_after() {
    let (app, created, key) = App::with_key(None, &[Scope::Read]).await;
    app.database.execute("update api_keys set requests_per_minute = 2").await;
    let (_, unlimited_key) = app.create_key(None, &[Scope::Read]).await;
    for count in [1, 0] {
        let response = app.call(&key, Method::GET, "/collections", None).await;
        assert_eq!(response.headers()["ratelimit-policy"], "\"key\";q=2;w=60");
        assert!(
            response.headers()["ratelimit"].to_str().unwrap().starts_with(&format!("\"key\";r={count};t="))
        );
        ok(response).await;
    }
    let response = app.call(&key, Method::GET, "/collections", None).await;
    let wait: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=30).contains(&wait), "{wait}");
    assert!(response.headers()["ratelimit"].to_str().unwrap().starts_with("\"key\";r=0;t="));
    problem(response, 429, "rate_limited").await;
    // Other keys still work. A key without a rate limit has no rate limit headers.
    let response = app.call(&unlimited_key, Method::GET, "/collections", None).await;
    assert!(!response.headers().contains_key("ratelimit"), "{}", created.id);
    ok(response).await;
}

#[testing::test]
async fn key_revocation_ends_open_event_stream() {
    let (app, created, key) = App::with_key(Some("ours"), &tenant_scopes()).await;
    let site = Site::new(&[]).await;
    let body = json!({"seeds": [format!("{}/held", site.url)], "delay_ms": 0});
    let crawl = app.create_as(&key, "/crawls", &body).await;
    let path = format!("/crawls/{}/events", crawl.text("id"));
    let mut events = app.call(&key, Method::GET, &path, None).await;
    assert!(events.chunk().await.unwrap().is_some());
    let store = &app.state.services.store;
    app.commit(async |tx| store.keys().revoke(tx.conn(), created.id, false).await).await;
    // The crawl does not end, but the stream does.
    while events.chunk().await.unwrap().is_some() {}
    assert_eq!(
        store.crawls().get(crawl.text("id").parse().unwrap()).await.unwrap().state,
        domain::CrawlState::Running
    );
}

#[testing::test]
async fn bound_key_is_rejected_for_operations_on_all_collections() {
    let (app, _, our_key) = App::with_key(Some("ours"), &tenant_scopes()).await;
    let response = app.call(&our_key, Method::POST, "/collections", Some(&json!({"name": "more"}))).await;
    assert!(response.headers()["www-authenticate"].to_str().unwrap().contains("scope=\"admin\""));
    let error = problem(response, 403, "scope_missing").await;
    assert!(error.text("detail").contains("all collections"), "{error}");
}

async fn app_with_keys() -> App {
    App::spawn_with(Options { worker: false, models: Models::Fixture, ..key_options() }).await
}

/// Returns a key of the correct form that does not exist.
fn unknown_key(number: usize) -> String {
    format!("fc_{number:A>42}A")
}

async fn list_crawls(app: &App, key: &str) -> Response {
    app.call(key, Method::GET, "/crawls", None).await
}

#[testing::test]
async fn unknown_keys_do_not_block_valid_key() {
    let app = app_with_keys().await;
    let (_, key) = app.create_key(None, &[Scope::Read]).await;
    // All requests come from one address, as behind a proxy.
    for number in 0..200 {
        let response = list_crawls(&app, &unknown_key(number)).await;
        assert_eq!(problem(response, 401, "unauthorized").await["reason"], "unknown");
    }
    assert_eq!(list_crawls(&app, &key).await.status(), StatusCode::OK);
}

#[testing::test]
async fn only_two_unknown_key_lookups_run_concurrently() {
    const REQUESTS: usize = 250;
    let app = app_with_keys().await;
    // This lock lets look-ups start, but not finish.
    let lock = app.database.execute_in_open_transaction("lock table api_keys in access exclusive mode").await;
    let keys: Vec<String> = (0..REQUESTS).map(unknown_key).collect();
    let mut responses: FuturesUnordered<_> = keys.iter().map(|key| list_crawls(&app, key)).collect();
    for _ in 0..REQUESTS - 2 {
        let response = responses.next().await.unwrap();
        assert!(response.headers().contains_key("retry-after"));
        problem(response, 429, "rate_limited").await;
    }
    let waiting = "select count(*) from pg_locks l join pg_database d on d.oid = l.database
                   where not l.granted and d.datname = current_database() and l.relation = 'api_keys'::regclass";
    assert_eq!(app.database.number(waiting).await, 2);
    lock.commit().await.unwrap();
    while let Some(response) = responses.next().await {
        problem(response, 401, "unauthorized").await;
    }
    // The queue is empty again.
    let (_, key) = app.create_key(None, &[Scope::Read]).await;
    assert_eq!(list_crawls(&app, &key).await.status(), StatusCode::OK);
}
