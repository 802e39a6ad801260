//! Tests the list of images that a crawl did not process.
use crate::support::site::Site;
use crate::support::{App, erase, field, problem};
use axum::Router;
use axum::response::Html;
use axum::routing::get;
use serde_json::{Value, json};

fn addresses(page: &Value) -> Vec<&str> {
    page["images"].as_array().unwrap().iter().map(|image| image["url"].as_str().unwrap()).collect()
}

#[testing::test]
async fn images_that_were_not_processed_are_listed_with_their_reasons() {
    let app = App::spawn().await;
    let site = Site::with(&["ada_small.jpg"]).await;
    let missing = ["first.jpg", "second.jpg", "third.jpg"].map(|name| site.picture(name));
    let mut seeds = vec![site.picture("ada_small.jpg")];
    seeds.extend(missing.clone());
    let crawl = app.crawl(&seeds).await;
    assert_eq!(crawl["reasons"], json!({"http_404": 3}), "{crawl}");
    let path = format!("/crawls/{}/unprocessed-images", crawl["id"].as_str().unwrap());

    let all = app.get_ok(&path).await;
    assert_eq!(
        (addresses(&all), &all["next_cursor"]),
        (missing.iter().map(String::as_str).collect(), &Value::Null)
    );
    let first = &all["images"][0];
    assert_eq!((&first["state"], &first["reason"]), (&json!("failed"), &json!("http_404")));
    assert_eq!(first["explanation"], "The server responded with HTTP 404");
    assert_eq!(first["page_url"], Value::Null);
    assert!(first["finished_at"].is_string());

    let page = app.get_ok(&format!("{path}?limit=2")).await;
    let rest = app.get_ok(&format!("{path}?limit=2&cursor={}", page["next_cursor"].as_str().unwrap())).await;
    assert_eq!([addresses(&page), addresses(&rest)].concat(), addresses(&all));
    assert_eq!(app.get_ok(&format!("{path}?reason=http_404")).await, all);
    assert_eq!(app.get_ok(&format!("{path}?reason=timeout")).await["images"], json!([]));
    let wrong = problem(app.get(&format!("{path}?state=failed")).await, 400, "bad_query").await;
    assert_eq!(field(&wrong), "state");
    let nobody = "/crawls/00000000-0000-7000-8000-000000000000/unprocessed-images";
    problem(app.get(nobody).await, 404, "not_found").await;

    // An erased address is not shown.
    erase(&app, &json!({"url": missing[1]})).await;
    assert_eq!(addresses(&app.get_ok(&path).await), [&missing[0], &missing[2]]);
}

#[testing::test]
async fn an_image_that_was_not_processed_is_listed_with_its_page() {
    let app = App::spawn().await;
    let page = Html("<!doctype html><title>Pictures</title><img src=/pictures/missing.jpg>");
    let site = Site::of(Router::new().route("/", get(move || async move { page }))).await;
    let crawl = app.crawl(&[site.page()]).await;
    let path = format!("/crawls/{}/unprocessed-images", crawl["id"].as_str().unwrap());
    let all = app.get_ok(&path).await;
    assert_eq!(addresses(&all), [site.picture("missing.jpg")]);
    assert_eq!(all["images"][0]["page_url"], site.page());
}
