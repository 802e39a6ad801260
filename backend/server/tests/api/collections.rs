//! Tests the operations on collections.
use crate::support::site::Site;
use crate::support::{
    App, Json, Models, Options, field, images, key_options, ok, problem, tenant_scopes, to_json,
};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use store::keys::Scope;

/// Starts a service with fixture models. These tests mostly need no analysis.
async fn fixture_app() -> App {
    App::spawn_with(Options { models: Models::Fixture, ..Options::default() }).await
}

#[testing::test]
async fn default_collection_always_exists() {
    let app = fixture_app().await;
    app.state.services.store.collections().ensure("archive").await.unwrap();
    let response = app.get_ok("/collections").await;
    let names: Vec<&str> = response.list("collections").iter().map(|entry| entry.text("name")).collect();
    assert_eq!(names, ["archive", "default"]);
    assert!(response["collections"][0].text("created_at").ends_with('Z'));
    assert_eq!(field(&problem(app.get("/collections?limit=3").await, 400, "bad_query").await), "limit");
}

#[testing::test]
async fn collection_is_created_found_and_changed() {
    let app = fixture_app().await;
    let body =
        json!({"name": "press", "quality_profile": "strict", "match_threshold": 0.5, "retention_days": 30});
    let response = app.post_json("/collections", &body).await;
    assert_eq!(response.headers()["location"], "/collections/press");
    let created = to_json(response, StatusCode::CREATED).await;
    for (name, value) in body.as_object().unwrap() {
        assert_eq!(&created[name], value);
    }
    let id = created.text("id");
    assert_eq!(app.get_ok("/collections/press").await, created);
    assert_eq!(app.get_ok(&format!("/collections/{id}")).await, created);

    // Omitted fields keep their values, and null resets a field to its default.
    let changed =
        ok(app.patch("/collections/press", &json!({"retention_days": null, "name": "news"})).await).await;
    assert_eq!((&changed["retention_days"], &changed["quality_profile"]), (&Value::Null, &json!("strict")));
    assert_eq!((&changed["name"], &changed["id"]), (&json!("news"), &created["id"]));
    problem(app.get("/collections/press").await, 404, "not_found").await;
    assert_eq!(ok(app.patch(&format!("/collections/{id}"), &json!({})).await).await, changed);
}

#[testing::test]
async fn invalid_collection_error_names_field() {
    let app = fixture_app().await;
    for (body, name) in [
        (json!({"name": "Press"}), "name"),
        (json!({"name": ""}), "name"),
        (json!({"name": "00000000-0000-7000-8000-000000000001"}), "name"),
        (json!({"name": "a", "quality_profile": "harsh"}), "quality_profile"),
        (json!({"name": "a", "match_threshold": 2}), "match_threshold"),
        (json!({"name": "a", "retention_days": 0}), "retention_days"),
        (json!({"name": "a", "colour": "red"}), "colour"),
        (json!({}), "name"),
    ] {
        let error = problem(app.post_json("/collections", &body).await, 422, "invalid_field").await;
        assert_eq!(field(&error), name, "{body}: {error}");
        assert!(error["allowed"].as_array().is_none_or(|allowed| !allowed.is_empty()), "{error}");
    }
    app.create("/collections", &json!({"name": "a"})).await;
    problem(app.post_json("/collections", &json!({"name": "a"})).await, 409, "conflict").await;
    problem(app.patch("/collections/a", &json!({"name": "default"})).await, 409, "conflict").await;
    problem(app.patch("/collections/default", &json!({"name": "other"})).await, 409, "conflict").await;
    problem(app.patch("/collections/b", &json!({})).await, 404, "not_found").await;
    problem(app.delete("/collections/b").await, 404, "not_found").await;
    problem(app.get("/collections/%ff").await, 404, "not_found").await;
}

#[testing::test]
async fn deleted_collection_is_hidden_at_once_and_fully_erased() {
    let app = App::spawn().await;
    let site = Site::new(&["ada_small.jpg", "two_people.jpg"]).await;
    app.create("/collections", &json!({"name": "press"})).await;
    app.crawl_as("", Some("press"), &site.page()).await;
    let other_crawl = app.crawl_as("", None, &site.page()).await;
    let faces = app.get_ok("/faces?collection=press").await;
    assert!(!faces.list("faces").is_empty(), "{faces}");
    let images = app.blob_count();

    // A running crawl is cancelled by the deletion.
    let body = json!({"seeds": [site.page()], "collection": "press", "delay_ms": 300_000, "every": "24h"});
    let running = app.create("/crawls", &body).await;
    assert_eq!(app.delete("/collections/press").await.status(), StatusCode::ACCEPTED);
    for path in ["/collections/press", "/faces?collection=press", "/crawls?collection=press"] {
        problem(app.get(path).await, 404, "not_found").await;
    }
    problem(app.delete("/collections/press").await, 404, "not_found").await;
    // The name can be reused.
    app.create("/collections", &json!({"name": "press"})).await;

    app.poll("/audit?action=collection.erased", |log| !log.list("records").is_empty()).await;
    let crawl = running.text("id");
    problem(app.get(&format!("/crawls/{crawl}")).await, 404, "not_found").await;
    let face = faces["faces"][0].text("id");
    problem(app.get(&format!("/faces/{face}")).await, 404, "not_found").await;
    assert_eq!(app.get_ok("/faces?collection=press").await["faces"], json!([]));
    // The other collection has the same images with the same content, so all blobs remain.
    assert_eq!(app.blob_count(), images);
    assert_eq!(app.get_ok(&format!("/crawls/{}", other_crawl.text("id"))).await, other_crawl);

    // `default` is emptied, but not deleted.
    assert_eq!(app.delete("/collections/default").await.status(), StatusCode::ACCEPTED);
    assert_eq!(app.get_ok("/faces").await["faces"], json!([]));
    app.poll("/audit?action=collection.erased", |log| log.list("records").len() == 2).await;
    assert_eq!(app.blob_count(), 0);
    let jobs = app.get_ok("/jobs?state=discarded").await;
    assert_eq!(jobs["jobs"], json!([]));
}

#[testing::test]
async fn tenant_key_manages_only_own_collection() {
    let app = App::spawn_with(Options { models: Models::Fixture, ..key_options() }).await;
    let (_, our_key) = app.create_key(Some("ours"), &tenant_scopes()).await;
    let (_, their_key) = app.create_key(Some("theirs"), &tenant_scopes()).await;
    let body = json!({"match_threshold": 0.4});
    ok(app.call(&our_key, Method::PATCH, "/collections/ours", Some(&body)).await).await;
    for name in ["theirs", "default", "nobodys"] {
        let path = format!("/collections/{name}");
        for method in [Method::GET, Method::PATCH, Method::DELETE] {
            problem(app.call(&our_key, method, &path, Some(&body)).await, 404, "not_found").await;
        }
    }
    // The response is the same for a name that exists and one that does not.
    for name in ["theirs", "free"] {
        let response = app.call(&our_key, Method::POST, "/collections", Some(&json!({"name": name}))).await;
        problem(response, 403, "scope_missing").await;
    }
    let deletion = app.call(&our_key, Method::DELETE, "/collections/ours", None).await;
    assert_eq!(deletion.status(), StatusCode::ACCEPTED);
    app.get_as(&their_key, "/collections/theirs").await;
    // The keys of the collection are deleted too. A process that has just checked a key no longer
    // finds the collection.
    let after = app.call(&our_key, Method::GET, "/faces", None).await.status();
    assert!(after == StatusCode::NOT_FOUND || after == StatusCode::UNAUTHORIZED, "{after}");
    let (_, unbound_key) = app.create_key(None, &[Scope::Admin]).await;
    let log = app.get_as(&unbound_key, "/audit?action=collection.delete").await;
    assert_eq!(log["records"][0]["detail"]["name"], "ours");
}

#[testing::test]
async fn collection_settings_apply_to_detection_and_matching() {
    let app = App::spawn().await;
    let site = Site::new(&["small_pair.jpg"]).await;
    for body in [
        json!({"name": "strict", "quality_profile": "strict", "match_threshold": 0.99}),
        json!({"name": "lax", "quality_profile": "off", "match_threshold": -1.0}),
    ] {
        app.create("/collections", &body).await;
    }
    let quality_results = |faces: &Value| -> Vec<Value> {
        let faces = faces.list("faces").iter();
        faces.map(|face| json!([face["quality"]["passed"], face["quality"]["reasons"]])).collect()
    };
    let pair = images::drawing("small_pair.jpg");
    let detect = async |query: &str| {
        let path = format!("/faces/detect?embeddings=false&{query}");
        quality_results(&ok(app.post_raw(&path, "image/jpeg", pair.clone()).await).await)
    };
    let (strict, lax) = (detect("quality_profile=strict").await, detect("quality_profile=off").await);
    assert_ne!(strict, lax, "the profiles must judge this image differently");
    assert_eq!(
        (detect("collection=strict").await, detect("collection=lax").await),
        (strict.clone(), lax.clone())
    );
    assert_eq!(
        detect("collection=strict&quality_profile=off").await,
        lax,
        "a parameter overrides the collection"
    );
    let report = app.post_raw("/images/quality?collection=strict", "image/jpeg", pair.clone()).await;
    assert_eq!(quality_results(&ok(report).await), strict);

    for (collection, passed) in [("strict", &strict), ("lax", &lax)] {
        app.crawl_as("", Some(collection), &site.page()).await;
        let stored = quality_results(&app.get_ok(&format!("/faces?collection={collection}")).await);
        assert_eq!(stored.len(), passed.len());
        assert!(passed.iter().all(|face| stored.contains(face)), "{collection}: {stored:?}, {passed:?}");
    }

    // Two different people do not match at 0.99, but match at -1.
    let parts = [("image_a", pair.clone()), ("image_b", pair)];
    for (collection, threshold, matches) in [("strict", 0.99, false), ("lax", -1.0, true)] {
        let path = format!("/faces/compare?face_a=0&face_b=1&collection={collection}");
        let compared = ok(app.post_parts(&path, &parts).await).await;
        assert!((compared["threshold"].as_f64().unwrap() - threshold).abs() < 1e-6, "{compared}");
        assert_eq!(compared["match"], matches);
        let face = app.get_ok(&format!("/faces?collection={collection}")).await["faces"][0]["id"].clone();
        let found = app.post_ok("/faces/search", &json!({"face_id": face})).await;
        assert_eq!(found.list("matches").is_empty(), !matches, "{found}");
    }
    problem(
        app.post_raw("/faces/detect?collection=nobodys", "image/jpeg", Vec::new()).await,
        400,
        "missing_image",
    )
    .await;
    let png = images::png(64, 64);
    problem(app.post_raw("/faces/detect?collection=nobodys", "image/png", png).await, 404, "not_found").await;
}

#[testing::test]
async fn only_key_to_all_collections_can_rename_collection() {
    let app = App::spawn_with(Options { worker: false, models: Models::Fixture, ..key_options() }).await;
    let (_, tenant) = app.create_key(Some("ours"), &[Scope::Admin, Scope::Read]).await;
    let (_, operator) = app.create_key(None, &[Scope::Admin, Scope::Read]).await;
    app.create_key(Some("theirs"), &[Scope::Read]).await;
    let rename = async |key: &str, name: &str| {
        app.call(key, Method::PATCH, "/collections/ours", Some(&json!({"name": name}))).await
    };
    // The response is the same for a name that exists and one that does not.
    let mut responses = Vec::new();
    for name in ["theirs", "nobodys", "default"] {
        let mut error = problem(rename(&tenant, name).await, 403, "scope_missing").await;
        error["request_id"].take();
        responses.push(error);
    }
    assert!(responses.windows(2).all(|pair| pair[0] == pair[1]), "{responses:?}");
    // A rename to the current name is allowed, and so are all other changes.
    ok(rename(&tenant, "ours").await).await;
    let settings = json!({"match_threshold": 0.6});
    ok(app.call(&tenant, Method::PATCH, "/collections/ours", Some(&settings)).await).await;
    problem(rename(&operator, "theirs").await, 409, "conflict").await;
    assert_eq!(ok(rename(&operator, "nobodys").await).await["name"], "nobodys");
}
