//! Starts the runs of a crawl: the first one, and the next runs of recurring crawls. The module
//! `completion` ends runs.

use super::{CrawlError, CrawlOptions, Crawls, seeds};
use crate::domain::jobs::{ImageJob, PageJob};
use crawler::frontier::depth_priority;
use queue::{Claim, NewJob};
use store::crawls::Crawl;
use store::pages::{NewImageUrl, NewPage};
use store::{StoreError, Tx};
use url::Url;
use uuid::Uuid;

impl Crawls {
    /// Adds a crawl's seeds to its ledgers and enqueues their jobs.
    pub(super) async fn enqueue_seeds(
        &self,
        tx: &mut Tx,
        crawl: &Crawl,
        options: &CrawlOptions,
    ) -> Result<(), CrawlError> {
        let is_image = |seed: &&String| Url::parse(seed).is_ok_and(|url| seeds::is_image_file(&url));
        let (images, pages): (Vec<&String>, Vec<&String>) = crawl.seeds.iter().partition(is_image);
        let pages: Vec<NewPage> =
            pages.into_iter().map(|url| NewPage { url: url.clone(), depth: 0 }).collect();
        let images: Vec<NewImageUrl> = images
            .into_iter()
            .map(|url| NewImageUrl { url: url.clone(), page_url: None, asked_url: None, alt: None })
            .collect();
        let pages = self.store().admit_pages(tx.conn(), crawl.id, options.max_pages, &pages).await?;
        let images = self.store().admit_images(tx.conn(), crawl.id, options.max_images, &images).await?;
        let jobs: Vec<NewJob> = (pages
            .into_iter()
            .map(|row| PageJob::new(crawl.id, row, None).job(crawl.collection_id, depth_priority(0))))
        .chain(images.into_iter().map(|row| ImageJob::new(crawl.id, row, 0).job(crawl.collection_id)))
        .collect();
        self.queue().enqueue(tx.conn(), &jobs).await?;
        Ok(())
    }

    /// Starts the run that was scheduled after `previous`, and completes the job of the schedule.
    /// Returns `None` if the schedule was cancelled or the crawl was deleted.
    ///
    /// Two processes with the same job start only one run, because the claim of one of them is
    /// stale.
    pub(crate) async fn start_next(&self, previous: Uuid, claim: Claim) -> Result<Option<Crawl>, CrawlError> {
        let mut tx = self.store().begin().await?;
        self.queue().complete(tx.conn(), claim).await?;
        let mut next = None;
        if self.store().claim_next_run(tx.conn(), previous).await? {
            let previous = self.store().crawl(previous).await?;
            let options: CrawlOptions = serde_json::from_value(previous.options.clone())
                .map_err(|error| StoreError::Invalid(format!("the options cannot be parsed: {error}")))?;
            let crawl = self.store().insert_next_run(tx.conn(), &previous).await?;
            self.enqueue_seeds(&mut tx, &crawl, &options).await?;
            next = Some(crawl);
        }
        tx.commit().await?;
        if next.is_some() {
            metrics::counter!("facecrawl_crawls_total", "event" => "created").increment(1);
        }
        Ok(next)
    }
}
