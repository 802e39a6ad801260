//! The handlers of every [`JobKind`]. The crate `queue` claims the jobs and calls the handlers.

use crate::crawls::context::Context;
use crate::{Crawls, FaceStore};
use crawler::Fetcher;
use domain::JobKind;
use queue::{Handler, Queue};
use std::collections::HashMap;
use std::sync::Arc;
use store::Store;

pub use crate::domain::TIME_SLICE;
pub use crate::streams::job::StreamTools;
use crate::streams::job::WatchStream;
pub use crate::videos::job::VideoTools;
use crate::videos::job::{Step, VideoHandler};
pub use crate::webhooks::DELIVERY_PLACES;

/// Returns the handlers of a worker by the kind of job. Without `videos`, it claims no videos, and
/// without `streams`, no cameras.
pub fn handlers(
    store: Store,
    queue: Queue,
    crawls: Crawls,
    faces: FaceStore,
    fetcher: Fetcher,
    videos: Option<VideoTools>,
    streams: Option<StreamTools>,
) -> HashMap<String, Arc<dyn Handler>> {
    let webhook = Arc::new(crate::crawls::webhook::DeliverWebhook::new(
        store.clone(),
        crawls.config(),
        fetcher.clone(),
    ));
    let erase = Arc::new(crate::collections::EraseCollection::new(
        store.clone(),
        queue.clone(),
        crawls.clone(),
        faces.blobs.clone(),
    ));
    let clustering = cluster_handler(store.clone(), queue.clone());
    let watch_stream = streams.map(|tools| WatchStream::new(faces.clone(), tools));
    let watch_stream = watch_stream.map(|handler| Arc::new(handler) as Arc<dyn Handler>);
    let context = Arc::new(Context::new(store, queue, &crawls, faces, fetcher));
    let videos = |step| {
        let tools = videos.clone()?;
        Some(Arc::new(VideoHandler::new(context.clone(), tools, step)) as Arc<dyn Handler>)
    };
    let handler = |kind| -> Option<Arc<dyn Handler>> {
        Some(match kind {
            JobKind::ScanPage => Arc::new(crate::crawls::page::ScanPage::new(context.clone())),
            JobKind::ScanImage => Arc::new(crate::crawls::image::ScanImage::new(context.clone())),
            JobKind::StartCrawl => Arc::new(crate::crawls::closing::StartCrawl(crawls.clone())),
            JobKind::DeliverWebhook => webhook.clone(),
            JobKind::EraseCollection => erase.clone(),
            JobKind::ClusterCollection => clustering.clone(),
            JobKind::FetchVideo => return videos(Step::Fetch),
            JobKind::ScanVideo => return videos(Step::Scan),
            JobKind::WatchStream => return watch_stream.clone(),
        })
    };
    JobKind::ALL.into_iter().filter_map(|kind| Some((kind.into(), handler(kind)?))).collect()
}

/// Returns only the handler of [`JobKind::ClusterCollection`], which needs no models.
pub fn cluster_handler(store: Store, queue: Queue) -> Arc<dyn Handler> {
    Arc::new(crate::people::clusters::ClusterCollection::new(store, queue))
}
