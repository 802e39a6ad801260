//! Converts the settings to the configuration of each crate.
use super::resources::cores;
use super::{Gpu, Settings, StreamsError, read_streams};
use inference::Operation;
use pipeline::streams::config::StreamConfigs;
use pipeline::watch::mqtt::config::{BrokerConfig, MqttConfig};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Name of the database in the private Postgres.
pub const DATABASE: &str = "facecrawl";

impl Gpu {
    /// Returns the value of the operation's own variable.
    pub fn operation_variable(&self, operation: Operation) -> Option<bool> {
        match operation {
            Operation::FaceDetection => self.face_detection,
            Operation::FaceEmbedding => self.face_embedding,
            Operation::ImageProcessing => self.image_processing,
            Operation::ImageEnhancement => self.image_enhancement,
            Operation::QualityChecks => self.quality_checks,
        }
    }
}

impl Settings {
    /// Returns the operations for which their own variable, or else `ALL_GPU`, requests the GPU.
    pub fn gpu_operations(&self) -> Vec<Operation> {
        let on_gpu = |operation: &Operation| self.gpu.operation_variable(*operation).unwrap_or(self.gpu.all);
        Operation::ALL.into_iter().filter(on_gpu).collect()
    }

    /// Returns whether `VIDEO_DECODING_GPU`, or else `ALL_GPU`, requests the GPU for videos.
    pub fn requests_video_decoding_gpu(&self) -> bool {
        self.gpu.video_decoding.unwrap_or(self.gpu.all)
    }

    /// Returns the environment variables that determine how CUDA numbers GPUs. ffmpeg must use the
    /// same numbers as ONNX Runtime in this process.
    pub fn gpu_variables(&self) -> Vec<(&'static str, OsString)> {
        let read = |name: &'static str| Some((name, std::env::var_os(name)?));
        video::sandbox::GPU_VARIABLES.into_iter().filter_map(read).collect()
    }

    pub fn inference(&self) -> inference::Config {
        let gpu = &self.gpu;
        let performance = self.performance();
        inference::Config {
            dylib_path: self.onnx_runtime_library(self.requests_gpu()),
            gpu_operations: self.gpu_operations(),
            backend: gpu.backend,
            plugins_dir: self.plugins_dir(),
            device_ids: self.device_ids(),
            memory_limit_gb: gpu.memory_limit_gb,
            gpu_batch_size: performance.max_batch_size,
            batch_max_delay: Duration::from_secs_f64(performance.delay_ms / 1e3),
            force_gpu_only: gpu.force_gpu_only,
            performance_mode: gpu.performance_mode,
            cpu_sessions: performance.sessions,
            cpu_session_threads: performance.threads,
            cpu_backend: gpu.cpu_backend,
            detection_size: self.detection.size,
            second_canvas: pipeline::small_view(self.detection.passes, self.detection.size),
            detection_canvas: self.detection.canvas,
            tensorrt: self.tensorrt(),
            ..inference::Config::default()
        }
    }

    fn tensorrt(&self) -> inference::TensorrtConfig {
        let tensorrt = &self.tensorrt;
        let defaults = inference::TensorrtConfig::default();
        let default_folder = || self.storage.data_dir.join("tensorrt");
        inference::TensorrtConfig {
            fp16: tensorrt.fp16.unwrap_or(defaults.fp16),
            calibration: tensorrt.calibration_table.clone().filter(|_| tensorrt.int8 == Some(true)),
            workspace_gb: tensorrt.workspace_gb.unwrap_or(defaults.workspace_gb),
            cache_dir: tensorrt.cache_dir.clone().unwrap_or_else(default_folder),
        }
    }

    /// Returns the configuration of the video decoder; `None` if there is no ffmpeg. `sandbox`
    /// starts ffmpeg in the sandbox.
    pub fn video(&self, sandbox: video::Launcher) -> Option<video::Config> {
        let bundled = self.find_runtime_path("ffmpeg/ffmpeg");
        let path = std::env::var_os("PATH");
        let ffmpeg = video::find_ffmpeg(self.video.ffmpeg.as_deref(), bundled.as_deref(), path.as_deref())?;
        let threads = self.video.threads.unwrap_or_else(|| cores().min(4) as u32);
        let max_duration = Duration::from_secs(60 * self.video.max_minutes);
        let limits = video::Limits { max_duration, ..video::Limits::default() };
        let launcher = if self.video.sandbox { sandbox } else { video::Launcher::Direct };
        Some(video::Config { ffmpeg, launcher, threads, limits })
    }

    pub fn image_limits(&self) -> vision::Limits {
        vision::Limits {
            max_bytes: (self.service.max_image_mb as usize) << 20,
            max_pixels: u64::from(self.service.max_image_megapixels) * 1_000_000,
            ..vision::Limits::default()
        }
    }

    /// Returns the limit of concurrently decoded images in millions of pixels.
    fn decoded_megapixels(&self) -> u64 {
        let max_image = u64::from(self.service.max_image_megapixels);
        // The default is five times the largest image, so that even the image that needs the most
        // memory to decode fits into the share of crawls. On machines with many cores it is 40
        // megapixels per core, so that photographs keep all cores busy.
        let default_limit = || (5 * max_image).max(40 * cores() as u64);
        self.service.max_decoded_megapixels.map_or_else(default_limit, u64::from)
    }

    pub fn pipeline(&self) -> pipeline::Config {
        pipeline::Config {
            limits: self.image_limits(),
            det_size: self.detection.size,
            passes: self.detection.passes,
            quality_profile: self.detection.quality_profile,
            stored_faces: self.detection.stored_faces,
            thumbnails: self.detection.thumbnails,
            video_decoder_bytes: self.video.memory_mb << 20,
            decoded_bytes: self.decoded_megapixels() * 1_000_000 * vision::BYTES_PER_PIXEL,
            ..pipeline::Config::default()
        }
    }

    pub fn crawler(&self) -> crawler::Config {
        let defaults = crawler::Config::default();
        crawler::Config {
            user_agent: self.crawl.user_agent.clone().unwrap_or_else(|| defaults.user_agent.clone()),
            allow_private: self.crawl.allow_private.clone(),
            ports: self.crawl.ports.clone(),
            send_referer: self.crawl.referer,
            extra_roots: self.crawl.extra_ca.clone().unwrap_or_default(),
            image_limit: (self.service.max_image_mb as usize) << 20,
            video_limit: usize::try_from(self.video.max_mb << 20).unwrap_or(usize::MAX),
            ..defaults
        }
    }

    pub fn crawls(&self) -> pipeline::crawls::Config {
        pipeline::crawls::Config {
            default_delay: Duration::from_millis(self.crawl.delay_ms),
            recipes: self.recipes.clone(),
            spelling: crawler::urls::Spelling {
                trailing_slash: self.crawl.trailing_slash,
                drop_parameters: self.crawl.drop_parameters.clone(),
            },
            webhook_secret: self.crawl.webhook_secret.as_deref().map(pipeline::Secret::new),
            ..pipeline::crawls::Config::default()
        }
    }

    pub fn server(&self) -> server::Config {
        server::Config {
            auth: self.service.auth.unwrap_or_default(),
            proxy: server::ProxyAuth {
                addresses: self.service.auth_proxy_addresses.clone(),
                user_header: self.service.auth_proxy_user_header.clone(),
                groups_header: self.service.auth_proxy_groups_header.clone(),
                groups: self.service.auth_proxy_groups.clone(),
            },
            compat: self.service.compat.clone(),
            listen: self.service.host,
            public_hosts: self.service.public_hosts.clone(),
            confirm_above: self.service.confirm_above,
            image_limit: (self.service.max_image_mb as usize) << 20,
            body_budget: self.service.max_pending_body_mb << 20,
            response_budget: self.service.max_pending_body_mb << 20,
            max_streams: self.service.max_event_streams,
            write_stall: Duration::from_secs(self.service.write_stall_seconds),
            max_analyses: self.service.max_pending_images,
            request_timeout: Duration::from_secs(self.service.request_timeout_seconds),
            max_video_bytes: self.video.max_mb << 20,
            match_threshold: self.service.match_threshold,
            allow_origins: self.service.allow_origins.clone(),
            drain: self.drain_timeout(),
            connection_idle: Duration::from_secs(self.service.connection_idle_seconds),
            max_connections: self.service.max_connections,
            ..server::Config::default()
        }
    }

    /// Returns the folder for uploads and copies of videos.
    pub fn video_spool(&self) -> PathBuf {
        self.video.spool.clone().unwrap_or_else(|| self.storage.data_dir.join("spool"))
    }

    /// Returns the tools that read videos. `spool` is the folder [`Self::video_spool`].
    pub fn video_tools(
        &self,
        decoder: video::Decoder,
        spool: store::SpoolFolder,
    ) -> pipeline::worker::VideoTools {
        pipeline::worker::VideoTools {
            decoder,
            spool,
            limits: self.video_limits(),
            time_slice: pipeline::worker::TIME_SLICE,
        }
    }

    /// Reads the configured cameras. Without a file, there are none.
    ///
    /// # Errors
    /// Fails if the file cannot be used.
    pub fn streams(&self) -> Result<StreamConfigs, StreamsError> {
        self.streams.file.as_deref().map(read_streams).transpose().map(Option::unwrap_or_default)
    }

    /// Returns the connector for cameras.
    pub fn camera_connector(&self) -> camera::Connector {
        let roots = self.crawl.extra_ca.clone().unwrap_or_default();
        camera::Connector::new(self.streams.allow_private.clone(), roots)
    }

    /// Returns the configuration of the MQTT publisher; `None` if `MQTT_URL` is not set.
    pub fn mqtt(&self) -> Option<MqttConfig> {
        let mqtt = &self.mqtt;
        let broker = BrokerConfig {
            address: mqtt.address.clone()?,
            user: mqtt.user.clone(),
            password: mqtt.password.as_deref().map(pipeline::Secret::new),
            authorities: mqtt.authorities.clone().unwrap_or_default(),
        };
        Some(MqttConfig {
            broker,
            prefix: mqtt.prefix.clone(),
            discovery_prefix: mqtt.discovery_prefix.clone(),
            collections: mqtt.collections.clone().unwrap_or_default(),
            names: mqtt.names,
        })
    }

    pub fn video_limits(&self) -> pipeline::VideoLimits {
        pipeline::VideoLimits { videos: self.video.max_waiting, bytes: self.video.max_waiting_mb << 20 }
    }

    /// Returns the free disk space, in bytes, below which no more files are stored.
    pub fn disk_reserve(&self) -> u64 {
        self.storage.min_free_disk_mb << 20
    }

    pub fn store(&self, url: String) -> store::Config {
        store::Config {
            url,
            max_connections: self.storage.database_connections,
            exact_limit: self.storage.search_exact_limit,
            candidates: self.storage.search_candidates,
            ..Default::default()
        }
    }

    pub fn blob_store_url(&self) -> String {
        let default_folder = || self.storage.data_dir.join("blobs").to_string_lossy().into_owned();
        self.storage.blob_store_url.clone().unwrap_or_else(default_folder)
    }

    /// Returns the `AWS_` variables that are set, for an S3 bucket.
    pub fn bucket_variables(&self) -> Vec<(&'static str, String)> {
        let storage = &self.storage;
        let allow_http = storage.aws_allow_http.then(|| "true".to_owned());
        [
            ("AWS_ACCESS_KEY_ID", &storage.aws_access_key_id),
            ("AWS_SECRET_ACCESS_KEY", &storage.aws_secret_access_key),
            ("AWS_SESSION_TOKEN", &storage.aws_session_token),
            ("AWS_REGION", &storage.aws_region),
            ("AWS_ENDPOINT_URL", &storage.aws_endpoint_url),
            ("AWS_ALLOW_HTTP", &allow_http),
        ]
        .into_iter()
        .filter_map(|(name, value)| value.clone().map(|value| (name, value)))
        .collect()
    }

    /// Returns the default number of concurrent pages, and of concurrent images.
    pub fn workers(&self) -> usize {
        match self.crawl.workers {
            // A job spends most of its time waiting for the network. Decoding and models have their
            // own limits.
            0 => (cores() * 4).clamp(4, 64),
            explicit => explicit,
        }
    }

    pub fn page_workers(&self) -> usize {
        self.crawl.page_workers.unwrap_or_else(|| self.workers())
    }

    /// Returns the maximum number of concurrent images while memory is sufficient.
    pub fn image_workers(&self) -> usize {
        self.crawl.image_workers.unwrap_or_else(|| self.workers())
    }

    pub fn drain_timeout(&self) -> Duration {
        Duration::from_secs(self.service.drain_seconds)
    }

    /// Returns the folder that contains the programs of the private Postgres, if it was found.
    pub fn postgres_bin_dir(&self) -> Option<PathBuf> {
        self.storage.postgres_bin_dir.clone().or_else(|| self.find_runtime_path("postgres/bin"))
    }

    pub fn search_index(&self) -> store::index::external::Config {
        let rebuild_age = Duration::from_secs(self.storage.search_index_rebuild_hours * 3600);
        let candidates = self.storage.search_candidates;
        store::index::external::Config { rebuild_age, candidates, ..Default::default() }
    }

    /// Returns the settings of the Qdrant server; `None` if `QDRANT_URL` is not set.
    pub fn qdrant(&self) -> Option<qdrant_index::Config> {
        let storage = &self.storage;
        (!storage.qdrant_url.is_empty()).then(|| qdrant_index::Config {
            urls: storage.qdrant_url.clone(),
            api_key: storage.qdrant_api_key.clone(),
            prefix: storage.qdrant_prefix.clone(),
            replicas: storage.qdrant_replicas,
            quantization: storage.qdrant_quantization,
            graph_threshold: qdrant_index::GRAPH_THRESHOLD,
        })
    }

    /// Returns the folder that is searched before a model is downloaded.
    pub fn model_mirror(&self) -> Option<PathBuf> {
        let shared_models = || Some(PathBuf::from("../shared/models")).filter(|folder| folder.is_dir());
        self.models.mirror.clone().or_else(shared_models)
    }
}
