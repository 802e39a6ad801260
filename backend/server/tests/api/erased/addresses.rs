//! Tests the normal form of URLs. Enrolments, crawls, erasures and suppressions treat all spellings
//! of a URL as the same.
use super::erase;
use crate::support::pages::Pages;
use crate::support::{App, json_of, ok};
use reqwest::StatusCode;
use serde_json::{Value, json};

async fn enrol(app: &App, url: &str) -> Value {
    let subject = json_of(app.post_json("/subjects", &json!({"name": "a"})).await, StatusCode::CREATED).await;
    let path = format!("/subjects/{}/faces", subject["id"].as_str().unwrap());
    ok(app.post_json(&path, &json!({"url": url, "force": true})).await).await
}

async fn site() -> Pages {
    let site = Pages::start().await;
    site.picture("/new.jpg", testing::picture("ada.jpg")).redirect("/old.jpg", "/new.jpg");
    site
}

#[testing::test]
async fn what_was_enrolled_under_one_spelling_is_erased_under_another() {
    let (app, site) = (App::spawn().await, site().await);
    let spelled = site.url("/./new.jpg?utm_source=mail#face").replace("http://", "HTTP://");
    enrol(&app, &spelled).await;
    let done = erase(&app, &json!({"url": site.url("/new.jpg")})).await;
    assert_eq!((&done["faces"], &done["images"]), (&json!(1), &json!(1)), "{done}");
}

#[testing::test]
async fn what_earlier_versions_stored_as_it_was_spelled_is_erased_too() {
    let (app, site) = (App::spawn().await, site().await);
    enrol(&app, &site.url("/new.jpg")).await;
    app.database
        .execute("update image_sources set image_url = replace(image_url, '/new.jpg', '/./new.jpg?utm_source=mail')")
        .await;
    let done = erase(&app, &json!({"url": site.url("/new.jpg")})).await;
    assert_eq!(done["images"], 1, "{done}");
}

#[testing::test]
async fn an_enrolment_is_erased_by_the_address_asked_for_and_by_the_one_that_answered() {
    for erased in ["/old.jpg", "/new.jpg"] {
        let (app, site) = (App::spawn().await, site().await);
        enrol(&app, &site.url("/old.jpg")).await;
        let done = erase(&app, &json!({"url": site.url(erased)})).await;
        assert_eq!((&done["faces"], &done["images"]), (&json!(1), &json!(1)), "{erased}: {done}");
    }
}

#[testing::test]
async fn a_crawled_picture_is_erased_and_kept_out_by_both_of_its_addresses() {
    for erased in ["/old.jpg", "/new.jpg"] {
        let (app, site) = (App::spawn().await, site().await);
        app.crawl(&[site.url("/old.jpg")]).await;
        let done = erase(&app, &json!({"url": site.url(erased)})).await;
        assert_eq!((&done["faces"], &done["images"]), (&json!(1), &json!(1)), "{erased}: {done}");
        // A new image at the erased URL is suppressed, whether the crawl reaches it directly or by
        // a redirect.
        site.picture("/new.jpg", testing::picture("cora.jpg"));
        let again = app.crawl(&[site.url("/old.jpg")]).await;
        assert_eq!(again["reasons"]["suppressed_url"], 1, "{erased}: {again}");
    }
}

#[testing::test]
async fn what_a_page_shows_is_erased_by_the_address_that_led_to_the_page() {
    for erased in ["/old", "/new"] {
        let (app, site) = (App::spawn().await, site().await);
        site.redirect("/old", "/new").page("/new", "a page", "<img src=/new.jpg>");
        app.crawl(&[site.url("/old")]).await;
        let done = erase(&app, &json!({"url": site.url(erased)})).await;
        assert_eq!((&done["faces"], &done["images"]), (&json!(1), &json!(1)), "{erased}: {done}");
        site.picture("/new.jpg", testing::picture("cora.jpg"));
        let again = app.crawl(&[site.url("/old")]).await;
        assert_eq!(again["counts"]["images"]["suppressed"], 1, "{erased}: {again}");
    }
}

#[testing::test]
async fn an_address_with_nothing_but_tracking_in_its_query_is_kept_out() {
    for erased in ["/new.jpg?utm_source=mail&", "/new.jpg;jsessionid=1;jsessionid=2"] {
        let (app, site) = (App::spawn().await, site().await);
        let done = erase(&app, &json!({"url": site.url(erased)})).await;
        assert_eq!(done["erasure"]["suppressions"], 1, "{erased}: {done}");
        let crawl = app.crawl(&[site.url("/new.jpg")]).await;
        assert_eq!(crawl["reasons"]["suppressed_url"], 1, "{erased}: {crawl}");
    }
}

#[testing::test]
async fn what_earlier_versions_stored_with_an_empty_query_is_erased_too() {
    let (app, site) = (App::spawn().await, site().await);
    app.crawl(&[site.url("/new.jpg")]).await;
    app.database.execute("update image_sources set image_url = image_url || '?'").await;
    app.database.execute("update image_urls set url = url || '?', url_hash = gen_random_uuid()").await;
    let done = erase(&app, &json!({"url": site.url("/new.jpg?utm_source=mail&")})).await;
    assert_eq!(done["images"], 1, "{done}");
}
