//! Walks the operations of the OpenAPI document, and tests that each one which deletes faces or
//! suppressions asks for confirmation.
use crate::support::site::Site;
use crate::support::videos::add_video;
use crate::support::{App, Options, json_of, ok, pictures, problem};
use reqwest::StatusCode;
use serde_json::{Value, json};
use server::Config;

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
    ("it adds rows", &["create_collection", "create_crawl", "create_key", "create_subject", "create_video"]),
    ("it assigns faces to people", &["enrol_subject_faces", "merge_subject", "cluster_collection"]),
    (
        "it changes the state of work, and what is stored remains",
        &[
            "pause_crawl",
            "resume_crawl",
            "cancel_crawl",
            "pause_video",
            "resume_video",
            "cancel_video",
            "retry_job",
            "retry_video",
        ],
    ),
    ("it changes names and metadata", &["update_subject"]),
    ("it revokes a key", &["revoke_key"]),
    ("it replaces a secret", &["rotate_webhook_secret"]),
];

/// Returns the operations that may change something: method, path, id and description.
fn changes(document: &Value) -> Vec<(&str, &str, &str, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    let all = paths.iter().flat_map(|(path, item)| {
        let operations = item.as_object().unwrap().iter();
        operations.map(move |(method, operation)| {
            (method.as_str(), path.as_str(), operation["operationId"].as_str().unwrap(), operation)
        })
    });
    all.filter(|(method, ..)| *method != "get").collect()
}

fn has(operation: &Value, parameter: &str) -> bool {
    operation["parameters"].as_array().into_iter().flatten().any(|one| one["name"] == parameter)
}

#[test]
fn every_operation_that_deletes_faces_can_be_previewed_and_confirmed() {
    let document: Value = serde_json::from_str(&server::openapi().to_json().unwrap()).unwrap();
    let mut listed: Vec<&str> = DELETE_NO_FACES.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    for (method, path, name, operation) in changes(&document) {
        if let Some(at) = listed.iter().position(|listed| *listed == name) {
            listed.remove(at);
            assert!(!has(operation, "confirm"), "{name} confirms, so it is not listed");
            continue;
        }
        let place = format!("{method} {path} ({name})");
        assert!(has(operation, "dry_run") && has(operation, "confirm"), "{place} has no confirmation");
        assert!(operation["responses"]["428"].is_object(), "{place} does not document 428");
    }
    assert!(listed.is_empty(), "unknown operations: {listed:?}");
}

/// Every deletion of the document is sent without its token, as a dry run, and with the token.
#[testing::test]
async fn every_deletion_is_refused_without_the_token_of_its_dry_run() {
    let config = Config { confirm_above: 0, ..Options::default().config };
    let app = App::spawn_with(Options { config, ..Options::default() }).await;
    let site = Site::with(&["two_people.jpg", "ada.jpg", "ben.jpg"]).await;
    let crawl = app.crawl(&[site.page()]).await;
    let mut enrolled = Vec::new();
    for _ in 0..2 {
        let subject = app.post_json("/subjects", &json!({"name": "Cora"})).await;
        let subject = json_of(subject, StatusCode::CREATED).await["id"].as_str().unwrap().to_owned();
        let file = ["cora.jpg", "dan.jpg"][enrolled.len()];
        let path = format!("/subjects/{subject}/faces?force=true");
        let sent = ok(app.post_raw(&path, "image/jpeg", pictures::picture(file)).await).await;
        enrolled.push((subject, sent["faces"][0]["face_id"].as_str().unwrap().to_owned()));
    }
    let collection = app.database.store().collection("default").await.unwrap().id;
    let video = add_video(&app, collection, 7).await;
    let images = app.get_ok(&format!("/images?crawl_id={}", crawl["id"].as_str().unwrap())).await;
    let ids: Vec<&str> =
        images["images"].as_array().unwrap().iter().map(|image| image["id"].as_str().unwrap()).collect();
    let of_image = async |image: &str| -> String {
        let faces = app.get_ok(&format!("/faces?image_id={image}")).await;
        faces["faces"][0]["id"].as_str().unwrap().to_owned()
    };
    let face = of_image(ids[0]).await;

    let erasure = app.post_json("/erasures", &json!({"url": "https://example.org/never.jpg"})).await;
    let erasure = json_of(erasure, StatusCode::CREATED).await;

    let document: Value = serde_json::from_str(&server::openapi().to_json().unwrap()).unwrap();
    let mut paths: Vec<String> = Vec::new();
    for (method, path, name, operation) in changes(&document) {
        if method != "delete" || !has(operation, "confirm") {
            continue;
        }
        let at = |id: &str| path.replace("{id}", id);
        paths.push(match name {
            "delete_video" => at(&video),
            "delete_image" => at(ids[1]),
            "delete_face" => at(&face),
            "delete_subject" => at(&enrolled[0].0),
            "remove_subject_face" => at(&enrolled[1].0).replace("{face_id}", &enrolled[1].1),
            "delete_crawl" => format!("{}?with_images=true", at(crawl["id"].as_str().unwrap())),
            "delete_collection" => at("default"),
            "lift_suppressions" => at(erasure["erasure"]["id"].as_str().unwrap()),
            _ => panic!("no example for {name}"),
        });
    }
    // The deletion of a crawl or a collection includes what the others delete.
    paths.sort_by_key(|path| (path.starts_with("/collections"), path.starts_with("/crawls")));
    assert_eq!(paths.len(), 8, "{paths:?}");
    for path in paths {
        let with = |more: &str| format!("{path}{}{more}", if path.contains('?') { '&' } else { '?' });
        let count = async || app.get_ok("/faces?limit=1000").await["faces"].as_array().unwrap().len();
        let before = count().await;
        let refused = problem(app.delete(&path).await, 428, "confirmation_needed").await;
        assert_eq!(refused["reason"], "missing", "{path}");
        let look = ok(app.delete(&with("dry_run=true")).await).await;
        assert_eq!(count().await, before, "{path}: a dry run deletes nothing");
        let token = look["confirm"].as_str().unwrap();
        let done = app.delete(&with(&format!("confirm={token}"))).await;
        assert!(done.status().is_success(), "{path}: {}", done.text().await.unwrap());
        let deleted = before - count().await;
        assert_eq!(look["faces"].as_u64(), Some(deleted as u64), "{path}: {look}");
    }
}
