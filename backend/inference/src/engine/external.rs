//! Chooses the GPUs of `video_decoding`. ffmpeg runs this operation, but the rules are those of the
//! operations that the engine runs.
use super::candidates::candidates;
use super::fallbacks::Fallbacks;
use super::placement::not_placed;
use crate::ep::Provider;
use crate::unavailable::{DISAGREES, Refusal, Unavailable, diagnose};
use crate::{Config, OperationReport, StartError, UnavailableKind};

pub const VIDEO_DECODING: &str = "video_decoding";

/// Why a GPU does not decode videos.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceFailure {
    /// Its frames differ from those of the CPU. The text describes the difference.
    Differs(String),
    /// It decodes nothing. The text is the message of ffmpeg.
    Failed(String),
}

#[derive(Clone, Debug)]
pub struct VideoPlacement {
    /// The report for `GET /gpu`.
    pub report: OperationReport,
    /// CUDA's numbers of the GPUs; empty if the CPU decodes.
    pub devices: Vec<u32>,
}

/// Chooses the GPUs for videos, if `requested`. `try_device` checks that a GPU decodes as the CPU
/// does. All configured GPUs must pass this check.
///
/// # Errors
/// Fails with [`StartError::GpuOnly`] if there is no GPU and `FORCE_GPU_ONLY` is set.
pub fn place_video_decoding(
    config: &Config,
    requested: bool,
    mut try_device: impl FnMut(u32) -> Result<(), DeviceFailure>,
) -> Result<VideoPlacement, StartError> {
    let mut report = not_placed(config, VIDEO_DECODING, requested);
    if !requested {
        return Ok(VideoPlacement { report, devices: Vec::new() });
    }
    match first_that_works(config, &mut try_device) {
        Ok(devices) => {
            let labels: Vec<String> = devices.iter().map(|id| format!("cuda:{id}")).collect();
            report.effective = labels.join(",");
            Ok(VideoPlacement { report, devices })
        }
        Err(refusal) => {
            let fallbacks = Fallbacks::new(config.force_gpu_only);
            fallbacks.handle_refusal(VIDEO_DECODING, &report.requested, &refusal)?;
            fallbacks.log();
            report.add_refusal(&refusal);
            Ok(VideoPlacement { report, devices: Vec::new() })
        }
    }
}

/// Returns the report for a machine without a usable ffmpeg. `reason` explains the cause. No device
/// decodes videos in this case, so it is not a fallback, even with `FORCE_GPU_ONLY`.
pub fn no_video_decoding(config: &Config, requested: bool, reason: String) -> OperationReport {
    let mut report = not_placed(config, VIDEO_DECODING, requested);
    report.effective = "none".to_owned();
    let missing = Unavailable { provider: None, kind: UnavailableKind::ProgramMissing, detail: reason };
    report.add_refusal(&missing.into());
    report
}

fn first_that_works(
    config: &Config,
    try_device: &mut impl FnMut(u32) -> Result<(), DeviceFailure>,
) -> Result<Vec<u32>, Refusal> {
    let candidates = candidates(config);
    if candidates.is_empty() {
        return Err(Unavailable::switched_off().into());
    }
    let mut tried = Vec::new();
    for provider in candidates {
        match config.device_ids.iter().try_for_each(|id| try_on(*provider, *id, try_device)) {
            Ok(()) => return Ok(config.device_ids.clone()),
            Err(reason) => tried.push(reason),
        }
    }
    Err(Refusal::from_attempts(&tried))
}

fn try_on(
    provider: Provider,
    id: u32,
    try_device: &mut impl FnMut(u32) -> Result<(), DeviceFailure>,
) -> Result<(), Unavailable> {
    match provider {
        Provider::Cuda | Provider::Tensorrt => try_device(id).map_err(|failure| match failure {
            DeviceFailure::Failed(text) => diagnose(provider, id, &text),
            DeviceFailure::Differs(what) => {
                Unavailable::new(provider, UnavailableKind::Disagrees, format!("{DISAGREES}{what}"))
            }
        }),
        Provider::Cpu | Provider::OpenVino | Provider::Migraphx | Provider::CoreMl => {
            let reason = "videos are decoded on GPUs of NVIDIA only; the CPU decodes them here";
            Err(Unavailable::new(provider, UnavailableKind::Unsuited, reason))
        }
    }
}
