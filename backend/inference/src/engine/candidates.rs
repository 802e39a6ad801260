//! Which providers an operation may try, and on which devices.
use crate::ep::Provider;
use crate::runtime::Runtime;
use crate::{Config, Operation, StandIn};

/// The providers to try, best first.
pub(super) fn candidates(config: &Config) -> &'static [Provider] {
    match config.stand_in {
        StandIn::None => Provider::candidates(config.backend),
        StandIn::Cpu | StandIn::Failing => &[Provider::Cpu],
    }
}

/// What `prove` makes of each configured device with the first provider that works on all of them, or why none does.
pub(super) fn first_that_works<T>(
    config: &Config,
    runtime: &Runtime,
    mut prove: impl FnMut(Provider, u32) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let candidates = candidates(config);
    if candidates.is_empty() {
        return Err("GPU_BACKEND is cpu".to_owned());
    }
    let mut reasons = Vec::new();
    for provider in candidates {
        let found = match provider.absence(runtime) {
            Some(reason) => Err(reason),
            None if config.device_ids.is_empty() => Err("no device id is given".to_owned()),
            None => config.device_ids.iter().map(|id| prove(*provider, *id)).collect(),
        };
        match found {
            Ok(found) => return Ok(found),
            Err(reason) => reasons.push(format!("{}: {reason}", provider.name())),
        }
    }
    Err(reasons.join("; "))
}

/// Bytes of device memory for a session of `operation`: a share for every operation that asked for a GPU, where a model counts four
/// times as much as an operation on pictures. Batches of activations need it; a picture at a time does not.
pub(super) fn memory_share(config: &Config, operation: Operation) -> usize {
    let weight = |operation: Operation| match operation {
        Operation::FaceDetection | Operation::FaceEmbedding => 4,
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
            memory_limit_gb: 11.0,
            ..Config::default()
        };
        let gib = |bytes: usize| bytes >> 30;
        let all = config(&Operation::ALL);
        assert_eq!(gib(memory_share(&all, Operation::FaceDetection)), 4);
        assert_eq!(gib(memory_share(&all, Operation::QualityChecks)), 1);
        let one = config(&[Operation::FaceEmbedding]);
        assert_eq!(gib(memory_share(&one, Operation::FaceEmbedding)), 11);
    }
}
