//! Values that are fine alone and cannot hold together.
use super::error::ConfigError;
use super::{Loaded, Settings};
use inference::{GpuBackend, Manifest, Operation};

pub(super) fn find(loaded: &Loaded) -> Vec<ConfigError> {
    let settings = &loaded.settings;
    let gpu = &settings.gpu;
    let mut found = Vec::new();
    let mut say = |sentence: String| found.push(ConfigError::Contradiction(sentence));

    if gpu.force_gpu_only && gpu.backend == GpuBackend::Cpu {
        say(format!(
            "FORCE_GPU_ONLY=true ({}) contradicts GPU_BACKEND=cpu ({}); allowed: another GPU_BACKEND, or FORCE_GPU_ONLY=false",
            loaded.source("FORCE_GPU_ONLY"),
            loaded.source("GPU_BACKEND"),
        ));
    }
    if gpu.force_gpu_only && settings.gpu_operations().is_empty() {
        say(format!(
            "FORCE_GPU_ONLY=true ({}) but no operation is on the GPU; allowed: ALL_GPU=true, or at least one of {}, or FORCE_GPU_ONLY=false",
            loaded.source("FORCE_GPU_ONLY"),
            Operation::ALL.map(|operation| format!("{}_GPU", operation.name().to_uppercase())).join(", "),
        ));
    }
    if loaded.is_set("GPU_DEVICE_ID")
        && !gpu.device_ids.is_empty()
        && !gpu.device_ids.contains(&gpu.device_id)
    {
        say(format!(
            "GPU_DEVICE_ID={} ({}) is not among GPU_DEVICE_IDS={} ({}); allowed: one of them alone, or a list that contains it",
            gpu.device_id,
            loaded.source("GPU_DEVICE_ID"),
            gpu.device_ids.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
            loaded.source("GPU_DEVICE_IDS"),
        ));
    }
    let manifest = Manifest::builtin();
    if manifest.pack(&settings.models.pack).is_none() {
        found.push(ConfigError::Invalid {
            key: "MODEL_PACK".into(),
            value: settings.models.pack.clone(),
            origin: loaded.source("MODEL_PACK").into(),
            allowed: manifest.packs.iter().map(|pack| pack.name.as_str()).collect::<Vec<_>>().join(", "),
        });
    }
    found
}

impl Settings {
    /// Refuses to open the API to a network without keys unless that was said explicitly. Checked by the commands that listen.
    pub fn check_listen(&self) -> Result<(), ConfigError> {
        let host = self.service.host;
        if host.to_canonical().is_loopback() || self.service.auth.is_some() {
            return Ok(());
        }
        Err(ConfigError::Contradiction(format!(
            "HOST={host} can be reached from the network, and nothing would ask callers for a key; \
             allowed: a loopback address (127.0.0.1, ::1), or AUTH=none when something else guards the port"
        )))
    }
}
