//! Defines the states of crawls, of the rows of their ledgers and of clusterings. The states of
//! jobs are in the crate `queue`.
use crate::text_enum::text_enum;

text_enum! {
    /// The source of a crawl.
    pub enum CrawlKind: "kind of a crawl" {
        /// Pages of the web.
        Web = "web",
        /// Local files.
        Scan = "scan",
    }
}

text_enum! {
    /// State of a crawl.
    pub enum CrawlState: "state of a crawl" {
        /// Workers process it.
        Running = "running",
        /// Workers wait until it is resumed.
        Paused = "paused",
        /// Every row of its ledgers is settled, and something could be fetched.
        Completed = "completed",
        /// A caller ended it before all rows were processed.
        Cancelled = "cancelled",
        /// Every row of its ledgers is settled, and nothing could be fetched.
        Failed = "failed",
    }
}

impl CrawlState {
    /// The states of a crawl that has not ended.
    pub const LIVE: [Self; 2] = [Self::Running, Self::Paused];

    pub fn is_live(self) -> bool {
        Self::LIVE.contains(&self)
    }
}

text_enum! {
    /// State of a row of the page ledger.
    pub enum PageState: "state of a page" {
        /// Waits for a worker.
        Queued = "queued",
        /// The page was read.
        Fetched = "fetched",
        /// The page must not be read, or is not needed.
        Skipped = "skipped",
        /// The page could not be read.
        Failed = "failed",
    }
}

text_enum! {
    /// State of a row of the image ledger.
    pub enum ImageState: "state of an image" {
        /// Waits for a worker.
        Queued = "queued",
        /// The image was analysed and stored.
        Processed = "processed",
        /// The image was stored before.
        Duplicate = "duplicate",
        /// The image must not be processed, or is not a usable image.
        Skipped = "skipped",
        /// The image could not be fetched or analysed.
        Failed = "failed",
        /// The image, its address or a person in it was erased and must not be stored again.
        Suppressed = "suppressed",
    }
}

text_enum! {
    /// State of a row of either ledger that was settled without a result.
    pub enum Unprocessed: "state of an unprocessed row" {
        /// The URL must not be processed, or is not needed. This is no failure.
        Skipped = "skipped",
        /// The URL could not be processed.
        Failed = "failed",
    }
}

impl From<Unprocessed> for PageState {
    fn from(state: Unprocessed) -> Self {
        match state {
            Unprocessed::Skipped => Self::Skipped,
            Unprocessed::Failed => Self::Failed,
        }
    }
}

impl From<Unprocessed> for ImageState {
    fn from(state: Unprocessed) -> Self {
        match state {
            Unprocessed::Skipped => Self::Skipped,
            Unprocessed::Failed => Self::Failed,
        }
    }
}

text_enum! {
    /// State of a run that groups the faces of a collection by person.
    pub enum ClusteringState: "state of a clustering" {
        /// Waits for a worker.
        Queued = "queued",
        /// A worker computes it.
        Running = "running",
        /// The groups are stored.
        Completed = "completed",
        /// The run ended without groups.
        Failed = "failed",
    }
}

text_enum! {
    /// What an import of many people did with a file.
    pub enum EnrolmentOutcome: "result of a file of an import" {
        /// The face belongs to the person now. In a dry run, it would.
        Enrolled = "enrolled",
        /// A face of the same file belongs to the person already.
        AlreadyEnrolled = "already_enrolled",
        /// No face was found.
        NoFace = "no_face",
        /// The image shows several faces.
        SeveralFaces = "several_faces",
        /// The face does not meet the quality profile.
        LowQuality = "low_quality",
        /// The face resembles another enrolled person more than its own.
        LooksLike = "looks_like",
        /// The file cannot be read, or is not a usable image.
        Unreadable = "unreadable",
        /// The image or the person was erased and must not be stored again.
        Suppressed = "suppressed",
        /// The file has too many bytes or pixels.
        TooLarge = "too_large",
        /// No person is named for the file, or the name is not allowed.
        BadName = "bad_name",
        /// Several subjects of the collection have the name.
        AmbiguousName = "ambiguous_name",
        /// The service could not analyse the file. A later import may succeed.
        Failed = "failed",
    }
}

impl EnrolmentOutcome {
    /// Returns whether the face is enrolled after the import.
    pub fn is_success(self) -> bool {
        matches!(self, Self::Enrolled | Self::AlreadyEnrolled)
    }
}

text_enum! {
    /// State of a set of faces in a search index outside the database.
    pub enum IndexSetState: "state of an index set" {
        /// Faces are copied to it, or its graph is built. Searches use another set if there is one.
        Building = "building",
        /// Searches use it.
        Serving = "serving",
        /// Another set replaced it, and it waits for its deletion.
        Retired = "retired",
    }
}

text_enum! {
    /// State of a video.
    pub enum VideoState: "state of a video" {
        /// Waits for a worker.
        Queued = "queued",
        /// A worker reads it.
        Running = "running",
        /// Waits until it is resumed.
        Paused = "paused",
        /// It was read to its end, or as far as the file could be read.
        Completed = "completed",
        /// A caller ended it before its end.
        Cancelled = "cancelled",
        /// It could not be read.
        Failed = "failed",
    }
}

impl VideoState {
    /// The states of a video that has not ended.
    pub const LIVE: [Self; 3] = [Self::Queued, Self::Running, Self::Paused];

    pub fn is_live(self) -> bool {
        Self::LIVE.contains(&self)
    }
}

text_enum! {
    /// The new faces about which a watchlist creates alerts.
    pub enum WatchNotify: "kind of a watchlist" {
        /// Faces that resemble a watched person or face.
        Match = "match",
        /// Faces that resemble nobody on the list.
        Unknown = "unknown",
    }
}

text_enum! {
    /// State of an alert.
    pub enum AlertState: "state of an alert" {
        /// No user has acknowledged it.
        New = "new",
        /// A user has acknowledged it.
        Acknowledged = "acknowledged",
    }
}

text_enum! {
    /// State of the delivery of an alert to the webhook of its watchlist.
    pub enum DeliveryState: "state of a delivery" {
        /// The watchlist has no webhook.
        None = "none",
        /// The watchlist had an alert about the same person within its cooldown.
        Suppressed = "suppressed",
        /// The alert waits for its first or next attempt.
        Pending = "pending",
        /// The receiver accepted it.
        Delivered = "delivered",
        /// The receiver did not accept it in time, or accepts no further messages.
        Failed = "failed",
    }
}

text_enum! {
    /// How a camera sends its frames.
    pub enum StreamKind: "kind of a stream" {
        /// RTSP over TCP.
        Rtsp = "rtsp",
        /// HTTP Live Streaming.
        Hls = "hls",
        /// JPEG images as `multipart/x-mixed-replace`.
        Mjpeg = "mjpeg",
    }
}

text_enum! {
    /// The faces of a stream that are stored.
    pub enum StreamStore: "choice of stored faces" {
        /// Faces that resemble a watched person or face.
        Matches = "matches",
        /// These, and faces that a watchlist reports because they resemble nobody.
        Alerts = "alerts",
        /// All faces that can be recognised.
        All = "all",
    }
}

text_enum! {
    /// State of a stream.
    pub enum StreamState: "state of a stream" {
        /// A user stopped it.
        Stopped = "stopped",
        /// Waits for a worker with a free place.
        Waiting = "waiting",
        /// A worker connects to it.
        Connecting = "connecting",
        /// A worker receives its frames.
        Running = "running",
        /// It sends nothing usable. The worker tries again.
        Failing = "failing",
        /// Waits for the next time of its schedule.
        OffSchedule = "off_schedule",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn state_codes_round_trip_and_errors_list_allowed_values() {
        for state in CrawlState::ALL {
            assert_eq!(state.as_str().parse(), Ok(state));
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
            assert_eq!(serde_json::from_value::<CrawlState>(state.as_str().into()).unwrap(), state);
        }
        let error = "done".parse::<CrawlState>().unwrap_err().to_string();
        assert_eq!(
            error,
            r#""done" is not a state of a crawl; allowed are running, paused, completed, cancelled, failed"#
        );
        let error = serde_json::from_value::<PageState>("done".into()).unwrap_err().to_string();
        assert_eq!(error, "unknown variant `done`, expected one of `queued`, `fetched`, `skipped`, `failed`");
    }

    #[test]
    fn unprocessed_states_share_codes_in_both_ledgers() {
        for state in Unprocessed::ALL {
            assert_eq!(PageState::from(state).as_str(), state.as_str());
            assert_eq!(ImageState::from(state).as_str(), state.as_str());
        }
    }
}
