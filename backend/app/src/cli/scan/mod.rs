//! Implements `scan`, which finds and stores the faces of folders, files and web pages. A worker in
//! this process crawls URLs; `local` scans files.
mod local;
mod summary;
use super::{Exit, UsageError};
use crate::cli::options::VideoArgs;
use crate::config::Settings;
use crate::decoder::{create_video_tools, open_decoder};
use crate::image_files::FoundFiles;
use crate::service::search_index::Role;
use crate::service::{Components, Sharing, Worker, listen_for_signals};
use crate::{image_files, output};
use clap::{Args, ValueEnum};
use crawler::Scope;
use domain::{ImageState, PageState};
use pipeline::worker::VideoTools;
use pipeline::{CrawlError, CrawlOptions, Dedupe, Rotate, VideoRequest};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use store::crawls::Crawl;
use summary::Summary;
use tokio_util::sync::CancellationToken;

/// The arguments of `scan`.
#[derive(Args, Debug)]
pub struct ScanArgs {
    /// Folders (including all subfolders), image and video files, or http(s) URLs to crawl
    #[arg(required = true, value_name = "PATH|URL")]
    inputs: Vec<String>,
    /// Collection that stores the faces; created if it does not exist
    #[arg(long, short, default_value = "default", value_name = "NAME")]
    collection: String,
    /// Which images are duplicates: exact (identical files), near (also near-identical images), or
    /// off (none). A video file is stored once, whatever this option says
    #[arg(long, value_enum, default_value = "near")]
    dedupe: DedupeArg,
    /// If no face of an image or frame is certainly upright, also search it rotated
    #[arg(long)]
    rotate: bool,
    /// Print one JSON document instead of the table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    video: VideoArgs,
    #[command(flatten)]
    crawl: CrawlArgs,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Crawling (URLs only)")]
struct CrawlArgs {
    /// Which pages belong to the crawl: those on the same host, on the same registrable domain,
    /// below the folder of the URL, or on the hosts of --allow
    #[arg(long, value_enum, default_value = "host")]
    scope: ScopeArg,
    /// Host that belongs to the crawl with --scope list; *.HOST covers its subdomains; repeatable
    #[arg(long, value_name = "HOST")]
    allow: Vec<String>,
    /// Maximum number of links from a given URL to a page [default: 3]
    #[arg(long, value_name = "N")]
    max_depth: Option<i32>,
    /// Maximum number of pages [default: 1000]
    #[arg(long, value_name = "N")]
    max_pages: Option<i64>,
    /// Maximum number of images [default: 5000]
    #[arg(long, value_name = "N")]
    max_images: Option<i64>,
    /// Also read the videos of the pages, and URLs of video files and playlists (needs ffmpeg)
    #[arg(long)]
    videos: bool,
    /// Maximum number of videos with --videos [default: 100]
    #[arg(long, value_name = "N", requires = "videos")]
    max_videos: Option<i64>,
    /// Minimum time between two requests to a host, in milliseconds [default: CRAWL_DELAY_MS]
    #[arg(long, value_name = "MS")]
    delay_ms: Option<u64>,
    /// Ignore robots.txt (for your own sites only)
    #[arg(long)]
    ignore_robots: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DedupeArg {
    Exact,
    Near,
    Off,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ScopeArg {
    Host,
    Domain,
    Prefix,
    List,
}

impl ScanArgs {
    fn dedupe(&self) -> Dedupe {
        match self.dedupe {
            DedupeArg::Exact => Dedupe::Exact,
            DedupeArg::Near => Dedupe::Near,
            DedupeArg::Off => Dedupe::Off,
        }
    }

    fn rotate(&self) -> Rotate {
        if self.rotate { Rotate::Auto } else { Rotate::Off }
    }

    fn crawl_options(&self) -> CrawlOptions {
        let defaults = CrawlOptions::default();
        CrawlOptions {
            scope: match self.crawl.scope {
                ScopeArg::Host => Scope::Host,
                ScopeArg::Domain => Scope::Domain,
                ScopeArg::Prefix => Scope::Prefix,
                ScopeArg::List => Scope::List,
            },
            allow: self.crawl.allow.clone(),
            max_depth: self.crawl.max_depth.unwrap_or(defaults.max_depth),
            max_pages: self.crawl.max_pages.unwrap_or(defaults.max_pages),
            max_images: self.crawl.max_images.unwrap_or(defaults.max_images),
            videos: self.crawl.videos,
            max_videos: self.crawl.max_videos.unwrap_or(defaults.max_videos),
            delay_ms: self.crawl.delay_ms,
            respect_robots: !self.crawl.ignore_robots,
            dedupe: self.dedupe(),
            rotate: self.rotate(),
            ..defaults
        }
    }

    /// Separates paths from URLs. Fails if a path does not exist.
    fn split_inputs(&self) -> Result<(Vec<PathBuf>, Vec<String>), UsageError> {
        let is_url = |input: &&String| {
            let lower = input.to_ascii_lowercase();
            lower.starts_with("http://") || lower.starts_with("https://")
        };
        let (urls, paths): (Vec<&String>, Vec<&String>) = self.inputs.iter().partition(is_url);
        let paths: Vec<PathBuf> = paths.into_iter().map(PathBuf::from).collect();
        if let Some(missing) = paths.iter().find(|path| !path.exists()) {
            return Err(UsageError(format!(
                "{} is neither a file nor a folder nor an http(s) URL",
                missing.display()
            )));
        }
        Ok((paths, urls.into_iter().cloned().collect()))
    }
}

pub(super) async fn run(settings: &Settings, args: ScanArgs) -> anyhow::Result<Exit> {
    let (paths, urls) = args.split_inputs()?;
    let request = args.video.request(args.rotate())?;
    let crawl_request = VideoRequest { rotate: request.rotate, ..VideoRequest::default() };
    if args.crawl.videos && !urls.is_empty() && request != crawl_request {
        return Err(UsageError(
            "--sampling, --max-gap and --refine do not apply to the videos of a crawl; omit them with URLs and --videos"
                .into(),
        )
        .into());
    }
    let signal = listen_for_signals()?;
    let found = tokio::task::spawn_blocking(move || image_files::find(&paths)).await??;
    let video_tools =
        (args.crawl.videos && !urls.is_empty()).then(|| open_video_tools(settings)).transpose()?;
    let mut components = tokio::select! {
        components = Components::start(settings, Sharing::Shared, Role::StoresFaces) => components?,
        () = signal.cancelled() => return Ok(Exit::Failure),
    };
    if let Some(tools) = video_tools {
        components.services.video_tools = Ok(tools);
    }
    let result = tokio::select! {
        result = scan(settings, &components, &args, found, urls, &signal) => result,
        error = components.database.wait_until_unusable() => Err(error),
    };
    components.database.close().await;
    let summary = result?;
    output::print_json_or(args.json, &summary, || output::print_line(summary.table()))?;
    Ok(summary.exit_status())
}

fn open_video_tools(settings: &Settings) -> anyhow::Result<VideoTools> {
    let decoding = tokio::task::block_in_place(|| open_decoder(settings))?;
    let decoder = decoding.decoder.map_err(|error| UsageError(format!("--videos needs ffmpeg: {error}")))?;
    Ok(create_video_tools(settings, decoder).map_err(UsageError)?)
}

async fn scan(
    settings: &Settings,
    components: &Components,
    args: &ScanArgs,
    found: FoundFiles,
    urls: Vec<String>,
    signal: &CancellationToken,
) -> anyhow::Result<Summary> {
    components.store().collections().ensure(&args.collection).await?;
    let started = Instant::now();
    let mut summary = Summary::new(&args.collection, found.ignored);
    let mut video_time = Duration::ZERO;
    if !found.inputs.is_empty() {
        let scan = local::run(settings, components, args, found, signal).await?;
        summary.add(components.store(), scan.crawl).await?;
        summary.files = scan.files;
        summary.add_videos(scan.videos);
        video_time = scan.video_time;
    }
    if !urls.is_empty() && !signal.is_cancelled() {
        let crawl = crawl_urls(settings, components, args, &urls, signal).await?;
        summary.add_videos_of_crawl(components.store(), crawl.id).await?;
        summary.add(components.store(), crawl).await?;
    }
    summary.finish(started.elapsed(), video_time, signal.is_cancelled());
    Ok(summary)
}

const POLL_INTERVAL: Duration = Duration::from_millis(200);

async fn crawl_urls(
    settings: &Settings,
    components: &Components,
    args: &ScanArgs,
    urls: &[String],
    signal: &CancellationToken,
) -> anyhow::Result<Crawl> {
    let crawl = match components.services.crawls.create(&args.collection, urls, args.crawl_options()).await {
        Ok(crawl) => crawl,
        Err(error @ CrawlError::Invalid { .. }) => return Err(UsageError(error.to_string()).into()),
        Err(error) => return Err(error.into()),
    };
    let stop = CancellationToken::new();
    let worker = Worker::start(components, settings, stop.clone());
    let result = wait_for_crawl(components, crawl, signal).await;
    stop.cancel();
    worker.until_stopped().await;
    result
}

/// Waits until the crawl ends, and shows its progress. A signal cancels the crawl.
async fn wait_for_crawl(
    components: &Components,
    mut crawl: Crawl,
    signal: &CancellationToken,
) -> anyhow::Result<Crawl> {
    let bar = output::crawl_bar();
    let started = Instant::now();
    while crawl.state.is_live() {
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            () = signal.cancelled() => {
                crawl = match components.services.crawls.cancel(crawl.id).await {
                    // The crawl ended at the same time.
                    Err(CrawlError::Store(store::StoreError::Conflict(_))) => components.store().crawls().get(crawl.id).await?,
                    cancelled => cancelled?,
                };
                break;
            }
        }
        let progress = components.store().crawls().progress(crawl.id).await?;
        let page_count = |state| progress.pages.get(&state).copied().unwrap_or_default();
        let image_count = |state| progress.images.get(&state).copied().unwrap_or_default();
        let finished = progress.images.values().sum::<i64>() - image_count(ImageState::Queued);
        let videos = progress.videos.iter().filter(|(state, _)| state.is_live()).map(|(_, n)| n).sum::<i64>();
        let rate = finished as f64 / started.elapsed().as_secs_f64().max(1e-3);
        bar.set_position(finished.unsigned_abs());
        bar.set_message(format!(
            "{rate:.1} images/s, {} faces, {} failed; {} pages, {} waiting",
            progress.faces,
            image_count(ImageState::Failed),
            page_count(PageState::Fetched),
            page_count(PageState::Queued) + image_count(ImageState::Queued) + videos,
        ));
        crawl = components.store().crawls().get(crawl.id).await?;
    }
    bar.finish_and_clear();
    Ok(crawl)
}
