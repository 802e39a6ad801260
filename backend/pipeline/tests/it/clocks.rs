//! Tests with a database whose clock differs from the clock of the process by an hour, as on hosts
//! without time synchronisation.

use crate::support::{Answer, Site, World, fast, fast_politeness, wait_for};
use bytes::Bytes;
use pipeline::{CrawlOptions, Maintenance, crawls};
use std::time::{Duration, SystemTime};
use store::crawls::hosts::PermitOutcome;
use testing::{TestDatabase, picture};

/// The process is behind the database, and ahead of it.
const SHIFTS_S: [i64; 2] = [3600, -3600];

async fn world(shift_s: i64, politeness: crawls::Config) -> World {
    World::on(TestDatabase::with_clock_shifted(shift_s).await, queue::Config::default(), politeness).await
}

/// A pause that a process recorded in the past would be ignored, and one in the future would last
/// an hour longer.
#[testing::test]
async fn a_host_gets_the_pause_it_asked_for() {
    let pause = Duration::from_secs(600);
    for shift_s in SHIFTS_S {
        let world = world(shift_s, fast_politeness()).await;
        let site = Site::start().await;
        site.set("/", Answer::status(429).header("retry-after", &pause.as_secs().to_string()));
        world.create(&[site.url("/")], fast()).await;
        let worker = world.worker("one");
        let host = site.url("/").trim_end_matches('/').to_owned();
        let wait = wait_for(async || match world.store.acquire_host_permit(&host, 0).await.unwrap() {
            PermitOutcome::Wait { wait } => Some(wait),
            PermitOutcome::Granted { .. } => None,
        })
        .await
        .expect("the host is paused");
        assert!(wait <= pause && wait > pause / 2, "with the database ahead by {shift_s} s: {wait:?}");
        let due = wait_for(async || world.queue.next_due(&["scan_page".into()]).await.unwrap())
            .await
            .expect("the page is tried again");
        assert!(due <= pause && due > pause / 2, "with the database ahead by {shift_s} s: {due:?}");
        worker.stop().await;
        assert_eq!(site.asked("/"), 1);
    }
}

/// Requests are separated by the delay. A wrong clock makes it neither an hour nor zero.
#[testing::test]
async fn a_crawl_with_a_delay_keeps_it_and_ends() {
    for shift_s in SHIFTS_S {
        let world =
            world(shift_s, crawls::Config { robots_retry: Duration::ZERO, ..Default::default() }).await;
        let site = Site::start().await;
        site.set("/", Answer::html("<img src=a.jpg><img src=b.jpg><img src=c.jpg>"));
        for name in ["/a.jpg", "/b.jpg", "/c.jpg"] {
            site.set(name, Answer::jpeg(picture("cora.jpg")));
        }
        let options = CrawlOptions { delay_ms: Some(100), ..CrawlOptions::default() };
        let (crawl, progress) = world.crawl(&[site.url("/")], options).await;
        assert_eq!(crawl.state, domain::CrawlState::Completed);
        assert_eq!(progress.images.values().sum::<i64>(), 3);
        assert_eq!(site.requests().len(), 5, "robots.txt, the page and three images, once each");
    }
}

/// The time of a blob comes from the clock of the blob store, which may be that of the database. A
/// process whose clock is ahead must not regard a blob as old while it is being stored.
#[testing::test]
async fn a_sweep_keeps_what_is_new_by_any_clock() {
    let grace = Duration::from_secs(1800);
    for shift_s in SHIFTS_S {
        let world = world(shift_s, fast_politeness()).await;
        let key = world.blobs.put("crops", "jpg", Bytes::from_static(b"new")).await.unwrap();
        let file = std::fs::File::options().write(true).open(world.folder().join(&key)).unwrap();
        let shift = Duration::from_secs(shift_s.unsigned_abs());
        let now = SystemTime::now();
        file.set_modified(if shift_s < 0 { now - shift } else { now }).unwrap();
        let swept = Maintenance::new(world.store.clone(), world.blobs.clone())
            .sweep(grace, false, false)
            .await
            .unwrap();
        assert_eq!((swept.blobs, swept.removed), (1, 0), "with the database ahead by {shift_s} s");
        assert!(world.blobs.exists(&key).await.unwrap());
    }
}
