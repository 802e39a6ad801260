//! The outcomes of the videos of a scan, and their sums.
use crate::cli::video::time;
use domain::{ImageState, Reason, Unprocessed, VideoState};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use store::videos::Video;
use store::videos::crawled::VideoCounts;
use uuid::Uuid;

#[derive(Debug, Serialize)]
pub(super) struct VideoOutcome {
    path: PathBuf,
    outcome: ImageState,
    /// Why the file was not processed, or not to its end.
    reason: Option<Reason>,
    detail: Option<String>,
    video_id: Option<Uuid>,
    people: i32,
    tracks: i64,
    faces: i64,
    /// Number of frames that were analysed, also by an earlier scan that this one continued.
    frames: i64,
    /// Time of the last frame that was analysed.
    read_ms: Option<i64>,
    /// The duration that the file reports.
    duration_ms: Option<i64>,
}

impl VideoOutcome {
    fn new(path: PathBuf, outcome: ImageState, reason: Option<Reason>, detail: Option<String>) -> Self {
        Self {
            path,
            outcome,
            reason,
            detail,
            video_id: None,
            people: 0,
            tracks: 0,
            faces: 0,
            frames: 0,
            read_ms: None,
            duration_ms: None,
        }
    }

    pub(super) fn processed(path: PathBuf, video: &Video, counts: VideoCounts) -> Self {
        let (reason, detail) = (video.reason.clone(), video.detail.clone());
        Self {
            video_id: Some(video.id),
            people: video.people.unwrap_or_default(),
            tracks: counts.tracks,
            faces: counts.faces,
            frames: video.frames,
            read_ms: video.checkpoint_us.map(|us| us / 1_000),
            duration_ms: video.duration_us.map(|us| us / 1_000),
            ..Self::new(path, ImageState::Processed, reason, detail)
        }
    }

    /// Returns the outcome of a video that a crawl found. It counts like an image with the same
    /// reason.
    pub(super) fn of_crawl(video: &Video, counts: VideoCounts) -> Self {
        let outcome = match (video.state, &video.reason) {
            (VideoState::Completed, _) => ImageState::Processed,
            (VideoState::Failed, Some(reason)) => state_of(reason),
            (VideoState::Failed, None) => ImageState::Failed,
            (VideoState::Cancelled, _) => ImageState::Skipped,
            _ => ImageState::Queued,
        };
        let path = PathBuf::from(video.source_url.clone().unwrap_or_default());
        Self { outcome, ..Self::processed(path, video, counts) }
    }

    pub(super) fn duplicate(path: PathBuf, video: Uuid) -> Self {
        Self::new(path, ImageState::Duplicate, Some(Reason::ExactDuplicate), None).of(video)
    }

    pub(super) fn suppressed(path: PathBuf) -> Self {
        Self::new(path, ImageState::Suppressed, Some(Reason::SuppressedVideo), None)
    }

    pub(super) fn unprocessed(path: PathBuf, state: Unprocessed, reason: Reason, detail: String) -> Self {
        Self::new(path, state.into(), Some(reason), Some(detail))
    }

    /// Adds the stored video.
    pub(super) fn of(self, video: Uuid) -> Self {
        Self { video_id: Some(video), ..self }
    }
}

/// Returns the state of a video that was not read for `reason`.
fn state_of(reason: &Reason) -> ImageState {
    match reason {
        Reason::ExactDuplicate | Reason::NotModified => ImageState::Duplicate,
        Reason::SuppressedUrl | Reason::SuppressedVideo => ImageState::Suppressed,
        Reason::ForbiddenUrl
        | Reason::ForbiddenAddress
        | Reason::RobotsDisallowed
        | Reason::Noindex
        | Reason::Noimageindex
        | Reason::Noai
        | Reason::Noimageai
        | Reason::NotAVideo
        | Reason::UnsupportedCodec
        | Reason::VideoTooLarge
        | Reason::TooManyBytes
        | Reason::EncryptedVideo
        | Reason::LiveStream => ImageState::Skipped,
        _ => ImageState::Failed,
    }
}

#[derive(Debug, Serialize)]
pub(super) struct VideoSums {
    total: usize,
    #[serde(flatten)]
    states: BTreeMap<ImageState, i64>,
    /// Number of people of each video, added up. A person of two videos counts twice.
    people: i64,
    tracks: i64,
    faces: i64,
    frames: i64,
    /// Time of the videos that was analysed.
    read_ms: i64,
    /// Number of videos that were not processed, or not to their end, by reason.
    reasons: BTreeMap<Reason, i64>,
}

impl Default for VideoSums {
    /// The states that are shown even if no video has them.
    fn default() -> Self {
        let shown = [ImageState::Processed, ImageState::Duplicate, ImageState::Skipped, ImageState::Failed];
        Self {
            total: 0,
            states: shown.map(|state| (state, 0)).into(),
            people: 0,
            tracks: 0,
            faces: 0,
            frames: 0,
            read_ms: 0,
            reasons: BTreeMap::new(),
        }
    }
}

impl VideoSums {
    pub(super) fn add(&mut self, outcome: &VideoOutcome) {
        self.total += 1;
        *self.states.entry(outcome.outcome).or_default() += 1;
        self.people += i64::from(outcome.people);
        self.tracks += outcome.tracks;
        self.faces += outcome.faces;
        self.frames += outcome.frames;
        self.read_ms += outcome.read_ms.unwrap_or_default();
        if let Some(reason) = &outcome.reason {
            *self.reasons.entry(reason.clone()).or_default() += 1;
        }
    }

    pub(super) fn count(&self, state: ImageState) -> i64 {
        self.states.get(&state).copied().unwrap_or_default()
    }

    /// Returns the rows of the table; none if there are no videos.
    pub(super) fn rows(&self) -> Vec<(String, String)> {
        if self.total == 0 {
            return Vec::new();
        }
        let mut rows = vec![("Videos".to_owned(), self.total.to_string())];
        rows.extend(state_rows(|state| self.count(state)).map(|(name, count)| (name.to_owned(), count)));
        rows.extend(self.reasons.iter().map(|(reason, n)| (format!("    {reason}"), n.to_string())));
        if self.count(ImageState::Processed) == 0 {
            return rows;
        }
        for (name, n) in [
            ("  people", self.people),
            ("  tracks", self.tracks),
            ("  faces", self.faces),
            ("  frames", self.frames),
        ] {
            rows.push((name.into(), n.to_string()));
        }
        rows.push(("  time".into(), time(self.read_ms * 1_000)));
        rows
    }
}

/// Returns the name and the count of each state that a table shows. A state other than `processed`
/// is shown only if its count is not 0.
pub(super) fn state_rows(count: impl Fn(ImageState) -> i64) -> impl Iterator<Item = (&'static str, String)> {
    let rows = [
        (ImageState::Processed, "  processed"),
        (ImageState::Duplicate, "  duplicates"),
        (ImageState::Skipped, "  skipped"),
        (ImageState::Failed, "  failed"),
        (ImageState::Suppressed, "  suppressed"),
        (ImageState::Queued, "  not reached"),
    ];
    rows.into_iter().filter_map(move |(state, name)| {
        let count = count(state);
        (state == ImageState::Processed || count > 0).then(|| (name, count.to_string()))
    })
}
