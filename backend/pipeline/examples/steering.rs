//! Measures the time to pause, resume and cancel a large crawl, to count its rows, and to close the
//! rows that remain after a cancellation.
//!
//!     TEST_DATABASE_URL=postgres://… \
//!       cargo run --release -p facecrawl-pipeline --example steering
//!
//! The page ledger has one million queued rows on one host. Each row has a job; 256 of the jobs are
//! claimable, the others are parked. Two SQL statements insert the rows and the jobs, because the
//! product itself would insert them page by page, which takes minutes. The example creates its own
//! database and prints one JSON document; times are in milliseconds.
#![allow(missing_docs)]

use pipeline::{CrawlOptions, Crawls};
use queue::Queue;
use serde_json::json;
use std::time::{Duration, Instant};
use testing::TestDatabase;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let database = TestDatabase::create().await;
    let store = database.store();
    let queue = Queue::new(store.pool().clone(), queue::Config::default());
    let crawls = Crawls::new(store.clone(), queue.clone());
    let options = CrawlOptions { max_pages: 1_000_000, ..CrawlOptions::default() };
    let crawl = crawls.create("default", &["http://127.0.0.1:9/".into()], options).await?.id;
    database.execute(PAGES).await;
    database.execute(JOBS).await;
    database.execute("analyze pages").await;
    database.execute("analyze jobs").await;
    let mut report = serde_json::Map::new();
    let mut note = |what: &str, started: Instant| {
        report.insert(what.into(), json!(started.elapsed().as_secs_f64() * 1e3));
    };
    let started = Instant::now();
    crawls.pause(crawl).await?;
    note("pause", started);
    let started = Instant::now();
    crawls.resume(crawl).await?;
    note("resume", started);
    let started = Instant::now();
    store.crawl_progress(crawl).await?;
    note("counts", started);
    let started = Instant::now();
    crawls.cancel(crawl).await?;
    note("cancel", started);
    let progress = store.crawl_progress(crawl).await?;
    note("cancel_and_counts", started);
    while !store.closing_crawls().await?.is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    note("closed", started);
    report.insert("counts_at_once".into(), json!(progress.pages));
    report.insert("counts_at_the_end".into(), json!(store.crawl_progress(crawl).await?.pages));
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}

const PAGES: &str = "
insert into pages (id, crawl_id, url, url_hash, depth)
select gen_random_uuid(), c.id, 'http://host.test/' || n, gen_random_uuid(), 1 from crawls c, generate_series(1, 999999) n";

const JOBS: &str = "
insert into jobs (id, group_id, scheduled_at, created_at, priority, max_attempts, kind, unique_key, payload, partition_key, parked, held)
select gen_random_uuid(), p.crawl_id, now(), now(), 5, 5, 'scan_page', p.id::text,
       jsonb_build_object('page_id', p.id, 'crawl_id', p.crawl_id, 'url', p.url, 'depth', 1), 'host.test',
       row_number() over () > 256, row_number() over () > 256
from pages p where p.depth = 1";
