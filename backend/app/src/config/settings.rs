//! Declares every variable, grouped by concern. The doc comment of a field becomes its description
//! in `.env.example`.
use super::parse::Parser;
use super::parse::{
    certificates, checked, choice, flag, list, multiple, number, optional, path, text, typed, url,
};
use super::variable::{Reader, Variable, settings};
use crawler::urls::TrailingSlash;
use inference::{CpuBackend, DetectionCanvas, GpuBackend, PerformanceMode};
use ipnet::IpNet;
use pipeline::{Passes, StoredFaces};
use server::{Auth, PublicHost};
use std::net::IpAddr;
use std::path::PathBuf;
use vision::Profile;

/// The values of `LOG_FORMAT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

const AUTH: &[(&str, Auth)] = &[("keys", Auth::Keys), ("none", Auth::None)];
const PASSES: &[(&str, Passes)] =
    &[("single", Passes::Single), ("auto", Passes::Auto), ("thorough", Passes::Thorough)];
const PROFILES: &[(&str, Profile)] =
    &[("off", Profile::Off), ("standard", Profile::Standard), ("strict", Profile::Strict)];
const STORED: &[(&str, StoredFaces)] = &[("all", StoredFaces::All), ("passed", StoredFaces::Passed)];
const BACKENDS: &[(&str, GpuBackend)] = &[
    ("auto", GpuBackend::Auto),
    ("cuda", GpuBackend::Cuda),
    ("tensorrt", GpuBackend::Tensorrt),
    ("rocm", GpuBackend::Rocm),
    ("mps", GpuBackend::Mps),
    ("cpu", GpuBackend::Cpu),
];
const MODES: &[(&str, PerformanceMode)] =
    &[("latency", PerformanceMode::Latency), ("throughput", PerformanceMode::Throughput)];
const CANVASES: &[(&str, DetectionCanvas)] =
    &[("auto", DetectionCanvas::Auto), ("square", DetectionCanvas::Square)];
const SLASHES: &[(&str, TrailingSlash)] =
    &[("keep", TrailingSlash::Keep), ("remove", TrailingSlash::Remove), ("add", TrailingSlash::Add)];
const FORMATS: &[(&str, LogFormat)] = &[("text", LogFormat::Text), ("json", LogFormat::Json)];

/// Accepts a URL that consists only of its origin.
fn origin() -> Parser<String> {
    checked("an origin", |text| {
        let origin = url::Url::parse(text).map(|url| url.origin());
        origin.is_ok_and(|origin| origin.is_tuple() && origin.ascii_serialization() == text)
    })
}

fn filter(text: &str) -> bool {
    tracing_subscriber::EnvFilter::try_new(text).is_ok()
}

fn header(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| (0x20..0x7f).contains(&byte))
}

settings! {
    /// The settings of the operator.
    pub struct Settings {
        /// The address and the limits of the API.
        service: Service("Service") {
            /// `HOST`: Address to listen on. Other addresses than loopback need `AUTH`, said
            /// explicitly.
            host: IpAddr = HOST, "127.0.0.1", typed("an IP address");
            /// `PORT`: Port to listen on; 0 takes any free one.
            port: u16 = PORT, "8080", number(0..=65535);
            /// `AUTH`: Who may call the API. keys: holders of a key (`facecrawl keys create`), as
            /// far as its scopes and collection go. none: everyone who can reach it. Unset: as
            /// none, on loopback only.
            auth: Option<Auth> = AUTH, "", optional(choice(AUTH));
            /// `PUBLIC_HOSTS`: Names, with or without a port, by which callers reach the service
            /// where `AUTH` is none, comma-separated: faces.example.org. Loopback names and the
            /// address of `HOST` are always allowed. A request with another host gets 421, which
            /// stops DNS rebinding. * allows any name. If a proxy replaces Host, list the public
            /// name here.
            public_hosts: Vec<PublicHost> = PUBLIC_HOSTS, "", list(typed("a host"), "host names like faces.example.org or faces.example.org:8443, comma-separated, or *");
            /// `MAX_IMAGE_MB`: Longest image file that is accepted, uploaded or fetched, in MiB.
            max_image_mb: u32 = MAX_IMAGE_MB, "25", number(1..=1024);
            /// `MAX_IMAGE_MEGAPIXELS`: Largest image that is decoded, in millions of pixels.
            max_image_megapixels: u32 = MAX_IMAGE_MEGAPIXELS, "50", number(1..=1000);
            /// `MAX_DECODED_MEGAPIXELS`: Millions of pixels of decoded images, those of callers and
            /// of crawls together, that are in memory at once, at 3 MB each; other images wait, and
            /// of crawls those that would make theirs more than three quarters. An eighth more is
            /// for small images of callers. Unset: five times `MAX_IMAGE_MEGAPIXELS`, or 40 for
            /// each core where that is more.
            max_decoded_megapixels: Option<u32> = MAX_DECODED_MEGAPIXELS, "", optional(number(1..=1_000_000));
            /// `MAX_PENDING_BODY_MB`: Limits three things separately, in MiB: bodies of requests,
            /// images that are fetched for callers, and enhanced pictures that have not been read.
            /// Other requests wait or are answered 429. Bodies are counted as they arrive. One
            /// caller (all keys to a collection, or without keys an address) may hold three
            /// quarters of the bodies and of the enhanced pictures. A body that is larger comes in
            /// alone.
            max_pending_body_mb: u64 = MAX_PENDING_BODY_MB, "512", number(16..=1_048_576);
            /// `MAX_PENDING_IMAGES`: Images of callers that are analysed or wait for it at a time;
            /// one more is answered 429.
            max_pending_images: usize = MAX_PENDING_IMAGES, "256", number(1..=100_000);
            /// `REQUEST_TIMEOUT_SECONDS`: Longest time from a request to its answer.
            request_timeout_seconds: u64 = REQUEST_TIMEOUT_SECONDS, "60", number(1..=3600);
            /// `MATCH_THRESHOLD`: Similarity from which two faces count as one person. Unset: the
            /// one that comes with the embedding model.
            match_threshold: Option<f32> = MATCH_THRESHOLD, "", optional(number(-1.0..=1.0));
            /// `ALLOW_ORIGINS`: Web origins whose pages may call the API from a browser,
            /// comma-separated: https://app.example.org. Unset: none.
            allow_origins: Vec<String> = ALLOW_ORIGINS, "", list(origin(), "origins like https://app.example.org, comma-separated");
            /// `CONNECTION_IDLE_SECONDS`: How long a connection may take to send the head of a
            /// request, and may stay open between two. A proxy in front should close its idle
            /// connections sooner.
            connection_idle_seconds: u64 = CONNECTION_IDLE_SECONDS, "75", number(1..=3600);
            /// `MAX_CONNECTIONS`: Connections of callers open at once; one more waits until another
            /// is closed. One address has at most three quarters of them. Each is an open file
            /// (ulimit -n).
            max_connections: usize = MAX_CONNECTIONS, "512", number(1..=100_000);
            /// `WRITE_STALL_SECONDS`: Seconds that a connection may wait for a caller to read an
            /// answer. Each 16 KiB that are read give one second back, up to this limit.
            write_stall_seconds: u64 = WRITE_STALL_SECONDS, "60", number(1..=3600);
            /// `MAX_EVENT_STREAMS`: Streams of a crawl's progress that one key, or without keys one
            /// address, may have open.
            max_event_streams: usize = MAX_EVENT_STREAMS, "32", number(1..=100_000);
            /// `CONFIRM_ABOVE`: Most rows that one call may delete without the token of a dry run.
            /// Images and faces count. Of an erasure people and clusters count too, and of a
            /// collection also suppressions.
            confirm_above: u64 = CONFIRM_ABOVE, "100", number(0..=1_000_000_000);
            /// `WORKER_PORT`: Port, at `HOST`, on which `facecrawl worker` answers `/health/live`,
            /// `/health/ready` and `/metrics`. Unset: none.
            worker_port: Option<u16> = WORKER_PORT, "", optional(number(1..=65535));
            /// `DRAIN_SECONDS`: How long a stop waits for requests and jobs that are under way.
            drain_seconds: u64 = DRAIN_SECONDS, "8", number(0..=3600);
        }
        /// Database, blobs and files.
        storage: Storage("Storage") {
            /// `DATABASE_URL`: Postgres 15 or later with pgvector 0.8.4 or later. Unset: a private
            /// Postgres under `DATA_DIR`, started and stopped with the service.
            database_url: Option<String> = DATABASE_URL, "", optional(url(&["postgres", "postgresql"], "postgres://user:password@host:port/database"));
            /// `DATABASE_CONNECTIONS`: Most connections open at once, per process.
            database_connections: u32 = DATABASE_CONNECTIONS, "16", number(2..=1000);
            /// `POSTGRES_BIN_DIR`: Folder of the programs of the private Postgres. Unset:
            /// `.runtime/postgres/bin`, where `./scripts/setup` puts them.
            postgres_bin_dir: Option<PathBuf> = POSTGRES_BIN_DIR, "", optional(path());
            /// `DATA_DIR`: Folder of the private Postgres and of the blobs.
            data_dir: PathBuf = DATA_DIR, "data", path();
            /// `SUPPRESSION_SECRET`: Keys the sketches that keep erased people out; the same in
            /// every process of the service, and kept: with another one the old sketches say
            /// nothing. Unset: made once and kept in `DATA_DIR` with a private database; with
            /// `DATABASE_URL` people cannot be suppressed.
            suppression_secret: Option<String> = SUPPRESSION_SECRET, "", optional(checked("a secret of 32 characters or more", |text| text.chars().count() >= 32));
            /// `BLOB_STORE_URL`: Where crops, chips and thumbnails go: a folder or
            /// `s3://bucket/prefix`. Unset: `blobs` in `DATA_DIR`.
            blob_store_url: Option<String> = BLOB_STORE_URL, "", optional(text("a folder, a file:// URL or an s3:// URL"));
            /// `AWS_ACCESS_KEY_ID`: Key of an S3 `BLOB_STORE_URL`. Unset: the credentials of the
            /// machine (instance or container role).
            aws_access_key_id: Option<String> = AWS_ACCESS_KEY_ID, "", optional(text("a key"));
            /// `AWS_SECRET_ACCESS_KEY`: Its secret.
            aws_secret_access_key: Option<String> = AWS_SECRET_ACCESS_KEY, "", optional(text("a secret"));
            /// `AWS_SESSION_TOKEN`: The token of temporary credentials.
            aws_session_token: Option<String> = AWS_SESSION_TOKEN, "", optional(text("a token"));
            /// `AWS_REGION`: Region of the bucket.
            aws_region: Option<String> = AWS_REGION, "", optional(text("a region like eu-central-1"));
            /// `AWS_ENDPOINT_URL`: Another S3 service than that of AWS.
            aws_endpoint_url: Option<String> = AWS_ENDPOINT_URL, "", optional(url(&["http", "https"], "an http(s) URL"));
            /// `AWS_ALLOW_HTTP`: Allow an endpoint without TLS.
            aws_allow_http: bool = AWS_ALLOW_HTTP, "false", flag();
        }
        /// Model files and the library that runs them.
        models: Models("Models") {
            /// `MODEL_PACK`: Which models to use; `facecrawl models list` describes them.
            pack: String = MODEL_PACK, "opencv", text("the name of a pack");
            /// `MODELS_DIR`: Folder of the model files.
            dir: PathBuf = MODELS_DIR, "models", path();
            /// `FACE_MODEL_MIRROR`: Folder that is searched for model files before they are
            /// downloaded. Unset: `../shared/models`, where it exists.
            mirror: Option<PathBuf> = FACE_MODEL_MIRROR, "", optional(path());
            /// `ACCEPT_LICENSE`: Accept the licence of a restricted pack (the InsightFace models
            /// are for non-commercial research only).
            accept_license: bool = ACCEPT_LICENSE, "false", flag();
            /// `ORT_DYLIB_PATH`: ONNX Runtime's shared library. Unset: where an operation asks for
            /// a GPU, the one in `.runtime/cuda` that `./scripts/gpu-runtime` brings; else the one
            /// in `.runtime/onnxruntime`, or the system's.
            ort_dylib_path: Option<PathBuf> = ORT_DYLIB_PATH, "", optional(path());
        }
        /// Detection and quality of faces.
        detection: Detection("Detection") {
            /// `DETECTION_SIZE`: Side in pixels of the square canvas on which the detector sees a
            /// picture.
            size: u32 = DETECTION_SIZE, "640", multiple(64..=2048, 32);
            /// `DETECTION_CANVAS`: auto: on the CPU without the black beside a picture that is not
            /// square, which saves a quarter of the detector's time; square on GPUs. square:
            /// always, so that CPUs and GPUs see the same.
            canvas: DetectionCanvas = DETECTION_CANVAS, "auto", choice(CANVASES);
            /// `DETECTION_PASSES`: How often the detector looks at a picture. single: once, at
            /// `DETECTION_SIZE`. auto: also small, for faces that fill the frame, and in tiles
            /// where the faces are tiny or a large picture shows no sure one. thorough: always
            /// small and in tiles, down to the picture's own resolution.
            passes: Passes = DETECTION_PASSES, "auto", choice(PASSES);
            /// `QUALITY_PROFILE`: What a face has to meet to pass: nothing (off), enough for search
            /// (standard), enough for enrolment (strict).
            quality_profile: Profile = QUALITY_PROFILE, "standard", choice(PROFILES);
            /// `STORED_FACES`: Which faces of the pictures that crawls and scans find are embedded
            /// and stored. all: every one. passed: those that meet the quality profile (the
            /// collection's, else `QUALITY_PROFILE`), which in crowds is a small part of them and
            /// of the work; that somebody is suppressed is then not seen in the others.
            stored_faces: StoredFaces = STORED_FACES, "all", choice(STORED);
        }
        /// Jobs and politeness.
        crawl: Crawl("Crawling") {
            /// `WORKERS`: Pages, and images, that this process fetches and processes at once; 0 is
            /// four per core.
            workers: usize = WORKERS, "0", number(0..=4096);
            /// `PAGE_WORKERS`: Pages alone, where they differ from `WORKERS`; 0 leaves pages to
            /// other processes.
            page_workers: Option<usize> = PAGE_WORKERS, "", optional(number(0..=4096));
            /// `IMAGE_WORKERS`: Images alone, where they differ from `WORKERS`; 0 leaves images to
            /// other processes.
            image_workers: Option<usize> = IMAGE_WORKERS, "", optional(number(0..=4096));
            /// `MEMORY_FLOOR_MB`: No new image is taken in work while less memory than this is
            /// available, in MiB, and fewer when it is near; 0 never looks. Unset: 128, or a
            /// sixteenth of all memory where that is less.
            memory_floor_mb: Option<u64> = MEMORY_FLOOR_MB, "", optional(number(0..=1_048_576));
            /// `CRAWL_USER_AGENT`: User-Agent of the crawler: a product token first, then a URL or
            /// address where its operator can be reached. Unset: facecrawl's own.
            user_agent: Option<String> = CRAWL_USER_AGENT, "", optional(checked("printable ASCII", header));
            /// `CRAWL_DELAY_MS`: Least time between two requests to a host, in milliseconds, for
            /// crawls that do not set their own; robots.txt and a slow host can make it longer.
            delay_ms: u64 = CRAWL_DELAY_MS, "500", number(0..=300_000);
            /// `WEBHOOK_SECRET`: Signs the messages to the webhooks of crawls (HMAC-SHA256). Unset:
            /// crawls with a webhook are refused.
            webhook_secret: Option<String> = WEBHOOK_SECRET, "", optional(checked("a secret of 16 characters or more", |text| text.chars().count() >= 16));
            /// `CRAWL_ALLOW_PRIVATE`: Private address ranges that may be reached all the same, on
            /// any port, comma-separated (for tests and intranets): 127.0.0.0/8.
            allow_private: Vec<IpNet> = CRAWL_ALLOW_PRIVATE, "", list(typed("a range"), "address ranges like 10.0.0.0/8, comma-separated");
            /// `CRAWL_EXTRA_CA`: File with certificates (PEM) of authorities that are trusted
            /// besides the system's, for https sites of an intranet. Read at start.
            extra_ca: Option<crawler::Roots> = CRAWL_EXTRA_CA, "", optional(certificates());
            /// `CRAWL_PORTS`: Ports that may be reached, comma-separated.
            ports: Vec<u16> = CRAWL_PORTS, "80,443", list(number(1..=65535), "ports from 1 to 65535, comma-separated");
            /// `CRAWL_TRAILING_SLASH`: What links to pages do with a last slash in the path. keep:
            /// /a and /a/ are two pages; remove or add: one, spelled without or with it.
            trailing_slash: TrailingSlash = CRAWL_TRAILING_SLASH, "keep", choice(SLASHES);
            /// `CRAWL_DROP_PARAMETERS`: Query parameters that make no other page, comma-separated,
            /// besides the usual ones of trackers and sessions: sort,view.
            drop_parameters: Vec<String> = CRAWL_DROP_PARAMETERS, "", list(text("a name"), "names of query parameters, comma-separated");
        }
        /// Operations on GPUs, and the performance of CPU and GPU.
        gpu: Gpu("GPU") {
            /// `ALL_GPU`: Run every operation on the GPU whose own variable is unset.
            all: bool = ALL_GPU, "false", flag();
            /// `FACE_DETECTION_GPU`: Find faces on the GPU. Unset: as `ALL_GPU` says.
            face_detection: Option<bool> = FACE_DETECTION_GPU, "", optional(flag());
            /// `FACE_EMBEDDING_GPU`: Compute embeddings on the GPU. Unset: as `ALL_GPU` says.
            face_embedding: Option<bool> = FACE_EMBEDDING_GPU, "", optional(flag());
            /// `IMAGE_PROCESSING_GPU`: Resize and normalise on the GPU. Unset: as `ALL_GPU` says.
            image_processing: Option<bool> = IMAGE_PROCESSING_GPU, "", optional(flag());
            /// `IMAGE_ENHANCEMENT_GPU`: Enhance poor images on the GPU (the CPU is often faster for
            /// small ones). Unset: as `ALL_GPU` says.
            image_enhancement: Option<bool> = IMAGE_ENHANCEMENT_GPU, "", optional(flag());
            /// `QUALITY_CHECKS_GPU`: Measure blur, brightness, contrast and sharpness on the GPU.
            /// Unset: as `ALL_GPU` says.
            quality_checks: Option<bool> = QUALITY_CHECKS_GPU, "", optional(flag());
            /// `GPU_BACKEND`: auto takes the first that works; rocm is MIGraphX, mps is CoreML; cpu
            /// uses no GPU whatever the variables above say.
            backend: GpuBackend = GPU_BACKEND, "auto", choice(BACKENDS);
            /// `GPU_DEVICE_ID`: Number of the GPU, as the driver counts.
            device_id: u32 = GPU_DEVICE_ID, "0", number(0..=255);
            /// `GPU_DEVICE_IDS`: Several GPUs, comma-separated, one copy of the models on each.
            /// Unset: the one of `GPU_DEVICE_ID`.
            device_ids: Vec<u32> = GPU_DEVICE_IDS, "", list(number(0..=255), "device numbers like 0,1");
            /// `GPU_MEMORY_LIMIT_GB`: Most GPU memory to use per device, in GiB.
            memory_limit_gb: f64 = GPU_MEMORY_LIMIT_GB, "8", number(0.25..=1024.0);
            /// `GPU_BATCH_SIZE`: Most images or faces in one run on the GPU. Unset: 32 with
            /// `PERFORMANCE_MODE=throughput`, 4 with latency.
            batch_size: Option<usize> = GPU_BATCH_SIZE, "", optional(number(1..=1024));
            /// `BATCH_MAX_DELAY_MS`: How long a GPU batch waits for more, in milliseconds. Unset: 2
            /// with `PERFORMANCE_MODE=throughput`, 0 with latency.
            batch_max_delay_ms: Option<f64> = BATCH_MAX_DELAY_MS, "", optional(number(0.0..=1000.0));
            /// `FORCE_GPU_ONLY`: Fail instead of falling back to the CPU when a GPU that was asked
            /// for cannot be used.
            force_gpu_only: bool = FORCE_GPU_ONLY, "false", flag();
            /// `PERFORMANCE_MODE`: latency answers one request soonest (no delay, batches of 4, up
            /// to 4 threads per CPU session), throughput finishes the most images (2 ms, batches of
            /// 32, 1 thread per CPU session); values set explicitly win.
            performance_mode: PerformanceMode = PERFORMANCE_MODE, "throughput", choice(MODES);
            /// `CPU_SESSIONS`: Sessions per model on the CPU; 0 is as many as fill the cores: cores
            /// divided by `CPU_SESSION_THREADS`.
            cpu_sessions: usize = CPU_SESSIONS, "0", number(0..=1024);
            /// `CPU_SESSION_THREADS`: Threads that one CPU session computes with; sessions times
            /// threads are busy at full load. Unset: 1 with `PERFORMANCE_MODE=throughput`; with
            /// latency the cores, up to 4.
            cpu_session_threads: Option<usize> = CPU_SESSION_THREADS, "", optional(number(1..=256));
            /// `CPU_BACKEND`: What computes models on the CPU. auto: ONNX Runtime, with embedders
            /// in 8 bits where that was measured and the processor multiplies bytes fast (AVX-512
            /// VNNI, AVX-VNNI, dot product). onnxruntime: always in FP32. onnxruntime-int8: any
            /// embedder in 8 bits on such processors. openvino: OpenVINO, with the library that
            /// `./scripts/openvino` brings at `ORT_DYLIB_PATH`. openvino-bf16: the same in 16 bits,
            /// faster on processors with AVX-512 BF16 or AMX.
            cpu_backend: CpuBackend = CPU_BACKEND, "auto", choice(&CpuBackend::NAMES);
        }
        /// Options of `GPU_BACKEND=tensorrt`.
        tensorrt: Tensorrt("TensorRT") {
            /// `TENSORRT_FP16`: Compute in half precision where TensorRT finds it faster. Unset:
            /// true.
            fp16: Option<bool> = TENSORRT_FP16, "", optional(flag());
            /// `TENSORRT_INT8`: Compute in 8 bits; needs `TENSORRT_CALIBRATION_TABLE`. Unset:
            /// false.
            int8: Option<bool> = TENSORRT_INT8, "", optional(flag());
            /// `TENSORRT_CALIBRATION_TABLE`: Ranges for 8-bit computation, of TensorRT or of ONNX
            /// Runtime: one file for all models, or a folder with MODEL.table for each, as in
            /// mobilefacenet.table.
            calibration_table: Option<PathBuf> = TENSORRT_CALIBRATION_TABLE, "", optional(path());
            /// `TENSORRT_WORKSPACE_GB`: Most GPU memory that building an engine may use, in GiB.
            /// Unset: 2.
            workspace_gb: Option<f64> = TENSORRT_WORKSPACE_GB, "", optional(number(0.0625..=1024.0));
            /// `TENSORRT_CACHE_DIR`: Folder of the engines that were built; `facecrawl models
            /// build` fills it. Unset: `tensorrt` in `DATA_DIR`.
            cache_dir: Option<PathBuf> = TENSORRT_CACHE_DIR, "", optional(path());
        }
        /// Logging.
        log: Log("Logging") {
            /// `LOG_LEVEL`: error, warn, info, debug or trace; or a filter per module like
            /// info,crawler=debug.
            level: String = LOG_LEVEL, "info", checked("error, warn, info, debug, trace, or a filter like info,crawler=debug", filter);
            /// `LOG_FORMAT`: text for people, json for machines.
            format: LogFormat = LOG_FORMAT, "text", choice(FORMATS);
            /// `DEBUG`: Raise `LOG_LEVEL` to debug.
            debug: bool = DEBUG, "false", flag();
        }
    }
}
