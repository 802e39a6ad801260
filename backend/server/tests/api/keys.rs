use crate::support::keys::guarded;
use crate::support::{App, and, field, json_of, ok, problem};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use store::keys::{NewKey, Scope};
use time::{Duration, OffsetDateTime};

async fn make(app: &App, by: &str, body: &Value) -> Value {
    json_of(app.ask(by, Method::POST, "/keys", Some(body)).await, StatusCode::CREATED).await
}

#[testing::test]
async fn a_key_makes_a_key_that_is_shown_once_works_and_is_recorded() {
    let app = App::spawn_with(guarded()).await;
    let (operator, by) = app.key(None, Scope::ALL).await;
    app.state.services.store.ensure_collection("press").await.unwrap();
    let body = json!({"name": " press desk ", "collection": "press", "scopes": ["search", "read", "read"], "requests_per_minute": 60});
    let made = make(&app, &by, &body).await;
    let (secret, key) = (made["secret"].as_str().unwrap(), &made["key"]);
    assert!(secret.starts_with(key["prefix"].as_str().unwrap()), "{made}");
    assert_eq!((&key["name"], &key["collection"]), (&json!("press desk"), &json!("press")));
    assert_eq!((&key["scopes"], &key["requests_per_minute"]), (&json!(["read", "search"]), &json!(60)));
    ok(app.ask(secret, Method::GET, "/faces", None).await).await;
    problem(app.ask(secret, Method::GET, "/keys", None).await, 403, "scope_missing").await;

    let listed = ok(app.ask(&by, Method::GET, "/keys?limit=1", None).await).await;
    assert_eq!(listed["keys"][0]["id"], key["id"]);
    assert!(!listed.to_string().contains(secret), "{listed}");
    let cursor = listed["next_cursor"].as_str().unwrap();
    let rest = ok(app.ask(&by, Method::GET, &format!("/keys?cursor={cursor}"), None).await).await;
    assert_eq!((&rest["keys"][0]["id"], &rest["next_cursor"]), (&json!(operator.id), &Value::Null));
    let log = ok(app.ask(&by, Method::GET, "/audit?action=key.create", None).await).await;
    let record = &log["records"][0];
    assert_eq!((&record["key_id"], &record["collection"]), (&json!(operator.id), &json!("press")));
    assert_eq!(record["detail"], json!({"key_id": key["id"], "scopes": ["read", "search"]}));
}

#[testing::test]
async fn no_key_gains_anything_by_making_another() {
    let app = App::spawn_with(guarded()).await;
    let (_, tenant) = app.key(Some("press"), &[Scope::Read, Scope::Keys]).await;
    let good = || json!({"name": "a", "collection": "press", "scopes": ["read"]});
    let refused = async |by: &str, changes: Value, status: u16, code: &str, name: &str| {
        let mut body = good();
        for (key, value) in changes.as_object().unwrap() {
            body[key] = value.clone();
        }
        let refused = problem(app.ask(by, Method::POST, "/keys", Some(&body)).await, status, code).await;
        assert_eq!(field(&refused), name, "{refused}");
        refused
    };
    let beyond = refused(&tenant, json!({"scopes": ["read", "erase"]}), 403, "scope_missing", "scopes").await;
    assert_eq!(beyond["allowed"], json!(["read", "keys"]));
    let all = refused(&tenant, json!({"collection": null}), 403, "scope_missing", "collection").await;
    assert_eq!(all["allowed"], json!(["press"]));
    make(&app, &tenant, &good()).await;

    // A key with a limit cannot create a key with a higher one or without one.
    let limited =
        json!({"name": "b", "collection": "press", "scopes": ["read", "keys"], "requests_per_minute": 60});
    let limited = make(&app, &tenant, &limited).await;
    let limited = limited["secret"].as_str().unwrap();
    for rate in [Value::Null, json!(61)] {
        let faster = json!({"requests_per_minute": rate});
        let faster = refused(limited, faster, 403, "scope_missing", "requests_per_minute").await;
        assert_eq!(faster["allowed"], json!(["1 to 60"]));
    }
    make(&app, limited, &and(good(), json!({"requests_per_minute": 60}))).await;

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
    let mut tx = store.begin().await.unwrap();
    let (_, for_a_day) = store.create_key(tx.conn(), &new).await.unwrap();
    tx.commit().await.unwrap();
    for late in [Value::Null, json!("2099-01-01T00:00:00Z")] {
        refused(&for_a_day, json!({"expires_at": late}), 403, "scope_missing", "expires_at").await;
    }
    let hour =
        (OffsetDateTime::now_utc() + Duration::HOUR).format(&time::format_description::well_known::Rfc3339);
    make(
        &app,
        &for_a_day,
        &json!({"name": "a", "collection": null, "scopes": ["read"], "expires_at": hour.unwrap()}),
    )
    .await;

    // No caller may create these keys.
    let (_, operator) = app.key(None, Scope::ALL).await;
    for (changes, name) in [
        (json!({"scopes": []}), "scopes"),
        (json!({"scopes": ["system"]}), "scopes"),
        (json!({"scopes": ["root"]}), "scopes[0]"),
        (json!({"name": "  "}), "name"),
        (json!({"requests_per_minute": 0}), "requests_per_minute"),
        (json!({"expires_at": "2001-01-01T00:00:00Z"}), "expires_at"),
    ] {
        refused(&operator, changes, 422, "invalid_field", name).await;
    }
    // A missing `collection` is an error, so that no caller creates a key to all collections by
    // accident.
    let silent = json!({"name": "a", "scopes": ["read"]});
    let refusal = app.ask(&operator, Method::POST, "/keys", Some(&silent)).await;
    assert_eq!(field(&problem(refusal, 422, "invalid_field").await), "collection");
}

#[testing::test]
async fn a_revoked_key_opens_nothing_and_stays_listed() {
    let app = App::spawn_with(guarded()).await;
    let (operator, by) = app.key(None, &[Scope::Keys, Scope::Admin]).await;
    let (held, secret) = app.key(Some("press"), &[Scope::Read]).await;
    let path = format!("/keys/{}/revoke", held.id);
    let revoked = ok(app.ask(&by, Method::POST, &path, None).await).await;
    assert!(revoked["key"]["revoked_at"].is_string(), "{revoked}");
    assert_eq!(ok(app.ask(&by, Method::POST, &path, None).await).await, revoked);
    assert_eq!(
        problem(app.ask(&secret, Method::GET, "/faces", None).await, 401, "unauthorized").await["reason"],
        "revoked"
    );
    let listed = ok(app.ask(&by, Method::GET, "/keys", None).await).await;
    assert_eq!(listed["keys"][0], revoked["key"]);
    let log = ok(app.ask(&by, Method::GET, "/audit?action=key.revoke", None).await).await;
    assert_eq!(
        (&log["records"][0]["key_id"], &log["records"][0]["detail"]["key_id"]),
        (&json!(operator.id), &json!(held.id))
    );
    let nobodys = app.ask(&by, Method::POST, "/keys/00000000-0000-7000-8000-000000000000/revoke", None).await;
    problem(nobodys, 404, "not_found").await;
}

/// The holder of a leaked key can create other keys with it before anyone notices.
#[testing::test]
async fn a_key_is_revoked_with_all_that_came_from_it() {
    let app = App::spawn_with(guarded()).await;
    let (_, operator) = app.key(None, Scope::ALL).await;
    app.state.services.store.ensure_collection("press").await.unwrap();
    let scopes = ["read", "keys"];
    let made_by = async |by: &str, collection: Value, scopes: &[&str]| {
        let made = make(&app, by, &json!({"name": "a", "collection": collection, "scopes": scopes})).await;
        (made["key"].clone(), made["secret"].as_str().unwrap().to_owned())
    };
    let (leaked, secret) = made_by(&operator, Value::Null, &scopes).await;
    let (child, child_secret) = made_by(&secret, json!("press"), &scopes).await;
    let (grandchild, grandchild_secret) = made_by(&child_secret, json!("press"), &["read"]).await;
    let (_, bystander) = made_by(&operator, json!("press"), &scopes).await;
    assert_eq!((&child["made_by"], &grandchild["made_by"]), (&leaked["id"], &child["id"]));

    let revoke = async |key: &Value, query: &str| {
        let path = format!("/keys/{}/revoke{query}", key["id"].as_str().unwrap());
        let answer = ok(app.ask(&operator, Method::POST, &path, None).await).await;
        (answer["descendants_revoked"].as_i64().unwrap(), answer["descendants_working"].as_i64().unwrap())
    };
    // A revoked key between two others does not hide the keys that were created with it.
    assert_eq!(revoke(&child, "").await, (0, 1));
    assert_eq!(revoke(&leaked, "").await, (0, 1));
    assert_eq!(revoke(&leaked, "?descendants=true").await, (1, 0));
    assert_eq!(revoke(&leaked, "?descendants=true").await, (0, 0));
    let refused = app.ask(&grandchild_secret, Method::GET, "/faces", None).await;
    assert_eq!(problem(refused, 401, "unauthorized").await["reason"], "revoked");
    ok(app.ask(&bystander, Method::GET, "/faces", None).await).await;
    // Each revoked key appears in the audit log of its own collection.
    let log =
        ok(app.ask(&operator, Method::GET, "/audit?action=key.revoke&collection=press", None).await).await;
    let revoked: Vec<&Value> =
        log["records"].as_array().unwrap().iter().map(|record| &record["detail"]["key_id"]).collect();
    assert_eq!(revoked, [&grandchild["id"], &child["id"]]);
    let wrong = format!("/keys/{}/revoke?descendants=all", leaked["id"].as_str().unwrap());
    problem(app.ask(&operator, Method::POST, &wrong, None).await, 400, "bad_query").await;
}

/// A process accepts a checked key for some seconds. During this time the key must not create
/// another key, which would remain valid.
#[testing::test]
async fn a_key_that_was_revoked_a_moment_ago_makes_no_other() {
    let app = App::spawn_with(guarded()).await;
    let (held, secret) = app.key(None, &[Scope::Read, Scope::Keys]).await;
    ok(app.ask(&secret, Method::GET, "/keys/current", None).await).await;
    let store = &app.state.services.store;
    let mut tx = store.begin().await.unwrap();
    store.revoke_key(tx.conn(), held.id, true).await.unwrap();
    tx.commit().await.unwrap();
    let body = json!({"name": "a", "collection": null, "scopes": ["read"]});
    let refused = app.ask(&secret, Method::POST, "/keys", Some(&body)).await;
    // While the process still accepts the key, the operation rejects it (409). Later, the
    // authentication rejects it (401).
    assert!(matches!(refused.status().as_u16(), 401 | 409), "{}", refused.status());
    assert_eq!(store.keys(None, 10).await.unwrap().len(), 1);
}

#[testing::test]
async fn a_caller_learns_what_the_own_key_may_do() {
    let app = App::spawn_with(guarded()).await;
    let (made, key) = app.key(Some("press"), &[Scope::Analyze]).await;
    let current = ok(app.ask(&key, Method::GET, "/keys/current", None).await).await;
    assert_eq!((&current["asks_for_keys"], &current["key"]["id"]), (&json!(true), &json!(made.id)));
    assert_eq!(
        (&current["key"]["collection"], &current["key"]["scopes"]),
        (&json!("press"), &json!(["analyze"]))
    );
}

/// Otherwise a key that is created while no keys are required would remain valid after keys become
/// required.
#[testing::test]
async fn a_service_that_asks_for_no_keys_lets_nobody_change_them() {
    let app = App::spawn().await;
    let (held, _) = app.key(None, &[Scope::Read]).await;
    assert_eq!(app.get_ok("/keys/current").await, json!({"asks_for_keys": false, "key": null}));
    assert_eq!(app.get_ok("/keys").await["keys"][0]["id"], json!(held.id));
    let body = json!({"name": "a", "collection": null, "scopes": ["read"]});
    for (path, body) in [("/keys".to_owned(), Some(&body)), (format!("/keys/{}/revoke", held.id), None)] {
        let refused = problem(app.ask("any", Method::POST, &path, body).await, 409, "conflict").await;
        assert!(refused["allowed"].to_string().contains("AUTH=keys"), "{refused}");
    }
    assert_eq!(app.get_ok("/keys").await["keys"][0]["revoked_at"], Value::Null);
}
