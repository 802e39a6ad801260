//! `GET /images`, `GET·DELETE /images/{id}`, `GET /images/{id}/thumbnail`
use crate::support::site::Site;
use crate::support::{App, field, problem};
use reqwest::StatusCode;
use serde_json::{Value, json};

const NOTHING: &str = "00000000-0000-7000-8000-000000000000";

#[tokio::test]
async fn stored_images_are_listed_shown_and_deleted() {
    let app = App::spawn().await;
    let site = Site::with(&["ada_small.jpg", "view.jpg"]).await;
    let crawl = app.crawl(&[site.page()]).await;
    assert_eq!(crawl["counts"]["images"]["processed"], 2, "{crawl:#}");

    let all = app.get_ok("/images").await;
    assert_eq!((all["images"].as_array().unwrap().len(), &all["next_cursor"]), (2, &Value::Null));
    let with_faces = app.get_ok("/images?has_faces=true").await["images"].as_array().unwrap().clone();
    let without = app.get_ok("/images?has_faces=false").await["images"].as_array().unwrap().clone();
    assert_eq!((with_faces.len(), without.len()), (1, 1));
    assert_eq!(without[0]["sources"][0]["alt"], "view.jpg");

    let id = with_faces[0]["id"].as_str().unwrap();
    let shown = app.get_ok(&format!("/images/{id}")).await;
    assert_eq!((&shown["face_count"], &shown["format"]), (&json!(1), &json!("jpeg")));
    assert_eq!(shown["faces"][0]["image_id"], id);
    assert_eq!(shown["sources"][0]["image_url"], site.picture("ada_small.jpg"));
    assert_eq!(shown["sha256"].as_str().unwrap().len(), 64);
    assert_eq!(shown["phash"].as_str().unwrap().len(), 16);

    // Page by page.
    let first = app.get_ok("/images?limit=1").await;
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = app.get_ok(&format!("/images?limit=1&cursor={cursor}")).await;
    assert_eq!(json!([first["images"][0], second["images"][0]]), all["images"]);
    assert_eq!(second["next_cursor"], Value::Null);

    let thumbnail = app.get(&format!("/images/{id}/thumbnail")).await;
    assert_eq!(thumbnail.headers()["content-type"], "image/jpeg");
    image::load_from_memory_with_format(&thumbnail.bytes().await.unwrap(), image::ImageFormat::Jpeg).unwrap();

    assert_eq!(app.delete(&format!("/images/{id}")).await.status(), StatusCode::NO_CONTENT);
    problem(app.get(&format!("/images/{id}")).await, 404, "not_found").await;
    problem(app.get(&format!("/images/{id}/thumbnail")).await, 404, "not_found").await;
    assert_eq!(app.get_ok("/faces").await["faces"], json!([]), "its faces went with it");
}

#[tokio::test]
async fn unknown_images_and_wrong_parameters_are_told() {
    let app = App::spawn().await;
    problem(app.get(&format!("/images/{NOTHING}")).await, 404, "not_found").await;
    problem(app.get(&format!("/images/{NOTHING}/thumbnail")).await, 404, "not_found").await;
    problem(app.delete(&format!("/images/{NOTHING}")).await, 404, "not_found").await;
    problem(app.get("/images/x").await, 400, "bad_id").await;
    problem(app.get("/images?collection=nowhere").await, 404, "not_found").await;
    for query in ["has_faces=1", "limit=-1", "cursor=", "page=2"] {
        let wrong = problem(app.get(&format!("/images?{query}")).await, 400, "bad_query").await;
        assert_eq!(field(&wrong), query.split('=').next().unwrap(), "{wrong}");
    }
}
