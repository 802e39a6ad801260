//! Tests that results of a worker that lost its claim are ignored.

use crate::support::{Answer, Site, World, counts, fast, fast_politeness, wait_for};
use domain::{CrawlState, JobKind};
use pipeline::CrawlOptions;
use queue::{ClaimedJob, Outcome};
use std::time::Duration;
use testing::picture;
use tokio_util::sync::CancellationToken;

/// Claims the only job of the kind, waits until the lease expires, and claims the job again.
/// Returns the job of the old holder and that of the new holder.
async fn two_holders(world: &World, kind: JobKind) -> (ClaimedJob, ClaimedJob) {
    let kinds = [kind.into()];
    let old = world.queue.claim(&kinds, 1, "old").await.unwrap().remove(0);
    let again = async || {
        world.queue.rescue().await.unwrap();
        world.queue.claim(&kinds, 1, "new").await.unwrap().pop()
    };
    let new = wait_for(again).await.expect("the job is claimable again");
    assert_eq!(old.claim.id, new.claim.id);
    (old, new)
}

fn short_leases() -> queue::Config {
    queue::Config { lease: Duration::from_millis(50), ..queue::Config::default() }
}

#[testing::test]
async fn an_image_is_stored_by_the_holder_of_the_claim_only() {
    let world = World::with(short_leases(), fast_politeness()).await;
    let site = Site::start().await;
    site.set("/cora.jpg", Answer::jpeg(picture("cora.jpg")));
    let crawl = world.create(&[site.url("/cora.jpg")], fast()).await;
    let (old, new) = two_holders(&world, JobKind::ScanImage).await;
    let handlers = world.handlers();
    let handler = &handlers[JobKind::ScanImage.as_str()];

    let outcome = handler.run(old, CancellationToken::new()).await;
    assert!(matches!(outcome, Outcome::Stale), "{outcome:?}");
    assert!(world.images().await.is_empty());
    assert_eq!(counts(&world.progress(crawl.id).await.images), [("queued", 1)].into());

    let outcome = handler.run(new.clone(), CancellationToken::new()).await;
    assert!(matches!(outcome, Outcome::Settled), "{outcome:?}");
    assert_eq!(world.images().await.len(), 1);
    assert_eq!(world.store.crawl(crawl.id).await.unwrap().state, CrawlState::Completed);

    // A second completion has no effect.
    let outcome = handler.run(new, CancellationToken::new()).await;
    assert!(!matches!(outcome, Outcome::Settled), "{outcome:?}");
    assert_eq!(world.images().await.len(), 1);
}

#[testing::test]
async fn a_page_is_read_by_the_holder_of_the_claim_only() {
    let world = World::with(short_leases(), fast_politeness()).await;
    let site = Site::start().await;
    site.set("/", Answer::html("<img src=cora.jpg><a href=more.html>x</a>"));
    let crawl = world.create(&[site.url("/")], CrawlOptions { max_depth: 1, ..fast() }).await;
    let (old, new) = two_holders(&world, JobKind::ScanPage).await;
    let handlers = world.handlers();
    let handler = &handlers[JobKind::ScanPage.as_str()];

    let outcome = handler.run(old, CancellationToken::new()).await;
    assert!(matches!(outcome, Outcome::Stale), "{outcome:?}");
    let progress = world.progress(crawl.id).await;
    assert_eq!((counts(&progress.pages), counts(&progress.images)), ([("queued", 1)].into(), [].into()));
    assert_eq!(world.live(crawl.id).await, 1, "the old holder enqueued no job");

    let outcome = handler.run(new, CancellationToken::new()).await;
    assert!(matches!(outcome, Outcome::Settled), "{outcome:?}");
    let progress = world.progress(crawl.id).await;
    assert_eq!(counts(&progress.pages), [("fetched", 1), ("queued", 1)].into());
    assert_eq!(counts(&progress.images), [("queued", 1)].into());
    assert_eq!(world.live(crawl.id).await, 2);
}

#[testing::test]
async fn the_next_run_is_begun_by_the_holder_of_the_claim_only() {
    let world = World::with(short_leases(), fast_politeness()).await;
    let site = Site::start().await;
    let options = CrawlOptions { every: Some("24h".parse().unwrap()), ..fast() };
    let crawl = world.create(&[site.url("/missing.jpg")], options).await;
    let failed = world.queue.claim(&[JobKind::ScanImage.into()], 1, "one").await.unwrap().remove(0);
    let handlers = world.handlers();
    handlers[JobKind::ScanImage.as_str()].run(failed, CancellationToken::new()).await;
    assert_eq!(world.store.crawl(crawl.id).await.unwrap().state, CrawlState::Failed);

    world.execute("update jobs set scheduled_at = now()").await;
    let (old, new) = two_holders(&world, JobKind::StartCrawl).await;
    let handler = &handlers[JobKind::StartCrawl.as_str()];
    let outcome = handler.run(old, CancellationToken::new()).await;
    assert!(matches!(outcome, Outcome::Stale), "{outcome:?}");
    assert_eq!(world.store.crawls(&Default::default(), None, 10).await.unwrap().len(), 1);
    let outcome = handler.run(new, CancellationToken::new()).await;
    assert!(matches!(outcome, Outcome::Settled), "{outcome:?}");
    let runs = world.store.crawls(&Default::default(), None, 10).await.unwrap();
    assert_eq!((runs.len(), runs[0].series_id), (2, Some(crawl.id)));
    assert_eq!(world.live(runs[0].id).await, 1);
}

#[testing::test]
async fn a_failure_told_by_an_old_holder_settles_nothing() {
    let world = World::with(short_leases(), fast_politeness()).await;
    let site = Site::start().await;
    let crawl = world.create(&[site.url("/missing.jpg")], fast()).await;
    let (old, _new) = two_holders(&world, JobKind::ScanImage).await;
    let outcome = world.handlers()[JobKind::ScanImage.as_str()].run(old, CancellationToken::new()).await;
    assert!(matches!(outcome, Outcome::Stale), "{outcome:?}");
    assert_eq!(counts(&world.progress(crawl.id).await.images), [("queued", 1)].into());
}

#[testing::test]
async fn a_worker_that_is_told_to_stop_gives_its_job_back() {
    let world = World::new().await;
    let site = Site::start().await;
    let never = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    site.set("/cora.jpg", Answer::jpeg(picture("cora.jpg")).gated(&never));
    let crawl = world.create(&[site.url("/cora.jpg")], fast()).await;
    let job = world.queue.claim(&[JobKind::ScanImage.into()], 1, "one").await.unwrap().remove(0);
    let cancel = CancellationToken::new();
    let handlers = world.handlers();
    let running = handlers[JobKind::ScanImage.as_str()].run(job, cancel.clone());
    let stop = async {
        wait_for(async || (site.asked("/cora.jpg") == 1).then_some(())).await.unwrap();
        cancel.cancel();
    };
    let (outcome, ()) = tokio::join!(running, stop);
    assert!(matches!(outcome, Outcome::Snooze(_)), "{outcome:?}");
    assert_eq!(counts(&world.progress(crawl.id).await.images), [("queued", 1)].into());
}
