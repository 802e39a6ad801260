//! Counts the images that a crawl's directories and hosts yield, and derives the priorities of
//! pages from them ([`crawler::frontier`] contains the formula).

use crate::domain::jobs::PageJob;
use crawler::frontier::{self, Yield};
use crawler::urls;
use queue::NewJob;
use store::crawls::Crawl;
use store::crawls::ledger::DirectoryYield;
use store::{Store, StoreError, Tx};
use url::Url;
use uuid::Uuid;

/// Counts a page that was read, and the `images` on it that were new to the crawl.
pub(crate) async fn count(
    store: &Store,
    tx: &mut Tx,
    crawl: Uuid,
    page: &Url,
    images: i64,
) -> Result<(), StoreError> {
    let names = [urls::directory(page), urls::host_key(page)];
    store.count_yield(tx.conn(), crawl, &names.each_ref().map(String::as_str), images).await
}

/// Returns the jobs of new pages, with the priorities derived from the current yields.
pub(crate) async fn jobs(
    store: &Store,
    tx: &mut Tx,
    crawl: &Crawl,
    pages: Vec<PageJob>,
) -> Result<Vec<NewJob>, StoreError> {
    let names: Vec<String> =
        pages.iter().flat_map(|page| [urls::directory(&page.url), urls::host_key(&page.url)]).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let yields = store.yields(tx.conn(), crawl.id, &names).await?;
    let jobs = pages.iter().zip(yields.chunks_exact(2)).map(|(page, yields)| {
        let priority = frontier::priority(page.depth, counted(yields[0]), counted(yields[1]));
        page.job(crawl.collection_id, priority)
    });
    Ok(jobs.collect())
}

fn counted(yields: DirectoryYield) -> Yield {
    let count = |n: i64| n.max(0).unsigned_abs();
    Yield { pages: count(yields.pages), images: count(yields.images) }
}
