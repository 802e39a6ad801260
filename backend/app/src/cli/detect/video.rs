//! Prints who appears in a video, and when.
use super::Refusal;
use crate::config::Settings;
use crate::decoder::open_decoder;
use crate::{output, progress};
use clap::Args;
use domain::Reason;
use inference::Priority;
use pipeline::{Analyzer, FrameFaces, VideoAnalysis, VideoOptions, VideoProgress};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::sync::OnceCell;
use video::{Decoder, Index, Sampling, is_video};

/// Number of bytes that suffice to recognise a video.
const HEAD: u64 = 200;

/// The options for videos.
#[derive(Args, Debug)]
#[command(next_help_heading = "Videos")]
pub(super) struct VideoArgs {
    /// Which frames are analysed. auto: keyframes, and frames between them where they are more than
    /// --max-gap apart. keyframes: only keyframes. fps=N: N frames per second, from 0.1 to 30
    #[arg(long, value_name = "auto|keyframes|fps=N", default_value = "auto")]
    sampling: Sampling,
    /// Longest time without an analysed frame with --sampling auto, in seconds, from 0.2 to 60
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = gap)]
    max_gap: f64,
}

fn gap(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.2..=60.0).contains(seconds));
    seconds.ok_or_else(|| "it must be a number of seconds from 0.2 to 60".into())
}

/// Returns whether the file begins like a video. A file that cannot be read does not.
pub(super) fn begins_like_video(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(HEAD).read_to_end(&mut head));
    read.is_ok() && is_video(&head)
}

/// Analyses the videos of one command.
pub(super) struct VideoDetector<'a> {
    settings: &'a Settings,
    analyzer: &'a Analyzer,
    options: VideoOptions,
    /// Opened for the first video.
    decoder: OnceCell<Result<Decoder, String>>,
}

impl<'a> VideoDetector<'a> {
    pub(super) fn new(
        settings: &'a Settings,
        analyzer: &'a Analyzer,
        args: &VideoArgs,
        min_score: Option<f32>,
    ) -> Self {
        let options = VideoOptions {
            sampling: args.sampling,
            max_gap_us: (args.max_gap * 1e6) as i64,
            match_threshold: settings.service.match_threshold,
            min_score,
            ..VideoOptions::default()
        };
        Self { settings, analyzer, options, decoder: OnceCell::new() }
    }

    /// Analyses one video, with a progress bar.
    pub(super) async fn analyze(&self, path: &Path) -> Result<VideoAnalysis, Refusal> {
        let open =
            async || tokio::task::block_in_place(|| open_decoder(self.settings)).map_err(|e| e.to_string());
        let decoder = self.decoder.get_or_init(open).await.as_ref();
        let decoder = decoder.map_err(|error| refusal(Reason::VideoUnavailable, error))?;
        let file = File::open(path).map_err(|error| refusal(Reason::Unreadable, error))?;
        let mut bar = TimeBar { bar: progress::video(), started: Instant::now(), faces: 0 };
        let analyzed =
            self.analyzer.analyze_video(decoder, file, &self.options, Priority::Background, &mut bar).await;
        bar.bar.finish_and_clear();
        analyzed.map_err(|error| refusal(error.reason(), error))
    }
}

fn refusal(reason: Reason, error: impl ToString) -> Refusal {
    Refusal { reason, detail: error.to_string() }
}

/// Prints a line about a video, and a table of its tracks.
pub(super) fn print(name: &str, analysis: &VideoAnalysis) -> anyhow::Result<()> {
    let mut table = output::table(["person", "from", "to", "frames", "face", "quality"]);
    for track in &analysis.tracks {
        let best = track.faces.first();
        let size = best.map(|best| best.face.detection.bbox);
        let quality = best.and_then(|best| best.face.quality.as_ref());
        table.add_row([
            track.person.map_or_else(|| "unknown".into(), |person| person.to_string()),
            time(track.started_us),
            time(track.ended_us),
            track.samples.to_string(),
            size.map(|size| format!("{:.0}x{:.0}", size.width, size.height)).unwrap_or_default(),
            quality.map(|quality| format!("{:.2}", quality.overall)).unwrap_or_default(),
        ]);
    }
    let index = &analysis.index;
    let duration = index.duration_us.map(time).unwrap_or_else(|| "unknown duration".into());
    output::line(format_args!(
        "{name}: {} {}x{}, {duration}; {} frames analysed, {} people, {} tracks",
        index.codec,
        index.width,
        index.height,
        analysis.frames,
        analysis.people,
        analysis.tracks.len()
    ))?;
    if let Some(damage) = &analysis.damage {
        let what = if damage.truncated { "the end of the file is missing" } else { "the file is damaged" };
        eprintln!("warning: {name}: {what}: {}", damage.message);
    }
    if analysis.tracks.is_empty() { Ok(()) } else { output::line(table) }
}

/// Formats a time as `h:mm:ss.d`.
fn time(us: i64) -> String {
    let tenths = us.div_euclid(100_000);
    let (seconds, hours) = (tenths / 10, tenths / 36_000);
    format!("{hours}:{:02}:{:02}.{}", seconds / 60 % 60, seconds % 60, tenths % 10)
}

/// A progress bar in time of the video.
struct TimeBar {
    bar: indicatif::ProgressBar,
    started: Instant,
    faces: usize,
}

impl VideoProgress for TimeBar {
    fn opened(&mut self, index: &Index) {
        if let Some(duration) = index.duration_us {
            self.bar.set_length(duration.unsigned_abs() / 1_000_000);
        }
    }

    fn frame(&mut self, frame: FrameFaces<'_>) {
        self.faces += frame.faces.len();
        let at = Duration::from_micros(frame.at_us.unsigned_abs());
        self.bar.set_position(at.as_secs());
        let speed = at.as_secs_f64() / self.started.elapsed().as_secs_f64().max(1e-3);
        self.bar.set_message(format!("{speed:.1} times real time, {} faces", self.faces));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samplings_are_parsed_within_their_limits() {
        assert_eq!("auto".parse(), Ok(Sampling::Auto));
        assert_eq!("fps=2.5".parse(), Ok(Sampling::Fps(2.5)));
        for wrong in ["fps=0", "fps=31", "fps=", "fps=nan", "5", ""] {
            let error = wrong.parse::<Sampling>().err().map(|error| error.to_string());
            assert!(error.is_some_and(|text| text.contains("fps=5")), "{wrong}");
        }
        assert!(gap("0").is_err() && gap("nan").is_err() && gap("61").is_err());
        assert_eq!(gap("0.5"), Ok(0.5));
    }

    #[test]
    fn times_are_written_for_people() {
        assert_eq!(time(0), "0:00:00.0");
        assert_eq!(time(3_723_456_000), "1:02:03.4");
    }
}
