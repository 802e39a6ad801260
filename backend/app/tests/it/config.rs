//! Tests the sources of values, which values are rejected, and the settings of devices and memory.
use crate::common::service::assert_contains;
use app::config::{ConfigError, ConfigErrors, Flag, LoadedConfig, Sources, env_example, load, variables};
use inference::{CpuBackend, DeviceId, GpuBackend, Operation, Precision};
use std::path::Path;
use std::time::Duration;

/// Configuration layers in a separate folder. The environment of the test process is not used.
struct Layers {
    folder: tempfile::TempDir,
    sources: Sources,
}

impl Layers {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sources = Sources {
            file: folder.path().join("facecrawl.toml"),
            file_required: false,
            dotenv: folder.path().join(".env"),
            environment: Vec::new(),
            flags: Vec::new(),
            packages: None,
        };
        Self { folder, sources }
    }
    fn file(self, text: &str) -> Self {
        std::fs::write(self.folder.path().join("facecrawl.toml"), text).unwrap();
        self
    }
    fn dotenv(self, text: &str) -> Self {
        std::fs::write(self.folder.path().join(".env"), text).unwrap();
        self
    }
    fn env(mut self, name: &str, value: &str) -> Self {
        self.sources.environment.push((name.into(), value.into()));
        self
    }
    fn flag(mut self, flag: &str, variable: &str, value: &str) -> Self {
        self.sources.flags.push(Flag { flag: flag.into(), variable: variable.into(), value: value.into() });
        self
    }
    fn load(&self) -> Result<LoadedConfig, ConfigErrors> {
        load(&self.sources)
    }
    fn ok(&self) -> LoadedConfig {
        self.load().unwrap_or_else(|errors| panic!("{errors}"))
    }
    /// Returns the text of the only error.
    fn error_text(&self) -> String {
        let errors = self.load().expect_err("the configuration is wrong").0;
        assert_eq!(errors.len(), 1, "{errors:?}");
        errors[0].to_string()
    }
    /// Requires exactly one error, whose text contains all parts.
    fn assert_error(&self, parts: &[&str]) {
        assert_contains(&self.error_text(), parts);
    }
}

#[test]
fn unset_variables_use_documented_defaults() {
    let loaded = Layers::new().ok();
    let settings = &loaded.settings;
    assert_eq!((settings.service.host.to_string().as_str(), settings.service.port), ("127.0.0.1", 8080));
    assert_eq!(settings.storage.data_dir, Path::new("data"));
    assert_eq!(settings.models.dir, Path::new("models"));
    assert_eq!(settings.models.pack, "opencv");
    assert_eq!(settings.blob_store_url(), "data/blobs");
    let limits = vision::Limits::default();
    assert_eq!(settings.image_limits().max_bytes, limits.max_bytes);
    assert_eq!(settings.image_limits().max_pixels, limits.max_pixels);
    assert!(settings.gpu_operations().is_empty());
    let engine = settings.inference();
    let defaults = inference::Config::default();
    assert_eq!(engine.device_ids, defaults.device_ids);
    assert_eq!(engine.gpu_batch_size, defaults.gpu_batch_size);
    assert_eq!(engine.memory_limit_gb, defaults.memory_limit_gb);
    assert_eq!(engine.batch_max_delay, defaults.batch_max_delay);
    assert_eq!(settings.crawler().user_agent, crawler::Config::default().user_agent);
    assert_eq!(settings.crawler().ports, [80, 443]);
    assert_eq!(settings.crawls().default_delay, pipeline::crawls::Config::default().default_delay);
    assert!(loaded.resolved.iter().all(|resolved| resolved.source == "default"));
    assert_eq!(loaded.resolved.len(), variables().len());
}

#[test]
fn higher_config_layer_overrides_lower_one() {
    let port = |layers: &Layers| {
        let loaded = layers.ok();
        let source = loaded.source("PORT").rsplit('/').next().unwrap().to_owned();
        (loaded.settings.service.port, source)
    };
    let layers = Layers::new();
    assert_eq!(port(&layers), (8080, "default".into()));
    let layers = layers.file("port = 1001");
    assert_eq!(port(&layers), (1001, "facecrawl.toml".into()));
    let layers = layers.dotenv("PORT=1002\nSOMETHING_ELSE=1");
    assert_eq!(port(&layers), (1002, ".env".into()));
    let layers = layers.env("PORT", "1003").env("PATH", "/bin");
    assert_eq!(port(&layers), (1003, "environment".into()));
    let layers = layers.flag("--port", "PORT", "1004");
    assert_eq!(port(&layers), (1004, "--port".into()));
}

#[test]
fn facecrawl_root_locates_default_folders() {
    let root = tempfile::tempdir().unwrap();
    let layers = Layers::new().env("FACECRAWL_ROOT", root.path().to_str().unwrap());
    let loaded = layers.ok();
    assert_eq!(loaded.settings.storage.data_dir, root.path().join("data"));
    assert_eq!(loaded.settings.models.dir, root.path().join("models"));
    assert_eq!(loaded.settings.storage.postgres_bin_dir, None, "nothing is installed there");
    let programs = root.path().join(".runtime/postgres/bin");
    std::fs::create_dir_all(&programs).unwrap();
    assert_eq!(layers.ok().settings.storage.postgres_bin_dir, Some(programs));
    let elsewhere = layers.env("DATA_DIR", "/elsewhere").ok();
    assert_eq!(elsewhere.settings.storage.data_dir, Path::new("/elsewhere"));
}

#[test]
fn empty_value_counts_as_unset_in_every_layer() {
    let layers = Layers::new()
        .file("port = 1001\nmodel_pack = \"\"")
        .dotenv("PORT=\nGPU_DEVICE_IDS=")
        .env("PORT", "")
        .env("FACE_DETECTION_GPU", " ");
    let loaded = layers.ok();
    assert_eq!(loaded.settings.service.port, 1001);
    assert_eq!(loaded.settings.models.pack, "opencv");
    assert_eq!(loaded.settings.gpu.face_detection, None);
}

#[test]
fn config_file_accepts_toml_types() {
    let layers = Layers::new().file(
        "gpu_device_ids = [0, 1]\ncrawl_allow_private = [\"127.0.0.0/8\", \"10.0.0.0/8\"]\nall_gpu = true\ngpu_memory_limit_gb = 4.5",
    );
    let settings = layers.ok().settings;
    assert_eq!(settings.inference().device_ids, [0, 1].map(DeviceId::from));
    assert_eq!(settings.inference().memory_limit_gb, 4.5);
    assert_eq!(settings.crawler().allow_private.len(), 2);
    assert_eq!(settings.gpu_operations().len(), 5);
}

#[test]
fn invalid_value_error_names_key_source_and_allowed_values() {
    for (name, value, allowed) in [
        ("PORT", "eighty", "a number from 0 to 65535"),
        ("HOST", "localhost", "an IP address"),
        ("GPU_BACKEND", "vulkan", "auto, cuda, tensorrt, rocm, mps, openvino, webgpu, cpu"),
        ("ALL_GPU", "perhaps", "true or false"),
        ("GPU_DEVICE_IDS", "0,x", "device numbers"),
        ("GPU_DEVICE_IDS", "auto:0", "cuda:0,openvino:0"),
        ("GPU_DEVICE_IDS", "cuda:256", "device numbers"),
        ("GPU_MEMORY_LIMIT_GB", "0", "a number from 0.25 to 1024"),
        ("DETECTION_SIZE", "650", "a multiple of 32 from 64 to 2048"),
        ("DETECTION_PASSES", "twice", "single, auto, thorough"),
        ("QUALITY_PROFILE", "best", "off, standard, strict"),
        ("AUTH", "password", "none"),
        ("DATABASE_URL", "mysql://db/faces", "postgres://"),
        ("CRAWL_ALLOW_PRIVATE", "everything", "address ranges"),
        ("CRAWL_EXTRA_CA", "/nowhere/ca.pem", "PEM"),
        ("CRAWL_USER_AGENT", "b\u{f6}t", "printable ASCII"),
        ("LOG_LEVEL", "info,=x=", "error, warn, info, debug, trace"),
        ("LOG_FORMAT", "xml", "text, json"),
        ("MODEL_PACK", "huge", "compact"),
        ("DRAIN_SECONDS", "-1", "a number from 0 to 3600"),
    ] {
        Layers::new().env(name, value).assert_error(&[name, value, "environment", allowed]);
    }
}

#[test]
fn removed_edge_index_error_names_replacements() {
    for value in ["edge", "Edge"] {
        let text = Layers::new().env("SEARCH_INDEX", value).error_text();
        let refused = format!("SEARCH_INDEX={value} (from environment) is no longer supported; ");
        let remedy = "run `facecrawl index rebuild --index pgvector` if";
        assert_contains(&text, &[&refused, "set SEARCH_INDEX=pgvector or qdrant", remedy]);
    }
    Layers::new().file("search_index = \"edge\"").assert_error(&["facecrawl.toml", "no longer supported"]);
    let text = Layers::new().env("SEARCH_INDEX", "ivf").error_text();
    assert_contains(&text, &["is not allowed; allowed: pgvector, qdrant"]);
}

#[test]
fn all_config_errors_are_reported_at_once() {
    let errors = Layers::new().env("PORT", "x").file("gpu_batch_size = 0").load().err().unwrap();
    assert_eq!(errors.0.len(), 2);
    assert_contains(&errors.to_string(), &["2 errors", "PORT=x", "GPU_BATCH_SIZE=0", "facecrawl.toml"]);
}

#[test]
fn unknown_config_key_error_suggests_known_key() {
    Layers::new().file("gpu_bachend = \"cuda\"").assert_error(&[
        "gpu_bachend",
        "facecrawl.toml",
        "did you mean `gpu_backend`?",
    ]);
    Layers::new()
        .file("[server]\nport = 1")
        .assert_error(&["unknown key `server`", "the keys are the variables of .env.example"]);
    Layers::new().flag("--set", "WORKER", "1").assert_error(&["WORKER", "--set", "did you mean `workers`?"]);
    Layers::new().file("port = [[").assert_error(&["cannot read", "facecrawl.toml"]);
}

#[test]
fn missing_required_file_and_malformed_dotenv_are_rejected() {
    let mut layers = Layers::new();
    layers.sources.file_required = true;
    assert!(matches!(layers.load().err().unwrap().0[0], ConfigError::File { .. }));
    let text = Layers::new().dotenv("PORT=1\nthis is s3cret\n").error_text();
    assert_contains(&text, &[".env", "NAME=value"]);
    assert!(!text.contains("s3cret"), "{text}");
}

#[test]
fn contradiction_error_names_both_settings_and_fix() {
    Layers::new()
        .env("FORCE_GPU_ONLY", "true")
        .env("ALL_GPU", "true")
        .flag("--set", "GPU_BACKEND", "cpu")
        .assert_error(&["FORCE_GPU_ONLY=true (environment)", "GPU_BACKEND=cpu (--set)", "allowed:"]);
    Layers::new().env("FORCE_GPU_ONLY", "true").assert_error(&[
        "no operation is on the GPU",
        "FACE_DETECTION_GPU",
        "ALL_GPU=true",
    ]);
    Layers::new()
        .env("GPU_DEVICE_ID", "2")
        .env("GPU_DEVICE_IDS", "0,1")
        .assert_error(&["GPU_DEVICE_ID=2", "GPU_DEVICE_IDS=0,1"]);

    Layers::new().env("GPU_DEVICE_IDS", "0,1,0").assert_error(&[
        "GPU_DEVICE_IDS=0,1,0",
        "lists 0 twice",
        "allowed:",
    ]);
    Layers::new().env("GPU_BACKEND", "mps").env("GPU_DEVICE_IDS", "0,1").assert_error(&[
        "GPU_DEVICE_IDS=0,1",
        "several devices of mps",
        "one device",
    ]);
    Layers::new()
        .env("GPU_DEVICE_IDS", "cuda:0,webgpu:0,webgpu:1")
        .assert_error(&["GPU_DEVICE_IDS=cuda:0,webgpu:0,webgpu:1", "several devices of webgpu"]);

    Layers::new().env("FORCE_GPU_ONLY", "true").env("FACE_EMBEDDING_GPU", "true").ok();
    Layers::new().env("GPU_DEVICE_ID", "1").env("GPU_DEVICE_IDS", "0,1").ok();
    Layers::new().env("GPU_BACKEND", "cuda").env("GPU_DEVICE_IDS", "0,cuda:0").assert_error(&["twice"]);
    Layers::new()
        .env("GPU_BACKEND", "cpu")
        .env("GPU_DEVICE_IDS", "webgpu:0")
        .assert_error(&["GPU_DEVICE_IDS=webgpu:0", "GPU_BACKEND=cpu"]);
    let loaded = Layers::new().env("GPU_DEVICE_IDS", "1, openvino:0, cuda:1").ok();
    let devices = loaded.settings.inference().device_ids;
    let names: Vec<String> = devices.iter().map(DeviceId::to_string).collect();
    assert_eq!(names, ["1", "openvino:0", "cuda:1"]);
    assert_eq!(devices[1], DeviceId { backend: Some(GpuBackend::OpenVino), id: 0 });
}

#[test]
fn public_host_requires_explicit_auth_setting() {
    let is_refused = |layers: Layers| layers.ok().settings.check_listen_address().is_err();
    assert!(!is_refused(Layers::new()));
    assert!(!is_refused(Layers::new().env("HOST", "::1")));
    assert!(!is_refused(Layers::new().env("HOST", "127.0.0.9")));
    assert!(is_refused(Layers::new().env("HOST", "0.0.0.0")));
    assert!(is_refused(Layers::new().env("HOST", "::")));
    assert!(!is_refused(Layers::new().env("HOST", "0.0.0.0").env("AUTH", "none")));
    let error =
        Layers::new().env("HOST", "10.1.2.3").ok().settings.check_listen_address().unwrap_err().to_string();
    assert_contains(&error, &["HOST=10.1.2.3", "AUTH=none", "127.0.0.1"]);
}

#[test]
fn sign_on_needs_proxies_groups_and_safe_headers() {
    const PROXY: &str = "10.0.0.5/32";
    const GROUPS: &str = "editors=read+search@press,admins=all";
    let layers = |addresses: &str, groups: &str| {
        let layers = Layers::new().env("AUTH", "proxy");
        layers.env("AUTH_PROXY_ADDRESSES", addresses).env("AUTH_PROXY_GROUPS", groups)
    };
    assert_eq!(layers(PROXY, GROUPS).ok().settings.service.auth_proxy_groups.len(), 2);
    layers("", GROUPS).assert_error(&["AUTH=proxy (environment) needs AUTH_PROXY_ADDRESSES"]);
    layers(PROXY, "").assert_error(&["AUTH=proxy (environment) needs AUTH_PROXY_GROUPS"]);
    for everybody in ["0.0.0.0/0", "10.0.0.5/32,::/0"] {
        layers(everybody, GROUPS).assert_error(&["contains all addresses", PROXY]);
    }
    layers(PROXY, GROUPS)
        .env("AUTH_PROXY_USER_HEADER", "Remote-User")
        .env("AUTH_PROXY_GROUPS_HEADER", "remote-user")
        .assert_error(&["must be different headers"]);
    for header in ["Authorization", "x-api-key", "Origin", "Host"] {
        for name in ["AUTH_PROXY_USER_HEADER", "AUTH_PROXY_GROUPS_HEADER"] {
            layers(PROXY, GROUPS)
                .env(name, header)
                .assert_error(&[name, "clients set this header themselves"]);
        }
    }
}

#[test]
fn mqtt_needs_explicit_collections_and_address_without_credentials() {
    let layers = || Layers::new().env("MQTT_URL", "mqtts://broker");
    assert!(Layers::new().ok().settings.mqtt().is_none());
    layers().assert_error(&["MQTT_URL (environment) needs MQTT_COLLECTIONS", "or none"]);
    let config = layers().env("MQTT_COLLECTIONS", "home,garden").ok().settings.mqtt().unwrap();
    assert_eq!(
        (config.broker.address.port, config.collections.as_slice()),
        (8883, ["home".into(), "garden".into()].as_slice())
    );
    assert_eq!((config.prefix.as_str(), config.names), ("facecrawl", false));
    assert_eq!(config.discovery_prefix.unwrap().as_str(), "homeassistant");
    let layers = || layers().env("MQTT_COLLECTIONS", "none");
    assert!(layers().ok().settings.mqtt().unwrap().collections.is_empty());
    let config = layers().env("MQTT_DISCOVERY_PREFIX", "none").ok().settings.mqtt().unwrap();
    assert!(config.discovery_prefix.is_none());
    let with_password = layers().env("MQTT_PASSWORD", "hunter2");
    with_password.assert_error(&["MQTT_PASSWORD (environment) needs MQTT_USER"]);
    assert!(!with_password.error_text().contains("hunter2"));
    let config = with_password.env("MQTT_USER", "me").ok().settings.mqtt().unwrap();
    assert!(!format!("{config:?}").contains("hunter2"), "{config:?}");

    let with_user = Layers::new().env("MQTT_URL", "mqtt://me:hunter2@broker");
    with_user.assert_error(&["MQTT_URL", "me:***@broker", "MQTT_USER and MQTT_PASSWORD"]);
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    layers().env("MQTT_CA", path).assert_error(&["MQTT_CA", "certificates in PEM form"]);
    for (name, value) in
        [("MQTT_PREFIX", "a/+"), ("MQTT_DISCOVERY_PREFIX", "#"), ("MQTT_COLLECTIONS", "a,none")]
    {
        Layers::new().env(name, value).assert_error(&[name, value, "allowed"]);
    }
}

#[test]
fn secrets_are_masked_in_listings_and_errors() {
    let loaded = Layers::new().env("DATABASE_URL", "postgres://u:s3cret@db/faces").ok();
    assert_eq!(loaded.settings.storage.database_url.as_deref(), Some("postgres://u:s3cret@db/faces"));
    let listed = serde_json::to_string(&loaded.resolved).unwrap();
    assert!(!listed.contains("s3cret") && listed.contains("postgres://u:***@db/faces"), "{listed}");
    let text = Layers::new().env("DATABASE_URL", "mysql://u:s3cret@db/faces").error_text();
    assert!(!text.contains("s3cret"), "{text}");
}

#[test]
fn bucket_credentials_come_from_any_layer_and_stay_hidden() {
    let layers = Layers::new()
        .dotenv("AWS_ACCESS_KEY_ID=AK1\nAWS_SECRET_ACCESS_KEY=s3cret")
        .env("AWS_REGION", "eu-central-1")
        .env("BLOB_STORE_URL", "s3://faces/press");
    let loaded = layers.ok();
    assert_eq!(loaded.settings.blob_store_url(), "s3://faces/press");
    let bucket = loaded.settings.bucket_variables();
    assert_eq!(bucket.len(), 3);
    assert!(bucket.contains(&("AWS_SECRET_ACCESS_KEY", "s3cret".into())));
    let listed = serde_json::to_string(&loaded.resolved).unwrap();
    assert!(!listed.contains("s3cret") && !listed.contains("AK1"), "{listed}");
}

/// `.env.example` is the output of `facecrawl config example`, with the variables, meanings and
/// defaults of the code.
#[test]
fn env_example_file_matches_code() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.env.example");
    let written = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    assert_eq!(written, env_example(), "run: cargo run -p facecrawl -- config example > .env.example");
}

#[test]
fn uncommented_env_example_equals_default_configuration() {
    let assignment = |line: &str| {
        let (name, value) = line.strip_prefix('#')?.split_once('=')?;
        (!name.starts_with(' ')).then(|| format!("{name}={value}"))
    };
    let lines: Vec<String> = env_example().lines().filter_map(assignment).collect();
    for variable in variables() {
        let name = format!("{}=", variable.name);
        assert!(lines.iter().any(|line| line.starts_with(&name)), "{name} is missing");
    }
    // The lines include the variables of docker-compose.yml, which the program ignores.
    let uncommented = Layers::new().dotenv(&lines.join("\n")).ok();
    let defaults = Layers::new().ok();
    for (uncommented, default) in uncommented.resolved.iter().zip(&defaults.resolved) {
        assert_eq!((uncommented.name, &uncommented.value), (default.name, &default.value));
    }
}

/// The names are a public interface.
#[test]
fn every_public_variable_exists_with_meaning() {
    let names: Vec<&str> = variables().iter().map(|variable| variable.name).collect();
    for name in "HOST PORT DATABASE_URL DATA_DIR MODELS_DIR MODEL_PACK FACE_MODEL_MIRROR ORT_DYLIB_PATH POSTGRES_BIN_DIR \
         BLOB_STORE_URL WORKERS LOG_LEVEL LOG_FORMAT DEBUG AUTH CRAWL_ALLOW_PRIVATE CRAWL_EXTRA_CA CRAWL_USER_AGENT CRAWL_DELAY_MS \
         DETECTION_SIZE DETECTION_PASSES QUALITY_PROFILE ACCEPT_LICENSE ALL_GPU FACE_DETECTION_GPU FACE_EMBEDDING_GPU \
         IMAGE_PROCESSING_GPU IMAGE_ENHANCEMENT_GPU QUALITY_CHECKS_GPU GPU_BACKEND GPU_PLUGINS_DIR GPU_DEVICE_ID GPU_DEVICE_IDS \
         GPU_MEMORY_LIMIT_GB GPU_BATCH_SIZE FORCE_GPU_ONLY BATCH_MAX_DELAY_MS PERFORMANCE_MODE CPU_BACKEND CPU_SESSIONS CPU_SESSION_THREADS \
         TENSORRT_FP16 TENSORRT_INT8 TENSORRT_CALIBRATION_TABLE TENSORRT_WORKSPACE_GB TENSORRT_CACHE_DIR DRAIN_SECONDS MAX_IMAGE_MB"
        .split_whitespace()
    {
        assert!(names.contains(&name), "{name} is missing");
    }
    assert!(
        variables()
            .iter()
            .all(|variable| !variable.meaning.is_empty() && !variable.meaning.contains(variable.name))
    );
}

#[test]
fn config_file_recipes_are_parsed_and_validated() {
    let url = |text: &str| text.parse::<url::Url>().unwrap();
    let recipe = "port = 9000\n[[recipe]]\nhosts = [\"*.example.org\"]\nimages = [\"img.photo\"]\n[[recipe]]\nhosts = [\"a.test\"]\n";
    let loaded = Layers::new().file(recipe).ok();
    assert_eq!(loaded.settings.service.port, 9000);
    assert!(loaded.settings.crawls().recipes.for_url(&url("http://www.example.org/")).is_some());
    assert!(loaded.settings.crawls().recipes.for_url(&url("http://b.test/")).is_none());
    for (text, parts) in [
        (
            "[[recipe]]\nhosts = [\"a.test\"]\ndrop = [\"div >\"]",
            &["facecrawl.toml", "recipe 1, drop: \"div >\" is not a valid CSS selector"][..],
        ),
        (
            "[[recipe]]\nimages = [\"img\"]",
            &["hosts", "[[recipe]] table with hosts and any of images, links and drop"],
        ),
        ("[[recipe]]\nhosts = [\"a.test\"]\nimage = [\"img\"]", &["image", "[[recipe]] table"]),
        ("recipe = 3", &["[[recipe]] table"]),
        ("[[recipes]]\nhosts = []", &["unknown key `recipes`"]),
    ] {
        Layers::new().file(text).assert_error(parts);
    }
}

#[test]
fn all_gpu_keeps_explicit_operation_settings() {
    let layers = Layers::new().env("ALL_GPU", "true").env("IMAGE_ENHANCEMENT_GPU", "false");
    let operations = layers.ok().settings.gpu_operations();
    assert_eq!(operations.len(), 4);
    assert!(!operations.contains(&Operation::ImageEnhancement));
    assert!(layers.ok().settings.requests_video_decoding_gpu());
    assert!(!layers.env("VIDEO_DECODING_GPU", "false").ok().settings.requests_video_decoding_gpu());
    let video = Layers::new().env("VIDEO_DECODING_GPU", "true").ok().settings;
    assert!(video.requests_video_decoding_gpu() && video.gpu_operations().is_empty());
    let layers = Layers::new().env("QUALITY_CHECKS_GPU", "1").env("GPU_BACKEND", "CUDA");
    let engine = layers.ok().settings.inference();
    assert_eq!(engine.gpu_operations, [Operation::QualityChecks]);
    assert_eq!(engine.backend, GpuBackend::Cuda);
}

#[test]
fn cpu_backend_is_selected_by_name() {
    let backend = |name: &str| Layers::new().env("CPU_BACKEND", name).ok().settings.inference().cpu_backend;
    assert_eq!(Layers::new().ok().settings.inference().cpu_backend, CpuBackend::Auto);
    assert_eq!(backend("onnxruntime"), CpuBackend::OnnxRuntime);
    assert_eq!(backend("onnxruntime-int8"), CpuBackend::OnnxRuntimeInt8);
    assert_eq!(backend("openvino"), CpuBackend::OpenVino(Precision::Fp32));
    assert_eq!(backend("openvino-bf16"), CpuBackend::OpenVino(Precision::Bf16));
    Layers::new().env("CPU_BACKEND", "bf16").assert_error(&[
        "CPU_BACKEND",
        "bf16",
        "auto, onnxruntime, onnxruntime-int8, openvino, openvino-bf16",
    ]);
}

#[test]
fn performance_mode_sets_only_unset_engine_settings() {
    let cores = app::config::cores();
    let engine = |layers: &Layers| {
        let engine = layers.ok().settings.inference();
        (engine.batch_max_delay, engine.gpu_batch_size, engine.cpu_sessions, engine.cpu_session_threads)
    };
    let throughput = Layers::new().env("PERFORMANCE_MODE", "throughput");
    assert_eq!(engine(&throughput), (Duration::from_millis(2), 32, cores, 1));
    let latency = || Layers::new().env("PERFORMANCE_MODE", "latency");
    let threads = cores.min(4);
    assert_eq!(engine(&latency()), (Duration::ZERO, 4, (cores / threads).max(1), threads));
    let explicit = latency()
        .env("BATCH_MAX_DELAY_MS", "7.5")
        .env("GPU_BATCH_SIZE", "16")
        .env("CPU_SESSIONS", "3")
        .env("CPU_SESSION_THREADS", "2");
    assert_eq!(engine(&explicit), (Duration::from_micros(7500), 16, 3, 2));
    assert_eq!(
        engine(&latency().env("CPU_SESSION_THREADS", "1")).2,
        cores,
        "sessions times threads equal the cores"
    );

    // Values from the mode are listed with the mode as their source.
    let loaded = latency().env("GPU_BATCH_SIZE", "8").ok();
    let listed = |name: &str| (loaded.value(name).unwrap(), loaded.source(name));
    assert_eq!(listed("BATCH_MAX_DELAY_MS"), ("0", "PERFORMANCE_MODE"));
    assert_eq!(listed("GPU_BATCH_SIZE"), ("8", "environment"));
    assert_eq!(listed("CPU_SESSION_THREADS"), (threads.to_string().as_str(), "PERFORMANCE_MODE"));
    assert_eq!(Layers::new().ok().value("GPU_BATCH_SIZE"), Some("32"));
}

#[test]
fn tensorrt_settings_require_backend_and_calibration_table() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("faces.table");
    let path = table.to_str().unwrap();
    let with = |pairs: &[(&str, &str)]| {
        pairs.iter().fold(Layers::new().env("GPU_BACKEND", "tensorrt"), |layers, (name, value)| {
            layers.env(name, value)
        })
    };
    for (name, value) in
        [("TENSORRT_FP16", "false"), ("TENSORRT_WORKSPACE_GB", "4"), ("TENSORRT_CACHE_DIR", "/cache")]
    {
        Layers::new().env(name, value).assert_error(&[
            &format!("{name}={value} (environment)"),
            "GPU_BACKEND=auto (default)",
            "tensorrt",
        ]);
        with(&[(name, value)]).ok();
    }
    with(&[("TENSORRT_INT8", "true")])
        .assert_error(&["TENSORRT_INT8=true (environment)", "TENSORRT_CALIBRATION_TABLE=FILE"]);
    with(&[("TENSORRT_CALIBRATION_TABLE", path)]).assert_error(&[
        path,
        "TENSORRT_INT8=false (default)",
        "TENSORRT_INT8=true",
    ]);
    with(&[("TENSORRT_INT8", "true"), ("TENSORRT_CALIBRATION_TABLE", path)])
        .assert_error(&[path, "does not exist"]);

    std::fs::write(&table, "TRT-100100-EntropyCalibration2\n").unwrap();
    let engine = with(&[("TENSORRT_INT8", "true"), ("TENSORRT_CALIBRATION_TABLE", path)]).ok();
    assert_eq!(engine.settings.inference().tensorrt.calibration.as_deref(), Some(table.as_path()));
    let defaults = with(&[("DATA_DIR", "/srv/faces")]).ok().settings.inference().tensorrt;
    assert_eq!(defaults.cache_dir, Path::new("/srv/faces/tensorrt"));
    assert!(defaults.fp16 && defaults.calibration.is_none() && defaults.workspace_gb == 2.0);
}

/// Returns the limit of concurrently decoded images in millions of pixels.
fn decoded_megapixels(layers: &Layers) -> u64 {
    layers.ok().settings.pipeline().decoded_bytes / 3_000_000
}

#[test]
fn default_pixel_budget_fits_five_largest_images() {
    let by_cores = 40 * app::config::cores() as u64;
    assert_eq!(decoded_megapixels(&Layers::new()), by_cores.max(250));
    assert_eq!(decoded_megapixels(&Layers::new().env("MAX_IMAGE_MEGAPIXELS", "1000")), by_cores.max(5000));
    assert_eq!(decoded_megapixels(&Layers::new().env("MAX_DECODED_MEGAPIXELS", "50")), 50);
    Layers::new().env("MAX_DECODED_MEGAPIXELS", "49").assert_error(&[
        "MAX_DECODED_MEGAPIXELS=49 (environment)",
        "MAX_IMAGE_MEGAPIXELS=50 (default)",
        "50 or more",
    ]);
    Layers::new()
        .env("MAX_DECODED_MEGAPIXELS", "0")
        .assert_error(&["MAX_DECODED_MEGAPIXELS=0", "a number from 1 to 1000000"]);
}

#[test]
fn body_budget_is_default_or_configured_value() {
    let budget = |layers: Layers| layers.ok().settings.server().body_budget;
    assert_eq!(budget(Layers::new()), server::Config::default().body_budget);
    assert_eq!(budget(Layers::new().env("MAX_PENDING_BODY_MB", "64")), 64 << 20);
    Layers::new()
        .env("MAX_PENDING_BODY_MB", "8")
        .assert_error(&["MAX_PENDING_BODY_MB=8", "a number from 16 to 1048576"]);
}

/// The table in SIZING.md is computed from the settings: the defaults of a machine with two cores.
#[test]
fn sizing_guide_matches_memory_limits() {
    let layers = Layers::new().env("WORKERS", "8").env("MAX_DECODED_MEGAPIXELS", "250");
    let limits = layers.ok().settings.memory_limits(2);
    let mb = |bytes: u64| format!("{} MB", bytes / 1_000_000);
    let row = |content: &str, rule: &str, bytes| format!("| {content} | {rule} | {} |", mb(bytes));
    let mut expected: Vec<String> =
        limits.iter().map(|limit| row(limit.content, limit.rule, limit.bytes)).collect();
    expected.push(row("sum", "", limits.iter().map(|limit| limit.bytes).sum()).replace("|  |", "| |"));
    let guide = std::fs::read_to_string(testing::root().join("docs/how-to/SIZING.md")).unwrap();
    let table = guide.split("| item | maximum | default, 2 cores |\n|---|---|---|\n").nth(1).unwrap();
    let rows: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
    assert_eq!(rows, expected);
}

#[test]
fn each_memory_setting_increases_total_limit() {
    let sum = |layers: Layers| -> u64 {
        layers.ok().settings.memory_limits(2).iter().map(|limit| limit.bytes).sum()
    };
    let default_sum = sum(Layers::new());
    for (name, value) in [
        ("MAX_DECODED_MEGAPIXELS", "5000"),
        ("MAX_PENDING_BODY_MB", "600"),
        ("MAX_CONNECTIONS", "10000"),
        ("IMAGE_WORKERS", "100"),
        ("MAX_IMAGE_MB", "60"),
        ("PAGE_WORKERS", "100"),
        ("VIDEO_MEMORY_MB", "2048"),
    ] {
        assert!(sum(Layers::new().env(name, value)) > default_sum, "{name}");
    }
}
