//! Measures the time to pause, resume and cancel a large crawl, to count its rows, and to close the
//! rows that remain after a cancellation.
//!
//! The page ledger has one million queued rows on one host. Each row has a job; 256 of the jobs are
//! claimable, the others are parked. SQL statements insert the rows and the jobs, because the
//! product itself would insert them page by page, which takes minutes.
use pipeline::{CrawlOptions, Crawls};
use queue::Queue;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use testing::TestDatabase;

pub(crate) async fn measure() -> anyhow::Result<Value> {
    let database = TestDatabase::create().await;
    let store = database.store();
    let crawls = Crawls::new(store.clone(), Queue::new(store.pool().clone(), queue::Config::default()));
    let options = CrawlOptions { max_pages: 1_000_000, ..CrawlOptions::default() };
    let crawl = crawls.create("default", &["http://127.0.0.1:9/".into()], options).await?.id;
    for statement in [PAGES, JOBS, "analyze pages", "analyze jobs"] {
        database.execute(statement).await;
    }
    let started = Instant::now();
    let elapsed_ms = || started.elapsed().as_secs_f64() * 1e3;
    crawls.pause(crawl).await?;
    let paused_at = elapsed_ms();
    crawls.resume(crawl).await?;
    let resumed_at = elapsed_ms();
    store.crawls().progress(crawl).await?;
    let counted_at = elapsed_ms();
    crawls.cancel(crawl).await?;
    let cancelled_at = elapsed_ms();
    let counts_at_once = store.crawls().progress(crawl).await?.pages;
    while !store.crawls().closing().await?.is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let closed_at = elapsed_ms();
    let final_counts = store.crawls().progress(crawl).await?.pages;
    Ok(json!({
        "pause": paused_at, "resume": resumed_at - paused_at, "counts": counted_at - resumed_at,
        "cancel": cancelled_at - counted_at, "closed": closed_at - counted_at,
        "counts_at_once": counts_at_once, "counts_at_the_end": final_counts,
    }))
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
