//! Pause, resume, cancel, and jobs that the queue gave up on.

use crate::support::{Answer, Site, World, counts, fast, impatient, photograph, wait_for};
use pipeline::{CrawlError, CrawlOptions, crawl::Reconciled, jobs};
use queue::{JobState, Outcome};
use std::sync::Arc;
use std::time::Duration;
use store::StoreError;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// A site whose images wait for the gate.
async fn gated_site(gate: &Arc<Semaphore>) -> Site {
    let site = Site::start().await;
    let mut index = String::new();
    for i in 0..8 {
        index.push_str(&format!("<img src=i{i}.jpg>"));
        site.set(&format!("/i{i}.jpg"), Answer::jpeg(photograph("Rob_Lowe_0001.jpg")).gated(gate));
    }
    site.set("/", Answer::html(&index));
    site
}

async fn images_asked(site: &Site, at_least: usize) {
    let asked = async || {
        let asked = site.requests().iter().filter(|path| path.ends_with(".jpg")).count();
        (asked >= at_least).then_some(())
    };
    wait_for(asked).await.expect("the images are asked for");
}

fn kinds() -> Vec<String> {
    vec![jobs::SCAN_PAGE.into(), jobs::SCAN_IMAGE.into()]
}

#[tokio::test]
async fn a_paused_crawl_starts_nothing_until_it_is_resumed() {
    let Some(world) = World::new().await else { return };
    let gate = Arc::new(Semaphore::new(0));
    let site = gated_site(&gate).await;
    let crawl = world.create(&[site.url("/")], CrawlOptions { max_depth: 0, ..fast() }).await;
    let worker = world.worker("one");
    // Four at a time: as many as the worker takes.
    images_asked(&site, 4).await;
    assert_eq!(world.crawls.pause(crawl.id).await.unwrap().state, "paused");
    gate.add_permits(100);
    // What was being fetched ends; the rest stays, and nobody is given it.
    let rest =
        async || (counts(&world.progress(crawl.id).await.images).get("queued") == Some(&4)).then_some(());
    wait_for(rest).await.expect("the images in flight end");
    assert!(world.queue.claim(&kinds(), 100, "probe").await.unwrap().is_empty());
    assert_eq!(world.store.crawl(crawl.id).await.unwrap().state, "paused");

    let Err(CrawlError::Store(StoreError::Conflict(reason))) = world.crawls.pause(crawl.id).await else {
        panic!("a paused crawl was paused");
    };
    assert!(reason.contains("paused"), "{reason}");

    assert_eq!(world.crawls.resume(crawl.id).await.unwrap().state, "running");
    let crawl = world.ended(crawl.id).await;
    worker.stop().await;
    assert_eq!(crawl.state, "completed");
    let progress = world.progress(crawl.id).await;
    assert_eq!(progress.images["processed"] + progress.images["duplicate"], 8);
}

#[tokio::test]
async fn a_cancelled_crawl_lets_go_of_what_it_is_fetching() {
    let Some(world) = World::new().await else { return };
    let site = Site::start().await;
    let never = Arc::new(Semaphore::new(0));
    site.set("/rob.jpg", Answer::jpeg(photograph("Rob_Lowe_0001.jpg")).gated(&never));
    let crawl = world.create(&[site.url("/rob.jpg")], fast()).await;
    let job = world.queue.claim(&[jobs::SCAN_IMAGE.into()], 1, "one").await.unwrap().remove(0);
    let handlers = world.handlers();
    let running = handlers[jobs::SCAN_IMAGE].run(job, CancellationToken::new());
    let cancel = async {
        images_asked(&site, 1).await;
        world.crawls.cancel(crawl.id).await.unwrap();
    };
    // Nobody opens the gate, and the worker does not wait for it.
    let (outcome, ()) = tokio::join!(running, cancel);
    assert!(matches!(outcome, Outcome::Stale), "{outcome:?}");
}

#[tokio::test]
async fn a_crawl_that_drains_while_paused_completes() {
    let Some(world) = World::new().await else { return };
    let gate = Arc::new(Semaphore::new(0));
    let site = Site::start().await;
    site.set("/rob.jpg", Answer::jpeg(photograph("Rob_Lowe_0001.jpg")).gated(&gate));
    let crawl = world.create(&[site.url("/rob.jpg")], fast()).await;
    let worker = world.worker("one");
    images_asked(&site, 1).await;
    world.crawls.pause(crawl.id).await.unwrap();
    gate.add_permits(1);
    assert_eq!(world.ended(crawl.id).await.state, "completed");
    worker.stop().await;
}

#[tokio::test]
async fn a_cancelled_crawl_stores_nothing_more_and_accounts_for_the_rest() {
    let Some(world) = World::new().await else { return };
    let gate = Arc::new(Semaphore::new(0));
    let site = gated_site(&gate).await;
    let crawl = world.create(&[site.url("/")], CrawlOptions { max_depth: 0, ..fast() }).await;
    let worker = world.worker("one");
    images_asked(&site, 4).await;
    assert_eq!(world.crawls.cancel(crawl.id).await.unwrap().state, "cancelled");
    gate.add_permits(100);
    // The worker ends what it holds: whatever it says now does not count.
    worker.stop().await;
    assert_eq!(world.live(crawl.id).await, 0);
    let progress = world.progress(crawl.id).await;
    assert_eq!(counts(&progress.images), [("skipped", 8)].into());
    assert_eq!(progress.reasons.get("cancelled"), Some(&8));
    assert!(world.images().await.is_empty());
    assert_eq!(world.store.crawl(crawl.id).await.unwrap().state, "cancelled");

    for refused in [world.crawls.cancel(crawl.id).await, world.crawls.resume(crawl.id).await] {
        assert!(matches!(refused, Err(CrawlError::Store(StoreError::Conflict(_)))), "{refused:?}");
    }
}

#[tokio::test]
async fn steering_a_crawl_that_is_not_there_says_so() {
    let Some(world) = World::new().await else { return };
    let id = uuid::Uuid::now_v7();
    for answer in [world.crawls.pause(id).await, world.crawls.resume(id).await, world.crawls.cancel(id).await]
    {
        assert!(matches!(answer, Err(CrawlError::Store(StoreError::NotFound { .. }))), "{answer:?}");
    }
}

#[tokio::test]
async fn rows_of_discarded_jobs_are_settled_and_their_crawl_ends() {
    // Leases that are over at once: the worker is dead before it begins.
    let times = queue::Config { lease: Duration::from_millis(1), ..queue::Config::default() };
    let Some(world) = World::with(times, impatient()).await else { return };
    let site = Site::start().await;
    let crawl = world.create(&[site.url("/")], fast()).await;
    assert_eq!(world.crawls.reconcile().await.unwrap(), Reconciled::default(), "all is well so far");

    let given_up = async || {
        world.queue.claim(&kinds(), 10, "dies").await.unwrap();
        world.queue.rescue().await.unwrap();
        (world.live(crawl.id).await == 0).then_some(())
    };
    wait_for(given_up).await.expect("the queue gives the job up");
    assert_eq!(world.store.crawl(crawl.id).await.unwrap().state, "running");

    assert_eq!(world.crawls.reconcile().await.unwrap(), Reconciled { rows: 1, crawls: 1 });
    let ended = world.store.crawl(crawl.id).await.unwrap();
    assert_eq!(ended.state, "failed");
    assert_eq!(world.progress(crawl.id).await.reasons.get("job_discarded"), Some(&1));
    assert_eq!(world.crawls.reconcile().await.unwrap(), Reconciled::default());
}

#[tokio::test]
async fn a_page_that_fails_at_every_attempt_is_accounted_for_with_its_job_kept() {
    let times = queue::Config {
        retry_base: Duration::from_millis(1),
        retry_max: Duration::from_millis(5),
        ..queue::Config::default()
    };
    let Some(world) = World::with(times, impatient()).await else { return };
    let site = Site::start().await;
    site.set("/", Answer::html("<img src=rob.jpg><img src=flaky.jpg><img src=down.jpg>"));
    site.set("/rob.jpg", Answer::jpeg(photograph("Rob_Lowe_0001.jpg")));
    let flaky = Answer::jpeg(photograph("Rob_Lowe_0002.jpg"));
    site.set_series("/flaky.jpg", vec![Answer::status(500), Answer::status(502), flaky]);
    site.set("/down.jpg", Answer::status(500));
    let (crawl, progress) = world.crawl(&[site.url("/")], fast()).await;
    assert_eq!(crawl.state, "completed");
    assert_eq!(counts(&progress.images), [("processed", 2), ("failed", 1)].into());
    assert_eq!(progress.reasons.get("http_500"), Some(&1));
    assert_eq!((site.asked("/flaky.jpg"), site.asked("/down.jpg")), (3, 5));
    let discarded =
        world.queue.list(Some(JobState::Discarded), None, Some(crawl.id), None, 10).await.unwrap();
    assert_eq!(discarded.len(), 1);
    assert!(discarded[0].last_error.as_deref().unwrap().starts_with("http_500"));
}
