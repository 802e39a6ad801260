//! Crawls URLs with a worker in this process.
use super::ScanArgs;
use crate::cli::UsageError;
use crate::config::Settings;
use crate::progress;
use crate::service::{Foundation, start_runner};
use domain::{ImageState, PageState};
use pipeline::CrawlError;
use std::time::{Duration, Instant};
use store::crawls::Crawl;
use tokio_util::sync::CancellationToken;

const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(super) async fn run(
    settings: &Settings,
    foundation: &Foundation,
    args: &ScanArgs,
    urls: &[String],
    signal: &CancellationToken,
) -> anyhow::Result<Crawl> {
    let crawl = match foundation.crawls.create(&args.collection, urls, args.crawl_options()).await {
        Ok(crawl) => crawl,
        Err(error @ CrawlError::Invalid { .. }) => return Err(UsageError(error.to_string()).into()),
        Err(error) => return Err(error.into()),
    };
    let stop = CancellationToken::new();
    let runner = start_runner(foundation, settings, stop.clone());
    let followed = follow(foundation, crawl, signal).await;
    stop.cancel();
    runner.stopped().await;
    followed
}

/// Shows progress until the crawl ends. A signal cancels the crawl.
async fn follow(
    foundation: &Foundation,
    mut crawl: Crawl,
    signal: &CancellationToken,
) -> anyhow::Result<Crawl> {
    let bar = progress::crawl();
    let started = Instant::now();
    while crawl.state.is_live() {
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            () = signal.cancelled() => {
                crawl = match foundation.crawls.cancel(crawl.id).await {
                    // The crawl ended at the same time.
                    Err(CrawlError::Store(store::StoreError::Conflict(_))) => foundation.store().crawl(crawl.id).await?,
                    cancelled => cancelled?,
                };
                break;
            }
        }
        let progress = foundation.store().crawl_progress(crawl.id).await?;
        let page = |state| progress.pages.get(&state).copied().unwrap_or_default();
        let image = |state| progress.images.get(&state).copied().unwrap_or_default();
        let settled = progress.images.values().sum::<i64>() - image(ImageState::Queued);
        let videos = progress.videos.iter().filter(|(state, _)| state.is_live()).map(|(_, n)| n).sum::<i64>();
        let rate = settled as f64 / started.elapsed().as_secs_f64().max(1e-3);
        bar.set_position(settled.unsigned_abs());
        bar.set_message(format!(
            "{rate:.1} images/s, {} faces, {} failed; {} pages, {} waiting",
            progress.faces,
            image(ImageState::Failed),
            page(PageState::Fetched),
            page(PageState::Queued) + image(ImageState::Queued) + videos,
        ));
        crawl = foundation.store().crawl(crawl.id).await?;
    }
    bar.finish_and_clear();
    Ok(crawl)
}
