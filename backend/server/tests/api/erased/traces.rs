//! Tests that no table or column keeps the URLs, alternative texts or titles of erased images.
//! Compressed columns are checked too.
use super::{crawl_with, dump, erase};
use crate::support::App;
use crate::support::pages::Pages;
use serde_json::json;

/// Parts of the image's URL, of its alternative text, and of the title of the page that contains
/// it.
const WORDS: [&str; 3] = ["quaxphoto", "quaxsmile", "quaxtitle"];

fn found(text: &str) -> Vec<&'static str> {
    WORDS.into_iter().filter(|word| text.contains(word)).collect()
}

async fn site() -> Pages {
    let site = Pages::start().await;
    let shown = "<img src=/ben.jpg alt='another'><img src=/quaxphoto.jpg alt='quaxsmile'>";
    site.page("/", "quaxtitle", shown)
        .page("/linked", "a page with a link", "<a href=/quaxphoto>see</a><img src=/ben.jpg>")
        .redirect("/quaxphoto", "/quaxphoto.jpg")
        .picture("/quaxphoto.jpg", testing::picture("ada.jpg"))
        .picture("/ben.jpg", testing::picture("ben.jpg"));
    site
}

#[testing::test]
async fn an_erased_picture_leaves_neither_address_nor_alternative_text_nor_title() {
    let (app, site) = (App::spawn().await, site().await);
    // Four crawls store the strings in different places. They visit the pages that contain the
    // image and link to it, the image itself, the front page again, and the front page with
    // `max_images`.
    app.crawl(&[site.url("/"), site.url("/linked")]).await;
    app.crawl(&[site.url("/quaxphoto.jpg")]).await;
    app.crawl(&[site.url("/")]).await;
    crawl_with(&app, &site.url("/"), json!({"max_images": 1})).await;
    assert_eq!(found(&dump(&app)), WORDS, "the search must find the words before the erasure");
    let images = app.get_ok("/images").await;
    let shown = images["images"].as_array().unwrap().iter().find(|image| {
        image["sources"][0]["image_url"].as_str().is_some_and(|url| url.ends_with("quaxphoto.jpg"))
    });

    erase(&app, &json!({"image_id": shown.unwrap()["id"]})).await;
    assert_eq!(found(&dump(&app)), [] as [&str; 0]);
    assert!(dump(&app).contains("ben.jpg"), "the other image must remain");

    // A crawl that finds the image again does not store the strings again.
    let again = app.crawl(&[site.url("/"), site.url("/linked")]).await;
    assert!(again["reasons"]["suppressed_image"].as_i64() >= Some(1), "{again}");
    assert_eq!(found(&dump(&app)), [] as [&str; 0]);
}

#[testing::test]
async fn an_erased_page_leaves_neither_its_address_nor_its_title() {
    let app = App::spawn().await;
    let site = Pages::start().await;
    site.page("/", "a list", "<a href=/quaxphoto.html>more</a>")
        .page("/quaxphoto.html", "quaxtitle", "<img src=/ada.jpg alt='quaxsmile'>")
        .picture("/ada.jpg", testing::picture("ada.jpg"));
    app.crawl(&[site.url("/")]).await;
    let done = erase(&app, &json!({"url": site.url("/quaxphoto.html")})).await;
    assert_eq!(done["images"], 1, "{done}");
    // The stored copy of the page with the link is deleted too.
    assert_eq!(found(&dump(&app)), [] as [&str; 0]);
}

#[testing::test]
async fn an_image_that_stored_nothing_leaves_neither_its_address_nor_its_alternative_text() {
    for (name, body) in [("missing", None), ("text", Some(("text/plain", &b"no image"[..])))] {
        let (app, site) = (App::spawn().await, Pages::start().await);
        site.page("/", "quaxtitle", "<img src=/quaxphoto.jpg alt='quaxsmile'><img src=/ben.jpg>")
            .picture("/ben.jpg", testing::picture("ben.jpg"));
        if let Some((_, bytes)) = body {
            site.picture("/quaxphoto.jpg", bytes.to_vec());
        }
        app.crawl(&[site.url("/")]).await;
        let before = found(&dump(&app));
        assert!(before.contains(&"quaxphoto") && before.contains(&"quaxsmile"), "{name} {before:?}");
        erase(&app, &json!({"url": site.url("/quaxphoto.jpg")})).await;
        assert_eq!(found(&dump(&app)), [] as [&str; 0], "{name}");
        app.crawl(&[site.url("/")]).await;
        assert_eq!(found(&dump(&app)), [] as [&str; 0], "{name}, again");
    }
}

#[testing::test]
async fn an_image_that_was_redirected_and_stored_nothing_leaves_no_address() {
    for erased in ["/quaxphoto.jpg", "/short.jpg"] {
        let (app, site) = (App::spawn().await, Pages::start().await);
        site.page("/", "a page", "<img src=/short.jpg alt='quaxsmile'>")
            .redirect("/short.jpg", "/quaxphoto.jpg");
        app.crawl(&[site.url("/")]).await;
        erase(&app, &json!({"url": site.url(erased)})).await;
        let left = found(&dump(&app));
        assert!(!left.contains(&"quaxphoto"), "{erased}: {left:?}");
        if erased == "/short.jpg" {
            assert_eq!(left, [] as [&str; 0]);
        }
    }
}

#[testing::test]
async fn an_image_that_is_erased_while_it_waits_leaves_no_address_when_its_crawl_is_cancelled() {
    let (app, site) = (App::spawn().await, Pages::start().await);
    // The worker cannot resolve the host, so the image waits for its next attempt.
    site.page("/", "quaxtitle", "<img src=http://host.invalid/quaxphoto.jpg alt='quaxsmile'>");
    let body = json!({"seeds": [site.url("/")], "delay_ms": 0});
    let crawl = app.post_json("/crawls", &body).await.json::<serde_json::Value>().await.unwrap();
    let crawl = crawl["id"].as_str().unwrap();
    app.until(&format!("/crawls/{crawl}"), |crawl| crawl["counts"]["images"]["queued"] == 1).await;
    erase(&app, &json!({"url": "http://host.invalid/quaxphoto.jpg"})).await;
    let cancelled = app.post_json(&format!("/crawls/{crawl}/cancel"), &json!({})).await;
    assert!(cancelled.status().is_success());
    app.until(&format!("/crawls/{crawl}"), |crawl| crawl["counts"]["images"]["skipped"] == 1).await;
    assert_eq!(found(&dump(&app)), [] as [&str; 0]);
}
