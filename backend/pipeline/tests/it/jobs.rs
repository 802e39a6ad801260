//! Tests that results of a worker that lost its claim are ignored, and that a crawl with a large
//! backlog does not block other crawls.
use crate::support::{Response, Site, World, counts, fast, fast_politeness, wait_for};
use domain::{CrawlState, JobKind};
use pipeline::crawls::Config;
use pipeline::{CrawlOptions, Secret};
use queue::{ClaimedJob, NewJob, RunEnd};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use testing::drawing;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Claims the only job of the kind, waits until the lease expires, and claims the job again.
/// Returns the job with the old claim and the job with the new claim.
async fn claim_twice(world: &World, kind: JobKind) -> (ClaimedJob, ClaimedJob) {
    let kinds = [kind.into()];
    let first = world.queue.claim(&kinds, 1, "old").await.unwrap().remove(0);
    let reclaim = async || {
        world.queue.rescue().await.unwrap();
        world.queue.claim(&kinds, 1, "new").await.unwrap().pop()
    };
    let second = wait_for(reclaim).await.expect("the job is claimable again");
    assert_eq!(first.claim.id, second.claim.id);
    (first, second)
}

fn short_leases() -> queue::Config {
    queue::Config { lease: Duration::from_millis(50), ..queue::Config::default() }
}

#[testing::test]
async fn stale_claim_cannot_store_image() {
    let (world, site) = (World::with(short_leases(), fast_politeness()).await, Site::start().await);
    site.set("/cora.jpg", Response::jpeg(drawing("cora.jpg")));
    let crawl = world.create(&[site.url("/cora.jpg")], fast()).await;
    let (first, second) = claim_twice(&world, JobKind::ScanImage).await;
    let outcome = world.run(first).await;
    assert!(matches!(outcome, RunEnd::Stale), "{outcome:?}");
    assert!(world.images().await.is_empty());
    assert_eq!(counts(&world.progress(crawl.id).await.images), [("queued", 1)].into());

    let outcome = world.run(second.clone()).await;
    assert!(matches!(outcome, RunEnd::Settled), "{outcome:?}");
    assert_eq!(world.images().await.len(), 1);
    assert_eq!(world.store.crawls().get(crawl.id).await.unwrap().state, CrawlState::Completed);

    // A second completion has no effect.
    let outcome = world.run(second).await;
    assert!(!matches!(outcome, RunEnd::Settled), "{outcome:?}");
    assert_eq!(world.images().await.len(), 1);
}

#[testing::test]
async fn stale_claim_cannot_process_page() {
    let (world, site) = (World::with(short_leases(), fast_politeness()).await, Site::start().await);
    site.set("/", Response::html("<img src=cora.jpg><a href=more.html>x</a>"));
    let crawl = world.create(&[site.url("/")], CrawlOptions { max_depth: 1, ..fast() }).await;
    let (first, second) = claim_twice(&world, JobKind::ScanPage).await;
    let outcome = world.run(first).await;
    assert!(matches!(outcome, RunEnd::Stale), "{outcome:?}");
    let progress = world.progress(crawl.id).await;
    assert_eq!((counts(&progress.pages), counts(&progress.images)), ([("queued", 1)].into(), [].into()));
    assert_eq!(world.live_jobs(crawl.id).await, 1, "the stale claim enqueued no job");

    let outcome = world.run(second).await;
    assert!(matches!(outcome, RunEnd::Settled), "{outcome:?}");
    let progress = world.progress(crawl.id).await;
    assert_eq!(counts(&progress.pages), [("fetched", 1), ("queued", 1)].into());
    assert_eq!(counts(&progress.images), [("queued", 1)].into());
    assert_eq!(world.live_jobs(crawl.id).await, 2);
}

#[testing::test]
async fn stale_claim_cannot_start_scheduled_run() {
    let (world, site) = (World::with(short_leases(), fast_politeness()).await, Site::start().await);
    let options = CrawlOptions { every: Some("24h".parse().unwrap()), ..fast() };
    let crawl = world.create(&[site.url("/missing.jpg")], options).await;
    let failed = world.queue.claim(&[JobKind::ScanImage.into()], 1, "one").await.unwrap().remove(0);
    world.run(failed).await;
    assert_eq!(world.store.crawls().get(crawl.id).await.unwrap().state, CrawlState::Failed);

    world.execute("update jobs set scheduled_at = now()").await;
    let (first, second) = claim_twice(&world, JobKind::StartCrawl).await;
    let outcome = world.run(first).await;
    assert!(matches!(outcome, RunEnd::Stale), "{outcome:?}");
    assert_eq!(world.store.crawls().list(&Default::default(), None, 10).await.unwrap().len(), 1);
    let outcome = world.run(second).await;
    assert!(matches!(outcome, RunEnd::Settled), "{outcome:?}");
    let runs = world.store.crawls().list(&Default::default(), None, 10).await.unwrap();
    assert_eq!((runs.len(), runs[0].series_id), (2, Some(crawl.id)));
    assert_eq!(world.live_jobs(runs[0].id).await, 1);
}

#[testing::test]
async fn stale_claim_cannot_record_failure() {
    let (world, site) = (World::with(short_leases(), fast_politeness()).await, Site::start().await);
    let crawl = world.create(&[site.url("/missing.jpg")], fast()).await;
    let (first, _second) = claim_twice(&world, JobKind::ScanImage).await;
    let outcome = world.run(first).await;
    assert!(matches!(outcome, RunEnd::Stale), "{outcome:?}");
    assert_eq!(counts(&world.progress(crawl.id).await.images), [("queued", 1)].into());
}

#[testing::test]
async fn stopping_worker_snoozes_its_job() {
    let (world, site) = World::with_site().await;
    let closed_gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    site.set("/cora.jpg", Response::jpeg(drawing("cora.jpg")).gated(&closed_gate));
    let crawl = world.create(&[site.url("/cora.jpg")], fast()).await;
    let job = world.queue.claim(&[JobKind::ScanImage.into()], 1, "one").await.unwrap().remove(0);
    let cancel = CancellationToken::new();
    let handlers = world.handlers();
    let running = handlers[JobKind::ScanImage.as_str()].run(job, cancel.clone());
    let stop = async {
        wait_for(async || (site.count_requests("/cora.jpg") == 1).then_some(())).await.unwrap();
        cancel.cancel();
    };
    let (outcome, ()) = tokio::join!(running, stop);
    assert!(matches!(outcome, RunEnd::Snooze(_)), "{outcome:?}");
    assert_eq!(counts(&world.progress(crawl.id).await.images), [("queued", 1)].into());
}

/// Returns a site that closed_gate responds, except for the first page and robots.txt.
async fn stalled_site() -> Site {
    let site = Site::start().await;
    site.set("/", Response::html("<a href=/first>x</a>"));
    site.set_fallback(Response::status(200).gated(&Arc::new(Semaphore::new(0))));
    site
}

/// Enqueues `pages` more pages of the site, as a crawl enqueues them.
async fn enqueue_pages(world: &World, crawl: Uuid, site: &Site, pages: usize) {
    let host = site.url("").trim_start_matches("http://").to_owned();
    let job = |n: usize| NewJob {
        priority: 1,
        group_id: Some(crawl),
        partition_key: Some(host.clone()),
        ..NewJob::new(
            JobKind::ScanPage,
            json!({"page_id": Uuid::now_v7(), "crawl_id": crawl, "url": site.url(&format!("/{n}")), "depth": 1}),
        )
    };
    let jobs: Vec<NewJob> = (0..pages).map(job).collect();
    for chunk in jobs.chunks(10_000) {
        world.commit(async |tx| world.queue.enqueue(tx.conn(), chunk).await).await;
    }
}

/// Returns a site with a page that links to a page that links to a page with an image.
async fn small_site() -> Site {
    let site = Site::start().await;
    site.set("/", Response::html("<a href=/deep>x</a>"));
    site.set("/deep", Response::html("<a href=/deeper>x</a>"));
    site.set("/deeper", Response::html("<img src=/cora.jpg>"));
    site.set("/cora.jpg", Response::jpeg(drawing("cora.jpg")));
    site
}

/// Asserts that the small crawl completes although the large one always has queued pages of higher
/// priority. Returns the number of requests to the site of the large crawl.
async fn assert_small_crawl_completes(pages: usize, options: CrawlOptions) -> usize {
    let world = World::new().await;
    let (stalled_site, small_site) = (stalled_site().await, small_site().await);
    let worker = world.worker("one");
    let large = world.create(&[stalled_site.url("/")], options).await;
    let is_requested = async || (stalled_site.count_requests("/first") > 0).then_some(());
    wait_for(is_requested).await.expect("the large crawl has started");
    enqueue_pages(&world, large.id, &stalled_site, pages).await;
    assert_eq!(world.live_jobs(large.id).await, pages as i64 + 1);

    let small = world.create(&[small_site.url("/")], fast()).await;
    assert_eq!(world.until_ended(small.id).await.state, CrawlState::Completed);
    assert_eq!(counts(&world.progress(small.id).await.images), [("processed", 1)].into());
    world.crawls.cancel(large.id).await.unwrap();
    worker.stop().await;
    let is_closed = async || (world.live_jobs(large.id).await == 0).then_some(());
    wait_for(is_closed).await.expect("all jobs of the large crawl are closed");
    stalled_site.requests().len()
}

#[testing::needs(slow)]
#[testing::test]
async fn pages_of_unresponsive_host_delay_no_other_crawl() {
    // The site got requests for robots.txt and the page, and on a busy machine some retries.
    let requests = assert_small_crawl_completes(100_000, fast()).await;
    assert!(requests < 100, "{requests}");
}

#[testing::test]
async fn pages_waiting_for_host_permit_delay_no_other_crawl() {
    let options = CrawlOptions { delay_ms: Some(1_000), max_depth: 1, ..CrawlOptions::default() };
    assert_small_crawl_completes(2_000, options).await;
}

/// The jobs of seeds, links and images contain the collection of the crawl. A worker uses it to
/// share its slots between collections.
#[testing::test]
async fn crawl_jobs_carry_collection_as_tenant() {
    let (world, site) = World::with_site().await;
    site.set("/", Response::html("<a href=/deep>x</a><img src=/cora.jpg>"));
    let crawl = world.create(&[site.url("/"), site.url("/seed.jpg")], fast()).await;
    let kinds = [JobKind::ScanPage, JobKind::ScanImage].map(String::from);
    let claim = async || {
        let claimed = world.queue.claim(&kinds, 10, "tester").await.unwrap();
        assert_eq!(claimed.len(), 2, "a page and an image");
        assert!(claimed.iter().all(|job| job.tenant == crawl.collection_id), "{claimed:?}");
        claimed
    };
    let seeds = claim().await;
    let page = seeds.into_iter().find(|job| job.kind == JobKind::ScanPage.as_str()).unwrap();
    let outcome = world.run(page).await;
    assert!(matches!(outcome, RunEnd::Settled), "{outcome:?}");
    claim().await;
}

/// A receiver that closed_gate responds occupies only one place. Previously, all receivers shared
/// four places, and its messages occupied all of them.
#[testing::test]
async fn unresponsive_webhook_delays_no_other_webhook() {
    let politeness =
        Config { webhook_secret: Some(Secret::new("correct horse battery staple")), ..fast_politeness() };
    let world = World::with(queue::Config::default(), politeness).await;
    let (slow, quick) = (Site::start().await, Site::start().await);
    slow.set("/slow", Response::status(200).gated(&Arc::new(Semaphore::new(0))));
    quick.set("/", Response::html("nothing")).set("/quick", Response::status(204));
    let with_webhook = |site: &Site, path: &str| CrawlOptions {
        webhook: site.url(path).parse().ok(),
        max_depth: 0,
        ..fast()
    };
    let worker = world.worker("one");
    for _ in 0..5 {
        let crawl = world.create(&[quick.url("/")], with_webhook(&slow, "/slow")).await;
        world.until_ended(crawl.id).await;
    }
    let slow_is_requested = async || (slow.count_requests("/slow") > 0).then_some(());
    wait_for(slow_is_requested).await.expect("the slow receiver has a request");
    world.create(&[quick.url("/")], with_webhook(&quick, "/quick")).await;
    let quick_is_requested =
        async || (quick.count_requests("/quick") > 0).then_some(slow.count_requests("/slow"));
    let slow_requests = wait_for(quick_is_requested).await.expect("the quick receiver has a request");
    assert!(slow_requests < 4, "{slow_requests} messages were sent to the slow receiver");
    worker.stop().await;
}
