//! Tests the second crawl of a site: unchanged pages and images are revalidated, not transferred.

use crate::support::{Response, Site, World, counts, fast};
use domain::{CrawlState, ImageState, JobKind, Reason};
use pipeline::CrawlOptions;
use std::collections::BTreeSet;
use store::images::ImageFilter;
use testing::drawing;
use tokio_util::sync::CancellationToken;

/// Returns a site with two pages and two images with validators, and one of each without.
async fn site() -> Site {
    let site = Site::start().await;
    site.set(
        "/",
        Response::html("<img src=cora.jpg><a href=second>2</a><a href=third>3</a>").etag("\"index\""),
    );
    site.set(
        "/second",
        Response::html("<img src=ada.jpg alt=portrait>").modified("Sat, 01 Aug 2026 10:00:00 GMT"),
    );
    site.set("/third", Response::html("<img src=plain.jpg>"));
    site.set("/cora.jpg", Response::jpeg(drawing("cora.jpg")).etag("W/\"cora\""));
    let ada = Response::jpeg(drawing("ada_small.jpg"));
    site.set("/ada.jpg", ada.modified("Sat, 01 Aug 2026 11:00:00 GMT"));
    site.set("/plain.jpg", Response::jpeg(drawing("ben.jpg")));
    site
}

const CONDITIONAL: [&str; 4] = ["/", "/ada.jpg", "/cora.jpg", "/second"];

#[testing::test]
async fn unchanged_pages_and_images_are_reused() {
    let world = World::new().await;
    let site = site().await;
    let (_, first) = world.crawl(&[site.url("/")], fast()).await;
    assert_eq!((first.images[&ImageState::Processed], first.faces), (3, 3));
    let (unchanged, bytes) = site.take_stats();
    assert!(unchanged.is_empty());

    let (crawl, second) = world.crawl(&[site.url("/")], fast()).await;
    assert_eq!(crawl.state, CrawlState::Completed);
    let (unchanged, sent) = site.take_stats();
    assert_eq!(unchanged, CONDITIONAL);
    let size = drawing("ben.jpg").len();
    assert!(sent < size + 100 && bytes > sent, "{bytes} bytes at first, then {sent}");
    assert_eq!(counts(&second.pages), [("fetched", 3)].into());
    assert_eq!(counts(&second.images), [("duplicate", 3)].into());
    assert_eq!(second.reasons.get(&Reason::NotModified), Some(&4), "{:?}", second.reasons);
    assert_eq!(second.reasons.get(&Reason::ExactDuplicate), Some(&1));
    assert_eq!((second.faces, world.faces().await.len()), (3, 3));

    // Each image has one more source, with the data of the page.
    let filter =
        ImageFilter { collection: "default".into(), crawl_id: Some(crawl.id), ..ImageFilter::default() };
    let images: Vec<_> =
        world.store.images().list(&filter, None, 10).await.unwrap().iter().map(|i| i.id).collect();
    let sources = world.store.images().sources(&images).await.unwrap();
    let sources_of = |path: &str| {
        let url = site.url(path);
        sources.iter().filter(|(_, s)| s.image_url == url).map(|(_, s)| s.clone()).collect::<Vec<_>>()
    };
    for path in ["/cora.jpg", "/ada.jpg", "/plain.jpg"] {
        assert_eq!(sources_of(path).len(), 2, "{path}");
    }
    assert!(sources_of("/ada.jpg").iter().all(|source| source.alt.as_deref() == Some("portrait")));

    // This also applies to later crawls and after the first crawls are deleted.
    let mut tx = world.store.begin().await.unwrap();
    let ids: Vec<_> =
        world.store.crawls().list(&Default::default(), None, 1).await.unwrap().iter().map(|c| c.id).collect();
    world.store.crawls().delete(tx.conn(), ids[0], false).await.unwrap();
    tx.commit().await.unwrap();
    world.crawl(&[site.url("/")], fast()).await;
    assert_eq!(
        site.take_stats().0,
        ["/ada.jpg", "/cora.jpg"],
        "the data of the pages was deleted with the crawl"
    );
}

#[testing::test]
async fn unchanged_page_uses_latest_referrer_policy() {
    let (world, site) = World::with_site().await;
    let page = || Response::html("<img src=plain.jpg>").etag("\"page\"");
    site.set("/plain.jpg", Response::jpeg(drawing("ben.jpg")));
    for (header, expected) in [
        (Some("origin"), Some(site.url("/"))),
        (None, Some(site.url("/"))),
        (Some("no-referrer"), None),
        (Some("unsafe-url"), Some(site.url("/?page"))),
    ] {
        site.set("/?page", header.map_or_else(page, |policy| page().header("referrer-policy", policy)));
        world.crawl(&[site.url("/?page")], fast()).await;
        assert_eq!(site.referer("/plain.jpg"), expected, "{header:?}");
    }
    assert_eq!(site.take_stats().0, ["/?page"; 3]);
}

#[testing::test]
async fn changed_pages_and_images_are_read_again() {
    let world = World::new().await;
    let site = site().await;
    world.crawl(&[site.url("/")], fast()).await;
    site.take_stats();
    site.set("/second", Response::html("<img src=new.jpg><img src=cora.jpg>").etag("\"second\""));
    site.set("/new.jpg", Response::jpeg(drawing("cora_2.jpg")).etag("\"new\""));
    site.set("/cora.jpg", Response::jpeg(drawing("small_pair.jpg")).etag("\"other\""));
    let (_, second) = world.crawl(&[site.url("/")], fast()).await;
    assert_eq!(site.take_stats().0, ["/"]);
    assert_eq!(
        (second.images[&ImageState::Processed], second.images[&ImageState::Duplicate]),
        (2, 1),
        "{second:?}"
    );
    let (_, third) = world.crawl(&[site.url("/")], fast()).await;
    assert_eq!(site.take_stats().0, ["/", "/cora.jpg", "/new.jpg", "/second"]);
    assert_eq!(counts(&third.images), [("duplicate", 3)].into());

    let without_revalidation = CrawlOptions { revalidate: false, ..fast() };
    world.crawl(&[site.url("/")], without_revalidation).await;
    assert!(site.take_stats().0.is_empty());
}

#[testing::test]
async fn validators_are_dropped_with_image_or_model() {
    let world = World::new().await;
    let site = site().await;
    world.crawl(&[site.url("/")], fast()).await;
    let cora = drawing("cora.jpg");
    let images = world.images().await;
    let image = images.iter().find(|image| image.bytes == cora.len() as i64).unwrap();
    world.commit(async |tx| world.store.images().delete(tx.conn(), image.id).await).await;
    site.take_stats();
    let (_, second) = world.crawl(&[site.url("/")], fast()).await;
    assert_eq!(site.take_stats().0, ["/", "/ada.jpg", "/second"]);
    assert_eq!(
        (second.images[&ImageState::Processed], second.images[&ImageState::Duplicate]),
        (1, 2),
        "it is fetched and stored again"
    );

    world
        .execute("insert into embedding_models (identity, name, dimensions) values ('other', 'other', 128)")
        .await;
    world
        .execute("update faces set model_id = (select id from embedding_models where identity = 'other')")
        .await;
    world.crawl(&[site.url("/")], fast()).await;
    assert_eq!(site.take_stats().0, ["/", "/second"]);
}

#[testing::test]
async fn unchanged_page_obeys_stored_robots_directives() {
    let (world, site) = World::with_site().await;
    let page = Response::html("<a href=second>2</a><img src=cora.jpg>").etag("\"1\"");
    site.set("/", page.header("x-robots-tag", "noimageindex"));
    site.set("/second", Response::html("nothing").etag("\"2\""));
    for _ in 0..2 {
        let (_, progress) = world.crawl(&[site.url("/")], fast()).await;
        assert_eq!(
            progress.reasons.get(&Reason::Noimageindex),
            Some(&1),
            "also if only the first response contained it"
        );
        assert_eq!(counts(&progress.images), [].into());
    }
    assert_eq!(site.take_stats().0, ["/", "/second"]);
}

#[testing::test]
async fn pages_of_image_rich_directories_come_first() {
    let (world, site) = World::with_site().await;
    site.set("/", Response::html("<a href=/poor/a>1</a><a href=/rich/a>2</a>"));
    let names = ["a", "b", "c", "d", "e"];
    for pair in names.windows(2) {
        let (here, next) = (pair[0], pair[1]);
        site.set(&format!("/poor/{here}"), Response::html(&format!("<a href={next}>on</a>")));
        let images: String = (0..5).map(|n| format!("<img src={here}{n}.jpg>")).collect();
        site.set(&format!("/rich/{here}"), Response::html(&format!("<a href={next}>on</a>{images}")));
    }
    world.create(&[site.url("/")], CrawlOptions { max_depth: 4, ..fast() }).await;
    // Pages are processed one at a time in the order of the queue. Images are not fetched.
    let handlers = world.handlers();
    while let Some(job) = world.queue.claim(&[JobKind::ScanPage.into()], 1, "one").await.unwrap().pop() {
        handlers[JobKind::ScanPage.as_str()].run(job, CancellationToken::new()).await;
    }
    let requests = site.requests();
    let position = |path: String| requests.iter().position(|request| *request == path).unwrap();
    assert!(position("/poor/a".into()) < position("/rich/a".into()), "the yield of both is unknown");
    for name in &names[1..4] {
        assert!(position(format!("/rich/{name}")) < position(format!("/poor/{name}")), "{requests:?}");
    }
    assert_eq!(requests.iter().collect::<BTreeSet<_>>().len(), requests.len(), "each page is fetched once");
}
