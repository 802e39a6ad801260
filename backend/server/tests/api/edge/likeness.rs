//! Tests the similarity threshold of erasures by a face image. A threshold at which strangers match
//! requires `force`.
use crate::support::site::Site;
use crate::support::{App, Models, Options, field, json_of, ok, pictures, problem};
use reqwest::StatusCode;
use serde_json::{Value, json};

/// Returns the match threshold that was measured for the default embedding model (models.toml).
fn own(app: &App) -> f32 {
    app.state.services.analyzer.engine().embedder().match_threshold
}

async fn look(app: &App, query: &str) -> reqwest::Response {
    let path = format!("/erasures?dry_run=true&{query}");
    app.post_parts(&path, &[("image", pictures::picture("ada_2.jpg"))]).await
}

#[testing::test]
async fn a_threshold_out_of_range_is_refused_with_the_range() {
    let app = App::spawn().await;
    for threshold in ["-1", "-0.0001", "1.0001", "NaN", "inf"] {
        let refused =
            problem(look(&app, &format!("threshold={threshold}")).await, 422, "invalid_field").await;
        assert_eq!((field(&refused), &refused["allowed"]), ("threshold", &json!(["a number from 0 to 1"])));
        // `force` allows low thresholds, but not invalid ones.
        let forced = look(&app, &format!("threshold={threshold}&force=true")).await;
        problem(forced, 422, "invalid_field").await;
    }
    let body = json!({"url": "https://example.org/", "threshold": -1});
    let refused = problem(app.post_json("/erasures", &body).await, 422, "invalid_field").await;
    assert_eq!(field(&refused), "threshold");
}

#[testing::test]
async fn a_threshold_at_which_strangers_match_is_refused_unless_it_is_forced() {
    let app = App::spawn().await;
    let site = Site::with(&["ada.jpg", "cora.jpg"]).await;
    app.crawl(&[site.page()]).await;
    let own = own(&app);
    ok(look(&app, &format!("threshold={own}")).await).await;
    let faces = async || app.get_ok("/faces").await["faces"].as_array().unwrap().len();
    for threshold in [own - 0.0001, 0.0] {
        let refused = look(&app, &format!("threshold={threshold}")).await;
        let refused = problem(refused, 422, "invalid_field").await;
        assert_eq!((field(&refused), &refused["reason"]), ("threshold", &json!("strangers_match")));
        assert!(refused["detail"].as_str().unwrap().contains(&own.to_string()), "{refused}");
        let parts = [("image", pictures::picture("ada_2.jpg"))];
        let erased = app.post_parts(&format!("/erasures?threshold={threshold}"), &parts).await;
        problem(erased, 422, "invalid_field").await;
    }
    assert_eq!(faces().await, 2);
    let forced: Value = ok(look(&app, "threshold=0&force=true").await).await;
    assert!(forced["faces"].as_u64().unwrap() >= 1, "{forced}");
    let parts = [("image", pictures::picture("ada_2.jpg"))];
    let erased = app.post_parts("/erasures?threshold=0&force=true", &parts).await;
    json_of(erased, StatusCode::CREATED).await;
    assert!(faces().await < 2);
}

#[testing::test]
async fn a_threshold_of_the_collection_is_held_against_the_same_bound() {
    let app = App::spawn().await;
    let low = json!({"name": "low", "match_threshold": 0.1});
    json_of(app.post_json("/collections", &low).await, StatusCode::CREATED).await;
    let refused = problem(look(&app, "collection=low").await, 422, "invalid_field").await;
    assert_eq!((field(&refused), &refused["reason"]), ("threshold", &json!("strangers_match")));
    ok(look(&app, "collection=low&force=true").await).await;
    ok(look(&app, &format!("collection=low&threshold={}", own(&app))).await).await;
}

#[testing::test]
async fn a_face_is_not_looked_for_where_every_grey_patch_is_one() {
    let app = App::spawn_with(Options { models: Models::Fixture, worker: false, ..Options::default() }).await;
    let drawn = || pictures::drawn(64, 64);
    for (path, status, code) in [
        ("/faces/detect?min_score=0.0999", 400, "bad_query"),
        ("/faces/detect?min_score=0", 400, "bad_query"),
        ("/faces/detect/batch?min_score=0", 400, "bad_query"),
        ("/faces/compare?min_score=0", 400, "bad_query"),
        ("/faces/search?min_score=0", 400, "bad_query"),
        ("/images/quality?min_score=0", 400, "bad_query"),
        ("/erasures?min_score=0", 400, "bad_query"),
    ] {
        let answer = app.post_raw(path, "image/png", drawn()).await;
        assert_eq!(field(&problem(answer, status, code).await), "min_score", "{path}");
    }
    let body = json!({"image_base64": "AA==", "min_score": 0.05});
    let refused = problem(app.post_json("/erasures", &body).await, 422, "invalid_field").await;
    assert_eq!(refused["allowed"], json!(["a number from 0.1 to 1"]), "{refused}");
    ok(app.post_raw("/faces/detect?min_score=0.1", "image/png", drawn()).await).await;
}
