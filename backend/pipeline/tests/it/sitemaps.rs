//! Tests sitemaps and feeds as parts of a crawl.

use crate::support::{Response, Site, World, counts, fast, wait_for};
use domain::{CrawlState, Reason};
use pipeline::{CrawlOptions, Sitemaps};
use std::collections::BTreeSet;
use std::sync::Arc;
use testing::drawing;
use tokio::sync::Semaphore;

fn urlset(entries: &str) -> Response {
    let namespaces = "xmlns='http://www.sitemaps.org/schemas/sitemap/0.9' xmlns:image='http://www.google.com/schemas/sitemap-image/1.1'";
    Response::new("application/xml", format!("<?xml version='1.0'?><urlset {namespaces}>{entries}</urlset>"))
        .header("x-robots-tag", "noindex")
}

fn index(urls: &[String]) -> Response {
    let entries: String = urls.iter().map(|url| format!("<sitemap><loc>{url}</loc></sitemap>")).collect();
    Response::new("text/xml", format!("<sitemapindex>{entries}</sitemapindex>"))
}

/// Returns the requested paths, each once.
fn requested_paths(site: &Site) -> BTreeSet<String> {
    site.requests().into_iter().collect()
}

fn path_set<const N: usize>(paths: [&str; N]) -> BTreeSet<String> {
    paths.into_iter().map(Into::into).collect()
}

#[testing::test]
async fn reads_sitemaps_from_robots_txt_and_announced_feeds() {
    let (world, site) = World::with_site().await;
    site.set("/robots.txt", Response::new("text/plain", format!("sitemap: {}", site.url("/maps/index"))));
    site.set(
        "/",
        Response::html("<link rel=alternate type=application/rss+xml href=news.rss><a href=a.html>a</a>"),
    );
    site.set("/a.html", Response::html("nothing"));
    site.set("/maps/index", index(&[site.url("/maps/1.xml"), "http://elsewhere.invalid/2.xml".into()]));
    let entries = format!(
        "<url><loc>{}</loc><image:image><image:loc>{}</image:loc></image:image></url><url><loc>{}</loc></url>
         <url><loc>http://elsewhere.invalid/page</loc></url><url><loc>{}</loc></url>",
        site.url("/hidden.html"),
        site.url("/of-hidden.jpg"),
        site.url("/picture.jpg"),
        site.url("/x/x/x/trap"),
    );
    site.set("/maps/1.xml", urlset(&entries));
    site.set("/hidden.html", Response::html("<img src=on-hidden.jpg>"));
    let feed = "<rss><channel><item><link>/post.html</link><enclosure url='/of-post.jpg' type='image/jpeg'/></item></channel></rss>";
    site.set("/news.rss", Response::new("application/rss+xml", feed));
    site.set("/post.html", Response::html("nothing"));

    let progress = world.complete_crawl(&[site.url("/")], CrawlOptions { max_depth: 2, ..fast() }).await;
    assert_eq!(counts(&progress.pages), [("fetched", 7)].into());
    assert_eq!(counts(&progress.images), [("failed", 4)].into());
    let pages = ["/", "/a.html", "/maps/index", "/maps/1.xml", "/hidden.html", "/news.rss", "/post.html"];
    let images = ["/of-hidden.jpg", "/on-hidden.jpg", "/of-post.jpg", "/picture.jpg"];
    assert_eq!(requested_paths(&site), &(&path_set(pages) | &path_set(images)) | &path_set(["/robots.txt"]));
}

#[testing::test]
async fn default_sitemap_url_is_tried_only_if_requested() {
    let (world, site) = World::with_site().await;
    site.set("/", Response::html("nothing"));
    for (sitemaps, tried) in [(Sitemaps::Robots, 0), (Sitemaps::Off, 0), (Sitemaps::Always, 1)] {
        let (crawl, progress) = world.crawl(&[site.url("/")], CrawlOptions { sitemaps, ..fast() }).await;
        assert_eq!(crawl.state, CrawlState::Completed);
        assert_eq!(site.count_requests("/sitemap.xml"), tried, "{sitemaps:?}");
        assert_eq!(progress.reasons.get(&Reason::NoSitemap).copied().unwrap_or(0), tried as i64);
        assert_eq!(counts(&progress.pages).get("failed"), None);
    }
    // An HTML page at this URL is not a sitemap either.
    site.set("/sitemap.xml", Response::html("<a href=soft-404.html>not found</a>"));
    let options = CrawlOptions { sitemaps: Sitemaps::Always, ..fast() };
    let (_, progress) = world.crawl(&[site.url("/")], options.clone()).await;
    assert_eq!(counts(&progress.pages), [("fetched", 1), ("skipped", 1)].into());
    // With depth 0, only the seed is fetched.
    let requests = site.count_requests("/sitemap.xml");
    world.crawl(&[site.url("/")], CrawlOptions { max_depth: 0, ..options }).await;
    assert_eq!(site.count_requests("/sitemap.xml"), requests);
}

#[testing::test]
async fn sitemap_seed_respects_page_limit() {
    let (world, site) = World::with_site().await;
    let entries: String =
        (0..5000).map(|i| format!("<url><loc>{}</loc></url>", site.url(&format!("/p{i}")))).collect();
    site.set("/map.xml", urlset(&entries));
    let options = CrawlOptions { max_pages: 4, ..fast() };
    let (crawl, progress) = world.crawl(&[site.url("/map.xml")], options).await;
    assert_eq!(crawl.state, CrawlState::Completed);
    assert_eq!(counts(&progress.pages), [("failed", 3), ("fetched", 1)].into());
    assert_eq!(requested_paths(&site), path_set(["/robots.txt", "/map.xml", "/p0", "/p1", "/p2"]));
}

#[testing::test]
async fn nested_sitemap_indexes_have_depth_limit() {
    let (world, site) = World::with_site().await;
    for i in 0..9 {
        site.set(&format!("/{i}.xml"), index(&[site.url(&format!("/{}.xml", i + 1))]));
    }
    world.complete_crawl(&[site.url("/0.xml")], fast()).await;
    assert_eq!(requested_paths(&site), path_set(["/robots.txt", "/0.xml", "/1.xml", "/2.xml", "/3.xml"]));
}

#[testing::test]
async fn sitemap_cannot_attribute_images_to_foreign_pages() {
    let (world, site) = World::with_site().await;
    let entry = |page: &str, image: &str| {
        let image = site.url(image);
        format!("<url><loc>{page}</loc><image:image><image:loc>{image}</image:loc></image:image></url>")
    };
    let own_page = site.url("/own.html");
    let foreign = "http://elsewhere.invalid/victim.html";
    site.set("/map.xml", urlset(&(entry(&own_page, "/cora.jpg") + &entry(foreign, "/ben.jpg"))));
    site.set("/cora.jpg", Response::jpeg(drawing("cora.jpg")));
    site.set("/ben.jpg", Response::jpeg(drawing("ben.jpg")));
    let (_, progress) = world.crawl(&[site.url("/map.xml")], fast()).await;
    assert_eq!(counts(&progress.images), [("processed", 2)].into());
    let mut sources = BTreeSet::new();
    for image in world.images().await {
        for (_, source) in world.store.images().sources_of(image.id, None, 10).await.unwrap() {
            sources.insert((source.image_url.replace(&site.url(""), ""), source.page_url.unwrap()));
        }
    }
    assert_eq!(sources, [("/ben.jpg".into(), site.url("/map.xml")), ("/cora.jpg".into(), own_page)].into());
}

/// The permit for reading sitemaps is available while a job waits for a slow host.
#[testing::test]
async fn slow_sitemap_delays_no_other_sitemap() {
    let world = World::new().await;
    let (slow_site, fast_site) = (Site::start().await, Site::start().await);
    let gate = Arc::new(Semaphore::new(0));
    slow_site.set("/late.xml", urlset("").gated(&gate));
    fast_site.set("/map.xml", urlset(&format!("<url><loc>{}</loc></url>", fast_site.url("/page"))));
    fast_site.set("/page", Response::html("nothing"));
    let slow_crawl = world.create(&[slow_site.url("/late.xml")], fast()).await;
    let worker = world.worker("one");
    let is_requested = async || (slow_site.count_requests("/late.xml") > 0).then_some(());
    wait_for(is_requested).await.expect("the slow sitemap is requested");
    let crawl = world.create(&[fast_site.url("/map.xml")], fast()).await;
    assert_eq!(world.until_ended(crawl.id).await.state, CrawlState::Completed);
    assert_eq!(counts(&world.progress(crawl.id).await.pages), [("fetched", 2)].into());
    // The first request is still open. Its response is sent now.
    gate.add_permits(1);
    assert_eq!(world.until_ended(slow_crawl.id).await.state, CrawlState::Completed);
    assert_eq!(slow_site.count_requests("/late.xml"), 1);
    worker.stop().await;
}

#[testing::test]
async fn sitemap_over_page_size_limit_is_fetched_again() {
    let (world, site) = World::with_site().await;
    let entry = format!("<url><loc>{}</loc></url>", site.url("/page"));
    let sitemap_of_size = |bytes: usize| urlset(&format!("<!--{}-->{entry}", "x".repeat(bytes)));
    site.set("/small.xml", sitemap_of_size(4 << 20));
    site.set("/large.xml", sitemap_of_size(6 << 20));
    site.set("/page", Response::html("nothing"));
    let progress = world.complete_crawl(&[site.url("/small.xml"), site.url("/large.xml")], fast()).await;
    assert_eq!(counts(&progress.pages), [("fetched", 3)].into());
    assert_eq!((site.count_requests("/small.xml"), site.count_requests("/large.xml")), (1, 2));
}
