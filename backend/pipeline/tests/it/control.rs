//! Tests creating, pausing, resuming and cancelling crawls, and jobs without remaining attempts.
use crate::support::{Response, Site, World, counts, fast, fast_politeness, quick_retries, wait_for};
use domain::{CrawlKind, CrawlState, ImageState, JobKind, PageState, Reason};
use pipeline::crawls::Reconciled;
use pipeline::{CrawlError, CrawlOptions};
use queue::{JobState, NewJob, QueueError, RunEnd};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use store::StoreError;
use store::crawls::pages::{AdmittedUrl, NewPage, PageResult};
use testing::drawing;
use tokio::sync::Semaphore;
use uuid::Uuid;

#[testing::test]
async fn invalid_crawl_field_error_names_allowed_values() {
    let world = World::new().await;
    let seed = || vec!["http://example.org/".to_owned()];
    let default = CrawlOptions::default;
    let many = || (0..10_001).map(|i| format!("http://example.org/{i}")).collect();
    let long = || (0..200).map(|i| format!("http://example.org/{i}/{}", "a".repeat(6_000))).collect();
    let pages = || vec!["http://example.org/a".to_owned(), "http://example.org/b".to_owned()];
    let cases: Vec<(Vec<String>, CrawlOptions, &str, &str)> = vec![
        (vec![], default(), "seeds", "1 to 10000"),
        (many(), default(), "seeds", "1 to 10000"),
        (long(), default(), "seeds", "more than 1048576 bytes"),
        (vec!["not a url".into()], default(), "seeds", "number 1"),
        (vec!["ftp://example.org/".into()], default(), "seeds", "http"),
        (seed(), CrawlOptions { max_depth: -1, ..default() }, "max_depth", "from 0 to 50"),
        (seed(), CrawlOptions { max_depth: 51, ..default() }, "max_depth", "from 0 to 50"),
        (seed(), CrawlOptions { max_pages: 0, ..default() }, "max_pages", "from 1 to 1000000"),
        (pages(), CrawlOptions { max_pages: 1, ..default() }, "max_pages", "2 such seeds"),
        (seed(), CrawlOptions { max_images: 0, ..default() }, "max_images", "from 1 to 10000000"),
        (seed(), CrawlOptions { delay_ms: Some(300_001), ..default() }, "delay_ms", "from 0 to 300000"),
        (seed(), CrawlOptions { allow: vec!["http://x.org".into()], ..default() }, "allow", "host name"),
    ];
    for (seeds, options, field, allowed) in cases {
        let result = world.crawls.create("default", &seeds, options).await;
        let Err(CrawlError::Invalid { field: actual, reason }) = result else {
            panic!("{field}: {result:?}")
        };
        assert_eq!(actual, field, "{reason}");
        assert!(reason.contains(allowed), "{field}: {reason}");
    }
    let unknown = world.crawls.create("nobody", &seed(), fast()).await;
    assert!(matches!(unknown, Err(CrawlError::Invalid { field: "collection", .. })), "{unknown:?}");
    assert!(world.store.crawls().list(&Default::default(), None, 10).await.unwrap().is_empty());
}

#[testing::test]
async fn seeds_are_normalised_and_deduplicated() {
    let world = World::new().await;
    let seeds = ["HTTP://Example.ORG:80/a/../b#top", " http://example.org/b ", "http://example.org/c.jpg"];
    let crawl =
        world.crawls.create("default", &seeds.map(String::from), CrawlOptions::default()).await.unwrap();
    assert_eq!(crawl.seeds, ["http://example.org/b", "http://example.org/c.jpg"]);
    assert_eq!((crawl.state, crawl.kind), (CrawlState::Running, CrawlKind::Web));
    let progress = world.progress(crawl.id).await;
    assert_eq!((progress.pages[&PageState::Queued], progress.images[&ImageState::Queued]), (1, 1));
    assert_eq!(world.live_jobs(crawl.id).await, 2);
}

#[test]
fn unknown_crawl_options_are_rejected() {
    let error = serde_json::from_str::<CrawlOptions>(r#"{"max_dept": 3}"#).unwrap_err();
    assert!(error.to_string().contains("max_dept"), "{error}");
    let options: CrawlOptions = serde_json::from_str(r#"{"max_depth": 1, "dedupe": "exact"}"#).unwrap();
    assert_eq!((options.max_depth, options.max_pages), (1, 1000));
}

/// Returns a site whose image responses wait for `gate`.
async fn gated_site(gate: &Arc<Semaphore>) -> Site {
    let site = Site::start().await;
    let mut index = String::new();
    for i in 0..8 {
        index.push_str(&format!("<img src=i{i}.jpg>"));
        site.set(&format!("/i{i}.jpg"), Response::jpeg(drawing("cora.jpg")).gated(gate));
    }
    site.set("/", Response::html(&index));
    site
}

async fn wait_for_image_requests(site: &Site, at_least: usize) {
    let are_requested = async || {
        let requests = site.requests().iter().filter(|path| path.ends_with(".jpg")).count();
        (requests >= at_least).then_some(())
    };
    wait_for(are_requested).await.expect("the images are requested");
}

fn kinds() -> Vec<String> {
    vec![JobKind::ScanPage.into(), JobKind::ScanImage.into()]
}

#[testing::test]
async fn paused_crawl_starts_nothing_until_resumed() {
    let gate = Arc::new(Semaphore::new(0));
    let (world, site) = (World::new().await, gated_site(&gate).await);
    let crawl = world.create(&[site.url("/")], CrawlOptions { max_depth: 0, ..fast() }).await;
    let worker = world.worker("one");
    // The worker fetches four images at a time.
    wait_for_image_requests(&site, 4).await;
    assert_eq!(world.crawls.pause(crawl.id).await.unwrap().state, CrawlState::Paused);
    gate.add_permits(100);
    // Running fetches end. The other images remain queued and cannot be claimed.
    let remaining =
        async || (counts(&world.progress(crawl.id).await.images).get("queued") == Some(&4)).then_some(());
    wait_for(remaining).await.expect("the images in flight end");
    assert!(world.queue.claim(&kinds(), 100, "probe").await.unwrap().is_empty());
    assert_eq!(world.store.crawls().get(crawl.id).await.unwrap().state, CrawlState::Paused);

    let Err(CrawlError::Store(StoreError::Conflict(reason))) = world.crawls.pause(crawl.id).await else {
        panic!("a paused crawl was paused again");
    };
    assert!(reason.contains("paused"), "{reason}");

    assert_eq!(world.crawls.resume(crawl.id).await.unwrap().state, CrawlState::Running);
    let crawl = world.until_ended(crawl.id).await;
    worker.stop().await;
    assert_eq!(crawl.state, CrawlState::Completed);
    let progress = world.progress(crawl.id).await;
    assert_eq!(progress.images[&ImageState::Processed] + progress.images[&ImageState::Duplicate], 8);
}

#[testing::test]
async fn crawl_cancellation_aborts_running_fetch() {
    let (world, site) = World::with_site().await;
    let closed_gate = Arc::new(Semaphore::new(0));
    site.set("/cora.jpg", Response::jpeg(drawing("cora.jpg")).gated(&closed_gate));
    let crawl = world.create(&[site.url("/cora.jpg")], fast()).await;
    let job = world.queue.claim(&[JobKind::ScanImage.into()], 1, "one").await.unwrap().remove(0);
    let running = world.run(job);
    let cancel = async {
        wait_for_image_requests(&site, 1).await;
        world.crawls.cancel(crawl.id).await.unwrap();
    };
    // The gate remains closed, and the worker does not wait until it opens.
    let (outcome, ()) = tokio::join!(running, cancel);
    assert!(matches!(outcome, RunEnd::Stale), "{outcome:?}");
}

#[testing::test]
async fn paused_crawl_completes_after_last_job() {
    let (world, site) = World::with_site().await;
    let gate = Arc::new(Semaphore::new(0));
    site.set("/cora.jpg", Response::jpeg(drawing("cora.jpg")).gated(&gate));
    let crawl = world.create(&[site.url("/cora.jpg")], fast()).await;
    let worker = world.worker("one");
    wait_for_image_requests(&site, 1).await;
    world.crawls.pause(crawl.id).await.unwrap();
    gate.add_permits(1);
    assert_eq!(world.until_ended(crawl.id).await.state, CrawlState::Completed);
    worker.stop().await;
}

#[testing::test]
async fn cancelled_crawl_skips_remaining_images() {
    let gate = Arc::new(Semaphore::new(0));
    let (world, site) = (World::new().await, gated_site(&gate).await);
    let crawl = world.create(&[site.url("/")], CrawlOptions { max_depth: 0, ..fast() }).await;
    let worker = world.worker("one");
    wait_for_image_requests(&site, 4).await;
    assert_eq!(world.crawls.cancel(crawl.id).await.unwrap().state, CrawlState::Cancelled);
    gate.add_permits(100);
    // The worker finishes its jobs, but their results are ignored.
    worker.stop().await;
    assert_eq!(world.live_jobs(crawl.id).await, 0);
    let progress = world.progress(crawl.id).await;
    assert_eq!(counts(&progress.images), [("skipped", 8)].into());
    assert_eq!(progress.reasons.get(&Reason::Cancelled), Some(&8));
    assert!(world.images().await.is_empty());
    assert_eq!(world.store.crawls().get(crawl.id).await.unwrap().state, CrawlState::Cancelled);

    for result in [world.crawls.cancel(crawl.id).await, world.crawls.resume(crawl.id).await] {
        assert!(matches!(result, Err(CrawlError::Store(StoreError::Conflict(_)))), "{result:?}");
    }
}

/// Creates a crawl with a delay of five minutes between requests and `pages` queued rows with jobs,
/// far more than a test can fetch.
async fn large_crawl(world: &World, site: &Site, pages: usize) -> Uuid {
    let options = CrawlOptions { max_pages: 1_000_000, delay_ms: Some(300_000), ..CrawlOptions::default() };
    let crawl = world.create(&[site.url("/")], options).await.id;
    let urls: Vec<_> = (0..pages).map(|n| NewPage { url: site.url(&format!("/{n}")), depth: 1 }).collect();
    for chunk in urls.chunks(10_000) {
        let mut tx = world.store.begin().await.unwrap();
        let rows = world.store.ledger().admit_pages(tx.conn(), crawl, 1_000_000, chunk).await.unwrap();
        let job = |row: &AdmittedUrl| NewJob {
            priority: 1,
            group_id: Some(crawl),
            partition_key: Some("one host".into()),
            unique_key: Some(row.id.to_string()),
            ..NewJob::new(
                JobKind::ScanPage,
                json!({"page_id": row.id, "crawl_id": crawl, "url": row.url, "depth": 1}),
            )
        };
        let jobs: Vec<_> = rows.iter().map(job).collect();
        world.queue.enqueue(tx.conn(), &jobs).await.unwrap();
        tx.commit().await.unwrap();
    }
    crawl
}

/// Returns the number of rows of the crawl that are queued, regardless of its state; the number of
/// its live jobs; and the number of crawls that are being closed.
async fn open_rows_and_jobs(world: &World, crawl: Uuid) -> (i64, i64, usize) {
    let mut tx = world.store.begin().await.unwrap();
    let rows = world.store.ledger().queued_in_crawl(tx.conn(), crawl).await.unwrap();
    (rows, world.live_jobs(crawl).await, world.store.crawls().closing().await.unwrap().len())
}

#[testing::test]
async fn large_crawl_cancels_immediately_and_closes_later() {
    let (world, site) = World::with_site().await;
    let crawl = large_crawl(&world, &site, 12_000).await;
    assert_eq!(world.crawls.cancel(crawl).await.unwrap().state, CrawlState::Cancelled);
    // The counts are already final, regardless of how many rows are closed.
    let progress = world.progress(crawl).await;
    assert_eq!(counts(&progress.pages), [("skipped", 12_001)].into());
    assert_eq!(progress.reasons, [(Reason::Cancelled, 12_001)].into());
    let closed = async || (open_rows_and_jobs(&world, crawl).await == (0, 0, 0)).then_some(());
    wait_for(closed).await.expect("all rows and jobs are closed");
    assert_eq!(world.progress(crawl).await, progress);
    assert_eq!(world.crawls.reconcile().await.unwrap(), Reconciled::default());
}

#[testing::test]
async fn reconcile_closes_cancelled_crawl_of_killed_process() {
    let (world, site) = World::with_site().await;
    let crawl = large_crawl(&world, &site, 7_000).await;
    world.execute("update crawls set state = 'cancelled', finished_at = now(), closing = true").await;
    assert_eq!(open_rows_and_jobs(&world, crawl).await, (7_001, 7_001, 1));
    let progress = world.progress(crawl).await;
    assert_eq!(counts(&progress.pages), [("skipped", 7_001)].into());
    let closed = Reconciled { closed: 1, ..Reconciled::default() };
    assert_eq!(world.crawls.reconcile().await.unwrap(), closed);
    assert_eq!(open_rows_and_jobs(&world, crawl).await, (0, 0, 0));
    assert_eq!(world.progress(crawl).await, progress);
}

#[testing::test]
async fn unclosed_job_of_cancelled_crawl_stores_nothing() {
    let (world, site) = World::with_site().await;
    let gate = Arc::new(Semaphore::new(0));
    site.set("/cora.jpg", Response::jpeg(drawing("cora.jpg")).gated(&gate));
    world.create(&[site.url("/cora.jpg")], fast()).await;
    let job = world.queue.claim(&[JobKind::ScanImage.into()], 1, "one").await.unwrap().remove(0);
    let running = world.run(job);
    let cancel = async {
        wait_for_image_requests(&site, 1).await;
        world.execute("update crawls set state = 'cancelled', finished_at = now(), closing = true").await;
        gate.add_permits(1);
    };
    let (outcome, ()) = tokio::join!(running, cancel);
    assert!(matches!(outcome, RunEnd::Stale), "{outcome:?}");
    assert!(world.images().await.is_empty());
}

#[testing::test]
async fn retried_job_of_live_crawl_records_result() {
    let config = queue::Config { retry_base: Duration::from_millis(1), ..queue::Config::default() };
    let (world, site) = (World::with(config, fast_politeness()).await, Site::start().await);
    let gate = Arc::new(Semaphore::new(0));
    site.set("/", Response::html("<img src=down.jpg><img src=slow.jpg>"));
    site.set("/down.jpg", Response::status(500));
    site.set("/slow.jpg", Response::jpeg(drawing("cora_2.jpg")).gated(&gate));
    let crawl = world.create(&[site.url("/")], CrawlOptions { max_depth: 0, ..fast() }).await;
    let worker = world.worker("one");
    let discarded = async || {
        let jobs =
            world.queue.jobs().list(Some(JobState::Discarded), None, Some(crawl.id), None, 10).await.unwrap();
        jobs.first().map(|job| job.id)
    };
    let job = wait_for(discarded).await.expect("the job is discarded");
    assert_eq!(counts(&world.progress(crawl.id).await.images), [("failed", 1), ("queued", 1)].into());

    site.set("/down.jpg", Response::jpeg(drawing("cora.jpg")));
    assert_eq!(world.crawls.retry(job).await.unwrap().id, job);
    gate.add_permits(1);
    assert_eq!(world.until_ended(crawl.id).await.state, CrawlState::Completed);
    worker.stop().await;
    let progress = world.progress(crawl.id).await;
    assert_eq!(counts(&progress.images), [("processed", 2)].into());
    assert_eq!(progress.reasons, [].into());

    let result = world.crawls.retry(job).await;
    assert!(matches!(result, Err(CrawlError::Queue(QueueError::NotFound(_)))), "{result:?}");
}

#[testing::test]
async fn cancelling_jobs_skips_rows_and_ends_crawl() {
    let (world, site) = World::with_site().await;
    let crawl = world.create(&[site.url("/one.jpg"), site.url("/two.jpg")], fast()).await;
    let jobs = world.queue.jobs().list(None, None, Some(crawl.id), None, 10).await.unwrap();
    assert_eq!(jobs.len(), 2);
    world.crawls.cancel_job(jobs[0].id).await.unwrap();
    assert_eq!(world.store.crawls().get(crawl.id).await.unwrap().state, CrawlState::Running);
    assert_eq!(counts(&world.progress(crawl.id).await.images), [("skipped", 1), ("queued", 1)].into());
    // The job is retried and cancelled again. Its row changes accordingly both times.
    world.crawls.retry(jobs[0].id).await.unwrap();
    assert_eq!(counts(&world.progress(crawl.id).await.images), [("queued", 2)].into());
    let without_tenant =
        "select count(*) from jobs j where not exists (select from collections where id = j.tenant)";
    assert_eq!(world.number(without_tenant).await, 0, "a retried job belongs to its collection again");
    for job in &jobs {
        world.crawls.cancel_job(job.id).await.unwrap();
    }
    let ended = world.store.crawls().get(crawl.id).await.unwrap();
    assert_eq!(ended.state, CrawlState::Failed, "nothing was fetched");
    assert_eq!(world.progress(crawl.id).await.reasons, [(Reason::Cancelled, 2)].into());
    let result = world.crawls.cancel_job(jobs[0].id).await;
    assert!(matches!(result, Err(CrawlError::Queue(QueueError::NotFound(_)))), "{result:?}");
}

#[testing::test]
async fn retry_discarded_reports_retried_and_rejected_jobs() {
    let (world, site) = World::with_site().await;
    let live = world.create(&[site.url("/one.jpg"), site.url("/two.jpg"), site.url("/page")], fast()).await;
    let ended = world.create(&[site.url("/three.jpg")], fast()).await;
    for job in world.queue.claim(&kinds(), 10, "fails").await.unwrap() {
        world
            .commit(async |tx| world.queue.fail(tx.conn(), job.claim, "the disk is full", true, None).await)
            .await;
    }
    world.crawls.cancel(ended.id).await.unwrap();
    let retried =
        world.crawls.retry_discarded(Some(JobKind::ScanImage.as_str()), Some(live.id)).await.unwrap();
    assert_eq!((retried.retried, retried.rejected.len()), (2, 0));
    let retried = world.crawls.retry_discarded(None, None).await.unwrap();
    assert_eq!((retried.retried, retried.rejected.len()), (1, 1));
    assert!(retried.rejected[0].1.contains("cancelled"), "{retried:?}");
    assert_eq!((world.live_jobs(live.id).await, world.live_jobs(ended.id).await), (3, 0));
}

#[testing::test]
async fn control_of_unknown_crawl_returns_not_found() {
    let world = World::new().await;
    let id = uuid::Uuid::now_v7();
    for result in [world.crawls.pause(id).await, world.crawls.resume(id).await, world.crawls.cancel(id).await]
    {
        assert!(matches!(result, Err(CrawlError::Store(StoreError::NotFound { .. }))), "{result:?}");
    }
}

#[testing::test]
async fn reconcile_settles_rows_of_discarded_jobs() {
    // Leases expire immediately, so every worker loses its claim before it starts.
    let config = queue::Config { lease: Duration::from_millis(1), ..quick_retries() };
    let (world, site) = (World::with(config, fast_politeness()).await, Site::start().await);
    let crawl = world.create(&[site.url("/")], fast()).await;
    assert_eq!(world.crawls.reconcile().await.unwrap(), Reconciled::default(), "nothing needs repair yet");

    let is_discarded = async || {
        for job in world.queue.claim(&kinds(), 10, "killed").await.unwrap() {
            world.queue.begin_alone(job.claim).await.unwrap();
        }
        world.queue.rescue().await.unwrap();
        (world.live_jobs(crawl.id).await == 0).then_some(())
    };
    wait_for(is_discarded).await.expect("the queue discards the job");
    assert_eq!(world.store.crawls().get(crawl.id).await.unwrap().state, CrawlState::Running);

    assert_eq!(
        world.crawls.reconcile().await.unwrap(),
        Reconciled { rows: 1, crawls: 1, ..Reconciled::default() }
    );
    let ended = world.store.crawls().get(crawl.id).await.unwrap();
    assert_eq!(ended.state, CrawlState::Failed);
    assert_eq!(world.progress(crawl.id).await.reasons.get(&Reason::JobDiscarded), Some(&1));
    assert_eq!(world.crawls.reconcile().await.unwrap(), Reconciled::default());
}

#[testing::test]
async fn reconcile_ends_crawl_after_crash_at_last_row() {
    let (world, site) = World::with_site().await;
    let crawl = world.create(&[site.url("/")], fast()).await;
    let job = world.queue.claim(&kinds(), 1, "killed").await.unwrap().remove(0);
    let page: Uuid = serde_json::from_value(job.payload["page_id"].clone()).unwrap();
    let mut tx = world.store.begin().await.unwrap();
    world.queue.complete(tx.conn(), job.claim).await.unwrap();
    world.store.ledger().settle_page(tx.conn(), page, &PageResult::new(PageState::Fetched)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(world.store.crawls().get(crawl.id).await.unwrap().state, CrawlState::Running);

    let ended = Reconciled { crawls: 1, ..Reconciled::default() };
    assert_eq!(world.crawls.reconcile().await.unwrap(), ended);
    assert_eq!(world.store.crawls().get(crawl.id).await.unwrap().state, CrawlState::Completed);
}

#[testing::test]
async fn image_failing_every_attempt_keeps_discarded_job() {
    let (world, site) = (World::with(quick_retries(), fast_politeness()).await, Site::start().await);
    site.set("/", Response::html("<img src=cora.jpg><img src=flaky.jpg><img src=down.jpg>"));
    site.set("/cora.jpg", Response::jpeg(drawing("cora.jpg")));
    let flaky = Response::jpeg(drawing("cora_2.jpg"));
    site.set_series("/flaky.jpg", vec![Response::status(500), Response::status(502), flaky]);
    site.set("/down.jpg", Response::status(500));
    let (crawl, progress) = world.crawl(&[site.url("/")], fast()).await;
    assert_eq!(crawl.state, CrawlState::Completed);
    assert_eq!(counts(&progress.images), [("processed", 2), ("failed", 1)].into());
    assert_eq!(progress.reasons.get(&Reason::Http(500)), Some(&1));
    assert_eq!((site.count_requests("/flaky.jpg"), site.count_requests("/down.jpg")), (3, 5));
    let discarded =
        world.queue.jobs().list(Some(JobState::Discarded), None, Some(crawl.id), None, 10).await.unwrap();
    assert_eq!(discarded.len(), 1);
    assert!(discarded[0].last_error.as_deref().unwrap().starts_with("http_500"));
}

#[testing::test]
async fn crawl_waits_while_disk_is_full() {
    let mut world = World::new().await;
    let with_space = world.fill_disk().await;
    let site = Site::start().await;
    site.set("/", Response::html("<img src=a.jpg>"));
    site.set("/a.jpg", Response::jpeg(drawing("cora.jpg")));
    let crawl = world.create(&[site.url("/")], fast()).await;
    let worker = world.worker("one");
    world.until_postponed(JobKind::ScanPage).await;
    worker.stop().await;
    assert!(site.requests().is_empty(), "nothing is fetched while the disk is full");
    world.face_store = with_space;
    world.execute("update jobs set scheduled_at = now()").await;
    let worker = world.worker("two");
    assert_eq!(world.until_ended(crawl.id).await.state, CrawlState::Completed);
    worker.stop().await;
    assert_eq!(world.images().await.len(), 1);
}
