//! Tests politeness, which includes robots.txt, robots directives and busy hosts.

use crate::support::{Response, Site, World, counts, fast, fast_politeness, quick_retries, wait_for};
use domain::{CrawlState, Reason};
use pipeline::{CrawlOptions, crawls};
use std::sync::Arc;
use std::time::Duration;
use store::crawls::hosts::PermitDecision;
use testing::drawing;
use tokio::sync::Semaphore;

#[testing::test]
async fn host_is_fetched_after_robots_txt_recovers() {
    let (world, site) = (World::with(quick_retries(), fast_politeness()).await, Site::start().await);
    site.set_series("/robots.txt", vec![Response::status(500), Response::status(502), Response::status(404)]);
    site.set("/", Response::html("<img src=cora.jpg>"));
    site.set("/cora.jpg", Response::jpeg(drawing("cora.jpg")));
    let progress = world.complete_crawl(&[site.url("/")], fast()).await;
    assert_eq!(counts(&progress.images), [("processed", 1)].into());
    assert_eq!(site.requests()[..4], ["/robots.txt", "/robots.txt", "/robots.txt", "/"]);
}

/// Asserts that a crawl requests only the robots.txt of the site.
async fn assert_blocked(world: &World, site: &Site) {
    let (crawl, progress) = world.crawl(&[site.url("/")], fast()).await;
    assert_eq!(crawl.state, CrawlState::Failed);
    assert_eq!(progress.reasons, [(Reason::RobotsUnavailable, 1)].into());
    assert!(site.requests().iter().all(|path| path == "/robots.txt"), "{:?}", site.requests());
}

#[testing::test]
async fn unavailable_robots_txt_blocks_host() {
    let (world, site) = (World::with(quick_retries(), fast_politeness()).await, Site::start().await);
    site.set("/robots.txt", Response::status(500));
    site.set("/", Response::html("<img src=cora.jpg>"));
    assert_blocked(&world, &site).await;
}

#[testing::test]
async fn robots_txt_with_false_encoding_is_read_or_rejected() {
    let (world, site) = (World::with(quick_retries(), fast_politeness()).await, Site::start().await);
    let rules = Response::new("text/plain", "user-agent: *\ndisallow: /closed");
    site.set("/robots.txt", rules.header("content-encoding", "gzip"));
    site.set("/", Response::html("<img src=cora.jpg><img src=/closed/ada.jpg>"));
    site.set("/cora.jpg", Response::jpeg(drawing("cora.jpg")));
    let (crawl, progress) = world.crawl(&[site.url("/")], fast()).await;
    assert_eq!(crawl.state, CrawlState::Completed);
    assert_eq!(counts(&progress.images), [("processed", 1), ("skipped", 1)].into());
    assert_eq!(progress.reasons.get(&Reason::RobotsDisallowed), Some(&1));

    let site = Site::start().await;
    let noise = Response::new("text/plain", vec![0xff; 200]).header("content-encoding", "gzip");
    site.set("/robots.txt", noise);
    assert_blocked(&world, &site).await;
}

#[testing::test]
async fn incomplete_robots_txt_blocks_host() {
    let (world, site) = (World::with(quick_retries(), fast_politeness()).await, Site::start().await);
    site.set("/robots.txt", Response::new("text/plain", "user-agent: *\n").closing_early());
    assert_blocked(&world, &site).await;
}

#[testing::test]
async fn pages_of_unreachable_host_record_connection_error() {
    let world = World::with(quick_retries(), fast_politeness()).await;
    let seeds: Vec<String> = (0..3).map(|page| format!("http://127.0.0.1:9/{page}")).collect();
    let (crawl, progress) = world.crawl(&seeds, fast()).await;
    assert_eq!(crawl.state, CrawlState::Failed);
    assert_eq!(progress.reasons.get(&Reason::ConnectionRefused), Some(&3), "{:?}", progress.reasons);
}

/// The permit may expire before its job receives it. Another job may then get a permit.
#[testing::test]
async fn late_host_permit_is_not_used() {
    let politeness = crawls::Config { grant_time_limit: Duration::ZERO, ..fast_politeness() };
    let (world, site) = (World::with(queue::Config::default(), politeness).await, Site::start().await);
    site.set("/", Response::html("a page"));
    let crawl = world.create(&[site.url("/")], CrawlOptions::default()).await;
    let worker = world.worker("one");
    wait_for(async || {
        let due = world.queue.next_due(&["scan_page".into()]).await.unwrap();
        due.filter(|due| *due > Duration::from_secs(1))
    })
    .await
    .expect("the job is postponed");
    worker.stop().await;
    assert_eq!(site.requests(), [""; 0]);
    assert_eq!(counts(&world.progress(crawl.id).await.pages), [("queued", 1)].into());
}

#[testing::test]
async fn robots_txt_of_image_host_applies() {
    let world = World::new().await;
    let (site, images) = (Site::start().await, Site::start().await);
    let (open, closed) = (images.url("/open/cora.jpg"), images.url("/closed/cora.jpg"));
    site.set("/", Response::html(&format!("<img src={open}><img src={closed}>")));
    images.set("/robots.txt", Response::new("text/plain", "user-agent: facecrawl\ndisallow: /closed"));
    images.set("/open/cora.jpg", Response::jpeg(drawing("cora.jpg")));
    images.set("/closed/cora.jpg", Response::jpeg(drawing("cora_2.jpg")));
    let (_, progress) = world.crawl(&[site.url("/")], fast()).await;
    assert_eq!(counts(&progress.images), [("processed", 1), ("skipped", 1)].into());
    assert_eq!(images.count_requests("/closed/cora.jpg"), 0);
}

#[testing::test]
async fn crawl_option_disables_robots_rules() {
    let (world, site) = World::with_site().await;
    site.set("/robots.txt", Response::new("text/plain", "user-agent: *\ndisallow: /"));
    site.set("/", Response::html("<img src=cora.jpg>").header("x-robots-tag", "noai, nofollow"));
    site.set("/cora.jpg", Response::jpeg(drawing("cora.jpg")).header("x-robots-tag", "noindex"));
    let options = CrawlOptions { respect_robots: false, ..fast() };
    let (_, progress) = world.crawl(&[site.url("/")], options).await;
    assert_eq!(counts(&progress.images), [("processed", 1)].into());
    assert_eq!(site.count_requests("/robots.txt"), 0);
}

#[testing::test]
async fn robots_meta_directives_apply_to_links_and_images() {
    let (world, site) = World::with_site().await;
    let page = "<html><head><meta name=robots content='nofollow, noimageindex'></head><body>
                <a href=on.html>x</a><img src=cora.jpg></body></html>";
    site.set("/", Response::new("text/html", page));
    let (crawl, progress) = world.crawl(&[site.url("/")], fast()).await;
    assert_eq!(crawl.state, CrawlState::Completed);
    assert_eq!((counts(&progress.pages), counts(&progress.images)), ([("fetched", 1)].into(), [].into()));
    assert_eq!(progress.reasons.get(&Reason::Noimageindex), Some(&1));
    assert_eq!(site.requests(), ["/robots.txt", "/"]);
}

#[testing::test]
async fn image_requests_follow_referrer_policy() {
    let world = World::new().await;
    let (site, images) = (Site::start().await, Site::start().await);
    let page = format!("<a href=closed>x</a><img src=/own.jpg><img src={}>", images.url("/other.jpg"));
    site.set("/page", Response::html(&page));
    let closed = Response::html("<img src=/closed.jpg><img src=/open.jpg referrerpolicy=same-origin>");
    site.set("/closed", closed.header("referrer-policy", "no-referrer"));
    site.set_fallback(Response::jpeg(drawing("cora.jpg")));
    images.set_fallback(Response::jpeg(drawing("cora_2.jpg")));
    world.complete_crawl(&[site.url("/page")], fast()).await;
    assert_eq!(site.referer("/page"), None);
    assert_eq!(site.referer("/own.jpg"), Some(site.url("/page")));
    assert_eq!(images.referer("/other.jpg"), Some(site.url("/")));
    assert_eq!(site.referer("/closed.jpg"), None);
    assert_eq!(site.referer("/open.jpg"), Some(site.url("/closed")));
}

#[testing::test]
async fn busy_host_is_retried_after_requested_delay() {
    let (world, site) = (World::with(quick_retries(), fast_politeness()).await, Site::start().await);
    let busy = Response::status(503).header("retry-after", "1");
    site.set_series("/", vec![busy, Response::html("<img src=cora.jpg>")]);
    site.set("/cora.jpg", Response::jpeg(drawing("cora.jpg")));
    let (_, progress) = world.crawl(&[site.url("/")], fast()).await;
    assert_eq!(counts(&progress.pages), [("fetched", 1)].into());
    assert_eq!(site.count_requests("/"), 2);
}

/// The pace of a host is stored in the database, so that every process uses it.
#[testing::test]
async fn host_pace_slows_on_refusals_and_recovers() {
    let (world, site) = (World::with(quick_retries(), fast_politeness()).await, Site::start().await);
    let gate = Arc::new(Semaphore::new(0));
    let busy = || Response::status(503).header("retry-after", "1");
    site.set_series("/", vec![busy(), busy(), Response::html("well").gated(&gate)]);
    let host = site.url("/").trim_end_matches('/').to_owned();
    let crawl = world.create(&[site.url("/")], CrawlOptions::default()).await;
    let worker = world.worker("one");
    wait_for(async || (site.count_requests("/") == 3).then_some(()))
        .await
        .expect("the host receives a third request");
    let slowed = world.store.hosts().pace(&host).await.unwrap();
    assert_eq!(slowed.refusals, 2);
    assert!(slowed.pace_ms >= 500, "doubled twice: {slowed:?}");
    gate.add_permits(1);
    assert_eq!(world.until_ended(crawl.id).await.state, CrawlState::Completed);
    worker.stop().await;
    let recovered = world.store.hosts().pace(&host).await.unwrap();
    assert_eq!(recovered.refusals, 0);
    assert!(recovered.pace_ms >= slowed.pace_ms / 2, "the delay is halved at most: {recovered:?}");
}

#[testing::test]
async fn crawl_with_delay_fetches_every_url_once() {
    let (world, site) = World::with_site().await;
    let images: String = (0..6).map(|i| format!("<img src=none{i}.jpg>")).collect();
    site.set("/", Response::html(&images));
    // Two workers run eight jobs for one host. The host's permits serialise the requests.
    let options = CrawlOptions { delay_ms: Some(20), max_depth: 0, ..CrawlOptions::default() };
    let crawl = world.create(&[site.url("/")], options).await;
    let workers = [world.worker("one"), world.worker("two")];
    let ended = world.until_ended(crawl.id).await;
    for worker in workers {
        worker.stop().await;
    }
    assert_eq!(ended.state, CrawlState::Completed);
    assert_eq!(counts(&world.progress(crawl.id).await.images), [("failed", 6)].into());
    assert_eq!(site.requests().len(), 8, "{:?}", site.requests());
}

/// A crawl with its own delay of minutes does not delay the crawls of other collections.
#[testing::test]
async fn crawl_delay_applies_only_to_its_collection() {
    let politeness =
        pipeline::crawls::Config { default_delay: Duration::from_millis(20), ..fast_politeness() };
    let world = World::with(quick_retries(), politeness).await;
    world
        .commit(async |tx| world.store.collections().create(tx.conn(), "other", &Default::default()).await)
        .await;
    let site = Site::start().await;
    site.set("/slow", Response::html("nothing")).set("/", Response::html("<img src=cora.jpg>"));
    site.set("/cora.jpg", Response::jpeg(drawing("cora.jpg")));
    let slow = CrawlOptions { delay_ms: Some(300_000), max_depth: 0, ..CrawlOptions::default() };
    let slow_crawl = world.create(&[site.url("/slow")], slow).await;
    let worker = world.worker("one");
    let is_requested = async || (site.count_requests("/robots.txt") > 0).then_some(());
    wait_for(is_requested).await.expect("the slow crawl has sent its first request");
    let seeds = [site.url("/")];
    let other_crawl = world.crawls.create("other", &seeds, CrawlOptions::default()).await.unwrap();
    assert_eq!(world.until_ended(other_crawl.id).await.state, CrawlState::Completed);
    assert_eq!(counts(&world.progress(other_crawl.id).await.images), [("processed", 1)].into());
    assert_eq!(site.count_requests("/slow"), 0, "the slow crawl still waits");
    world.crawls.cancel(slow_crawl.id).await.unwrap();
    worker.stop().await;
}

/// A permit that is not released expires after one minute.
#[testing::test]
async fn cancelled_fetch_releases_host_permit() {
    let config = queue::Config { lease: Duration::from_secs(1), ..quick_retries() };
    let (world, site) = (World::with(config, fast_politeness()).await, Site::start().await);
    let gate = Arc::new(Semaphore::new(0));
    site.set("/hangs.jpg", Response::jpeg(drawing("cora.jpg")).gated(&gate));
    site.set("/cora.jpg", Response::jpeg(drawing("cora.jpg")));
    let options = CrawlOptions { delay_ms: Some(1), ..CrawlOptions::default() };
    let hanging = world.create(&[site.url("/hangs.jpg")], options.clone()).await;
    let worker = world.worker("one");
    let is_requested = async || (site.count_requests("/hangs.jpg") == 1).then_some(());
    wait_for(is_requested).await.expect("the image is requested");
    world.crawls.cancel(hanging.id).await.unwrap();
    let host = site.url("/").trim_end_matches('/').to_owned();
    let acquire = async || match world.store.hosts().acquire_permit(&host, 1).await.unwrap() {
        PermitDecision::Granted { token } => Some(token),
        PermitDecision::Wait { .. } => None,
    };
    // The permit is available before an unreleased permit would expire.
    let token = tokio::time::timeout(Duration::from_secs(40), wait_for(acquire)).await;
    let token = token.ok().flatten().expect("the permit is released");
    world.store.hosts().finish_request(&host, token, 1, None, None).await.unwrap();
    let (crawl, progress) = world.crawl(&[site.url("/cora.jpg")], options).await;
    worker.stop().await;
    assert_eq!(crawl.state, CrawlState::Completed);
    assert_eq!(counts(&progress.images), [("processed", 1)].into());
}
