//! Runs a model on the CPU with the backend that `CPU_BACKEND` selects, unless that is ONNX
//! Runtime's own kernels in FP32.
use super::candidate::CandidateModel;
use crate::backend::{OnnxModel, Placement};
use crate::ep::Provider;
use crate::models::Model;
use crate::unavailable::{Unavailable, UnavailableKind, diagnose};
use crate::{CpuBackend, Operation, Precision};

/// Returns the CPU placement that `CPU_BACKEND` selects, or `None` for ONNX Runtime in FP32. Only
/// embedders use INT8, because it would move a detector's scores across the threshold.
pub(super) fn chosen<M: Model>(candidate: &CandidateModel<'_, M>) -> Option<Placement> {
    let embeds = candidate.model.operation() == Operation::FaceEmbedding;
    match candidate.config.cpu_backend {
        CpuBackend::Auto if embeds && candidate.file.int8 && multiplies_bytes() => {
            Some(candidate.placement(Provider::Cpu, 0))
        }
        CpuBackend::OnnxRuntimeInt8 if embeds => Some(candidate.placement(Provider::Cpu, 0)),
        CpuBackend::OpenVino(_) => Some(candidate.placement(Provider::OpenVino, 0)),
        CpuBackend::Auto | CpuBackend::OnnxRuntime | CpuBackend::OnnxRuntimeInt8 => None,
    }
}

/// Returns the placement's name for warnings and metrics.
pub(super) fn name(chosen: &Placement) -> &'static str {
    match chosen.provider {
        Provider::Cpu => chosen.precision.name(),
        provider => provider.name(),
    }
}

/// Loads a session on `chosen` and compares its first run with that of the FP32 session.
pub(super) fn load_session<M: Model>(
    candidate: &CandidateModel<'_, M>,
    chosen: &Placement,
) -> Result<OnnxModel, Unavailable> {
    let provider = chosen.provider;
    let unsuited = |reason: &str| Err(Unavailable::new(provider, UnavailableKind::Unsuited, reason));
    match Unavailable::absence(provider, candidate.runtime.path()) {
        Some(reason) => Err(reason),
        None if chosen.precision == Precision::Bf16 && !multiplies_bf16() => {
            unsuited("this processor does not support bf16 instructions")
        }
        None if chosen.precision == Precision::Int8 && !multiplies_bytes() => {
            unsuited("this processor does not support int8 dot product instructions")
        }
        None => candidate.cpu_session(chosen).map_err(|text| diagnose(provider, 0, &text)),
    }
}

/// Returns whether the processor has instructions for sums of 8-bit products. Without them, ONNX
/// Runtime still supports INT8, but it is slower, and on x86 the sums overflow.
fn multiplies_bytes() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::is_x86_feature_detected!("avx512vnni") || std::arch::is_x86_feature_detected!("avxvnni")
    }
    #[cfg(target_arch = "aarch64")]
    {
        std::arch::is_aarch64_feature_detected!("dotprod")
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        false
    }
}

/// Returns whether the processor has instructions for BF16. Else OpenVINO silently uses FP32.
fn multiplies_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::is_x86_feature_detected!("avx512bf16")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}
