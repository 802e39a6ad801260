//! Turns bytes into faces, stores them, and runs the jobs that crawl and fetch.
//!
//! The jobs, the API and the command line share this code. It contains no HTTP handlers and no
//! command line parsing.

pub(crate) mod admission;
pub mod collections;
pub mod crawls;
pub(crate) mod domain;
pub mod erasures;
pub mod images;
pub mod people;
pub mod scan;
pub mod streams;
pub mod videos;
pub mod watch;
pub(crate) mod webhooks;
pub mod worker;

pub use admission::budget::{Budget, BudgetExhausted, Share};
pub use crawls::Crawls;
pub use domain::{
    CannotRefine, ChangeError, CrawlError, CrawlOptions, DEFAULT_COLLECTION, Dedupe, Interval,
    MatchThreshold, Rotate, Secret, Sitemaps, ThresholdSource, VideoLimits, VideoRequest,
    default_merge_threshold, forget_jobs, jobs, profile_name, profile_of,
};
pub use erasures::sketch::{Sketcher, max_differing_bits};
pub use erasures::suppression::Suppressor;
pub use erasures::sweeps::Maintenance;
pub use images::analyze::{
    Analysis, AnalyzeError, AnalyzeOptions, AnalyzedFace, Analyzer, Config, Enhance, MAX_FACES,
    MIN_SCORE_FLOOR, Passes, Pixels, StoredFaces, Thumbnails, Timings, small_view,
};
pub use images::face_store::{FaceStore, IngestError};
pub use images::ingest::IngestOutcome;
pub use people::clusters::Clusters;
pub use people::import::list::composed_name;
pub use people::import::{FileReport, Import, ImportFile, ImportOptions, ImportSummary, Rejection};
pub use scan::Scan;
pub use streams::control::Streams;
pub use tracking::boxes::decode as decode_boxes;
pub use videos::analyze::{
    FrameFaces, Resume, ShotImages, TrackFace, VideoAnalysis, VideoAnalyzeError, VideoAnalyzer, VideoOptions,
    VideoPart, VideoParts, VideoProgress, VideoSummary, VideoTrack,
};
pub use videos::control::{AddOutcome, Upload, Videos};
pub use watch::delivery::Deliverer;
pub use watch::matcher::Matcher;
