//! Defines the kinds of jobs. The crate `pipeline` defines their payloads and runs them.
use crate::text_enum::text_enum;

text_enum! {
    /// Kind of a job. Selects the handler and the limits of the queue.
    pub enum JobKind: "kind of a job" {
        /// Fetches a page.
        ScanPage = "scan_page",
        /// Fetches and stores an image.
        ScanImage = "scan_image",
        /// Fetches the file of a video from its address.
        FetchVideo = "fetch_video",
        /// Reads a video and stores its tracks.
        ScanVideo = "scan_video",
        /// Starts the next run of a recurring crawl.
        StartCrawl = "start_crawl",
        /// Sends a message to a crawl's webhook when the crawl has ended.
        DeliverWebhook = "deliver_webhook",
        /// Erases the contents of a deleted collection.
        EraseCollection = "erase_collection",
        /// Groups the faces of a collection by person.
        ClusterCollection = "cluster_collection",
        /// Watches a camera until another job may take it over.
        WatchStream = "watch_stream",
    }
}

/// The number of attempts and the priority of the jobs of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobSpec {
    /// Number of attempts before a job is discarded.
    pub max_attempts: i16,
    /// Priority of a job that sets none; a lower number runs first.
    pub priority: i16,
}

impl JobKind {
    pub const fn spec(self) -> JobSpec {
        let (max_attempts, priority) = match self {
            // A crawl sets the priority of each URL. See `crawler::frontier`.
            Self::ScanPage | Self::ScanImage => (5, 0),
            // Practically unlimited: a schedule must continue after every failure of the database,
            // and every deleted collection must eventually be erased.
            Self::StartCrawl | Self::EraseCollection => (i16::MAX, 0),
            // With the waits between them, twelve deliveries take about five hours.
            Self::DeliverWebhook => (12, 0),
            // A file that crashes its worker must not be retried forever. Between checkpoints, a
            // video needs few attempts.
            Self::FetchVideo | Self::ScanVideo => (5, 50),
            // Lower priority than crawls and API calls: a run takes long, and no user waits for it.
            Self::ClusterCollection => (5, 100),
            // A camera is watched until a user stops it, whatever fails.
            Self::WatchStream => (i16::MAX, 0),
        };
        JobSpec { max_attempts, priority }
    }
}
