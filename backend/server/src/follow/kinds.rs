//! What event streams follow: crawls and videos.
use super::Followed;
use crate::ApiError;
use store::Store;
use store::crawls::{Crawl, CrawlProgress};
use store::videos::Video;
use uuid::Uuid;

/// Holds a crawl and its counts as stored. Convert it with `CrawlView::new` before it is sent in a
/// response. The conversion removes the fields that the caller may not see.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) crawl: Crawl,
    pub(crate) progress: CrawlProgress,
}

impl Followed for Snapshot {
    const GAUGE: &'static str = "facecrawl_crawls_followed";
    const HELP: &'static str = "Number of crawls that are polled for event streams.";

    /// Loads the crawl and its first seeds.
    async fn read(store: &Store, id: Uuid) -> Result<Self, ApiError> {
        let crawl = store.crawl_in_brief(id).await?;
        let progress = store.crawl_progress(id).await?;
        Ok(Self { crawl, progress })
    }

    fn is_over(&self) -> bool {
        !self.crawl.state.is_live()
    }

    fn differs(&self, other: &Self) -> bool {
        self.crawl.state != other.crawl.state || self.progress != other.progress
    }
}

impl Followed for Video {
    const GAUGE: &'static str = "facecrawl_videos_followed";
    const HELP: &'static str = "Number of videos that are polled for event streams.";

    async fn read(store: &Store, id: Uuid) -> Result<Self, ApiError> {
        Ok(store.video(id).await?)
    }

    fn is_over(&self) -> bool {
        !self.state.is_live()
    }

    fn differs(&self, other: &Self) -> bool {
        let changing = |video: &Self| (video.state, video.checkpoint_us, video.frames, video.duration_us);
        changing(self) != changing(other)
    }
}
