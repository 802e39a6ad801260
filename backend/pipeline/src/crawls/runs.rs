//! Starts the runs of a crawl: the first one, and the next runs of recurring crawls. The module
//! `completion` ends runs.

use super::seeds::SeedKind;
use super::{CrawlError, CrawlOptions, Crawls};
use crate::domain::VideoRequest;
use crate::domain::jobs::{ImageJob, PageJob, VideoJob};
use crawler::frontier::depth_priority;
use crawler::urls;
use queue::{Claim, NewJob};
use store::crawls::Crawl;
use store::crawls::pages::{NewImageUrl, NewPage};
use store::videos::crawled::NewVideoUrl;
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
        let (mut pages, mut images, mut videos) = (Vec::new(), Vec::new(), Vec::new());
        for seed in &crawl.seeds {
            let (url, parsed) = (seed.clone(), Url::parse(seed));
            match parsed.as_ref().map_or(SeedKind::Page, |url| SeedKind::of(url, options)) {
                SeedKind::Page => pages.push(NewPage { url, depth: 0 }),
                SeedKind::Image => {
                    images.push(NewImageUrl { url, page_url: None, asked_url: None, alt: None });
                }
                SeedKind::Video => videos.extend(parsed.ok().map(|parsed| NewVideoUrl {
                    url,
                    host: urls::host_key(&parsed),
                    page_url: None,
                    asked_url: None,
                })),
            }
        }
        let pages = self.store().admit_pages(tx.conn(), crawl.id, options.max_pages, &pages).await?;
        let images = self.store().admit_images(tx.conn(), crawl.id, options.max_images, &images).await?;
        let request = serde_json::to_value(VideoRequest::of_crawl(options)).expect("options are plain data");
        let limits = options.video_limits();
        let videos = self.store().admit_videos(tx.conn(), crawl.id, limits, &request, &videos).await?;
        let jobs: Vec<NewJob> = (pages
            .into_iter()
            .map(|row| PageJob::new(crawl.id, row, None).job(crawl.collection_id, depth_priority(0))))
        .chain(images.into_iter().map(|row| ImageJob::new(crawl.id, row, 0).job(crawl.collection_id)))
        .chain(videos.into_iter().map(|video_id| VideoJob { video_id }.fetch(crawl.collection_id)))
        .collect();
        self.queue().enqueue(tx.conn(), &jobs).await?;
        Ok(())
    }

    /// Starts the run that was scheduled after `previous`, and completes the job of the schedule.
    /// Returns `None` if the schedule was cancelled or the crawl was deleted. Two processes with
    /// the same job start only one run, because the claim of one of them is stale.
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
