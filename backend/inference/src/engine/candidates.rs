//! The providers that an operation may try, and its share of a device's memory.
use crate::ep::Provider;
use crate::unavailable::{Unavailable, UnavailableKind};
use crate::{Config, Operation, StandIn};

/// Returns the providers to try, best first.
pub(super) fn candidates(config: &Config) -> &'static [Provider] {
    match config.stand_in {
        StandIn::None => Provider::candidates(config.backend),
        StandIn::Cpu | StandIn::Failing => &[Provider::Cpu],
    }
}

/// Returns the provider that runs image operations when `provider` is requested.
///
/// Images have any size. TensorRT would build an engine for each size, so CUDA is used on the same
/// device and in the same memory. MIGraphX and CoreML also compile a graph for each size, and have
/// no such alternative.
///
/// # Errors
/// Returns the reason if no provider can run them.
pub(super) fn for_pixels(provider: Provider) -> Result<Provider, Unavailable> {
    let reason = match provider {
        Provider::Cpu | Provider::Cuda => return Ok(provider),
        Provider::Tensorrt => return Ok(Provider::Cuda),
        Provider::OpenVino => "OpenVINO runs only models; image operations run on the CPU without it",
        Provider::Migraphx | Provider::CoreMl => {
            "it compiles a new graph for every image size, so image operations run on the CPU"
        }
    };
    Err(Unavailable::new(provider, UnavailableKind::Unsuited, reason))
}

/// Returns the size in bytes of the device memory for a session of `operation`. All operations that
/// request a GPU share the memory limit. The shares of the models are larger than those of image
/// operations, because a model runs batches and an image operation runs one image at a time. The
/// canvases of the detector are larger than the chips of the embedder.
pub(super) fn memory_share(config: &Config, operation: Operation) -> usize {
    let weight = |operation: Operation| match operation {
        Operation::FaceDetection => 6,
        Operation::FaceEmbedding => 4,
        Operation::ImageProcessing | Operation::ImageEnhancement | Operation::QualityChecks => 1,
    };
    let own = weight(operation);
    let all: usize = config.gpu_operations.iter().copied().map(weight).sum();
    let whole = (config.memory_limit_gb * f64::from(1 << 30)) as usize;
    whole / all.max(own) * own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_get_most_of_the_memory() {
        let config = |operations: &[Operation]| Config {
            gpu_operations: operations.to_vec(),
            memory_limit_gb: 13.0,
            ..Config::default()
        };
        let gib = |bytes: usize| bytes >> 30;
        let all = config(&Operation::ALL);
        assert_eq!(gib(memory_share(&all, Operation::FaceDetection)), 6);
        assert_eq!(gib(memory_share(&all, Operation::FaceEmbedding)), 4);
        assert_eq!(gib(memory_share(&all, Operation::QualityChecks)), 1);
        let one = config(&[Operation::FaceEmbedding]);
        assert_eq!(gib(memory_share(&one, Operation::FaceEmbedding)), 13);
    }
}
