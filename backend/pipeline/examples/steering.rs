//! Measures how soon a large crawl is paused, resumed and cancelled, what its counts cost, and how long the rest of its rows is closed for.
//!
//!     TEST_DATABASE_URL=postgres://… cargo run --release -p facecrawl-pipeline --example steering -- 1000000 1
//!
//! The arguments are the rows of the page ledger, each with its job, and the hosts that they are on. It works in a database of its own and
//! prints one JSON document; times are in milliseconds.
#![allow(missing_docs)]

use pipeline::{CrawlOptions, Crawls};
use queue::{NewJob, Queue};
use serde_json::json;
use std::time::{Duration, Instant};
use store::pages::NewPage;
use testing::TestDatabase;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument =
        |n: usize, default: usize| std::env::args().nth(n).map_or(Ok(default), |text| text.parse());
    let (rows, hosts) = (argument(1, 1_000_000)?, argument(2, 1)?.max(1));
    let database = TestDatabase::create().await;
    let store = database.store();
    let queue = Queue::new(store.pool().clone(), queue::Config::default());
    let crawls = Crawls::new(store.clone(), queue.clone());
    let options = CrawlOptions { max_pages: 1_000_000, ..CrawlOptions::default() };
    let crawl = crawls.create("default", &["http://127.0.0.1:9/".into()], options).await?.id;
    for from in (0..rows).step_by(10_000) {
        let pages: Vec<NewPage> = (from..rows.min(from + 10_000))
            .map(|n| NewPage { url: format!("http://{}.test/{n}", n % hosts), depth: 1 })
            .collect();
        let mut tx = store.begin().await?;
        let admitted = store.admit_pages(tx.conn(), crawl, i64::MAX, &pages).await?;
        let job = |row: &store::pages::Admitted| NewJob {
            group_id: Some(crawl),
            lane: row.url.split('/').nth(2).map(Into::into),
            unique_key: Some(row.id.to_string()),
            ..NewJob::new(
                pipeline::jobs::SCAN_PAGE,
                json!({"page_id": row.id, "crawl_id": crawl, "url": row.url, "depth": 1}),
            )
        };
        let jobs: Vec<NewJob> = admitted.iter().map(job).collect();
        queue.enqueue(tx.conn(), &jobs).await?;
        tx.commit().await?;
    }
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
