//! Summarises a scan as a table for users or a JSON document for programs.
use super::video_summary::{VideoOutcome, VideoSums, state_rows};
use crate::cli::Exit;
use crate::output;
use domain::{CrawlKind, CrawlState, ImageState, PageState, Reason, Unprocessed};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use store::Store;
use store::crawls::{Crawl, OverLimit};
use store::videos::VideoFilter;
use uuid::Uuid;

/// Number of videos of a crawl that are read at a time.
const VIDEOS: i64 = 100;

#[derive(Debug, Serialize)]
pub(super) struct FileOutcome {
    path: PathBuf,
    outcome: ImageState,
    /// Why the file was not processed.
    reason: Option<Reason>,
    detail: Option<String>,
    image_id: Option<Uuid>,
    pub(super) faces: usize,
}

impl FileOutcome {
    pub(super) fn processed(path: PathBuf, image: Uuid, faces: usize) -> Self {
        Self {
            path,
            outcome: ImageState::Processed,
            reason: None,
            detail: None,
            image_id: Some(image),
            faces,
        }
    }
    pub(super) fn duplicate(path: PathBuf, image: Uuid, reason: Reason) -> Self {
        Self {
            path,
            outcome: ImageState::Duplicate,
            reason: Some(reason),
            detail: None,
            image_id: Some(image),
            faces: 0,
        }
    }
    pub(super) fn suppressed(path: PathBuf, reason: Reason) -> Self {
        Self {
            path,
            outcome: ImageState::Suppressed,
            reason: Some(reason),
            detail: None,
            image_id: None,
            faces: 0,
        }
    }
    pub(super) fn unprocessed(path: PathBuf, state: Unprocessed, reason: Reason, detail: String) -> Self {
        Self {
            path,
            outcome: state.into(),
            reason: Some(reason),
            detail: Some(detail),
            image_id: None,
            faces: 0,
        }
    }
    pub(super) fn is_failure(&self) -> bool {
        self.outcome == ImageState::Failed
    }
}

#[derive(Debug, Serialize)]
struct CrawlLine {
    id: Uuid,
    kind: CrawlKind,
    state: CrawlState,
}

/// Number of images by state, with their total.
#[derive(Debug, Serialize)]
struct ImageCounts {
    total: i64,
    #[serde(flatten)]
    states: BTreeMap<ImageState, i64>,
}

impl Default for ImageCounts {
    /// The states that are shown even if no image has them.
    fn default() -> Self {
        let shown = [ImageState::Processed, ImageState::Duplicate, ImageState::Skipped, ImageState::Failed];
        Self { total: 0, states: shown.map(|state| (state, 0)).into() }
    }
}

fn add<K: Ord>(into: &mut BTreeMap<K, i64>, from: BTreeMap<K, i64>) {
    for (key, n) in from {
        *into.entry(key).or_default() += n;
    }
}

/// The counts are read from the ledgers, so they are complete even after errors.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    collection: String,
    crawls: Vec<CrawlLine>,
    images: ImageCounts,
    videos: VideoSums,
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
    pub(super) files: Vec<FileOutcome>,
    video_files: Vec<VideoOutcome>,
}

impl Summary {
    pub(super) fn new(collection: &str, ignored_files: usize) -> Self {
        Self {
            collection: collection.into(),
            crawls: Vec::new(),
            images: ImageCounts::default(),
            videos: VideoSums::default(),
            pages: BTreeMap::new(),
            faces: 0,
            over_limit: OverLimit::default(),
            reasons: BTreeMap::new(),
            ignored_files,
            seconds: 0.0,
            images_per_second: 0.0,
            interrupted: false,
            files: Vec::new(),
            video_files: Vec::new(),
        }
    }

    /// Adds the counts of a crawl's ledgers.
    pub(super) async fn add(&mut self, store: &Store, crawl: Crawl) -> anyhow::Result<()> {
        let progress = store.crawl_progress(crawl.id).await?;
        self.images.total += progress.images.values().sum::<i64>();
        add(&mut self.images.states, progress.images);
        if crawl.kind == CrawlKind::Web {
            add(&mut self.pages, progress.pages);
        }
        // The reasons of videos are counted in `videos`.
        let of_videos = &progress.video_reasons;
        let mut reasons = progress.reasons;
        reasons.iter_mut().for_each(|(reason, n)| *n -= of_videos.get(reason).copied().unwrap_or_default());
        reasons.retain(|_, n| *n > 0);
        add(&mut self.reasons, reasons);
        let OverLimit { pages, images, videos } = progress.over_limit;
        self.over_limit.pages += pages;
        self.over_limit.images += images;
        self.over_limit.videos += videos;
        self.faces += progress.faces - progress.video_faces;
        self.crawls.push(CrawlLine { id: crawl.id, kind: crawl.kind, state: crawl.state });
        Ok(())
    }

    pub(super) fn add_videos(&mut self, outcomes: Vec<VideoOutcome>) {
        outcomes.iter().for_each(|outcome| self.videos.add(outcome));
        self.video_files = outcomes;
    }

    /// Adds the videos that a crawl found to the sums.
    pub(super) async fn add_videos_of_crawl(&mut self, store: &Store, crawl: Uuid) -> anyhow::Result<()> {
        let filter = VideoFilter {
            collection: self.collection.clone(),
            crawl_id: Some(crawl),
            ..VideoFilter::default()
        };
        let mut before = None;
        loop {
            let videos = store.videos(&filter, before, VIDEOS).await?;
            let Some(last) = videos.last() else { return Ok(()) };
            before = Some(last.id);
            for video in &videos {
                let counts = store.video_counts(video.id).await?;
                self.videos.add(&VideoOutcome::of_crawl(video, counts));
            }
        }
    }

    /// Completes the summary of a scan that took `took`, of which `videos` were spent on videos.
    pub(super) fn finish(&mut self, took: Duration, videos: Duration, interrupted: bool) {
        self.seconds = took.as_secs_f64();
        let settled = self.images.total - self.image(ImageState::Queued);
        self.images_per_second = settled as f64 / took.saturating_sub(videos).as_secs_f64().max(1e-3);
        self.interrupted = interrupted;
    }

    fn image(&self, state: ImageState) -> i64 {
        self.images.states.get(&state).copied().unwrap_or_default()
    }

    fn page(&self, state: PageState) -> i64 {
        self.pages.get(&state).copied().unwrap_or_default()
    }

    /// Returns 0 if nothing failed, 3 if a part failed or the user interrupted the scan, and 1 if
    /// there was input but nothing was processed.
    pub(super) fn exit(&self) -> Exit {
        let file = |state| self.image(state) + self.videos.count(state);
        let failed = file(ImageState::Failed) + self.page(PageState::Failed);
        let done = file(ImageState::Processed) + file(ImageState::Duplicate);
        let refused = file(ImageState::Skipped) + self.page(PageState::Skipped);
        match (done, failed) {
            (0, _) if failed + refused > 0 => Exit::Failure,
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
        for (name, count) in state_rows(|state| self.image(state)) {
            row(name, count);
        }
        for (reason, n) in &self.reasons {
            row(&format!("    {reason}"), n.to_string());
        }
        let OverLimit { pages, images, videos } = self.over_limit;
        for (what, option, n) in [
            ("Pages", "--max-pages", pages),
            ("Images", "--max-images", images),
            ("Videos", "--max-videos", videos),
        ] {
            if n > 0 {
                row(&format!("{what} over the limit"), format!("{n} links; {option} limits them"));
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
