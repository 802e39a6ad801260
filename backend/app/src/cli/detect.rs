//! Implements `detect`, which prints the faces of files without a database.

mod video;

use self::video::VideoDetector;
use super::video::VideoArgs;
use super::{Exit, UsageError, draw};
use crate::config::{Settings, cores};
use crate::image_files::begins_like_video;
use crate::service::start_engine;
use crate::{output, private};
use anyhow::Context;
use clap::Args;
use domain::Reason;
use futures::{StreamExt, TryStreamExt, stream};
use inference::Priority;
use pipeline::{
    Analysis, AnalyzeOptions, AnalyzedFace, Analyzer, Enhance, MAX_FACES, Passes, Rotate, VideoAnalysis,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use vision::Detection;

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
    #[arg(long, value_name = "SCORE", value_parser = fraction)]
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
    #[arg(long, value_name = "PASSES", value_parser = passes)]
    passes: Option<Passes>,
    /// Draw the boxes and landmarks of a single file, and write the result as PNG
    #[arg(long, value_name = "OUT.png")]
    draw: Option<PathBuf>,
    #[command(flatten)]
    video: VideoArgs,
}

fn fraction(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|score| (0.0..=1.0).contains(score));
    number.ok_or_else(|| "it must be a number from 0 to 1".into())
}

fn passes(text: &str) -> Result<Passes, String> {
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

/// Why a file has no result: a stable code and a sentence.
struct Refusal {
    reason: Reason,
    detail: String,
}

/// The result of one file, kept until all files are processed. It does not contain the pixels,
/// because other files need their memory.
enum Found {
    Image { faces: Vec<AnalyzedFace>, document: Value },
    Video(Box<VideoAnalysis>),
}

pub(super) async fn run(settings: &Settings, args: DetectArgs) -> anyhow::Result<Exit> {
    if args.draw.is_some() && args.files.len() > 1 {
        return Err(UsageError("--draw accepts only a single file".into()).into());
    }
    let (options, request) = (args.options(), args.video.request(args.rotate())?);
    let analyzer = Analyzer::new(start_engine(settings).await?, crate::decoder::pipeline_config(settings));
    let videos = VideoDetector::new(settings, &analyzer, request, args.min_score);
    let answers: Vec<(PathBuf, Result<Found, Refusal>)> = stream::iter(&args.files)
        .map(|file| one(&analyzer, &videos, file, &options, args.draw.as_deref()))
        // Results are in the order of the command line.
        .buffered(cores() + 1)
        .try_collect()
        .await?;
    let failed = answers.iter().filter(|(_, answer)| answer.is_err()).count();
    if args.json {
        let results =
            answers.iter().map(|(file, answer)| document(file, answer, &analyzer, options.embeddings));
        let results: Vec<Value> = results.collect();
        output::json(&json!({ "results": results }))?;
    } else {
        print(&answers)?;
    }
    Ok(Exit::of(answers.len() - failed, failed))
}

/// Analyzes a file and returns its path with the result. If `draw` is set, draws the faces into
/// that file; the outer error reports a failure to draw.
async fn one(
    analyzer: &Analyzer,
    videos: &VideoDetector<'_>,
    file: &Path,
    options: &AnalyzeOptions,
    draw: Option<&Path>,
) -> anyhow::Result<(PathBuf, Result<Found, Refusal>)> {
    let path = file.to_owned();
    if tokio::task::spawn_blocking(move || begins_like_video(&path)).await? {
        if draw.is_some() {
            return Err(UsageError("--draw accepts only an image".into()).into());
        }
        let found = videos.analyze(file).await.map(|analysis| Found::Video(Box::new(analysis)));
        return Ok((file.to_owned(), found));
    }
    let analysis = match analyze(analyzer, file, options).await {
        Ok(analysis) => analysis,
        Err(refusal) => return Ok((file.to_owned(), Err(refusal))),
    };
    if let Some(out) = draw {
        draw_to(out, &analysis).await?;
    }
    let document = server::detect_answer(&analysis, analyzer.engine());
    Ok((file.to_owned(), Ok(Found::Image { faces: analysis.faces, document })))
}

async fn analyze(analyzer: &Analyzer, file: &Path, options: &AnalyzeOptions) -> Result<Analysis, Refusal> {
    let bytes = tokio::fs::read(file)
        .await
        .map_err(|error| Refusal { reason: Reason::Unreadable, detail: error.to_string() })?;
    analyzer
        .analyze(bytes.into(), options, Priority::Background)
        .await
        .map_err(|error| Refusal { reason: error.reason(), detail: error.to_string() })
}

/// Returns the API's response or the error, with the name of the file added.
fn document(
    file: &Path,
    answer: &Result<Found, Refusal>,
    analyzer: &Analyzer,
    with_embeddings: bool,
) -> Value {
    let mut document = match answer {
        Ok(Found::Image { document, .. }) => document.clone(),
        Ok(Found::Video(analysis)) => server::video_answer(analysis, analyzer.engine(), with_embeddings),
        Err(refusal) => json!({ "error": { "code": refusal.reason, "detail": refusal.detail } }),
    };
    document["file"] = json!(file);
    document
}

fn print(answers: &[(PathBuf, Result<Found, Refusal>)]) -> anyhow::Result<()> {
    let mut table =
        output::table(["file", "face", "x", "y", "width", "height", "score", "quality", "reasons"]);
    let mut images = 0;
    for (file, answer) in answers {
        let name = file.display().to_string();
        match answer {
            Ok(Found::Video(analysis)) => video::print(&name, analysis)?,
            Ok(Found::Image { faces, .. }) if faces.is_empty() => {
                table.add_row([name.as_str(), "none"]);
                images += 1;
            }
            Ok(Found::Image { faces, .. }) => {
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
            Err(refusal) => eprintln!("error: {name}: {}", refusal.detail),
        }
    }
    if images > 0 { output::line(table) } else { Ok(()) }
}

async fn draw_to(out: &Path, analysis: &Analysis) -> anyhow::Result<()> {
    let faces: Vec<Detection> = analysis.faces.iter().map(|face| face.detection).collect();
    let mut frame = analysis.frame.as_ref().clone();
    let target = out.to_owned();
    tokio::task::spawn_blocking(move || {
        draw::faces(&mut frame, &faces);
        private::write(&target, &vision::encode::png(&frame))
    })
    .await?
    .with_context(|| format!("cannot write {}", out.display()))?;
    tracing::info!(file = %out.display(), "faces drawn");
    Ok(())
}
