//! Implements `detect`, which prints or draws the faces of images, and prints the people in videos
//! with the times at which they are visible. It needs no database.
use super::{Exit, UsageError};
use crate::cli::options::{VideoArgs, VideoProgressBar, format_video_time};
use crate::config::{Settings, cores};
use crate::decoder::open_decoder;
use crate::image_files::is_video_file;
use crate::output;
use crate::service::start_engine;
use anyhow::Context;
use clap::Args;
use domain::Reason;
use futures::{StreamExt, TryStreamExt, stream};
use inference::Priority;
use pipeline::{
    Analysis, AnalyzeOptions, AnalyzedFace, Analyzer, Enhance, MAX_FACES, Passes, Rotate, VideoAnalysis,
    VideoAnalyzer, VideoOptions,
};
use serde_json::{Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};
use tokio::sync::OnceCell;
use video::Decoder;
use vision::{Detection, Frame};

/// The arguments of `detect`.
#[derive(Args, Debug)]
pub struct DetectArgs {
    /// Image and video files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print one JSON document: for each image the response of POST /faces/detect, for each video
    /// its people and tracks, or an error
    #[arg(long)]
    json: bool,
    /// Omit embeddings from the JSON
    #[arg(long)]
    no_embeddings: bool,
    /// Minimum det_score of a face, from 0.1 to 1 [default: that of the detector]
    #[arg(long, value_name = "SCORE", value_parser = parse_fraction)]
    min_score: Option<f32>,
    /// Maximum number of faces per image, up to 1000; the best ones are kept [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_FACES as i64))]
    max_faces: Option<u32>,
    /// If no face of an image or frame is certainly upright, also search it rotated
    #[arg(long)]
    rotate: bool,
    /// If no reliable face is found in a small image, also search the enhanced image
    #[arg(long)]
    enhance: bool,
    /// Views of an image that the detector processes [DETECTION_PASSES] [possible values: single,
    /// auto, thorough]
    #[arg(long, value_name = "PASSES", value_parser = parse_passes)]
    passes: Option<Passes>,
    /// Draw the boxes and landmarks of a single file, and write the result as PNG
    #[arg(long, value_name = "OUT.png")]
    draw: Option<PathBuf>,
    #[command(flatten)]
    video: VideoArgs,
}

fn parse_fraction(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|score| (0.0..=1.0).contains(score));
    number.ok_or_else(|| "it must be a number from 0 to 1".into())
}

fn parse_passes(text: &str) -> Result<Passes, String> {
    match text {
        "single" => Ok(Passes::Single),
        "auto" => Ok(Passes::Auto),
        "thorough" => Ok(Passes::Thorough),
        _ => Err("it must be single, auto or thorough".into()),
    }
}

impl DetectArgs {
    fn rotate(&self) -> Rotate {
        if self.rotate { Rotate::Auto } else { Rotate::Off }
    }

    fn options(&self) -> AnalyzeOptions {
        AnalyzeOptions {
            min_score: self.min_score,
            max_faces: self.max_faces.map(|n| n as usize),
            embeddings: self.json && !self.no_embeddings,
            passes: self.passes,
            rotate: self.rotate(),
            enhance: if self.enhance { Enhance::Auto } else { Enhance::Off },
            ..AnalyzeOptions::default()
        }
    }
}

/// The error of a file: a stable code and a sentence.
struct FileError {
    reason: Reason,
    detail: String,
}

/// The result of one file, kept until all files are processed. It does not contain the pixels,
/// because other files need their memory.
enum DetectedFile {
    Image { faces: Vec<AnalyzedFace>, document: Value },
    Video(Box<VideoAnalysis>),
}

pub(super) async fn run(settings: &Settings, args: DetectArgs) -> anyhow::Result<Exit> {
    if args.draw.is_some() && args.files.len() > 1 {
        return Err(UsageError("--draw accepts only a single file".into()).into());
    }
    let (options, request) = (args.options(), args.video.request(args.rotate())?);
    let analyzer = Analyzer::new(start_engine(settings).await?, crate::decoder::pipeline_config(settings));
    let video_options = VideoOptions {
        match_threshold: settings.service.match_threshold,
        min_score: args.min_score,
        ..VideoOptions::from(request)
    };
    let videos =
        VideoDetector { settings, analyzer: &analyzer, options: video_options, decoder: OnceCell::new() };
    let results: Vec<(PathBuf, Result<DetectedFile, FileError>)> = stream::iter(&args.files)
        .map(|file| analyze_file(&analyzer, &videos, file, &options, args.draw.as_deref()))
        // Results are in the order of the command line.
        .buffered(cores() + 1)
        .try_collect()
        .await?;
    let failed = results.iter().filter(|(_, result)| result.is_err()).count();
    if args.json {
        let results =
            results.iter().map(|(file, result)| result_json(file, result, &analyzer, options.embeddings));
        let results: Vec<Value> = results.collect();
        output::print_json(&json!({ "results": results }))?;
    } else {
        print_results(&results)?;
    }
    Ok(Exit::from_counts(results.len() - failed, failed))
}

/// Analyzes a file and returns its path with the result. If `draw` is set, draws the faces into
/// that file; the outer error reports a failure to draw.
async fn analyze_file(
    analyzer: &Analyzer,
    videos: &VideoDetector<'_>,
    file: &Path,
    options: &AnalyzeOptions,
    draw: Option<&Path>,
) -> anyhow::Result<(PathBuf, Result<DetectedFile, FileError>)> {
    let path = file.to_owned();
    if tokio::task::spawn_blocking(move || is_video_file(&path)).await? {
        if draw.is_some() {
            return Err(UsageError("--draw accepts only an image".into()).into());
        }
        let result = videos.analyze(file).await.map(|analysis| DetectedFile::Video(Box::new(analysis)));
        return Ok((file.to_owned(), result));
    }
    let analysis = match analyze(analyzer, file, options).await {
        Ok(analysis) => analysis,
        Err(error) => return Ok((file.to_owned(), Err(error))),
    };
    if let Some(out) = draw {
        write_drawing(out, &analysis).await?;
    }
    let document = server::detect_response(&analysis, analyzer.engine());
    Ok((file.to_owned(), Ok(DetectedFile::Image { faces: analysis.faces, document })))
}

async fn analyze(analyzer: &Analyzer, file: &Path, options: &AnalyzeOptions) -> Result<Analysis, FileError> {
    let bytes = tokio::fs::read(file)
        .await
        .map_err(|error| FileError { reason: Reason::Unreadable, detail: error.to_string() })?;
    analyzer
        .analyze(bytes.into(), options, Priority::Background)
        .await
        .map_err(|error| FileError { reason: error.reason(), detail: error.to_string() })
}

/// Returns the API's response or the error, with the name of the file added.
fn result_json(
    file: &Path,
    result: &Result<DetectedFile, FileError>,
    analyzer: &Analyzer,
    with_embeddings: bool,
) -> Value {
    let mut document = match result {
        Ok(DetectedFile::Image { document, .. }) => document.clone(),
        Ok(DetectedFile::Video(analysis)) => {
            server::video_result(analysis, analyzer.engine(), with_embeddings)
        }
        Err(error) => json!({ "error": { "code": error.reason, "detail": error.detail } }),
    };
    document["file"] = json!(file);
    document
}

fn print_results(results: &[(PathBuf, Result<DetectedFile, FileError>)]) -> anyhow::Result<()> {
    let mut table =
        output::table(["file", "face", "x", "y", "width", "height", "score", "quality", "reasons"]);
    let mut images = 0;
    for (file, result) in results {
        let name = file.display().to_string();
        match result {
            Ok(DetectedFile::Video(analysis)) => print_video(&name, analysis)?,
            Ok(DetectedFile::Image { faces, .. }) if faces.is_empty() => {
                table.add_row([name.as_str(), "none"]);
                images += 1;
            }
            Ok(DetectedFile::Image { faces, .. }) => {
                images += 1;
                for (index, face) in faces.iter().enumerate() {
                    let bbox = face.detection.bbox;
                    let quality = face.quality.as_ref();
                    table.add_row([
                        if index == 0 { name.clone() } else { String::new() },
                        (index + 1).to_string(),
                        format!("{:.0}", bbox.x),
                        format!("{:.0}", bbox.y),
                        format!("{:.0}", bbox.width),
                        format!("{:.0}", bbox.height),
                        format!("{:.3}", face.detection.det_score),
                        quality.map(|quality| format!("{:.2}", quality.overall)).unwrap_or_default(),
                        quality.map(|quality| quality.reasons.join(", ")).unwrap_or_default(),
                    ]);
                }
            }
            Err(error) => eprintln!("error: {name}: {}", error.detail),
        }
    }
    if images > 0 { output::print_line(table) } else { Ok(()) }
}

async fn write_drawing(out: &Path, analysis: &Analysis) -> anyhow::Result<()> {
    let faces: Vec<Detection> = analysis.faces.iter().map(|face| face.detection).collect();
    let mut frame = analysis.frame.as_ref().clone();
    let target = out.to_owned();
    tokio::task::spawn_blocking(move || {
        draw_faces(&mut frame, &faces);
        output::write_private_file(&target, &vision::encode::png(&frame))
    })
    .await?
    .with_context(|| format!("cannot write {}", out.display()))?;
    tracing::info!(file = %out.display(), "faces drawn");
    Ok(())
}

const BOX_COLOUR: [u8; 3] = [64, 255, 64];
/// One colour per landmark: right eye, left eye, nose, right and left mouth corner.
const LANDMARK_COLOURS: [[u8; 3]; 5] =
    [[255, 64, 64], [64, 64, 255], [255, 255, 64], [255, 64, 255], [64, 255, 255]];

/// Draws every face onto the frame. The lines are thick enough to be visible at any image size.
fn draw_faces(frame: &mut Frame, faces: &[Detection]) {
    let thickness = (frame.width().max(frame.height()) / 400).max(2) as f32;
    for face in faces {
        let (x, y) = (face.bbox.x, face.bbox.y);
        let (right, bottom) = (x + face.bbox.width, y + face.bbox.height);
        fill_rectangle(frame, x, y, right, y + thickness, BOX_COLOUR);
        fill_rectangle(frame, x, bottom - thickness, right, bottom, BOX_COLOUR);
        fill_rectangle(frame, x, y, x + thickness, bottom, BOX_COLOUR);
        fill_rectangle(frame, right - thickness, y, right, bottom, BOX_COLOUR);
        for (point, colour) in face.landmarks.iter().zip(LANDMARK_COLOURS) {
            let (x, y) = (point.x, point.y);
            fill_rectangle(frame, x - thickness, y - thickness, x + thickness, y + thickness, colour);
        }
    }
}

/// Fills the part of a rectangle that lies on the frame.
fn fill_rectangle(frame: &mut Frame, left: f32, top: f32, right: f32, bottom: f32, colour: [u8; 3]) {
    let (width, height) = (frame.width(), frame.height());
    // `as` saturates: values outside the frame end at its border, and NaN becomes 0.
    let clamp = |value: f32, limit: u32| (value.round().max(0.0) as u32).min(limit);
    let (left, right) = (clamp(left, width), clamp(right, width));
    for y in clamp(top, height)..clamp(bottom, height) {
        for x in left..right {
            let offset = (y as usize * width as usize + x as usize) * 3;
            frame.data_mut()[offset..offset + 3].copy_from_slice(&colour);
        }
    }
}

struct VideoDetector<'a> {
    settings: &'a Settings,
    analyzer: &'a Analyzer,
    options: VideoOptions,
    /// Opened for the first video.
    decoder: OnceCell<Result<Decoder, String>>,
}

impl VideoDetector<'_> {
    async fn analyze(&self, path: &Path) -> Result<VideoAnalysis, FileError> {
        let open = async || {
            let video_decoding = tokio::task::block_in_place(|| open_decoder(self.settings));
            video_decoding.map_err(|error| error.to_string())?.decoder.map_err(|error| error.to_string())
        };
        let decoder = self.decoder.get_or_init(open).await.as_ref();
        let decoder = decoder.map_err(|error| file_error(Reason::VideoUnavailable, error))?;
        let file = File::open(path).map_err(|error| file_error(Reason::Unreadable, error))?;
        let mut bar = VideoProgressBar::start(path);
        let (analyzer, options, priority) = (self.analyzer, &self.options, Priority::Background);
        let analyzed = VideoAnalyzer { analyzer, decoder, options, priority }.analyze(file, &mut bar).await;
        bar.finish();
        analyzed.map_err(|error| file_error(error.reason(), error))
    }
}

fn file_error(reason: Reason, error: impl ToString) -> FileError {
    FileError { reason, detail: error.to_string() }
}

/// Formats a count with the singular or the plural of its noun.
fn format_count(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Prints a line about a video, and a table of its tracks.
fn print_video(name: &str, analysis: &VideoAnalysis) -> anyhow::Result<()> {
    let mut table = output::table(["person", "from", "to", "frames", "face", "quality"]);
    for track in &analysis.tracks {
        let end = format_video_time(track.ended_us);
        let is_last = analysis.last_us == Some(track.ended_us);
        let best = track.faces.first();
        let size = best.map(|best| best.face.detection.bbox);
        let quality = best.and_then(|best| best.face.quality.as_ref());
        table.add_row([
            track.person.map_or_else(|| "unknown".into(), |person| person.to_string()),
            format_video_time(track.started_us),
            if is_last { format!("{end} (end)") } else { end },
            track.samples.to_string(),
            size.map(|size| format!("{:.0}x{:.0}", size.width, size.height)).unwrap_or_default(),
            quality.map(|quality| format!("{:.2}", quality.overall)).unwrap_or_default(),
        ]);
    }
    let index = &analysis.index;
    let duration = index.duration_us.map(format_video_time).unwrap_or_else(|| "unknown duration".into());
    let tolerance = analysis
        .tolerance_us
        .map_or_else(String::new, |us| format!("; times are exact to {:.2} s", us as f64 / 1e6));
    output::print_line(format_args!(
        "{name}: {} {}x{}, {duration}; {} analysed, {}, {}{tolerance}",
        index.codec,
        index.width,
        index.height,
        format_count(analysis.frames, "frame", "frames"),
        format_count(analysis.people.into(), "person", "people"),
        format_count(analysis.tracks.len() as u64, "track", "tracks"),
    ))?;
    if let Some(damage) = &analysis.damage {
        let kind = if damage.truncated { "the end of the file is missing" } else { "the file is damaged" };
        eprintln!("warning: {name}: {kind}: {}", damage.message);
    }
    if analysis.tracks.is_empty() { Ok(()) } else { output::print_line(table) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vision::{Point, Rect};

    #[test]
    fn draws_box_outline_without_fill() {
        let mut frame = Frame::filled(60, 50, [0; 3]);
        let landmarks = [Point { x: 30.0, y: 30.0 }; 5];
        let bbox = Rect { x: 10.0, y: 10.0, width: 40.0, height: 30.0 };
        draw_faces(&mut frame, &[Detection { bbox, det_score: 1.0, landmarks }]);
        assert_eq!(frame.pixel(10, 10), BOX_COLOUR);
        assert_eq!(frame.pixel(49, 39), BOX_COLOUR);
        assert_eq!(frame.pixel(20, 20), [0; 3]);
        assert_eq!(frame.pixel(9, 10), [0; 3]);
        assert_eq!(frame.pixel(30, 30), LANDMARK_COLOURS[4]);
    }

    #[test]
    fn clips_shapes_outside_image() {
        let mut frame = Frame::filled(20, 20, [0; 3]);
        let landmarks = [Point { x: f32::NAN, y: -50.0 }; 5];
        let bbox = Rect { x: -100.0, y: -100.0, width: 1e9, height: 105.0 };
        draw_faces(&mut frame, &[Detection { bbox, det_score: 1.0, landmarks }]);
        assert_eq!(frame.pixel(0, 4), BOX_COLOUR);
        assert_eq!(frame.pixel(0, 6), [0; 3]);
    }
}
