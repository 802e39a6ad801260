//! Declares every variable, grouped by concern. The doc comment of a field becomes its description
//! in `.env.example`.
use super::variable::{Reader, Variable, settings};
use crate::config::variable::Parser;
use crate::config::variable::{
    authorities, certificates, checked, choice, collections, flag, list, multiple, number, optional, or_none,
    path, text, typed, url,
};
use crawler::urls::TrailingSlash;
use inference::{CpuBackend, DetectionCanvas, DeviceId, GpuBackend, PerformanceMode};
use ipnet::IpNet;
use pipeline::watch::mqtt::config::{Authorities, BrokerAddress, TopicPrefix};
use pipeline::{Passes, StoredFaces, Thumbnails};
use qdrant_index::Quantization;
use server::{Auth, Compat, GroupRights, HeaderName, PublicHost};
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

/// The values of `SEARCH_INDEX`, and of `facecrawl index --index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SearchIndex {
    /// The HNSW indexes in Postgres
    Pgvector,
    /// The index in the server of QDRANT_URL
    Qdrant,
}

impl SearchIndex {
    pub fn name(self) -> &'static str {
        match self {
            Self::Pgvector => "pgvector",
            Self::Qdrant => "qdrant",
        }
    }
}

const SEARCH_INDEXES: &[(&str, SearchIndex)] =
    &[("pgvector", SearchIndex::Pgvector), ("qdrant", SearchIndex::Qdrant)];
/// Advice for `SEARCH_INDEX=edge`, the index in files of earlier versions.
const EDGE_INDEX_ADVICE: &str = "set SEARCH_INDEX=pgvector or qdrant for all processes, and run \
    `facecrawl index rebuild --index pgvector` if you dropped this index; at its next start, the \
    service deletes the files of the old index";
const QUANTIZATIONS: &[(&str, Quantization)] = &[("none", Quantization::None), ("int8", Quantization::Int8)];
const COMPAT: &[(&str, Compat)] = &[("compreface", Compat::CompreFace), ("deepstack", Compat::DeepStack)];
const AUTH: &[(&str, Auth)] = &[("keys", Auth::Keys), ("proxy", Auth::Proxy), ("none", Auth::None)];
const PASSES: &[(&str, Passes)] =
    &[("single", Passes::Single), ("auto", Passes::Auto), ("thorough", Passes::Thorough)];
const PROFILES: &[(&str, Profile)] =
    &[("off", Profile::Off), ("standard", Profile::Standard), ("strict", Profile::Strict)];
const THUMBNAILS: &[(&str, Thumbnails)] =
    &[("faces", Thumbnails::Faces), ("all", Thumbnails::All), ("none", Thumbnails::None)];
const STORED_FACES: &[(&str, StoredFaces)] = &[("all", StoredFaces::All), ("passed", StoredFaces::Passed)];
const PERFORMANCE_MODES: &[(&str, PerformanceMode)] =
    &[("latency", PerformanceMode::Latency), ("throughput", PerformanceMode::Throughput)];
const CANVASES: &[(&str, DetectionCanvas)] =
    &[("auto", DetectionCanvas::Auto), ("square", DetectionCanvas::Square)];
const TRAILING_SLASHES: &[(&str, TrailingSlash)] =
    &[("keep", TrailingSlash::Keep), ("remove", TrailingSlash::Remove), ("add", TrailingSlash::Add)];
const LOG_FORMATS: &[(&str, LogFormat)] = &[("text", LogFormat::Text), ("json", LogFormat::Json)];

/// Accepts a URL that consists only of its origin.
fn origin() -> Parser<String> {
    checked("an origin", |text| {
        let origin = url::Url::parse(text).map(|url| url.origin());
        origin.is_ok_and(|origin| origin.is_tuple() && origin.ascii_serialization() == text)
    })
}

/// Returns whether the text is a valid `QDRANT_PREFIX`. In the names of collections, a hyphen
/// follows the prefix.
fn is_valid_prefix(text: &str) -> bool {
    (1..=40).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn is_valid_log_filter(text: &str) -> bool {
    tracing_subscriber::EnvFilter::try_new(text).is_ok()
}

fn is_valid_header_value(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| (0x20..0x7f).contains(&byte))
}

settings! {
    /// The settings of the operator.
    pub struct Settings {
        /// The address and the limits of the API.
        service: Service("Service") {
            /// `HOST`: Address to listen on. An address other than loopback requires that `AUTH` is
            /// set.
            host: IpAddr = HOST, "127.0.0.1", typed("an IP address");
            /// `PORT`: Port to listen on. 0 selects any free port.
            port: u16 = PORT, "8080", number(0..=65535);
            /// `AUTH`: Who may call the API. keys: callers with an API key (`facecrawl keys
            /// create`), within the scopes and the collection of the key. proxy: also people whom a
            /// proxy has signed on, within the rights of their groups. none: everyone who can reach
            /// the port. Unset: like none, but `HOST` must be a loopback address.
            auth: Option<Auth> = AUTH, "", optional(choice(AUTH));
            /// `AUTH_PROXY_ADDRESSES`: Addresses of the proxies that sign people on, for
            /// `AUTH=proxy`. The headers below are refused from all other addresses.
            auth_proxy_addresses: Vec<IpNet> = AUTH_PROXY_ADDRESSES, "", list(typed("a range"), "address ranges like 10.0.0.5/32, comma-separated");
            /// `AUTH_PROXY_USER_HEADER`: Header with the name of the person. oauth2-proxy:
            /// X-Forwarded-User; Authelia: Remote-User; Authentik: X-Authentik-Username.
            auth_proxy_user_header: HeaderName = AUTH_PROXY_USER_HEADER, "X-Forwarded-User", typed("the name of a header");
            /// `AUTH_PROXY_GROUPS_HEADER`: Header with the groups of the person, separated by
            /// commas or |. oauth2-proxy: X-Forwarded-Groups; Authelia: Remote-Groups; Authentik:
            /// X-Authentik-Groups.
            auth_proxy_groups_header: HeaderName = AUTH_PROXY_GROUPS_HEADER, "X-Forwarded-Groups", typed("the name of a header");
            /// `AUTH_PROXY_GROUPS`: What the members of each group may do, comma-separated:
            /// GROUP=SCOPE+SCOPE@COLLECTION, or GROUP=all for all scopes and collections. The first
            /// entry for a group of the person selects the collection. Later entries for another
            /// group of the person add their scopes only if they name the same collection. The
            /// scopes are those of API keys.
            auth_proxy_groups: Vec<GroupRights> = AUTH_PROXY_GROUPS, "", list(typed("a group"), "groups like editors=read+search@press,admins=all");
            /// `COMPAT`: APIs of other servers that the service also offers, comma-separated.
            /// compreface: the REST API of CompreFace under `/api/v1`. deepstack: the face API of
            /// DeepStack and CodeProject.AI under `/v1/vision/face`. Unset: none.
            compat: Vec<Compat> = COMPAT, "", list(choice(COMPAT), "compreface and deepstack, comma-separated");
            /// `PUBLIC_HOSTS`: Further names of the service, with or without a port,
            /// comma-separated: faces.example.org. They apply to each request with AUTH=none, and
            /// to requests without an API key with AUTH=proxy. Loopback names and the address of
            /// `HOST` are always allowed. A request with any other host in its Host header is
            /// rejected with 421, which prevents DNS rebinding. * allows every name. If a proxy
            /// replaces the Host header, list the public name here.
            public_hosts: Vec<PublicHost> = PUBLIC_HOSTS, "", list(typed("a host"), "host names like faces.example.org or faces.example.org:8443, comma-separated, or *");
            /// `MAX_IMAGE_MB`: Maximum size of an image file, uploaded or fetched, in MiB.
            max_image_mb: u32 = MAX_IMAGE_MB, "25", number(1..=1024);
            /// `MAX_IMAGE_MEGAPIXELS`: Maximum size of an image in millions of pixels. Larger
            /// images are not decoded.
            max_image_megapixels: u32 = MAX_IMAGE_MEGAPIXELS, "50", number(1..=1000);
            /// `MAX_DECODED_MEGAPIXELS`: Maximum size of all decoded images in memory together, in
            /// millions of pixels. Each million uses 3 MB. The limit includes images of callers and
            /// of crawls; further images wait. Images of crawls use at most three quarters of it.
            /// An additional eighth is reserved for small images of callers. Unset: five times
            /// `MAX_IMAGE_MEGAPIXELS`, or 40 per core if that is more.
            max_decoded_megapixels: Option<u32> = MAX_DECODED_MEGAPIXELS, "", optional(number(1..=1_000_000));
            /// `MAX_PENDING_BODY_MB`: Three separate limits of this size, in MiB: for request
            /// bodies, for images that are fetched for callers, and for responses that callers have
            /// not read yet. At the limit, further requests wait or fail with 429. The
            /// bytes of a body are counted as they arrive. One caller uses at most three quarters
            /// of each limit. All keys to one collection count as one caller; without keys, each
            /// address is one caller. A larger body is accepted if no other body of its caller is
            /// pending.
            max_pending_body_mb: u64 = MAX_PENDING_BODY_MB, "512", number(16..=1_048_576);
            /// `MAX_PENDING_IMAGES`: Maximum number of images of callers that are analysed or wait
            /// for analysis. Further requests fail with 429.
            max_pending_images: usize = MAX_PENDING_IMAGES, "256", number(1..=100_000);
            /// `REQUEST_TIMEOUT_SECONDS`: Maximum time from a request to its response, in seconds.
            request_timeout_seconds: u64 = REQUEST_TIMEOUT_SECONDS, "60", number(1..=3600);
            /// `MATCH_THRESHOLD`: Minimum similarity of two faces that are treated as the same
            /// person. Collections and requests can override it. Unset: the threshold of the
            /// embedding model.
            match_threshold: Option<f32> = MATCH_THRESHOLD, "", optional(number(-1.0..=1.0));
            /// `ALLOW_ORIGINS`: Web origins whose pages may call the API from a browser,
            /// comma-separated: https://app.example.org. Unset: none.
            allow_origins: Vec<String> = ALLOW_ORIGINS, "", list(origin(), "origins like https://app.example.org, comma-separated");
            /// `CONNECTION_IDLE_SECONDS`: Maximum time, in seconds, in which a connection must send
            /// the head of its first or next request. A proxy in front should close its idle
            /// connections earlier.
            connection_idle_seconds: u64 = CONNECTION_IDLE_SECONDS, "75", number(1..=3600);
            /// `MAX_CONNECTIONS`: Maximum number of open connections of callers. A further
            /// connection waits until another one closes. One address has at most three quarters of
            /// them. Each connection uses an open file (ulimit -n).
            max_connections: usize = MAX_CONNECTIONS, "512", number(1..=100_000);
            /// `WRITE_STALL_SECONDS`: How long a connection may wait for a caller to read a
            /// response, in seconds. Every 16 KiB that the caller reads extends the time by one
            /// second, up to this limit.
            write_stall_seconds: u64 = WRITE_STALL_SECONDS, "60", number(1..=3600);
            /// `MAX_EVENT_STREAMS`: Maximum number of open streams of crawl progress per key, or
            /// per address if there are no keys.
            max_event_streams: usize = MAX_EVENT_STREAMS, "32", number(1..=100_000);
            /// `CONFIRM_ABOVE`: Maximum number of rows that one call may delete without the token
            /// of a dry run. The number includes images, videos and faces. For an erasure it also
            /// includes people and clusters, and for a collection people, clusters and
            /// suppressions.
            confirm_above: u64 = CONFIRM_ABOVE, "100", number(0..=1_000_000_000);
            /// `WORKER_PORT`: Port on which `facecrawl worker` serves `/health/live`,
            /// `/health/ready` and `/metrics`, at the address of `HOST`. Unset: the worker serves
            /// nothing.
            worker_port: Option<u16> = WORKER_PORT, "", optional(number(1..=65535));
            /// `DRAIN_SECONDS`: How long a shutdown waits for running requests and jobs, in
            /// seconds.
            drain_seconds: u64 = DRAIN_SECONDS, "8", number(0..=3600);
        }
        /// Database, blobs and files.
        storage: Storage("Storage") {
            /// `DATABASE_URL`: URL of a Postgres database: Postgres 15 or later with pgvector 0.8.4
            /// or later. Unset: a private Postgres under `DATA_DIR`, which starts and stops with
            /// the service.
            database_url: Option<String> = DATABASE_URL, "", optional(url(&["postgres", "postgresql"], "postgres://user:password@host:port/database"));
            /// `DATABASE_CONNECTIONS`: Maximum number of open database connections per process.
            database_connections: u32 = DATABASE_CONNECTIONS, "16", number(2..=1000);
            /// `POSTGRES_BIN_DIR`: Folder that contains the programs of the private Postgres.
            /// Unset: `.runtime/postgres/bin`, where `./scripts/setup` installs them.
            postgres_bin_dir: Option<PathBuf> = POSTGRES_BIN_DIR, "", optional(path());
            /// `SEARCH_INDEX`: The index that searches in large collections use. pgvector: in
            /// Postgres. qdrant: in the Qdrant server of `QDRANT_URL`. All processes of an
            /// installation need the same value. The how-to guide about the search index describes
            /// the move.
            search_index: SearchIndex = SEARCH_INDEX, "pgvector", choice(SEARCH_INDEXES).with_removed_value("edge", EDGE_INDEX_ADVICE);
            /// `SEARCH_INDEX_REBUILD_HOURS`: Hours after the first deletion until the service
            /// begins to build the index in the Qdrant server again. Until the new index is
            /// complete, the files of the old one hold the embeddings of deleted faces.
            search_index_rebuild_hours: u64 = SEARCH_INDEX_REBUILD_HOURS, "24", number(0..=8_760);
            /// `SEARCH_EXACT_LIMIT`: Number of faces in scope up to which a search compares with
            /// every face. Above it, the search uses `SEARCH_INDEX`. The index of pgvector is built
            /// when an embedding model has more faces than this, at the latest at four times this
            /// number.
            search_exact_limit: i64 = SEARCH_EXACT_LIMIT, "50000", number(0..=10_000_000);
            /// `SEARCH_CANDIDATES`: Number of faces that a search in the index examines as possible
            /// results (`hnsw.ef_search` of pgvector, `hnsw_ef` of Qdrant). With more candidates, a
            /// search finds more of the most similar faces and takes longer. `facecrawl index
            /// recall` measures both. Maximum with pgvector: 1000. Unset: 100 with pgvector,
            /// otherwise 128 to 2048, depending on the number of faces. With pgvector, a search has
            /// at least 4 candidates for each requested face. With qdrant, it has at least 2 for
            /// each requested face, and 20 more.
            search_candidates: Option<usize> = SEARCH_CANDIDATES, "", optional(number(10..=10_000));
            /// `QDRANT_URL`: Addresses of the gRPC interface of a Qdrant server, or of the nodes of
            /// a cluster, for `SEARCH_INDEX=qdrant`. If a node does not answer, the request goes to
            /// the next node. With https, the certificate must be one that this machine trusts.
            qdrant_url: Vec<String> = QDRANT_URL, "", list(url(&["http", "https"], "an http or https URL"), "URLs like http://localhost:6334, comma-separated");
            /// `QDRANT_API_KEY`: Key that the server requires.
            qdrant_api_key: Option<String> = QDRANT_API_KEY, "", optional(checked("printable ASCII characters", is_valid_header_value));
            /// `QDRANT_PREFIX`: Beginning of the names of the collections in the server. Each
            /// installation that uses the server needs a different one.
            qdrant_prefix: String = QDRANT_PREFIX, "facecrawl", checked("1 to 40 letters, digits and underscores", is_valid_prefix);
            /// `QDRANT_REPLICAS`: Number of nodes of the cluster that store each face. A change
            /// takes effect when the index is built again.
            qdrant_replicas: u32 = QDRANT_REPLICAS, "1", number(1..=10);
            /// `QDRANT_QUANTIZATION`: none: the server keeps embeddings in memory, in half
            /// precision. int8: it keeps compressed copies in memory (8 bits per component of a
            /// vector), and the full embeddings on disk. A change takes effect when the index is
            /// built again.
            qdrant_quantization: Quantization = QDRANT_QUANTIZATION, "none", choice(QUANTIZATIONS);
            /// `DATA_DIR`: Folder of the private Postgres and of the blobs.
            data_dir: PathBuf = DATA_DIR, "data", path();
            /// `SUPPRESSION_SECRET`: Secret key of the sketches that identify suppressed people. It
            /// must be the same in every process of the service. Keep a copy: `facecrawl backup`
            /// does not include it, and with a different secret, existing sketches match nothing.
            /// Unset: with a private database, the service creates a secret and stores it in
            /// `DATA_DIR`; with `DATABASE_URL`, people cannot be suppressed, and an erased image
            /// suppresses all images that resemble it.
            suppression_secret: Option<String> = SUPPRESSION_SECRET, "", optional(checked("a secret of 32 characters or more", |text| text.chars().count() >= 32));
            /// `BLOB_STORE_URL`: Where crops, chips and thumbnails are stored: a folder or
            /// `s3://bucket/prefix`. Unset: the folder `blobs` in `DATA_DIR`.
            blob_store_url: Option<String> = BLOB_STORE_URL, "", optional(text("a folder, a file:// URL or an s3:// URL"));
            /// `MIN_FREE_DISK_MB`: Free space, in MiB, below which no more files are stored:
            /// uploads and enrolments are answered with 507, and crawls and videos wait. It is kept
            /// in the file systems of the blobs and of `VIDEO_SPOOL`, but at most a tenth of each.
            /// 0 disables the check.
            min_free_disk_mb: u64 = MIN_FREE_DISK_MB, "1024", number(0..=1_073_741_824);
            /// `AWS_ACCESS_KEY_ID`: Access key for the S3 bucket of `BLOB_STORE_URL`. Unset: the
            /// credentials of the machine (instance or container role).
            aws_access_key_id: Option<String> = AWS_ACCESS_KEY_ID, "", optional(text("a key"));
            /// `AWS_SECRET_ACCESS_KEY`: Secret of the access key.
            aws_secret_access_key: Option<String> = AWS_SECRET_ACCESS_KEY, "", optional(text("a secret"));
            /// `AWS_SESSION_TOKEN`: Session token of temporary credentials.
            aws_session_token: Option<String> = AWS_SESSION_TOKEN, "", optional(text("a token"));
            /// `AWS_REGION`: Region of the bucket.
            aws_region: Option<String> = AWS_REGION, "", optional(text("a region like eu-central-1"));
            /// `AWS_ENDPOINT_URL`: Endpoint of an S3 service other than that of AWS.
            aws_endpoint_url: Option<String> = AWS_ENDPOINT_URL, "", optional(url(&["http", "https"], "an http(s) URL"));
            /// `AWS_ALLOW_HTTP`: Allow an endpoint without TLS.
            aws_allow_http: bool = AWS_ALLOW_HTTP, "false", flag();
        }
        /// Model files and the library that runs them.
        models: Models("Models") {
            /// `MODEL_PACK`: Model pack to use. `facecrawl models list` describes the packs.
            pack: String = MODEL_PACK, "opencv", text("the name of a pack");
            /// `MODELS_DIR`: Folder of the model files.
            dir: PathBuf = MODELS_DIR, "models", path();
            /// `FACE_MODEL_MIRROR`: Folder that is searched for model files before they are
            /// downloaded. Unset: `../shared/models`, if it exists.
            mirror: Option<PathBuf> = FACE_MODEL_MIRROR, "", optional(path());
            /// `ACCEPT_LICENSE`: Accept the licence of a restricted pack (the InsightFace models
            /// are for non-commercial research only).
            accept_license: bool = ACCEPT_LICENSE, "false", flag();
            /// `ORT_DYLIB_PATH`: Path of ONNX Runtime's shared library. Unset: if an operation
            /// requests a GPU that it can serve, the library in `.runtime/cuda`, which
            /// `./scripts/gpu-runtime` installs, or in `.runtime/rocm`; otherwise the one in
            /// `.runtime/onnxruntime`, or the system's.
            ort_dylib_path: Option<PathBuf> = ORT_DYLIB_PATH, "", optional(path());
        }
        /// Detection and quality of faces.
        detection: Detection("Detection") {
            /// `DETECTION_SIZE`: Side, in pixels, of the square canvas onto which an image is
            /// scaled for the detector.
            size: u32 = DETECTION_SIZE, "640", multiple(64..=2048, 32);
            /// `DETECTION_CANVAS`: Shape of the detector's canvas. auto: on the CPU, without the
            /// black border of an image that is not square, which saves a quarter of the detector's
            /// time; on GPUs, square. square: always square, so that CPUs and GPUs process the same
            /// input.
            canvas: DetectionCanvas = DETECTION_CANVAS, "auto", choice(CANVASES);
            /// `DETECTION_PASSES`: Which views of an image the detector processes. single: the
            /// whole image, scaled to `DETECTION_SIZE`. auto: first a reduced copy. If it shows no
            /// sign of a face, the search ends, except for images of more than 2,560 pixels.
            /// Otherwise also the whole image, and enlarged tiles if the image contains tiny faces,
            /// or is large and has no reliable face. thorough: always the whole image, the reduced
            /// copy and the tiles, up to the full resolution of the image.
            passes: Passes = DETECTION_PASSES, "auto", choice(PASSES);
            /// `QUALITY_PROFILE`: Requirements that a face must meet to pass: none (off), good
            /// enough for search (standard), good enough for enrolment (strict).
            quality_profile: Profile = QUALITY_PROFILE, "standard", choice(PROFILES);
            /// `STORED_FACES`: Which faces are embedded and stored from the images of crawls and
            /// scans. all: every face. passed: faces that meet the quality profile of the
            /// collection, or `QUALITY_PROFILE` if it has none. In images of crowds only few faces
            /// pass, which saves most of the work. Suppressed people are not recognised among faces
            /// that do not pass.
            stored_faces: StoredFaces = STORED_FACES, "all", choice(STORED_FACES);
            /// `THUMBNAILS`: Which stored images have a thumbnail. faces: images from which a face
            /// is stored. all: every image. none: no image. Face crops are stored in any case.
            thumbnails: Thumbnails = THUMBNAILS, "faces", choice(THUMBNAILS);
        }
        /// Jobs and politeness.
        crawl: Crawl("Crawling") {
            /// `WORKERS`: Maximum number of pages, and of images, that this process fetches and
            /// processes concurrently. 0 means four per core, at least 4 and at most 64.
            workers: usize = WORKERS, "0", number(0..=4096);
            /// `PAGE_WORKERS`: Maximum number of concurrent pages. 0 leaves pages to other
            /// processes. Unset: the value of `WORKERS`.
            page_workers: Option<usize> = PAGE_WORKERS, "", optional(number(0..=4096));
            /// `IMAGE_WORKERS`: Maximum number of concurrent images. 0 leaves images to other
            /// processes. Unset: the value of `WORKERS`.
            image_workers: Option<usize> = IMAGE_WORKERS, "", optional(number(0..=4096));
            /// `MEMORY_FLOOR_MB`: Available memory, in MiB, below which no new image is started.
            /// When the available memory approaches this value, fewer images are processed
            /// concurrently. 0 disables the check. Unset: 128, or a sixteenth of the total memory
            /// if that is less.
            memory_floor_mb: Option<u64> = MEMORY_FLOOR_MB, "", optional(number(0..=1_048_576));
            /// `CRAWL_USER_AGENT`: User-Agent of the crawler: a product token, followed by a URL or
            /// an address where its operator can be reached. Unset: facecrawl's own.
            user_agent: Option<String> = CRAWL_USER_AGENT, "", optional(checked("printable ASCII", is_valid_header_value));
            /// `CRAWL_DELAY_MS`: Minimum time between two requests to a host, in milliseconds, for
            /// crawls that do not set their own. robots.txt and a slow host can increase it.
            delay_ms: u64 = CRAWL_DELAY_MS, "500", number(0..=300_000);
            /// `WEBHOOK_SECRET`: Secret that signs webhook messages (HMAC-SHA256), and from which
            /// the secrets of collections are derived. Unset: crawls with a webhook are rejected.
            webhook_secret: Option<String> = WEBHOOK_SECRET, "", optional(checked("a secret of 16 characters or more", |text| text.chars().count() >= 16));
            /// `CRAWL_ALLOW_PRIVATE`: Private address ranges that the service may fetch from, on
            /// any port, comma-separated: 127.0.0.0/8. Intended for tests and intranets. Unset:
            /// none.
            allow_private: Vec<IpNet> = CRAWL_ALLOW_PRIVATE, "", list(typed("a range"), "address ranges like 10.0.0.0/8, comma-separated");
            /// `CRAWL_EXTRA_CA`: File of PEM certificates of authorities that are trusted in
            /// addition to the system's, for https sites of an intranet. It is read at start.
            extra_ca: Option<crawler::Roots> = CRAWL_EXTRA_CA, "", optional(certificates());
            /// `CRAWL_PORTS`: Ports that the service may fetch from, comma-separated.
            ports: Vec<u16> = CRAWL_PORTS, "80,443", list(number(1..=65535), "ports from 1 to 65535, comma-separated");
            /// `CRAWL_REFERER`: Whether requests for images send the address of the page in the
            /// header Referer, as browsers do. Some servers refuse requests without it.
            referer: bool = CRAWL_REFERER, "true", flag();
            /// `CRAWL_TRAILING_SLASH`: How a trailing slash in a link to a page is treated. keep:
            /// /a and /a/ are different pages. remove: /a/ becomes /a. add: /a becomes /a/, but
            /// /a.html stays as it is.
            trailing_slash: TrailingSlash = CRAWL_TRAILING_SLASH, "keep", choice(TRAILING_SLASHES);
            /// `CRAWL_DROP_PARAMETERS`: Query parameters that do not select a different page,
            /// comma-separated: sort,view. They are removed from links to pages. Common parameters
            /// of trackers and sessions are always removed.
            drop_parameters: Vec<String> = CRAWL_DROP_PARAMETERS, "", list(text("a name"), "names of query parameters, comma-separated");
        }
        /// Video files.
        video: Video("Video") {
            /// `FFMPEG`: Path of the program ffmpeg, version 6.0 or newer. Unset: the one that
            /// `./scripts/video` installs, or else the first one in `PATH`.
            ffmpeg: Option<PathBuf> = FFMPEG, "", optional(path());
            /// `VIDEO_SANDBOX`: Whether ffmpeg runs in a sandbox, where an exploited codec cannot
            /// reach files, the network or other processes. The sandbox needs Linux. false is for
            /// other systems, and for videos from sources that you trust.
            sandbox: bool = VIDEO_SANDBOX, "true", flag();
            /// `VIDEO_THREADS`: Number of threads that decode one video. Unset: one per core, up to
            /// 4.
            threads: Option<u32> = VIDEO_THREADS, "", optional(number(1..=64));
            /// `VIDEO_MEMORY_MB`: Memory for all processes that decode videos, in MiB. A video
            /// waits for its share, and one that needs more is decoded alone. 1920x1080 needs 180
            /// to 200 MiB with 2 to 4 threads, and 4096x2304 needs 600 to 720 MiB.
            memory_mb: u64 = VIDEO_MEMORY_MB, "1024", number(64..=65_536);
            /// `MAX_VIDEO_MINUTES`: Maximum duration of a video, in minutes.
            max_minutes: u64 = MAX_VIDEO_MINUTES, "360", number(1..=1440);
            /// `MAX_VIDEO_MB`: Maximum size of an uploaded video, in MiB.
            max_mb: u64 = MAX_VIDEO_MB, "512", number(1..=8192);
            /// `MAX_WAITING_VIDEOS`: Maximum number of videos of a collection that callers added
            /// and that have not ended. A further one is answered with 429.
            max_waiting: i64 = MAX_WAITING_VIDEOS, "1000", number(1..=1_000_000);
            /// `MAX_WAITING_VIDEO_MB`: Maximum size of the video files of a collection that are
            /// stored until they were read, in MiB. A further upload is answered with 429, and
            /// files at addresses are fetched later.
            max_waiting_mb: i64 = MAX_WAITING_VIDEO_MB, "16384", number(1..=1_073_741_824);
            /// `VIDEO_SPOOL`: Folder for copies of videos that are uploaded or read, and of
            /// uploaded archives of people. They have no name. They are deleted when the process
            /// ends. Unset: the folder `spool` in `DATA_DIR`. The folder should not be in memory
            /// (tmpfs).
            spool: Option<PathBuf> = VIDEO_SPOOL, "", optional(path());
        }
        /// Cameras.
        streams: Streams("Cameras") {
            /// `STREAMS_FILE`: File with the cameras that are watched, with their addresses and
            /// passwords (docs/how-to/CAMERAS.md). All processes with workers need the same file.
            /// Unset: no cameras.
            file: Option<PathBuf> = STREAMS_FILE, "", optional(path());
            /// `STREAM_SLOTS`: Number of cameras that this process watches at the same time. The
            /// others are watched by other processes.
            slots: usize = STREAM_SLOTS, "8", number(1..=256);
            /// `STREAM_ALLOW_PRIVATE`: Private address ranges in which cameras may be,
            /// comma-separated: 192.168.1.0/24. Unset: none.
            allow_private: Vec<IpNet> = STREAM_ALLOW_PRIVATE, "", list(typed("a range"), "address ranges like 10.0.0.0/8, comma-separated");
        }
        /// Alerts and states for home automation.
        mqtt: Mqtt("Home automation") {
            /// `MQTT_URL`: Address of an MQTT broker to which alerts and the states of watched
            /// people are published (docs/how-to/HOME_ASSISTANT.md): mqtt://broker:1883, or
            /// mqtts://broker:8883 with TLS. All processes with workers need the same settings.
            /// Unset: nothing is published.
            address: Option<BrokerAddress> = MQTT_URL, "", optional(typed("mqtt://HOST[:PORT] or mqtts://HOST[:PORT] without credentials (MQTT_USER and MQTT_PASSWORD contain them)"));
            /// `MQTT_USER`: User name at the broker.
            user: Option<String> = MQTT_USER, "", optional(text("a name"));
            /// `MQTT_PASSWORD`: Password at the broker.
            password: Option<String> = MQTT_PASSWORD, "", optional(text("a password"));
            /// `MQTT_CA`: File of PEM certificates of authorities that are trusted in addition to
            /// the system's, for mqtts. It is read at start.
            authorities: Option<Authorities> = MQTT_CA, "", optional(authorities());
            /// `MQTT_COLLECTIONS`: Collections whose alerts and people are published,
            /// comma-separated. Everyone who can read from the broker sees them, so there is no
            /// default. none: no collection; the service removes what it published before, and a
            /// collection with this name cannot be published.
            collections: Option<Vec<String>> = MQTT_COLLECTIONS, "", optional(collections());
            /// `MQTT_NAMES`: Publish the names of people. Otherwise only their ids are published.
            /// The names of collections, watchlists and cameras are always published.
            names: bool = MQTT_NAMES, "false", flag();
            /// `MQTT_PREFIX`: Beginning of all topics except those of MQTT_DISCOVERY_PREFIX. It is
            /// also the client id, with _ in place of /, so each installation that uses the broker
            /// needs a different one.
            prefix: TopicPrefix = MQTT_PREFIX, "facecrawl", typed("1 to 64 letters, digits, - and _, in levels separated by /");
            /// `MQTT_DISCOVERY_PREFIX`: Beginning of the topics with which Home Assistant adds
            /// entities by itself. none: publish no such topics.
            discovery_prefix: Option<TopicPrefix> = MQTT_DISCOVERY_PREFIX, "homeassistant", or_none(typed("1 to 64 letters, digits, - and _, in levels separated by /"));
        }
        /// Operations on GPUs, and the performance of CPU and GPU.
        gpu: Gpu("GPU") {
            /// `ALL_GPU`: Run on the GPU every operation whose own variable is unset.
            all: bool = ALL_GPU, "false", flag();
            /// `FACE_DETECTION_GPU`: Detect faces on the GPU. Unset: the value of `ALL_GPU`.
            face_detection: Option<bool> = FACE_DETECTION_GPU, "", optional(flag());
            /// `FACE_EMBEDDING_GPU`: Compute embeddings on the GPU. Unset: the value of `ALL_GPU`.
            face_embedding: Option<bool> = FACE_EMBEDDING_GPU, "", optional(flag());
            /// `IMAGE_PROCESSING_GPU`: Resize and normalise images on the GPU. Unset: the value of
            /// `ALL_GPU`.
            image_processing: Option<bool> = IMAGE_PROCESSING_GPU, "", optional(flag());
            /// `IMAGE_ENHANCEMENT_GPU`: Enhance poor images on the GPU. For small images, the CPU
            /// is often faster. Unset: the value of `ALL_GPU`.
            image_enhancement: Option<bool> = IMAGE_ENHANCEMENT_GPU, "", optional(flag());
            /// `QUALITY_CHECKS_GPU`: Measure blur, brightness, contrast and sharpness on the GPU.
            /// Unset: the value of `ALL_GPU`.
            quality_checks: Option<bool> = QUALITY_CHECKS_GPU, "", optional(flag());
            /// `VIDEO_DECODING_GPU`: Decode videos on GPUs of NVIDIA (NVDEC). Needs ffmpeg, and
            /// a driver with its video libraries. Unset: the value of `ALL_GPU`.
            video_decoding: Option<bool> = VIDEO_DECODING_GPU, "", optional(flag());
            /// `GPU_BACKEND`: Software that runs operations on the GPU. auto: the first that works
            /// of TensorRT for RTX, CUDA, MIGraphX, CoreML, OpenVINO and WebGPU. tensorrt: TensorRT
            /// for RTX if its plug-in is installed, otherwise the classic TensorRT. rocm: MIGraphX.
            /// mps: CoreML. openvino: GPUs of Intel. webgpu: any GPU with a Vulkan driver. cpu:
            /// none; all operations run on the CPU, regardless of the variables above.
            backend: GpuBackend = GPU_BACKEND, "auto", choice(&GpuBackend::NAMES);
            /// `GPU_PLUGINS_DIR`: Folder of the plug-ins for TensorRT for RTX, OpenVINO and WebGPU,
            /// each in the folder of its Python package. Unset: `.runtime/plugins`, in which
            /// `./scripts/gpu-runtime` installs them.
            plugins_dir: Option<PathBuf> = GPU_PLUGINS_DIR, "", optional(path());
            /// `GPU_DEVICE_ID`: Number of the GPU in the list of `facecrawl gpu`.
            device_id: u32 = GPU_DEVICE_ID, "0", number(0..=255);
            /// `GPU_DEVICE_IDS`: Numbers of several GPUs, comma-separated. Each loads its own copy
            /// of the models, and each video is decoded on the GPU that decodes the fewest. GPUs of
            /// several vendors: the number after the name of a backend (`tensorrt:0,openvino:0`).
            /// Unset: the GPU of `GPU_DEVICE_ID`.
            device_ids: Vec<DeviceId> = GPU_DEVICE_IDS, "", list(typed("a device number"), "device numbers like 0,1 or cuda:0,openvino:0");
            /// `GPU_MEMORY_LIMIT_GB`: Maximum GPU memory to use per device, in GiB. The memory for
            /// `VIDEO_DECODING_GPU` is not included. No effect on the plug-ins.
            memory_limit_gb: f64 = GPU_MEMORY_LIMIT_GB, "8", number(0.25..=1024.0);
            /// `GPU_BATCH_SIZE`: Maximum number of images or faces in one run on the GPU. Unset: 32
            /// with `PERFORMANCE_MODE=throughput`, 4 with latency.
            batch_size: Option<usize> = GPU_BATCH_SIZE, "", optional(number(1..=1024));
            /// `BATCH_MAX_DELAY_MS`: How long a GPU batch waits for more images or faces, in
            /// milliseconds. Unset: 2 with `PERFORMANCE_MODE=throughput`, 0 with latency.
            batch_max_delay_ms: Option<f64> = BATCH_MAX_DELAY_MS, "", optional(number(0.0..=1000.0));
            /// `FORCE_GPU_ONLY`: If a requested GPU cannot be used, fail instead of falling back to
            /// the CPU.
            force_gpu_only: bool = FORCE_GPU_ONLY, "false", flag();
            /// `PERFORMANCE_MODE`: Defaults of batches and CPU sessions. latency: the lowest
            /// latency for one request (no delay, batches of 4, up to 4 threads per CPU session).
            /// throughput: the most images per second (2 ms delay, batches of 32, 1 thread per CPU
            /// session). Variables that are set explicitly take precedence.
            performance_mode: PerformanceMode = PERFORMANCE_MODE, "throughput", choice(PERFORMANCE_MODES);
            /// `CPU_SESSIONS`: Number of sessions per model on the CPU. 0 means the number of cores
            /// divided by `CPU_SESSION_THREADS`.
            cpu_sessions: usize = CPU_SESSIONS, "0", number(0..=1024);
            /// `CPU_SESSION_THREADS`: Number of threads of one CPU session. At full load, the
            /// number of busy cores is sessions times threads. Unset: 1 with
            /// `PERFORMANCE_MODE=throughput`; the number of cores, up to 4, with latency.
            cpu_session_threads: Option<usize> = CPU_SESSION_THREADS, "", optional(number(1..=256));
            /// `CPU_BACKEND`: Library and precision of models on the CPU. auto: ONNX Runtime;
            /// embedders whose INT8 accuracy was measured run in INT8 if the processor has fast
            /// 8-bit products (AVX-512 VNNI, AVX-VNNI, Arm dot product), all other models in FP32.
            /// onnxruntime: always FP32. onnxruntime-int8: every embedder in INT8 on such
            /// processors. openvino: OpenVINO; `ORT_DYLIB_PATH` must be the library that
            /// `./scripts/openvino` installs. openvino-bf16: the same in BF16, which is faster on
            /// processors with AVX-512 BF16 or AMX.
            cpu_backend: CpuBackend = CPU_BACKEND, "auto", choice(&CpuBackend::NAMES);
        }
        /// Options of `GPU_BACKEND=tensorrt`.
        tensorrt: Tensorrt("TensorRT") {
            /// `TENSORRT_FP16`: Compute in FP16 where TensorRT finds it faster. Unset: true.
            fp16: Option<bool> = TENSORRT_FP16, "", optional(flag());
            /// `TENSORRT_INT8`: Compute in INT8. Requires `TENSORRT_CALIBRATION_TABLE`. Unset:
            /// false.
            int8: Option<bool> = TENSORRT_INT8, "", optional(flag());
            /// `TENSORRT_CALIBRATION_TABLE`: Calibration table for INT8, written by TensorRT or
            /// ONNX Runtime: one file for all models, or a folder that contains MODEL.table for
            /// each model, such as mobilefacenet.table.
            calibration_table: Option<PathBuf> = TENSORRT_CALIBRATION_TABLE, "", optional(path());
            /// `TENSORRT_WORKSPACE_GB`: Maximum GPU memory for building an engine, in GiB. Unset:
            /// 2.
            workspace_gb: Option<f64> = TENSORRT_WORKSPACE_GB, "", optional(number(0.0625..=1024.0));
            /// `TENSORRT_CACHE_DIR`: Folder in which built engines are stored. `facecrawl models
            /// build` fills it. Unset: `tensorrt` in `DATA_DIR`.
            cache_dir: Option<PathBuf> = TENSORRT_CACHE_DIR, "", optional(path());
        }
        /// Logging.
        log: Log("Logging") {
            /// `LOG_LEVEL`: Level of the log: error, warn, info, debug or trace, or a filter per
            /// module such as info,crawler=debug.
            level: String = LOG_LEVEL, "info", checked("error, warn, info, debug, trace, or a filter like info,crawler=debug", is_valid_log_filter);
            /// `LOG_FORMAT`: Format of the log: text for people, json for programs.
            format: LogFormat = LOG_FORMAT, "text", choice(LOG_FORMATS);
            /// `DEBUG`: Raise `LOG_LEVEL` to debug.
            debug: bool = DEBUG, "false", flag();
        }
    }
}
