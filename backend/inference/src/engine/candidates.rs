//! Which providers an operation may try, and on which devices.
use crate::ep::Provider;
use crate::runtime::Runtime;
use crate::{Config, StandIn};

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

/// Bytes of device memory for one session: an equal share for every operation that asked for a GPU.
pub(super) fn memory_share(config: &Config) -> usize {
    (config.memory_limit_gb * f64::from(1 << 30)) as usize / config.gpu_operations.len().max(1)
}
