//! Measures each operation at each image size, on both sides in turn.
use crate::side_report::{Sample, Totals, run_round};
use crate::{BenchImages, BenchTarget, Process, Results, Side};
use anyhow::bail;
use bytes::Bytes;
use inference::{Operation, Priority, drawing};
use pipeline::{AnalyzeOptions, Analyzer};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vision::Frame;

/// Number of rounds in which CPU and GPU alternate, so that other load on the machine affects both.
const ROUNDS: usize = 5;

/// The measured operations and the number of iterations.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The operations, in the order of the report.
    pub targets: Vec<BenchTarget>,
    /// Number of images (or faces) in flight, which is also the number of images per iteration.
    pub batch_size: usize,
    pub iterations: usize,
    /// Number of iterations before the measurement.
    pub warmup: usize,
}

/// Measures every operation at every size of `images`. Runs on the CPU and on the GPU alternate.
/// `progress` is called with the name of the next measurement.
///
/// # Errors
/// Fails if no image of a size can be used. An image that fails is not an error; it lowers
/// `success_rate`.
pub async fn measure(
    plan: &Plan,
    sides: &[Side],
    images: &[BenchImages],
    process: &Process,
    mut progress: impl FnMut(&str),
) -> anyhow::Result<Results> {
    let mut results = Results::new();
    for images in images {
        for target in &plan.targets {
            progress(&format!("{} {}", target.name(), images.size));
            let Some(first) = sides.first() else { continue };
            let work = Work::prepare(*target, images, &first.analyzer).await?;
            let totals = run_rounds(plan, sides, &work, process).await;
            let sizes = results.entry(target.name().to_owned()).or_default();
            let results_by_side = sizes.entry(images.size.clone()).or_default();
            for (side, totals) in sides.iter().zip(totals) {
                results_by_side.insert(
                    side.key().to_owned(),
                    totals.report(side, *target, plan.batch_size, process.cores),
                );
            }
        }
    }
    Ok(results)
}

/// Runs the warm-up, then rounds in which each side is measured. The order of the sides changes
/// between rounds.
async fn run_rounds(plan: &Plan, sides: &[Side], work: &Work, process: &Process) -> Vec<Totals> {
    let run = async |side: &Side, iterations: usize| {
        let run_once = |index| work.run_once(&side.analyzer, index);
        run_round(run_once, iterations * plan.batch_size, plan.batch_size, process.cpu_seconds).await
    };
    for side in sides {
        run(side, plan.warmup).await;
    }
    let mut totals: Vec<Totals> = sides.iter().map(|_| Totals::default()).collect();
    let rounds = if sides.len() > 1 { plan.iterations.min(ROUNDS) } else { 1 };
    for number in 0..rounds {
        // Distributes the iterations evenly: of 7 iterations in 5 rounds, two rounds have two.
        let share = plan.iterations * (number + 1) / rounds - plan.iterations * number / rounds;
        let mut order: Vec<usize> = (0..sides.len()).collect();
        order.rotate_left(number % sides.len());
        for index in order {
            let before = process.counters.read();
            let measured = run(&sides[index], share).await;
            totals[index].add(measured, plan.batch_size, &before.increase_to(&process.counters.read()));
        }
    }
    totals
}

/// Width and height in pixels of the chips that embedders accept.
const CHIP_PIXELS: u32 = 112;

/// Inputs that can be used repeatedly.
enum Work {
    Pipeline(Vec<Bytes>),
    Operation(Operation, Vec<Result<Arc<Frame>, String>>),
}

impl Work {
    /// Prepares the inputs. This includes all work that must not be measured: decoding images for
    /// single operations, and finding chips.
    async fn prepare(target: BenchTarget, images: &BenchImages, analyzer: &Analyzer) -> anyhow::Result<Self> {
        if images.frames.iter().all(Result::is_err) {
            let reason = images.frames.iter().find_map(|frame| frame.as_ref().err());
            bail!("none of the images can be used: {}", reason.map_or("there are none", String::as_str));
        }
        let operation = match target {
            BenchTarget::Pipeline => return Ok(Self::Pipeline(images.files.clone())),
            BenchTarget::Operation(Operation::FaceEmbedding) => {
                let chips = find_chips(&images.files, analyzer).await?;
                return Ok(Self::Operation(Operation::FaceEmbedding, chips));
            }
            BenchTarget::Operation(operation) => operation,
        };
        Ok(Self::Operation(operation, images.frames.clone()))
    }

    /// Runs the work once. `index` selects the input, modulo the number of inputs.
    pub(crate) async fn run_once(&self, analyzer: &Analyzer, index: usize) -> Result<Sample, String> {
        match self {
            Self::Pipeline(files) => run_pipeline(analyzer, files[index % files.len()].clone()).await,
            Self::Operation(operation, frames) => {
                let frame = frames[index % frames.len()].clone()?;
                run_single(analyzer, *operation, frame).await.map_err(|error| format!("{error:#}"))
            }
        }
    }
}

/// Returns the chips of all faces found in the files, or a drawn one if there are none.
async fn find_chips(files: &[Bytes], analyzer: &Analyzer) -> anyhow::Result<Vec<Result<Arc<Frame>, String>>> {
    let options =
        AnalyzeOptions { embeddings: false, quality: false, chips: true, ..AnalyzeOptions::default() };
    let mut chips = Vec::new();
    for file in files {
        match analyzer.analyze(file.clone(), &options, Priority::Background).await {
            Ok(analysis) => chips.extend(analysis.faces.into_iter().filter_map(|face| face.chip).map(Ok)),
            Err(error) => chips.push(Err(error.to_string())),
        }
    }
    if !chips.iter().any(Result::is_ok) {
        chips.push(Ok(Arc::new(drawing::draw_portrait(CHIP_PIXELS, CHIP_PIXELS))));
    }
    Ok(chips)
}

async fn run_pipeline(analyzer: &Analyzer, bytes: Bytes) -> Result<Sample, String> {
    let started = Instant::now();
    let analysis = analyzer
        .analyze(bytes, &AnalyzeOptions::default(), Priority::Background)
        .await
        .map_err(|error| error.to_string())?;
    let timings = analysis.timings;
    let stages = [
        ("decode", timings.decode),
        ("letterbox", timings.letterbox),
        ("detect", timings.detect),
        ("align", timings.align),
        ("quality", timings.quality),
        ("embed", timings.embed),
        ("queue", timings.queue),
    ];
    Ok(Sample { duration: started.elapsed(), faces: analysis.faces.len(), stages: BTreeMap::from(stages) })
}

async fn run_single(analyzer: &Analyzer, operation: Operation, frame: Arc<Frame>) -> anyhow::Result<Sample> {
    let started = Instant::now();
    let engine = analyzer.engine();
    let mut stages: BTreeMap<&'static str, Duration> = BTreeMap::new();
    let mut faces = 0;
    match operation {
        Operation::FaceDetection => {
            let min_score = engine.detector().min_score;
            // The pipeline works in the same way. If both operations share a device, the image is
            // copied to it once, and the canvas is part of the run.
            let detected = if engine.draws_canvases_on_device() {
                let letterbox = analyzer.letterbox(&frame);
                engine.face_detector().detect(frame, letterbox, min_score, Priority::Background).await?
            } else {
                let canvas = draw_canvas(analyzer, frame, &mut stages).await?;
                engine.detect(canvas, min_score, Priority::Background).await?
            };
            *stages.entry("queue").or_default() += detected.queued;
            stages.insert("detect", detected.ran);
            faces = detected.output.len();
        }
        Operation::FaceEmbedding => {
            let embedding = engine.embed(frame, Priority::Background).await?;
            stages.extend([("queue", embedding.queued), ("embed", embedding.ran)]);
            faces = 1;
        }
        Operation::ImageProcessing => {
            draw_canvas(analyzer, frame, &mut stages).await?;
        }
        Operation::ImageEnhancement => {
            let enhanced = analyzer.pixels().enhance(frame, Priority::Background).await?;
            stages.extend([("queue", enhanced.queued), ("enhance", enhanced.ran)]);
        }
        Operation::QualityChecks => {
            let statistics = analyzer.pixels().statistics(frame, Priority::Background).await?;
            stages.extend([("queue", statistics.queued), ("quality", statistics.ran)]);
        }
    }
    Ok(Sample { duration: started.elapsed(), faces, stages })
}

/// Draws the frame on the detector's canvas.
async fn draw_canvas(
    analyzer: &Analyzer,
    frame: Arc<Frame>,
    stages: &mut BTreeMap<&'static str, Duration>,
) -> anyhow::Result<Arc<Frame>> {
    let letterbox = analyzer.letterbox(&frame);
    let drawn = analyzer.pixels().canvas(frame, letterbox, Priority::Background).await?;
    stages.extend([("queue", drawn.queued), ("letterbox", drawn.ran)]);
    Ok(drawn.output)
}
