//! Decodes the frames of a sampling with and without an analysis, and collects the runs.
use super::usage::{Usage, Watch};
use crate::Process;
use anyhow::Context;
use inference::Priority;
use pipeline::{Analyzer, FrameFaces, VideoAnalysis, VideoOptions, VideoProgress};
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;
use video::{Decoder, Index, VideoError, sampling};

/// The result of decoding all frames once.
pub(super) struct Decoded {
    /// Time for the list of keyframes and all frames.
    pub(super) took: Duration,
    pub(super) usage: Usage,
}

/// Decodes the frames with the same calls as the analysis. The pixels of each frame are read from
/// the decoder's process, and nothing else happens to them.
///
/// # Errors
/// Fails if no frame can be decoded.
pub(super) async fn decode(
    file: File,
    decoder: &Decoder,
    options: &VideoOptions,
    process: &Process,
) -> anyhow::Result<Decoded> {
    let (decoder, options) = (decoder.clone(), options.clone());
    let watch = Arc::new(Watch::start(process)?);
    let position = watch.clone();
    // The decoder ends with its thread, so everything happens on one thread.
    let read = move || read_all(&decoder, &file, &options, &position);
    let frames = tokio::task::spawn_blocking(read).await??;
    let watch = Arc::into_inner(watch).context("the reader still runs")?;
    let (took, usage) = watch.stop();
    anyhow::ensure!(frames > 0, "the video has no frame that could be decoded");
    Ok(Decoded { took, usage })
}

fn read_all(
    decoder: &Decoder,
    file: &File,
    options: &VideoOptions,
    watch: &Watch,
) -> Result<u64, VideoError> {
    let index = decoder.index(file)?;
    let mut count = 0;
    for segment in sampling::plan(&index, options.sampling, options.max_gap_us) {
        let mut frames = decoder.frames(file, &index, &segment)?;
        loop {
            match frames.next_frame() {
                Ok(Some(frame)) => {
                    count += 1;
                    watch.at(frame.at_us);
                    frames.recycle(frame.frame);
                }
                Ok(None) => break,
                // A damaged video is used as far as it can be read, as in an analysis.
                Err(_) if count > 0 => return Ok(count),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(count)
}

/// An analysis that succeeded.
pub(super) struct Run {
    pub(super) took: Duration,
    pub(super) usage: Usage,
    pub(super) analysis: VideoAnalysis,
    /// Time of the last frame that was analysed, in microseconds.
    pub(super) last_us: i64,
    /// Number of faces in all frames.
    pub(super) faces: u64,
    /// Time for decoding alone in the same round.
    pub(super) decoding: Duration,
}

#[derive(Default)]
pub(super) struct SideRuns {
    pub(super) runs: Vec<Run>,
    pub(super) errors: BTreeMap<String, usize>,
}

/// All runs of one sampling.
pub(super) struct Runs {
    pub(super) decoded: Vec<Decoded>,
    pub(super) sides: Vec<SideRuns>,
}

impl Runs {
    pub(super) fn new(sides: usize) -> Self {
        Self { decoded: Vec::new(), sides: (0..sides).map(|_| SideRuns::default()).collect() }
    }

    /// Adds an analysis of the side with this number. `decoded` belongs to the same round.
    pub(super) fn add(&mut self, side: usize, analyzed: anyhow::Result<Run>, decoded: &Decoded) {
        match analyzed {
            Ok(run) => self.sides[side].runs.push(Run { decoding: decoded.took, ..run }),
            Err(error) => *self.sides[side].errors.entry(format!("{error:#}")).or_default() += 1,
        }
    }
}

/// Analyses the whole file once.
pub(super) async fn analyze(
    analyzer: &Analyzer,
    file: File,
    decoder: &Decoder,
    options: &VideoOptions,
    process: &Process,
) -> anyhow::Result<Run> {
    let watch = Watch::start(process)?;
    let mut seen = Seen { watch: &watch, last_us: 0, faces: 0 };
    let analyzed = analyzer.analyze_video(decoder, file, options, Priority::Background, &mut seen).await;
    let (last_us, faces) = (seen.last_us, seen.faces);
    // Also ends the thread that takes the samples if the analysis failed.
    let (took, usage) = watch.stop();
    Ok(Run { took, usage, analysis: analyzed?, last_us, faces, decoding: Duration::ZERO })
}

/// Tells the watch the position of the analysis.
struct Seen<'a> {
    watch: &'a Watch,
    last_us: i64,
    faces: u64,
}

impl VideoProgress for Seen<'_> {
    fn opened(&mut self, _: &Index) {}

    fn frame(&mut self, frame: FrameFaces<'_>) {
        self.last_us = frame.at_us;
        self.faces += frame.faces.len() as u64;
        self.watch.at(frame.at_us);
    }
}

/// Returns the length of the video in seconds: as the file reports it, or else the time of the last
/// frame that was analysed.
pub(super) fn seconds_of(index: &Index, measured: &[Runs]) -> f64 {
    let runs = measured.iter().flat_map(|runs| &runs.sides).flat_map(|side| &side.runs);
    let last_us = runs.map(|run| run.last_us).max().unwrap_or(0);
    index.duration_us.unwrap_or(last_us) as f64 / 1e6
}
