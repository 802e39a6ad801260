//! Handles `scan_image`: fetches an image. `images::ingest` analyses and stores it.
use super::context::{
    Area, Context, FetchPolicy, NOT_MODIFIED, accept_incomplete, accepts_incomplete, count_saved, validators,
    visit_of,
};
use crate::AnalyzeOptions;
use crate::crawls::job_error::JobError;
use crate::domain::jobs::{ImageJob, ShownOn};
use crate::domain::{Row, jobs};
use crate::images::ingest::{FetchedFrom, Incoming, Ingest};
use bytes::Bytes;
use crawler::fetch::Kind;
use crawler::{Directives, Referrer, Request};
use domain::Reason;
use queue::{Claim, ClaimedJob, Handler, RunEnd};
use std::sync::Arc;
use store::crawls::http_cache::ImageRequest;
use store::crawls::ledger::Ledger;
use store::retried;
use tokio_util::sync::CancellationToken;
use url::Url;

pub(crate) struct ScanImage {
    context: Arc<Context>,
    ingest: Ingest,
}

impl ScanImage {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        let ingest = Ingest::new(context.faces.clone());
        Self { context, ingest }
    }
}

#[async_trait::async_trait]
impl Handler for ScanImage {
    async fn run(&self, job: ClaimedJob, cancel: CancellationToken) -> RunEnd {
        let image: ImageJob = match jobs::parse(&job.payload) {
            Ok(image) => image,
            Err(error) => return RunEnd::Discard(error),
        };
        let row = Row::new(Ledger::ImageUrls, image.image_url_id);
        let incomplete = accepts_incomplete(job.attempt, job.max_attempts);
        let work = scan(&self.context, &self.ingest, &image, job.claim, incomplete);
        self.context.run_and_end(&job, image.crawl_id, row, cancel, work).await
    }
}

async fn scan(
    context: &Context,
    ingest: &Ingest,
    job: &ImageJob,
    claim: Claim,
    accepts_incomplete: bool,
) -> Result<(), JobError> {
    let view = context.running_crawl(job.crawl_id).await?;
    let (collection, model) = (view.crawl.collection_id, context.faces.model_id);
    let incoming = Incoming {
        bytes: Bytes::new(),
        incomplete: false,
        collection,
        crawl: job.crawl_id,
        image_url: job.image_url_id,
        dedupe: view.options.dedupe,
        options: AnalyzeOptions {
            quality_profile: view.quality_profile,
            rotate: view.options.rotate,
            ..context.faces.analyzer.config().storage_options()
        },
        moved_to: None,
        fetched: None,
    };
    let request = ImageRequest {
        collection,
        image_url: job.image_url_id,
        url: job.url.as_str(),
        model: view.options.revalidate.then_some(model),
        page: job.shown_on.filter(|_| context.fetcher.sends_referer()).map(|shown_on| shown_on.page_id),
    };
    let prepared = retried("image_fetch", || context.store.hosts().image_fetch(&request)).await?;
    if prepared.is_suppressed {
        let reason = Reason::SuppressedUrl;
        retried("settle_row", || ingest.settle_suppressed(&incoming, Some(claim), reason.clone())).await?;
        return Ok(());
    }
    let mut cached = prepared.cached;
    let referrer = prepared.page_url.and_then(|page| referrer(&page, job));
    loop {
        let policy = FetchPolicy::new(context, &view, Area::Anywhere);
        let validators = cached.as_ref().and_then(|cached| validators(&cached.response));
        let referrer = referrer.clone();
        let request = Request { validators, referrer, ..Request::new(job.url.clone(), Kind::Image) };
        let fetched = accept_incomplete(policy.fetch(request).await, accepts_incomplete);
        let fetched = fetched.map_err(|error| JobError::from_fetch(error, context.config.robots_retry))?;
        if view.options.respect_robots {
            let tags = fetched.robots_tags.iter().map(String::as_str);
            if let Some(reason) = Directives::parse(tags, context.fetcher.agent()).image_denial() {
                return Err(JobError::skipped(
                    reason,
                    "its X-Robots-Tag does not allow the image to be used",
                ));
            }
        }
        let mut incoming = Incoming {
            fetched: Some(FetchedFrom { url: job.url.to_string(), visit: visit_of(&fetched) }),
            bytes: fetched.body,
            incomplete: fetched.is_incomplete,
            moved_to: (fetched.url != job.url).then(|| fetched.url.to_string()),
            ..incoming.clone()
        };
        if fetched.status == NOT_MODIFIED
            && let Some(cached) = cached.take()
        {
            // The stored visit does not change.
            incoming.fetched = None;
            if ingest.settle_unchanged(&incoming, claim, cached.image_id).await?.is_some() {
                count_saved("image", cached.response.bytes);
                return Ok(());
            }
            // The image was deleted in the meantime, so fetch the complete file.
            continue;
        }
        let incomplete = incoming.incomplete;
        let ingested = ingest.ingest(incoming, Some(claim)).await;
        let ingested = ingested.map_err(|error| match JobError::from(error) {
            // More of the image may arrive at the next attempt.
            JobError::Final {
                reason: Reason::CorruptImage | Reason::NotAnImage | Reason::UnsupportedFormat,
                detail,
                ..
            } if incomplete => JobError::Retry { reason: Reason::IncompleteTransfer, detail, wait: None },
            error => error,
        })?;
        tracing::debug!(url = %job.url, ?ingested, "image done");
        return Ok(());
    }
}

/// Returns the `Referer` of the request for the image. Returns `None` if the page was erased, or if
/// the policy forbids it.
fn referrer(page: &str, job: &ImageJob) -> Option<Referrer> {
    let ShownOn { policy, .. } = job.shown_on?;
    Referrer::new(&Url::parse(page).ok()?, policy, &job.url)
}
