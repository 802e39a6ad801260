//! Summarises a scan and its files as a table for users or a JSON document for programs.
use crate::cli::Exit;
use crate::cli::options::format_video_time;
use crate::output;
use domain::{CrawlKind, CrawlState, ImageState, PageState, Reason, Unprocessed, VideoState};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use store::Store;
use store::crawls::{Crawl, OverLimit};
use store::videos::crawled::VideoCounts;
use store::videos::{Video, VideoFilter};
use uuid::Uuid;

/// Number of videos of a crawl that are read at a time.
const VIDEOS_PER_QUERY: i64 = 100;

#[derive(Debug, Serialize)]
pub(super) struct FileScan {
    path: PathBuf,
    pub(super) outcome: ImageState,
    /// Reason why the file was not processed.
    reason: Option<Reason>,
    detail: Option<String>,
    image_id: Option<Uuid>,
    pub(super) faces: usize,
}

impl FileScan {
    fn new(path: PathBuf, outcome: ImageState, reason: Option<Reason>) -> Self {
        Self { path, outcome, reason, detail: None, image_id: None, faces: 0 }
    }

    pub(super) fn processed(path: PathBuf, image: Uuid, faces: usize) -> Self {
        Self { image_id: Some(image), faces, ..Self::new(path, ImageState::Processed, None) }
    }

    pub(super) fn duplicate(path: PathBuf, image: Uuid, reason: Reason) -> Self {
        Self { image_id: Some(image), ..Self::new(path, ImageState::Duplicate, Some(reason)) }
    }

    pub(super) fn suppressed(path: PathBuf, reason: Reason) -> Self {
        Self::new(path, ImageState::Suppressed, Some(reason))
    }

    pub(super) fn unprocessed(path: PathBuf, state: Unprocessed, reason: Reason, detail: String) -> Self {
        Self { detail: Some(detail), ..Self::new(path, state.into(), Some(reason)) }
    }
}

#[derive(Debug, Serialize)]
struct CrawlSummary {
    id: Uuid,
    kind: CrawlKind,
    state: CrawlState,
}

/// Number of images or videos by state, with their total.
#[derive(Debug, Serialize)]
struct StateCounts {
    total: i64,
    #[serde(flatten)]
    states: BTreeMap<ImageState, i64>,
}

impl Default for StateCounts {
    /// Returns the states that are shown even if their count is 0.
    fn default() -> Self {
        let shown = [ImageState::Processed, ImageState::Duplicate, ImageState::Skipped, ImageState::Failed];
        Self { total: 0, states: shown.map(|state| (state, 0)).into() }
    }
}

impl StateCounts {
    fn count(&self, state: ImageState) -> i64 {
        self.states.get(&state).copied().unwrap_or_default()
    }
}

fn add_counts<K: Ord>(into: &mut BTreeMap<K, i64>, from: BTreeMap<K, i64>) {
    for (key, count) in from {
        *into.entry(key).or_default() += count;
    }
}

/// The counts are read from the ledgers, so they are complete even after errors.
#[derive(Debug, Default, Serialize)]
pub(super) struct Summary {
    collection: String,
    crawls: Vec<CrawlSummary>,
    images: StateCounts,
    videos: VideoTotals,
    /// Number of pages by state. Empty for a scan of files.
    pages: BTreeMap<PageState, i64>,
    faces: i64,
    /// How often a limit kept a crawl from adding an address.
    over_limit: OverLimit,
    /// Number of pages and images that were not processed, by reason.
    reasons: BTreeMap<Reason, i64>,
    /// Number of files in the folders that are neither images nor videos.
    ignored_files: usize,
    seconds: f64,
    images_per_second: f64,
    interrupted: bool,
    /// One entry per image file, in the order in which the files were finished.
    pub(super) files: Vec<FileScan>,
    video_files: Vec<VideoScan>,
}

impl Summary {
    pub(super) fn new(collection: &str, ignored_files: usize) -> Self {
        Self { collection: collection.into(), ignored_files, ..Self::default() }
    }

    /// Adds the counts of a crawl's ledgers.
    pub(super) async fn add(&mut self, store: &Store, crawl: Crawl) -> anyhow::Result<()> {
        let progress = store.crawls().progress(crawl.id).await?;
        self.images.total += progress.images.values().sum::<i64>();
        add_counts(&mut self.images.states, progress.images);
        if crawl.kind == CrawlKind::Web {
            add_counts(&mut self.pages, progress.pages);
        }
        // The reasons of videos are counted in `videos`.
        let videos = &progress.video_reasons;
        let mut reasons = progress.reasons;
        reasons.iter_mut().for_each(|(reason, n)| *n -= videos.get(reason).copied().unwrap_or_default());
        reasons.retain(|_, n| *n > 0);
        add_counts(&mut self.reasons, reasons);
        let OverLimit { pages, images, videos } = progress.over_limit;
        self.over_limit.pages += pages;
        self.over_limit.images += images;
        self.over_limit.videos += videos;
        self.faces += progress.faces - progress.video_faces;
        self.crawls.push(CrawlSummary { id: crawl.id, kind: crawl.kind, state: crawl.state });
        Ok(())
    }

    pub(super) fn add_videos(&mut self, outcomes: Vec<VideoScan>) {
        outcomes.iter().for_each(|outcome| self.videos.add(outcome));
        self.video_files = outcomes;
    }

    /// Adds the videos that a crawl found to the totals.
    pub(super) async fn add_videos_of_crawl(&mut self, store: &Store, crawl: Uuid) -> anyhow::Result<()> {
        let filter = VideoFilter {
            collection: self.collection.clone(),
            crawl_id: Some(crawl),
            ..VideoFilter::default()
        };
        let mut before = None;
        loop {
            let videos = store.videos().list(&filter, before, VIDEOS_PER_QUERY).await?;
            let Some(last) = videos.last() else { return Ok(()) };
            before = Some(last.id);
            for video in &videos {
                let counts = store.crawled_videos().counts(video.id).await?;
                self.videos.add(&VideoScan::from_crawl(video, counts));
            }
        }
    }

    /// Completes the summary of a scan that took `elapsed`, including `video_time` for videos.
    pub(super) fn finish(&mut self, elapsed: Duration, video_time: Duration, interrupted: bool) {
        self.seconds = elapsed.as_secs_f64();
        let finished = self.images.total - self.images.count(ImageState::Queued);
        self.images_per_second = finished as f64 / elapsed.saturating_sub(video_time).as_secs_f64().max(1e-3);
        self.interrupted = interrupted;
    }

    fn page_count(&self, state: PageState) -> i64 {
        self.pages.get(&state).copied().unwrap_or_default()
    }

    /// Returns 0 if nothing failed, 3 if a part failed or the user interrupted the scan, and 1 if
    /// there was input but nothing was processed.
    pub(super) fn exit_status(&self) -> Exit {
        let file_count = |state| self.images.count(state) + self.videos.counts.count(state);
        let failed = file_count(ImageState::Failed) + self.page_count(PageState::Failed);
        let done = file_count(ImageState::Processed) + file_count(ImageState::Duplicate);
        let skipped = file_count(ImageState::Skipped) + self.page_count(PageState::Skipped);
        match (done, failed) {
            (0, _) if failed + skipped > 0 => Exit::Failure,
            (_, 0) if !self.interrupted => Exit::Success,
            _ => Exit::Partial,
        }
    }

    pub(super) fn table(&self) -> comfy_table::Table {
        let mut table = output::table(["", ""]);
        table.set_header(vec![if self.interrupted { "Interrupted" } else { "Done" }, ""]);
        let mut row = |name: &str, value: String| {
            table.add_row([name.to_owned(), value]);
        };
        if !self.pages.is_empty() {
            let pages: Vec<String> = self.pages.iter().map(|(state, n)| format!("{n} {state}")).collect();
            row("Pages", pages.join(", "));
        }
        row("Images", self.images.total.to_string());
        for (name, count) in state_rows(|state| self.images.count(state)) {
            row(name, count);
        }
        for (reason, n) in &self.reasons {
            row(&format!("    {reason}"), n.to_string());
        }
        let OverLimit { pages, images, videos } = self.over_limit;
        for (name, option, count) in [
            ("Pages", "--max-pages", pages),
            ("Images", "--max-images", images),
            ("Videos", "--max-videos", videos),
        ] {
            if count > 0 {
                row(&format!("{name} over the limit"), format!("{count} links; {option} limits them"));
            }
        }
        row("Faces", self.faces.to_string());
        for (name, value) in self.videos.rows() {
            row(&name, value);
        }
        row("Images/s", format!("{:.1}", self.images_per_second));
        row("Seconds", format!("{:.1}", self.seconds));
        if self.ignored_files > 0 {
            row("Other files", format!("{} ignored", self.ignored_files));
        }
        let crawls: Vec<String> = self.crawls.iter().map(|crawl| crawl.id.to_string()).collect();
        row("Crawl", crawls.join("\n"));
        table
    }
}

#[derive(Debug, Serialize)]
pub(super) struct VideoScan {
    path: PathBuf,
    outcome: ImageState,
    /// Reason why the file was not processed, or not to its end.
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

impl VideoScan {
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
    fn from_crawl(video: &Video, counts: VideoCounts) -> Self {
        let outcome = match (video.state, &video.reason) {
            (VideoState::Completed, _) => ImageState::Processed,
            (VideoState::Failed, Some(reason)) => image_state(reason),
            (VideoState::Failed, None) => ImageState::Failed,
            (VideoState::Cancelled, _) => ImageState::Skipped,
            _ => ImageState::Queued,
        };
        let path = PathBuf::from(video.source_url.clone().unwrap_or_default());
        Self { outcome, ..Self::processed(path, video, counts) }
    }

    pub(super) fn duplicate(path: PathBuf, video: Uuid) -> Self {
        Self::new(path, ImageState::Duplicate, Some(Reason::ExactDuplicate), None).with_video_id(video)
    }

    pub(super) fn suppressed(path: PathBuf) -> Self {
        Self::new(path, ImageState::Suppressed, Some(Reason::SuppressedVideo), None)
    }

    pub(super) fn unprocessed(path: PathBuf, state: Unprocessed, reason: Reason, detail: String) -> Self {
        Self::new(path, state.into(), Some(reason), Some(detail))
    }

    pub(super) fn with_video_id(self, video: Uuid) -> Self {
        Self { video_id: Some(video), ..self }
    }
}

/// Returns the state of a video that was not read for `reason`.
fn image_state(reason: &Reason) -> ImageState {
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

#[derive(Debug, Default, Serialize)]
struct VideoTotals {
    #[serde(flatten)]
    counts: StateCounts,
    /// Sum of the people of each video. A person in two videos counts twice.
    people: i64,
    tracks: i64,
    faces: i64,
    frames: i64,
    /// Time of the videos that was analysed.
    read_ms: i64,
    /// Number of videos that were not processed, or not to their end, by reason.
    reasons: BTreeMap<Reason, i64>,
}

impl VideoTotals {
    fn add(&mut self, outcome: &VideoScan) {
        self.counts.total += 1;
        *self.counts.states.entry(outcome.outcome).or_default() += 1;
        self.people += i64::from(outcome.people);
        self.tracks += outcome.tracks;
        self.faces += outcome.faces;
        self.frames += outcome.frames;
        self.read_ms += outcome.read_ms.unwrap_or_default();
        if let Some(reason) = &outcome.reason {
            *self.reasons.entry(reason.clone()).or_default() += 1;
        }
    }

    /// Returns the rows of the table; none if there are no videos.
    fn rows(&self) -> Vec<(String, String)> {
        if self.counts.total == 0 {
            return Vec::new();
        }
        let mut rows = vec![("Videos".to_owned(), self.counts.total.to_string())];
        rows.extend(
            state_rows(|state| self.counts.count(state)).map(|(name, count)| (name.to_owned(), count)),
        );
        rows.extend(self.reasons.iter().map(|(reason, n)| (format!("    {reason}"), n.to_string())));
        if self.counts.count(ImageState::Processed) == 0 {
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
        rows.push(("  time".into(), format_video_time(self.read_ms * 1_000)));
        rows
    }
}

/// Returns the name and the count of each state that a table shows. A state other than `processed`
/// is shown only if its count is not 0.
fn state_rows(count: impl Fn(ImageState) -> i64) -> impl Iterator<Item = (&'static str, String)> {
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
