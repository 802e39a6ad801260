//! Finds values that are individually allowed but contradict each other.
use super::{LoadedConfig, SearchIndex, Settings};
use crate::config::ConfigError;
use inference::{DeviceId, GpuBackend, Manifest, Operation, VIDEO_DECODING};
use server::Auth;

pub(super) fn find(loaded: &LoadedConfig) -> Vec<ConfigError> {
    let settings = &loaded.settings;
    let gpu = &settings.gpu;
    let mut errors = Vec::new();
    let mut report = |sentence: String| errors.push(ConfigError::Contradiction(sentence));
    let [force, backend, id, index] =
        ["FORCE_GPU_ONLY", "GPU_BACKEND", "GPU_DEVICE_ID", "SEARCH_INDEX"].map(|name| loaded.source(name));

    if gpu.force_gpu_only && gpu.backend == GpuBackend::Cpu {
        report(format!(
            "FORCE_GPU_ONLY=true ({force}) contradicts GPU_BACKEND=cpu ({backend}); allowed: a different GPU_BACKEND, or FORCE_GPU_ONLY=false"
        ));
    }
    if gpu.force_gpu_only && settings.gpu_operations().is_empty() && !settings.requests_video_decoding_gpu() {
        let names = Operation::ALL.into_iter().map(Operation::name).chain([VIDEO_DECODING]);
        let variables: Vec<String> = names.map(|name| format!("{}_GPU", name.to_uppercase())).collect();
        report(format!(
            "FORCE_GPU_ONLY=true ({force}) is set, but no operation is on the GPU; allowed: ALL_GPU=true, or at least one of {}, or FORCE_GPU_ONLY=false",
            variables.join(", "),
        ));
    }
    if loaded.is_set("GPU_DEVICE_ID")
        && !gpu.device_ids.is_empty()
        && !gpu.device_ids.iter().any(|device| device.id == gpu.device_id)
    {
        report(format!(
            "GPU_DEVICE_ID={} ({id}) is not among {}; allowed: one of them alone, or a list that contains it",
            gpu.device_id,
            describe_device_ids(loaded),
        ));
    }
    if settings.storage.search_index == SearchIndex::Qdrant && settings.storage.qdrant_url.is_empty() {
        report(format!(
            "SEARCH_INDEX=qdrant ({index}) needs QDRANT_URL; allowed: the address of the server's gRPC interface, like http://localhost:6334"
        ));
    }
    errors.extend(check_memory(loaded));
    errors.extend(check_devices(loaded));
    errors.extend(check_tensorrt(loaded));
    errors.extend(check_mqtt(loaded));
    errors.extend(check_proxy(loaded));
    match Manifest::load(&settings.models.dir) {
        Err(error) => errors.push(ConfigError::Contradiction(error)),
        Ok(manifest) if manifest.pack(&settings.models.pack).is_none() => errors.push(ConfigError::Invalid {
            key: "MODEL_PACK".into(),
            value: settings.models.pack.clone(),
            origin: loaded.source("MODEL_PACK").into(),
            allowed: manifest.packs.iter().map(|pack| pack.name.as_str()).collect::<Vec<_>>().join(", "),
        }),
        Ok(_) => {}
    }
    errors
}

fn check_memory(loaded: &LoadedConfig) -> Option<ConfigError> {
    let service = &loaded.settings.service;
    let (all, largest) = (service.max_decoded_megapixels?, service.max_image_megapixels);
    (all < largest).then(|| {
        ConfigError::Contradiction(format!(
            "MAX_DECODED_MEGAPIXELS={all} ({}) is less than MAX_IMAGE_MEGAPIXELS={largest} ({}), so an image of that size could never be decoded; \
             allowed: {largest} or more, or a smaller MAX_IMAGE_MEGAPIXELS",
            loaded.source("MAX_DECODED_MEGAPIXELS"),
            loaded.source("MAX_IMAGE_MEGAPIXELS"),
        ))
    })
}

fn describe_device_ids(loaded: &LoadedConfig) -> String {
    let ids = &loaded.settings.gpu.device_ids;
    let ids = ids.iter().map(DeviceId::to_string).collect::<Vec<_>>().join(",");
    format!("GPU_DEVICE_IDS={ids} ({})", loaded.source("GPU_DEVICE_IDS"))
}

fn check_devices(loaded: &LoadedConfig) -> Vec<ConfigError> {
    let gpu = &loaded.settings.gpu;
    let mut messages = Vec::new();
    let place = |device: &DeviceId| (device.backend_or(gpu.backend), device.id);
    let duplicate = gpu
        .device_ids
        .iter()
        .enumerate()
        .find(|(at, device)| gpu.device_ids[..*at].iter().any(|earlier| place(earlier) == place(device)));
    if let Some((_, id)) = duplicate {
        messages.push(format!("{} lists {id} twice; allowed: each device once", describe_device_ids(loaded)));
    }
    if gpu.backend == GpuBackend::Cpu && gpu.device_ids.iter().any(|device| device.backend.is_some()) {
        messages.push(format!(
            "{} names a backend, but GPU_BACKEND=cpu ({}) switches every GPU off; allowed: a different GPU_BACKEND, or numbers alone",
            describe_device_ids(loaded),
            loaded.source("GPU_BACKEND"),
        ));
    }
    for backend in [GpuBackend::Mps, GpuBackend::WebGpu] {
        let uses_backend = |device: &&DeviceId| device.backend_or(gpu.backend) == backend;
        if gpu.device_ids.iter().filter(uses_backend).count() > 1 {
            messages.push(format!(
                "{} lists several devices of {}, which supports only one; allowed: one device of it, or a different GPU_BACKEND",
                describe_device_ids(loaded),
                backend.name(),
            ));
        }
    }
    messages.into_iter().map(ConfigError::Contradiction).collect()
}

fn check_tensorrt(loaded: &LoadedConfig) -> Vec<ConfigError> {
    let tensorrt = &loaded.settings.tensorrt;
    let mut messages = Vec::new();
    if !loaded.settings.gpu_backends().contains(&GpuBackend::Tensorrt) {
        let set = loaded.resolved.iter().filter(|r| r.name.starts_with("TENSORRT_") && r.source != "default");
        messages.extend(set.map(|r| {
            format!(
                "{}={} ({}) has no effect with GPU_BACKEND={} ({}); allowed: GPU_BACKEND=tensorrt, or leave it unset",
                r.name,
                r.value.as_deref().unwrap_or_default(),
                r.source,
                loaded.value("GPU_BACKEND").unwrap_or_default(),
                loaded.source("GPU_BACKEND"),
            )
        }));
        return messages.into_iter().map(ConfigError::Contradiction).collect();
    }
    let is_int8 = tensorrt.int8.unwrap_or(false);
    let int8 = format!("TENSORRT_INT8={is_int8} ({})", loaded.source("TENSORRT_INT8"));
    match (&tensorrt.calibration_table, is_int8) {
        (None, true) => messages.push(format!(
            "{int8} needs a calibration table; allowed: TENSORRT_CALIBRATION_TABLE=FILE, or TENSORRT_INT8=false"
        )),
        (Some(table), true) if !table.exists() => messages.push(format!(
            "TENSORRT_CALIBRATION_TABLE={} ({}) does not exist; allowed: an existing file or folder",
            table.display(),
            loaded.source("TENSORRT_CALIBRATION_TABLE"),
        )),
        (Some(table), false) => messages.push(format!(
            "TENSORRT_CALIBRATION_TABLE={} ({}) has no effect with {int8}; allowed: TENSORRT_INT8=true, or leave it unset",
            table.display(),
            loaded.source("TENSORRT_CALIBRATION_TABLE"),
        )),
        _ => {}
    }
    messages.into_iter().map(ConfigError::Contradiction).collect()
}

fn check_mqtt(loaded: &LoadedConfig) -> Vec<ConfigError> {
    let mqtt = &loaded.settings.mqtt;
    let Some(address) = &mqtt.address else { return Vec::new() };
    let mut messages = Vec::new();
    if mqtt.collections.is_none() {
        messages.push(format!(
            "MQTT_URL ({}) needs MQTT_COLLECTIONS; allowed: names of collections, comma-separated, or none. Everyone who \
             can read from the broker sees the alerts and people of these collections",
            loaded.source("MQTT_URL"),
        ));
    }
    if mqtt.password.is_some() && mqtt.user.is_none() {
        let source = loaded.source("MQTT_PASSWORD");
        messages.push(format!("MQTT_PASSWORD ({source}) needs MQTT_USER; allowed: the name of the user"));
    }
    if mqtt.authorities.is_some() && !address.has_tls {
        messages.push(format!(
            "MQTT_CA ({}) has no effect without TLS; set MQTT_URL to an address mqtts://HOST[:PORT], or unset MQTT_CA",
            loaded.source("MQTT_CA"),
        ));
    }
    messages.into_iter().map(ConfigError::Contradiction).collect()
}

/// With `AUTH=proxy`, the service must know the proxies and the rights of groups.
fn check_proxy(loaded: &LoadedConfig) -> Vec<ConfigError> {
    let service = &loaded.settings.service;
    if service.auth != Some(Auth::Proxy) {
        return Vec::new();
    }
    let source = loaded.source("AUTH");
    let mut messages = Vec::new();
    if service.auth_proxy_addresses.is_empty() {
        messages.push(format!(
            "AUTH=proxy ({source}) needs AUTH_PROXY_ADDRESSES; allowed: the addresses of the proxies, like 10.0.0.5/32, comma-separated"
        ));
    }
    if service.auth_proxy_groups.is_empty() {
        messages.push(format!(
            "AUTH=proxy ({source}) needs AUTH_PROXY_GROUPS; allowed: groups like editors=read+search@press,admins=all"
        ));
    }
    if service.auth_proxy_user_header == service.auth_proxy_groups_header {
        messages
            .push("AUTH_PROXY_USER_HEADER and AUTH_PROXY_GROUPS_HEADER must be different headers".to_owned());
    }
    for (setting, header) in [
        ("AUTH_PROXY_USER_HEADER", &service.auth_proxy_user_header),
        ("AUTH_PROXY_GROUPS_HEADER", &service.auth_proxy_groups_header),
    ] {
        if RESERVED_HEADERS.contains(&header.as_str()) {
            messages.push(format!(
                "{setting}={header} ({}) is not possible, because clients set this header themselves; \
                 allowed: a header that only the proxy sets, like Remote-User",
                loaded.source(setting),
            ));
        }
    }
    for range in service.auth_proxy_addresses.iter().filter(|range| range.prefix_len() == 0) {
        messages.push(format!(
            "AUTH_PROXY_ADDRESSES={range} ({}) contains all addresses, so everybody could sign on as anybody; \
             allowed: the addresses of the proxies, like 10.0.0.5/32",
            loaded.source("AUTH_PROXY_ADDRESSES"),
        ));
    }
    messages.into_iter().map(ConfigError::Contradiction).collect()
}

/// Headers, in lower case, that have a meaning for the service or for HTTP. A proxy passes them on
/// from the client. With `authorization` or `x-api-key`, a request would count as one with a key.
const RESERVED_HEADERS: [&str; 14] = [
    "accept",
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "forwarded",
    "host",
    "origin",
    "transfer-encoding",
    "user-agent",
    "x-api-key",
    "x-forwarded-for",
    "x-request-id",
];

impl Settings {
    /// Fails if `HOST` can be reached from the network and `AUTH` is not set. Commands that listen
    /// on a port call it.
    pub fn check_listen_address(&self) -> Result<(), ConfigError> {
        let host = self.service.host;
        if host.to_canonical().is_loopback() || self.service.auth.is_some() {
            return Ok(());
        }
        Err(ConfigError::Contradiction(format!(
            "HOST={host} can be reached from the network, and AUTH is not set; \
             allowed: a loopback address (127.0.0.1, ::1), AUTH=keys, AUTH=proxy, or AUTH=none if another program controls access to the port"
        )))
    }
}
