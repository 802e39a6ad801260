//! Tests confirmation tokens: a large deletion requires the token of a dry run, in every operation
//! of the OpenAPI document that deletes faces or suppressions.
use crate::support::site::Site;
use crate::support::{
    App, Json, Options, add_video, document, erase, images, merge, ok, operations, problem, to_json,
};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use server::{AppState, Config};

/// Crawls the images in a service in which one call may delete `limit` rows without a token.
async fn app_with_crawl(limit: u64, images: &[&str]) -> (App, Value) {
    let config = Config { confirm_above: limit, ..Options::default().config };
    let app = App::spawn_with(Options { config, ..Options::default() }).await;
    let site = Site::new(images).await;
    let crawl = app.crawl(&[site.page()]).await;
    (app, crawl)
}

fn token_of(preview: &Value) -> &str {
    preview["confirm"].as_str().unwrap_or_else(|| panic!("no token in {preview}"))
}

async fn count_faces(app: &App) -> usize {
    app.get_ok("/faces").await.list("faces").len()
}

#[testing::test]
async fn erasure_above_limit_requires_confirmation_token() {
    // The erasure deletes three rows: an image and its two faces.
    let (app, _) = app_with_crawl(3, &["two_people.jpg", "cora.jpg"]).await;
    let images = app.get_ok("/images").await;
    let pair = images.list("images").iter().find(|image| image["face_count"] == 2).unwrap();
    erase(&app, &json!({"image_id": pair["id"]})).await;

    let (app, _) = app_with_crawl(2, &["two_people.jpg", "cora.jpg"]).await;
    let images = app.get_ok("/images").await;
    let pair = images.list("images").iter().find(|image| image["face_count"] == 2).unwrap();
    let target = json!({"image_id": pair["id"]});
    let error = problem(app.post_json("/erasures", &target).await, 428, "confirmation_needed").await;
    assert_eq!(error["reason"], "missing", "{error}");
    assert_eq!(count_faces(&app).await, 3);
    let preview = app.post_ok("/erasures", &merge(target.clone(), json!({"dry_run": true}))).await;
    let confirmed = merge(target, json!({"confirm": token_of(&preview)}));
    let result = erase(&app, &confirmed).await;
    assert_eq!((&result["faces"], &result["images"]), (&json!(2), &json!(1)), "{result}");
}

#[testing::test]
async fn person_deleted_with_image_counts_toward_confirmation_limit() {
    for (limit, status) in [(3, 201), (2, 428)] {
        let (app, _) = app_with_crawl(limit, &["ada.jpg", "cora.jpg"]).await;
        let face = app.get_ok("/faces").await["faces"][0].clone();
        let subject = app.create("/subjects", &json!({"name": "Somebody"})).await.text("id").to_owned();
        let enrol = json!({"face_ids": [face["id"]], "force": true});
        app.post_ok(&format!("/subjects/{subject}/faces"), &enrol).await;
        // The erasure counts three rows: an image, its face and the person.
        let target = json!({"image_id": face["image_id"]});
        assert_eq!(app.post_json("/erasures", &target).await.status().as_u16(), status);
    }
}

#[testing::test]
async fn confirmation_token_is_valid_only_for_previewed_erasure() {
    let (app, _) = app_with_crawl(0, &["ada.jpg", "cora.jpg", "ben.jpg"]).await;
    let images = app.get_ok("/images").await;
    let id = |at: usize| images["images"][at]["id"].clone();
    let check = async |app: &App, body: Value, reason: &str| {
        let error = problem(app.post_json("/erasures", &body).await, 428, "confirmation_needed").await;
        assert_eq!((&error["reason"], &error["field"]), (&json!(reason), &json!("confirm")), "{body}");
    };
    let target = json!({"image_id": id(0)});
    let preview = app.post_ok("/erasures", &merge(target.clone(), json!({"dry_run": true}))).await;
    let token = token_of(&preview).to_owned();
    check(&app, json!({"image_id": id(1), "confirm": token}), "mismatch").await;
    check(&app, merge(target.clone(), json!({"confirm": "x"})), "mismatch").await;
    let mut forged = token.clone().into_bytes();
    let last = forged.len() - 1;
    forged[last] = if forged[last] == b'A' { b'B' } else { b'A' };
    check(&app, merge(target.clone(), json!({"confirm": String::from_utf8(forged).unwrap()})), "mismatch")
        .await;
    // The signature covers the expiry time, so a token with a changed, later time is rejected. A
    // token whose time is past is reported as expired before its signature is checked.
    let (time, rest) = token.split_once('.').unwrap();
    let later = format!("{}.{rest}", time.parse::<u64>().unwrap() + 1);
    check(&app, merge(target.clone(), json!({"confirm": later})), "mismatch").await;
    let past = format!("1.{rest}");
    check(&app, merge(target.clone(), json!({"confirm": past})), "expired").await;

    // Another process of the service accepts the token of this process.
    let other = AppState::new(
        app.state.services.clone(),
        app.state.config.clone(),
        app.state.metrics.clone(),
        app.shutdown.clone(),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/erasures", listener.local_addr().unwrap());
    let (config, stop) = (other.config.clone(), app.shutdown.clone());
    tokio::spawn(async move { server::serve(listener, server::router(other), stop, &config).await });
    let body = merge(target, json!({"confirm": token}));
    let result = app.client.post(url).json(&body).send().await.unwrap();
    to_json(result, StatusCode::CREATED).await;
}

#[testing::test]
async fn large_collection_deletion_requires_confirmation_token() {
    let (app, _) = app_with_crawl(2, &["ada.jpg", "cora.jpg"]).await;
    let path = "/collections/default";
    let error = problem(app.delete(path).await, 428, "confirmation_needed").await;
    assert_eq!((&error["reason"], &error["field"]), (&json!("missing"), &json!("confirm")));
    let preview = ok(app.delete(&format!("{path}?dry_run=true")).await).await;
    assert_eq!(
        (&preview["dry_run"], &preview["images"], &preview["faces"]),
        (&json!(true), &json!(2), &json!(2))
    );
    assert_eq!(count_faces(&app).await, 2, "a dry run changes nothing");
    let token = token_of(&preview).to_owned();
    // The token of another collection is rejected.
    app.create("/collections", &json!({"name": "empty"})).await;
    let empty = ok(app.delete("/collections/empty?dry_run=true").await).await;
    problem(app.delete(&format!("{path}?confirm={}", token_of(&empty))).await, 428, "confirmation_needed")
        .await;
    assert_eq!(app.delete("/collections/empty").await.status(), 202, "an empty collection needs no token");
    assert_eq!(app.delete(&format!("{path}?confirm={token}")).await.status(), 202);
    assert_eq!(count_faces(&app).await, 0);
}

#[testing::test]
async fn confirmation_token_allows_growth_within_limit() {
    for (limit, status) in [(2, 202), (1, 428)] {
        let (app, _) = app_with_crawl(limit, &["ada.jpg", "ben.jpg"]).await;
        let preview = ok(app.delete("/collections/default?dry_run=true").await).await;
        // The crawl adds two rows: an image and its face.
        let site = Site::new(&["cora.jpg"]).await;
        app.crawl(&[site.page()]).await;
        let path = format!("/collections/default?confirm={}", token_of(&preview));
        let response = app.delete(&path).await;
        assert_eq!(response.status().as_u16(), status);
        if status == 428 {
            assert_eq!(problem(response, 428, "confirmation_needed").await["reason"], "grown");
        }
    }
}

#[testing::test]
async fn small_collection_is_deleted_without_token() {
    let (app, _) = app_with_crawl(4, &["ada.jpg", "cora.jpg"]).await;
    assert_eq!(app.delete("/collections/default").await.status(), 202);
}

#[testing::test]
async fn retention_change_above_limit_requires_confirmation_token() {
    let (app, _) = app_with_crawl(3, &["ada.jpg", "cora.jpg"]).await;
    app.database.execute("update images set created_at = now() - interval '10 days'").await;
    app.database.execute("update image_sources set found_at = now() - interval '10 days'").await;
    let set_retention = async |query: &str, days: u32| {
        let url = format!("{}/collections/default{query}", app.url);
        app.client.patch(url).json(&json!({"retention_days": days})).send().await.unwrap()
    };
    let error = problem(set_retention("", 9).await, 428, "confirmation_needed").await;
    assert_eq!(error["reason"], "missing", "{error}");
    // The images are 10 days old, so a retention of 11 days deletes none of them.
    ok(set_retention("", 11).await).await;
    let preview = ok(set_retention("?dry_run=true", 9).await).await;
    assert_eq!((&preview["images"], &preview["faces"]), (&json!(2), &json!(2)), "{preview}");
    assert_eq!(app.get_ok("/collections/default").await["retention_days"], 11, "a dry run changes nothing");
    let confirmed = format!("?confirm={}", token_of(&preview));
    problem(set_retention(&confirmed, 8).await, 428, "confirmation_needed").await;
    assert_eq!(ok(set_retention(&confirmed, 9).await).await["retention_days"], 9);
    // A longer retention deletes nothing, so it requires no token.
    ok(set_retention("", 10).await).await;
}

#[testing::test]
async fn crawl_deletion_with_images_requires_confirmation_token() {
    let (app, crawl) = app_with_crawl(3, &["ada.jpg", "cora.jpg"]).await;
    let path = format!("/crawls/{}", crawl.text("id"));
    problem(app.delete(&format!("{path}?with_images=true")).await, 428, "confirmation_needed").await;
    let preview = ok(app.delete(&format!("{path}?with_images=true&dry_run=true")).await).await;
    assert_eq!((&preview["images"], &preview["faces"]), (&json!(2), &json!(2)), "{preview}");
    let confirmed = format!("{path}?with_images=true&confirm={}", token_of(&preview));
    assert_eq!(app.delete(&confirmed).await.status(), 204);
    assert_eq!(count_faces(&app).await, 0);

    let (app, crawl) = app_with_crawl(0, &["ada.jpg"]).await;
    let path = format!("/crawls/{}", crawl.text("id"));
    assert_eq!(app.delete(&path).await.status(), 204, "the images of the crawl remain");
    assert_eq!(count_faces(&app).await, 1);
}

/// Operations that change something and delete no faces, with the reason.
const DELETE_NO_FACES: &[(&str, &[&str])] = &[
    (
        "it analyses images and stores nothing",
        &[
            "detect_faces",
            "detect_faces_batch",
            "compare_faces",
            "search_faces",
            "enhance_image",
            "report_quality",
            "detect_video",
        ],
    ),
    (
        "it adds rows",
        &[
            "create_collection",
            "create_crawl",
            "create_key",
            "create_subject",
            "create_video",
            "create_watchlist",
        ],
    ),
    (
        "it deletes no image, face, video, subject or suppression",
        &["update_watchlist", "delete_watchlist", "update_alert", "redeliver_alert"],
    ),
    (
        "it assigns faces to people",
        &["enrol_subject_faces", "import_subjects", "merge_subject", "cluster_collection"],
    ),
    (
        "it changes the state of work and deletes no stored data",
        &[
            "pause_crawl",
            "resume_crawl",
            "cancel_crawl",
            "pause_video",
            "resume_video",
            "cancel_video",
            "retry_job",
            "start_stream",
            "stop_stream",
            "retry_video",
        ],
    ),
    ("it changes names and metadata", &["update_subject"]),
    ("it revokes a key", &["revoke_key"]),
    ("it replaces a secret", &["rotate_webhook_secret"]),
];

/// Returns the operations that may change something: method, path, id and description.
fn changing_operations(document: &Value) -> Vec<(Method, &str, &str, &Value)> {
    let list = operations(document).into_iter().filter(|(method, ..)| *method != Method::GET);
    list.map(|(method, path, operation)| (method, path, operation.text("operationId"), operation)).collect()
}

fn has_parameter(operation: &Value, parameter: &str) -> bool {
    operation["parameters"].as_array().into_iter().flatten().any(|entry| entry["name"] == parameter)
}

#[test]
fn every_face_deletion_declares_dry_run_and_confirmation() {
    let document = document();
    let mut listed: Vec<&str> = DELETE_NO_FACES.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    for (method, path, name, operation) in changing_operations(&document) {
        if let Some(at) = listed.iter().position(|listed| *listed == name) {
            listed.remove(at);
            assert!(
                !has_parameter(operation, "confirm"),
                "{name} requires a confirmation, so it must not be listed"
            );
            continue;
        }
        let label = format!("{method} {path} ({name})");
        assert!(
            has_parameter(operation, "dry_run") && has_parameter(operation, "confirm"),
            "{label} has no confirmation"
        );
        assert!(operation["responses"]["428"].is_object(), "{label} does not document 428");
    }
    assert!(listed.is_empty(), "unknown operations: {listed:?}");
}

/// Sends every deletion of the document without a token, as a dry run, and with the token.
#[testing::test]
async fn every_deletion_requires_token_of_dry_run() {
    let config = Config { confirm_above: 0, ..Options::default().config };
    let app = App::spawn_with(Options { config, ..Options::default() }).await;
    let site = Site::new(&["two_people.jpg", "ada.jpg", "ben.jpg"]).await;
    let crawl = app.crawl(&[site.page()]).await;
    let mut enrolled = Vec::new();
    for _ in 0..2 {
        let subject = app.create("/subjects", &json!({"name": "Cora"})).await.text("id").to_owned();
        let file = ["cora.jpg", "dan.jpg"][enrolled.len()];
        let path = format!("/subjects/{subject}/faces?force=true");
        let sent = ok(app.post_raw(&path, "image/jpeg", images::drawing(file)).await).await;
        enrolled.push((subject, sent["faces"][0].text("face_id").to_owned()));
    }
    let collection = app.database.store().collections().get("default").await.unwrap().id;
    let video = add_video(&app, collection, 7).await;
    let images = app.get_ok(&format!("/images?crawl_id={}", crawl.text("id"))).await;
    let ids: Vec<&str> = images.list("images").iter().map(|image| image.text("id")).collect();
    let first_face = async |image: &str| -> String {
        let faces = app.get_ok(&format!("/faces?image_id={image}")).await;
        faces["faces"][0].text("id").to_owned()
    };
    let face = first_face(ids[0]).await;

    let erasure = app.create("/erasures", &json!({"url": "https://example.org/never.jpg"})).await;

    let document = document();
    let mut paths: Vec<String> = Vec::new();
    for (method, path, name, operation) in changing_operations(&document) {
        if method != Method::DELETE || !has_parameter(operation, "confirm") {
            continue;
        }
        let at = |id: &str| path.replace("{id}", id);
        paths.push(match name {
            "delete_video" => at(&video),
            "delete_image" => at(ids[1]),
            "delete_face" => at(&face),
            "delete_subject" => at(&enrolled[0].0),
            "remove_subject_face" => at(&enrolled[1].0).replace("{face_id}", &enrolled[1].1),
            "delete_crawl" => format!("{}?with_images=true", at(crawl.text("id"))),
            "delete_collection" => at("default"),
            "lift_suppressions" => at(erasure["erasure"].text("id")),
            _ => panic!("no example for {name}"),
        });
    }
    // Crawls and collections are deleted last, because their deletion includes the other resources.
    paths.sort_by_key(|path| (path.starts_with("/collections"), path.starts_with("/crawls")));
    assert_eq!(paths.len(), 8, "{paths:?}");
    for path in paths {
        let with_parameter =
            |more: &str| format!("{path}{}{more}", if path.contains('?') { '&' } else { '?' });
        let count = async || app.get_ok("/faces?limit=1000").await.list("faces").len();
        let before = count().await;
        let error = problem(app.delete(&path).await, 428, "confirmation_needed").await;
        assert_eq!(error["reason"], "missing", "{path}");
        let preview = ok(app.delete(&with_parameter("dry_run=true")).await).await;
        assert_eq!(count().await, before, "{path}: a dry run deletes nothing");
        let token = preview.text("confirm");
        let result = app.delete(&with_parameter(&format!("confirm={token}"))).await;
        assert!(result.status().is_success(), "{path}: {}", result.text().await.unwrap());
        let deleted = before - count().await;
        assert_eq!(preview["faces"].as_u64(), Some(deleted as u64), "{path}: {preview}");
    }
}
