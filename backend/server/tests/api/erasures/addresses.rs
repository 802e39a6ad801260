//! Tests erasures by URL. All spellings of a URL are the same. No table or column keeps the URLs,
//! alternative texts or titles of erased images.
use super::dump;
use crate::support::site::Pages;
use crate::support::{App, Json, erase};
use serde_json::{Value, json};

async fn enrol(app: &App, url: &str) -> Value {
    let subject = app.create("/subjects", &json!({"name": "a"})).await;
    let path = format!("/subjects/{}/faces", subject.text("id"));
    app.post_ok(&path, &json!({"url": url, "force": true})).await
}

async fn redirected_site() -> Pages {
    let site = Pages::start().await;
    site.image("/new.jpg", testing::drawing("ada.jpg")).redirect("/old.jpg", "/new.jpg");
    site
}

#[testing::test]
async fn erasure_matches_other_spelling_of_enrolled_url() {
    let (app, site) = (App::spawn().await, redirected_site().await);
    let spelled = site.url("/./new.jpg?utm_source=mail#face").replace("http://", "HTTP://");
    enrol(&app, &spelled).await;
    let result = erase(&app, &json!({"url": site.url("/new.jpg")})).await;
    assert_eq!((&result["faces"], &result["images"]), (&json!(1), &json!(1)), "{result}");
}

#[testing::test]
async fn erasure_matches_unnormalized_url_of_earlier_version() {
    let (app, site) = (App::spawn().await, redirected_site().await);
    enrol(&app, &site.url("/new.jpg")).await;
    app.database
        .execute("update image_sources set image_url = replace(image_url, '/new.jpg', '/./new.jpg?utm_source=mail')")
        .await;
    let result = erase(&app, &json!({"url": site.url("/new.jpg")})).await;
    assert_eq!(result["images"], 1, "{result}");
}

#[testing::test]
async fn enrolment_is_erased_by_requested_or_final_url() {
    for erased in ["/old.jpg", "/new.jpg"] {
        let (app, site) = (App::spawn().await, redirected_site().await);
        enrol(&app, &site.url("/old.jpg")).await;
        let result = erase(&app, &json!({"url": site.url(erased)})).await;
        assert_eq!((&result["faces"], &result["images"]), (&json!(1), &json!(1)), "{erased}: {result}");
    }
}

#[testing::test]
async fn crawled_image_is_erased_and_suppressed_by_either_url() {
    for erased in ["/old.jpg", "/new.jpg"] {
        let (app, site) = (App::spawn().await, redirected_site().await);
        app.crawl(&[site.url("/old.jpg")]).await;
        let result = erase(&app, &json!({"url": site.url(erased)})).await;
        assert_eq!((&result["faces"], &result["images"]), (&json!(1), &json!(1)), "{erased}: {result}");
        // A new image at the erased URL is suppressed, whether the crawl reaches it directly or by
        // a redirect.
        site.image("/new.jpg", testing::drawing("cora.jpg"));
        let recrawl = app.crawl(&[site.url("/old.jpg")]).await;
        assert_eq!(recrawl["reasons"]["suppressed_url"], 1, "{erased}: {recrawl}");
    }
}

#[testing::test]
async fn images_of_page_are_erased_by_either_page_url() {
    for erased in ["/old", "/new"] {
        let (app, site) = (App::spawn().await, redirected_site().await);
        site.redirect("/old", "/new").page("/new", "a page", "<img src=/new.jpg>");
        app.crawl(&[site.url("/old")]).await;
        let result = erase(&app, &json!({"url": site.url(erased)})).await;
        assert_eq!((&result["faces"], &result["images"]), (&json!(1), &json!(1)), "{erased}: {result}");
        site.image("/new.jpg", testing::drawing("cora.jpg"));
        let recrawl = app.crawl(&[site.url("/old")]).await;
        assert_eq!(recrawl["counts"]["images"]["suppressed"], 1, "{erased}: {recrawl}");
    }
}

#[testing::test]
async fn url_with_only_tracking_query_is_suppressed() {
    for erased in ["/new.jpg?utm_source=mail&", "/new.jpg;jsessionid=1;jsessionid=2"] {
        let (app, site) = (App::spawn().await, redirected_site().await);
        let result = erase(&app, &json!({"url": site.url(erased)})).await;
        assert_eq!(result["erasure"]["suppressions"], 1, "{erased}: {result}");
        let crawl = app.crawl(&[site.url("/new.jpg")]).await;
        assert_eq!(crawl["reasons"]["suppressed_url"], 1, "{erased}: {crawl}");
    }
}

#[testing::test]
async fn erasure_matches_empty_query_url_of_earlier_version() {
    let (app, site) = (App::spawn().await, redirected_site().await);
    app.crawl(&[site.url("/new.jpg")]).await;
    app.database.execute("update image_sources set image_url = image_url || '?'").await;
    app.database.execute("update image_urls set url = url || '?', url_hash = gen_random_uuid()").await;
    let result = erase(&app, &json!({"url": site.url("/new.jpg?utm_source=mail&")})).await;
    assert_eq!(result["images"], 1, "{result}");
}

/// Parts of the image's URL, of its alternative text, and of the title of the page that contains
/// it.
const TRACES: [&str; 3] = ["quaxphoto", "quaxsmile", "quaxtitle"];

fn traces_in(text: &str) -> Vec<&'static str> {
    TRACES.into_iter().filter(|word| text.contains(word)).collect()
}

async fn site_with_traces() -> Pages {
    let site = Pages::start().await;
    let html = "<img src=/ben.jpg alt='another'><img src=/quaxphoto.jpg alt='quaxsmile'>";
    site.page("/", "quaxtitle", html)
        .page("/linked", "a page with a link", "<a href=/quaxphoto>see</a><img src=/ben.jpg>")
        .redirect("/quaxphoto", "/quaxphoto.jpg")
        .image("/quaxphoto.jpg", testing::drawing("ada.jpg"))
        .image("/ben.jpg", testing::drawing("ben.jpg"));
    site
}

#[testing::test]
async fn erased_image_leaves_no_url_alt_text_or_title() {
    let (app, site) = (App::spawn().await, site_with_traces().await);
    // Four crawls store the strings in different places. They visit the pages that contain the
    // image and link to it, the image itself, the front page again, and the front page with
    // `max_images`.
    app.crawl(&[site.url("/"), site.url("/linked")]).await;
    app.crawl(&[site.url("/quaxphoto.jpg")]).await;
    app.crawl(&[site.url("/")]).await;
    app.crawl_with(json!({"seeds": [site.url("/")], "max_images": 1})).await;
    assert_eq!(traces_in(&dump(&app)), TRACES, "the search must find the words before the erasure");
    let images = app.get_ok("/images").await;
    let shown = images.list("images").iter().find(|image| {
        image["sources"][0]["image_url"].as_str().is_some_and(|url| url.ends_with("quaxphoto.jpg"))
    });

    erase(&app, &json!({"image_id": shown.unwrap()["id"]})).await;
    assert_eq!(traces_in(&dump(&app)), [] as [&str; 0]);
    assert!(dump(&app).contains("ben.jpg"), "the other image must remain");

    // A crawl that finds the image again does not store the strings again.
    let recrawl = app.crawl(&[site.url("/"), site.url("/linked")]).await;
    assert!(recrawl["reasons"]["suppressed_image"].as_i64() >= Some(1), "{recrawl}");
    assert_eq!(traces_in(&dump(&app)), [] as [&str; 0]);
}

#[testing::test]
async fn erased_page_leaves_no_url_or_title() {
    let app = App::spawn().await;
    let site = Pages::start().await;
    site.page("/", "a list", "<a href=/quaxphoto.html>more</a>")
        .page("/quaxphoto.html", "quaxtitle", "<img src=/ada.jpg alt='quaxsmile'>")
        .image("/ada.jpg", testing::drawing("ada.jpg"));
    app.crawl(&[site.url("/")]).await;
    let result = erase(&app, &json!({"url": site.url("/quaxphoto.html")})).await;
    assert_eq!(result["images"], 1, "{result}");
    // The stored copy of the page with the link is deleted too.
    assert_eq!(traces_in(&dump(&app)), [] as [&str; 0]);
}

#[testing::test]
async fn erased_unstored_image_leaves_no_url_or_alt_text() {
    for (name, body) in [("missing", None), ("text", Some(("text/plain", &b"no image"[..])))] {
        let (app, site) = (App::spawn().await, Pages::start().await);
        site.page("/", "quaxtitle", "<img src=/quaxphoto.jpg alt='quaxsmile'><img src=/ben.jpg>")
            .image("/ben.jpg", testing::drawing("ben.jpg"));
        if let Some((_, bytes)) = body {
            site.image("/quaxphoto.jpg", bytes.to_vec());
        }
        app.crawl(&[site.url("/")]).await;
        let before = traces_in(&dump(&app));
        assert!(before.contains(&"quaxphoto") && before.contains(&"quaxsmile"), "{name} {before:?}");
        erase(&app, &json!({"url": site.url("/quaxphoto.jpg")})).await;
        assert_eq!(traces_in(&dump(&app)), [] as [&str; 0], "{name}");
        app.crawl(&[site.url("/")]).await;
        assert_eq!(traces_in(&dump(&app)), [] as [&str; 0], "{name}, again");
    }
}

#[testing::test]
async fn erased_redirected_unstored_image_leaves_no_url() {
    for erased in ["/quaxphoto.jpg", "/short.jpg"] {
        let (app, site) = (App::spawn().await, Pages::start().await);
        site.page("/", "a page", "<img src=/short.jpg alt='quaxsmile'>")
            .redirect("/short.jpg", "/quaxphoto.jpg");
        app.crawl(&[site.url("/")]).await;
        erase(&app, &json!({"url": site.url(erased)})).await;
        let remaining = traces_in(&dump(&app));
        assert!(!remaining.contains(&"quaxphoto"), "{erased}: {remaining:?}");
        if erased == "/short.jpg" {
            assert_eq!(remaining, [] as [&str; 0]);
        }
    }
}

#[testing::test]
async fn image_erased_while_queued_leaves_no_url_after_cancellation() {
    let (app, site) = (App::spawn().await, Pages::start().await);
    // The worker cannot resolve the host, so the image waits for its next attempt.
    site.page("/", "quaxtitle", "<img src=http://host.invalid/quaxphoto.jpg alt='quaxsmile'>");
    let body = json!({"seeds": [site.url("/")], "delay_ms": 0});
    let crawl = app.post_json("/crawls", &body).await.json::<serde_json::Value>().await.unwrap();
    let crawl = crawl.text("id");
    app.poll(&format!("/crawls/{crawl}"), |crawl| crawl["counts"]["images"]["queued"] == 1).await;
    erase(&app, &json!({"url": "http://host.invalid/quaxphoto.jpg"})).await;
    let cancelled = app.post_json(&format!("/crawls/{crawl}/cancel"), &json!({})).await;
    assert!(cancelled.status().is_success());
    app.poll(&format!("/crawls/{crawl}"), |crawl| crawl["counts"]["images"]["skipped"] == 1).await;
    assert_eq!(traces_in(&dump(&app)), [] as [&str; 0]);
}
