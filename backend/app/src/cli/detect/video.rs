//! Prints who appears in a video, and when.
use super::Refusal;
use crate::cli::video::{TimeBar, time};
use crate::config::Settings;
use crate::decoder::open_decoder;
use crate::output;
use domain::Reason;
use inference::Priority;
use pipeline::{Analyzer, VideoAnalysis, VideoOptions, VideoRequest};
use std::fs::File;
use std::path::Path;
use tokio::sync::OnceCell;
use video::Decoder;

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
        request: VideoRequest,
        min_score: Option<f32>,
    ) -> Self {
        let options = VideoOptions {
            match_threshold: settings.service.match_threshold,
            min_score,
            ..VideoOptions::from(request)
        };
        Self { settings, analyzer, options, decoder: OnceCell::new() }
    }

    pub(super) async fn analyze(&self, path: &Path) -> Result<VideoAnalysis, Refusal> {
        let open = async || {
            let opened = tokio::task::block_in_place(|| open_decoder(self.settings));
            opened.map_err(|error| error.to_string())?.decoder.map_err(|error| error.to_string())
        };
        let decoder = self.decoder.get_or_init(open).await.as_ref();
        let decoder = decoder.map_err(|error| refusal(Reason::VideoUnavailable, error))?;
        let file = File::open(path).map_err(|error| refusal(Reason::Unreadable, error))?;
        let mut bar = TimeBar::start(path);
        let analyzed =
            self.analyzer.analyze_video(decoder, file, &self.options, Priority::Background, &mut bar).await;
        bar.finish();
        analyzed.map_err(|error| refusal(error.reason(), error))
    }
}

fn refusal(reason: Reason, error: impl ToString) -> Refusal {
    Refusal { reason, detail: error.to_string() }
}

/// Formats a number with the word for what is counted.
fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Prints a line about a video, and a table of its tracks.
pub(super) fn print(name: &str, analysis: &VideoAnalysis) -> anyhow::Result<()> {
    let mut table = output::table(["person", "from", "to", "frames", "face", "quality"]);
    for track in &analysis.tracks {
        let is_last = analysis.last_us == Some(track.ended_us);
        let best = track.faces.first();
        let size = best.map(|best| best.face.detection.bbox);
        let quality = best.and_then(|best| best.face.quality.as_ref());
        table.add_row([
            track.person.map_or_else(|| "unknown".into(), |person| person.to_string()),
            time(track.started_us),
            if is_last { format!("{} (end)", time(track.ended_us)) } else { time(track.ended_us) },
            track.samples.to_string(),
            size.map(|size| format!("{:.0}x{:.0}", size.width, size.height)).unwrap_or_default(),
            quality.map(|quality| format!("{:.2}", quality.overall)).unwrap_or_default(),
        ]);
    }
    let index = &analysis.index;
    let duration = index.duration_us.map(time).unwrap_or_else(|| "unknown duration".into());
    let tolerance = analysis
        .tolerance_us
        .map_or_else(String::new, |us| format!("; times are exact to {:.2} s", us as f64 / 1e6));
    output::line(format_args!(
        "{name}: {} {}x{}, {duration}; {} analysed, {}, {}{tolerance}",
        index.codec,
        index.width,
        index.height,
        counted(analysis.frames, "frame", "frames"),
        counted(analysis.people.into(), "person", "people"),
        counted(analysis.tracks.len() as u64, "track", "tracks"),
    ))?;
    if let Some(damage) = &analysis.damage {
        let what = if damage.truncated { "the end of the file is missing" } else { "the file is damaged" };
        eprintln!("warning: {name}: {what}: {}", damage.message);
    }
    if analysis.tracks.is_empty() { Ok(()) } else { output::line(table) }
}
