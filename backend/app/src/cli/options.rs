//! Options that several commands share, and the progress bar of commands that read videos.
use super::UsageError;
use crate::{image_files, output};
use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use pipeline::{FrameFaces, Rotate, VideoProgress, VideoRequest};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use store::collections::Collection;
use store::{Store, StoreError};
use video::{Index, Sampling};

/// Parses a duration like `12h`, `90d` or `52w`.
pub(super) fn parse_duration(text: &str) -> Result<time::Duration, String> {
    const ALLOWED: &str = "a whole number with h, d or w, up to 100 years: 12h, 90d, 52w";
    let unit = match text.chars().last() {
        Some('h') => time::Duration::HOUR,
        Some('d') => time::Duration::DAY,
        Some('w') => time::Duration::WEEK,
        _ => return Err(ALLOWED.into()),
    };
    let number = text[..text.len() - 1].parse::<i32>().ok().filter(|number| *number > 0);
    let duration = number.and_then(|number| unit.checked_mul(number));
    duration.filter(|duration| *duration <= time::Duration::DAY * 36_525).ok_or_else(|| ALLOWED.into())
}

/// Returns the collection. If it does not exist, the error lists the existing ones.
pub(super) async fn find_collection(store: &Store, name: &str) -> anyhow::Result<Collection> {
    match store.collections().get(name).await {
        Err(StoreError::NotFound { .. }) => {
            let names: Vec<String> =
                store.collections().list().await?.into_iter().map(|collection| collection.name).collect();
            let message = format!(
                "there is no collection {name:?}; allowed: {} (POST /collections creates another)",
                names.join(", ")
            );
            Err(UsageError(message).into())
        }
        found => Ok(found?),
    }
}

/// The options for videos.
#[derive(Args, Debug)]
#[command(next_help_heading = "Videos")]
pub(super) struct VideoArgs {
    /// Which frames are analysed. auto: keyframes, and frames between them where they are more than
    /// --max-gap apart. keyframes: only keyframes. fps=N: N frames per second, from 0.1 to 30
    #[arg(long, value_name = "auto|keyframes|fps=N", default_value = "auto")]
    sampling: Sampling,
    /// Longest time without an analysed frame with --sampling auto, in seconds, from 0.2 to 60
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = parse_max_gap)]
    max_gap: f64,
    /// With --sampling auto, analyse more frames where faces are visible: at least 4 frames per
    /// second between a frame with a face and the frames before and after it
    #[arg(long)]
    refine: bool,
}

impl VideoArgs {
    /// Returns the options as they are stored with a video. Fails if they contradict each other.
    /// `rotate` is an option of both images and videos.
    pub(super) fn request(&self, rotate: Rotate) -> Result<VideoRequest, UsageError> {
        let max_gap_ms = (self.max_gap * 1e3).round() as u32;
        let request = VideoRequest { sampling: self.sampling, max_gap_ms, refine: self.refine, rotate };
        request.checked().map_err(|error| UsageError(format!("--refine: {error}")))
    }
}

fn parse_max_gap(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.2..=60.0).contains(seconds));
    seconds.ok_or_else(|| "it must be a number of seconds from 0.2 to 60".into())
}

/// Formats a time as `h:mm:ss.d`.
pub(super) fn format_video_time(us: i64) -> String {
    let tenths = us.div_euclid(100_000);
    let (seconds, hours) = (tenths / 10, tenths / 36_000);
    format!("{hours}:{:02}:{:02}.{}", seconds / 60 % 60, seconds % 60, tenths % 10)
}

/// Formats a time as `h:mm:ss`.
fn format_whole_seconds(us: i64) -> String {
    let text = format_video_time(us);
    text.split_once('.').map_or_else(|| text.clone(), |(seconds, _)| seconds.to_owned())
}

/// A progress bar that shows the time in the video.
pub(super) struct VideoProgressBar {
    bar: indicatif::ProgressBar,
    name: String,
    started: Instant,
    duration_us: Option<i64>,
    /// Time of the first frame. It is not zero if the analysis continues an earlier one.
    first_us: Option<i64>,
    faces: usize,
}

impl VideoProgressBar {
    pub(super) fn start(path: &Path) -> Self {
        // A name could contain control characters, which the terminal would interpret.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name: String = name.chars().filter(|c| !c.is_control()).collect();
        let bar = output::video_bar().with_prefix(format_whole_seconds(0)).with_message(name.clone());
        Self { bar, name, started: Instant::now(), duration_us: None, first_us: None, faces: 0 }
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl VideoProgress for VideoProgressBar {
    fn on_open(&mut self, index: &Index) {
        self.started = Instant::now();
        self.duration_us = index.duration_us;
        if let Some(duration) = index.duration_us {
            self.bar.set_length(duration.unsigned_abs() / 1_000_000);
        }
    }

    fn on_frame(&mut self, frame: FrameFaces<'_>) {
        self.faces += frame.faces.len();
        let read_us = frame.at_us - *self.first_us.get_or_insert(frame.at_us);
        self.bar.set_position(Duration::from_micros(frame.at_us.unsigned_abs()).as_secs());
        let total = self.duration_us.map(|us| format!("/{}", format_whole_seconds(us))).unwrap_or_default();
        self.bar.set_prefix(format!("{}{total}", format_whole_seconds(frame.at_us)));
        let speed = read_us as f64 / 1e6 / self.started.elapsed().as_secs_f64().max(1e-3);
        let remaining = self.duration_us.filter(|_| speed > 0.0).map(|us| {
            let remaining_us = us.saturating_sub(frame.at_us).max(0) as f64 / speed;
            format!("{} left, ", format_whole_seconds(remaining_us as i64))
        });
        let Self { bar, name, faces, .. } = self;
        let remaining = remaining.unwrap_or_default();
        bar.set_message(format!("{remaining}{speed:.1} times real time, {faces} faces, {name}"));
    }
}

/// Returns the images of the folder, ordered by name. Fails if `path` is not a folder, contains no
/// images, or cannot be read.
pub(super) fn list_images(path: &Path) -> Result<Vec<PathBuf>, UsageError> {
    let to_error = |reason: &str| UsageError(format!("--images {}: {reason}", path.display()));
    if !path.is_dir() {
        return Err(to_error("not a folder"));
    }
    let found = image_files::find_images(path).map_err(|error| to_error(&error.to_string()))?;
    if found.is_empty() {
        return Err(to_error("the folder contains no images"));
    }
    Ok(found)
}

pub(super) fn read_image(path: &Path) -> anyhow::Result<Bytes> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_sampling_and_gap_within_limits() {
        assert_eq!("auto".parse(), Ok(Sampling::Auto));
        assert_eq!("fps=2.5".parse(), Ok(Sampling::Fps(2.5)));
        for invalid in ["fps=0", "fps=31", "fps=", "fps=nan", "5", ""] {
            let error = invalid.parse::<Sampling>().err().map(|error| error.to_string());
            assert!(error.is_some_and(|text| text.contains("fps=5")), "{invalid}");
        }
        assert!(parse_max_gap("0").is_err() && parse_max_gap("nan").is_err() && parse_max_gap("61").is_err());
        assert_eq!(parse_max_gap("0.5"), Ok(0.5));
    }

    #[test]
    fn formats_times_as_hours_minutes_seconds() {
        assert_eq!(format_video_time(0), "0:00:00.0");
        assert_eq!(format_video_time(3_723_456_000), "1:02:03.4");
        assert_eq!(format_whole_seconds(3_723_956_000), "1:02:03");
    }

    #[test]
    fn parses_duration_as_number_with_unit() {
        assert_eq!(parse_duration("12h"), Ok(time::Duration::hours(12)));
        assert_eq!(parse_duration("90d"), Ok(time::Duration::days(90)));
        assert_eq!(parse_duration("52w"), Ok(time::Duration::days(364)));
        for invalid in ["", "d", "90", "-1d", "0d", "1.5d", "90 d", "9999999999d", "50000d", "1ä", "90m"] {
            assert!(parse_duration(invalid).is_err_and(|text| text.contains("90d")), "{invalid}");
        }
    }
}
