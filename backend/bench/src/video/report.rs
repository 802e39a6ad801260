//! Defines the report. `docs/reference/BENCHMARKS.md` describes it in prose.
use super::{VideoPlan, VideoSide};
use crate::System;
use serde::Serialize;
use std::collections::BTreeMap;
use video::{Decoder, Index};

/// The results by operation (always `video`), sampling, and `gpu_true` or `gpu_false`.
pub type VideoResults = BTreeMap<String, BTreeMap<String, BTreeMap<String, VideoSide>>>;

/// The results of one run of `facecrawl bench --operation video`.
#[derive(Clone, Debug, Serialize)]
pub struct VideoReport {
    pub benchmark_results: VideoResults,
    pub plan: VideoPlanReport,
    pub system: System,
    pub notes: Vec<String>,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct VideoPlanReport {
    /// Number of measured rounds.
    pub iterations: usize,
    /// Number of rounds before the measurement.
    pub warmup: usize,
    /// Longest time without an analysed frame of the sampling `auto`, in seconds.
    pub max_gap_seconds: f64,
    pub file: String,
    /// Names of the container's format in ffmpeg.
    pub container: String,
    /// Name of the codec in ffmpeg.
    pub codec: String,
    /// Width of the coded picture in pixels.
    pub width: u32,
    pub height: u32,
    /// Duration in seconds, if the file reports one.
    pub seconds: Option<f64>,
    pub keyframes: usize,
    /// The version of ffmpeg.
    pub ffmpeg: String,
    pub decoder_threads: u32,
}

impl VideoPlanReport {
    pub fn new(plan: &VideoPlan, index: &Index, decoder: &Decoder) -> Self {
        Self {
            iterations: plan.iterations,
            warmup: plan.warmup,
            max_gap_seconds: plan.options.max_gap_us as f64 / 1e6,
            file: plan.file.display().to_string(),
            container: index.container.clone(),
            codec: index.codec.clone(),
            width: index.width,
            height: index.height,
            seconds: index.duration_us.map(|us| us as f64 / 1e6),
            keyframes: index.keyframes_us.len(),
            ffmpeg: decoder.sandboxed().version.clone(),
            decoder_threads: decoder.config().threads,
        }
    }
}
