//! `GET /collections`
use crate::support::{App, field, problem};

#[tokio::test]
async fn the_default_collection_is_always_there() {
    let Some(app) = App::spawn().await else { return };
    app.state.services.store.ensure_collection("archive").await.unwrap();
    let answer = app.get_ok("/collections").await;
    let names: Vec<&str> =
        answer["collections"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["archive", "default"]);
    assert!(answer["collections"][0]["created_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(field(&problem(app.get("/collections?limit=3").await, 400, "bad_query").await), "limit");
}
