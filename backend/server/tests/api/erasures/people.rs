//! Tests the erasure of all faces of a person, and the similarity threshold of erasures by a face
//! image.
use crate::erasures::{dump, erase};
use crate::support::site::Pages;
use crate::support::{App, Json, Models, Options, field, images, ok, problem, to_json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::StatusCode;
use serde_json::{Value, json};

const WORDS: [&str; 3] = ["Quaxthorpe", "quax-17", "quaxville"];

fn words_in(text: &str) -> Vec<&'static str> {
    WORDS.into_iter().filter(|word| text.contains(word)).collect()
}

async fn app_with_crawl(images: &[&str]) -> (App, Pages) {
    let (app, site) = (App::spawn().await, Pages::start().await);
    let html: String = images.iter().map(|name| format!("<img src=/{name}>")).collect();
    site.page("/", "pictures", &html);
    for name in images {
        site.image(&format!("/{name}"), testing::drawing(name));
    }
    app.crawl(&[site.url("/")]).await;
    (app, site)
}

async fn face_of(app: &App, site: &Pages, name: &str) -> Value {
    let images = app.get_ok("/images").await.list("images").clone();
    let url = site.url(&format!("/{name}"));
    let image = images.iter().find(|image| image["sources"][0]["image_url"] == url).unwrap();
    let faces = app.get_ok("/faces").await.list("faces").clone();
    faces.into_iter().find(|face| face["image_id"] == image["id"]).unwrap()
}

async fn enrol(app: &App, faces: &[&Value]) -> String {
    let person =
        json!({"name": "Zebulon Quaxthorpe", "external_id": "quax-17", "metadata": {"born": "quaxville"}});
    let created = app.post_json("/subjects", &person).await.json::<Value>().await.unwrap();
    let id = created.text("id").to_owned();
    let ids: Vec<&Value> = faces.iter().map(|face| &face["id"]).collect();
    let faces = json!({"face_ids": ids, "force": true});
    app.post_ok(&format!("/subjects/{id}/faces"), &faces).await;
    id
}

#[testing::test]
async fn subject_without_remaining_face_is_deleted_by_any_erasure() {
    for kind in ["image", "url", "page", "face", "likeness"] {
        let (app, site) = app_with_crawl(&["ada.jpg", "cora.jpg"]).await;
        let ada = face_of(&app, &site, "ada.jpg").await;
        let subject = enrol(&app, &[&ada]).await;
        assert_eq!(words_in(&dump(&app)), WORDS, "the search must find the words before the erasure");
        let target = match kind {
            "image" => json!({"image_id": ada["image_id"]}),
            "url" => json!({"url": site.url("/ada.jpg")}),
            "page" => json!({"url": site.url("/")}),
            "face" => json!({"face_id": ada["id"]}),
            _ => json!({"image_base64": STANDARD.encode(testing::drawing("ada.jpg"))}),
        };
        let mut preview_body = target.clone();
        preview_body["dry_run"] = json!(true);
        let preview_result = app.post_ok("/erasures", &preview_body).await;
        assert_eq!(
            (&preview_result["subjects"], &preview_result["affected_subjects"]),
            (&json!(1), &json!([subject])),
            "{kind}: {preview_result}"
        );
        app.get_ok(&format!("/subjects/{subject}")).await;

        let result = erase(&app, &target).await;
        assert_eq!((&result["subjects"], &result["affected_subjects"]), (&json!(1), &Value::Null), "{kind}");
        problem(app.get(&format!("/subjects/{subject}")).await, 404, "not_found").await;
        assert_eq!(words_in(&dump(&app)), [] as [&str; 0], "{kind}");
        for action in ["erasure.preview", "erasure.create"] {
            let log = app.get_ok(&format!("/audit?action={action}")).await;
            assert_eq!(log["records"][0]["detail"]["subjects"], 1, "{log}");
        }
    }
}

#[testing::test]
async fn subject_with_other_or_no_face_survives_erasure() {
    let (app, site) = app_with_crawl(&["ada.jpg", "ben.jpg", "cora.jpg"]).await;
    let (ada, ben) = (face_of(&app, &site, "ada.jpg").await, face_of(&app, &site, "ben.jpg").await);
    let subject = enrol(&app, &[&ada, &ben]).await;
    let nobody = app.post_json("/subjects", &json!({"name": "Nobody"})).await;
    let nobody = nobody.json::<Value>().await.unwrap();
    let result = erase(&app, &json!({"image_id": ada["image_id"]})).await;
    assert_eq!((&result["images"], &result["subjects"]), (&json!(1), &json!(0)), "{result}");
    assert_eq!(app.get_ok(&format!("/subjects/{subject}")).await["face_count"], 1);
    // Deleting a face, unlike an erasure, keeps the person.
    let path = format!("/faces/{}", ben.text("id"));
    assert_eq!(app.delete(&path).await.status(), 204);
    assert_eq!(app.get_ok(&format!("/subjects/{subject}")).await["face_count"], 0);
    let cora = face_of(&app, &site, "cora.jpg").await;
    assert_eq!(erase(&app, &json!({"face_id": cora["id"]})).await["subjects"], 0);
    app.get_ok(&format!("/subjects/{subject}")).await;
    app.get_ok(&format!("/subjects/{}", nobody.text("id"))).await;
}

/// Returns the match threshold that was measured for the default embedding model (models.toml).
fn model_threshold(app: &App) -> f32 {
    app.state.services.analyzer.engine().embedder().match_threshold
}

async fn preview(app: &App, query: &str) -> reqwest::Response {
    let path = format!("/erasures?dry_run=true&{query}");
    app.post_parts(&path, &[("image", images::drawing("ada_2.jpg"))]).await
}

#[testing::test]
async fn threshold_out_of_range_error_names_range() {
    let app = App::spawn().await;
    for threshold in ["-1", "-0.0001", "1.0001", "NaN", "inf"] {
        let error =
            problem(preview(&app, &format!("threshold={threshold}")).await, 422, "invalid_field").await;
        assert_eq!((field(&error), &error["allowed"]), ("threshold", &json!(["a number from 0 to 1"])));
        // `force` allows low thresholds, but not invalid ones.
        let forced = preview(&app, &format!("threshold={threshold}&force=true")).await;
        problem(forced, 422, "invalid_field").await;
    }
    let body = json!({"url": "https://example.org/", "threshold": -1});
    let error = problem(app.post_json("/erasures", &body).await, 422, "invalid_field").await;
    assert_eq!(field(&error), "threshold");
}

#[testing::test]
async fn threshold_matching_strangers_requires_force() {
    let (app, _site, _) = App::with_crawl(&["ada.jpg", "cora.jpg"]).await;
    let model_threshold = model_threshold(&app);
    ok(preview(&app, &format!("threshold={model_threshold}")).await).await;
    let faces = async || app.get_ok("/faces").await.list("faces").len();
    for threshold in [model_threshold - 0.0001, 0.0] {
        let response = preview(&app, &format!("threshold={threshold}")).await;
        let error = problem(response, 422, "invalid_field").await;
        assert_eq!((field(&error), &error["reason"]), ("threshold", &json!("strangers_match")));
        assert!(error.text("detail").contains(&model_threshold.to_string()), "{error}");
        let parts = [("image", images::drawing("ada_2.jpg"))];
        let erased = app.post_parts(&format!("/erasures?threshold={threshold}"), &parts).await;
        problem(erased, 422, "invalid_field").await;
    }
    assert_eq!(faces().await, 2);
    let forced: Value = ok(preview(&app, "threshold=0&force=true").await).await;
    assert!(forced["faces"].as_u64().unwrap() >= 1, "{forced}");
    let parts = [("image", images::drawing("ada_2.jpg"))];
    to_json(app.post_parts("/erasures?threshold=0&force=true", &parts).await, StatusCode::CREATED).await;
    assert!(faces().await < 2);
}

#[testing::test]
async fn collection_threshold_matching_strangers_requires_force() {
    let app = App::spawn().await;
    let low = json!({"name": "low", "match_threshold": 0.1});
    app.create("/collections", &low).await;
    let error = problem(preview(&app, "collection=low").await, 422, "invalid_field").await;
    assert_eq!((field(&error), &error["reason"]), ("threshold", &json!("strangers_match")));
    ok(preview(&app, "collection=low&force=true").await).await;
    ok(preview(&app, &format!("collection=low&threshold={}", model_threshold(&app))).await).await;
}

#[testing::test]
async fn min_score_below_minimum_is_rejected() {
    let app = App::spawn_with(Options { models: Models::Fixture, worker: false, ..Options::default() }).await;
    let png = || images::png(64, 64);
    for (path, status, code) in [
        ("/faces/detect?min_score=0.0999", 400, "bad_query"),
        ("/faces/detect?min_score=0", 400, "bad_query"),
        ("/faces/detect/batch?min_score=0", 400, "bad_query"),
        ("/faces/compare?min_score=0", 400, "bad_query"),
        ("/faces/search?min_score=0", 400, "bad_query"),
        ("/images/quality?min_score=0", 400, "bad_query"),
        ("/erasures?min_score=0", 400, "bad_query"),
    ] {
        let response = app.post_raw(path, "image/png", png()).await;
        assert_eq!(field(&problem(response, status, code).await), "min_score", "{path}");
    }
    let body = json!({"image_base64": "AA==", "min_score": 0.05});
    let error = problem(app.post_json("/erasures", &body).await, 422, "invalid_field").await;
    assert_eq!(error["allowed"], json!(["a number from 0.1 to 1"]), "{error}");
    ok(app.post_raw("/faces/detect?min_score=0.1", "image/png", png()).await).await;
}
