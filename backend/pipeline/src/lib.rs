//! Turns bytes into faces, stores them, and runs the jobs that crawl and fetch.
//!
//! The jobs, the API and the command line share this code. It contains no HTTP handlers and no
//! command line parsing.

pub mod analyze;
pub mod budget;
pub mod cluster;
mod completion;
pub mod crawl;
pub(crate) mod domain;
pub mod ingest;
pub mod maintenance;
pub mod reapply;
pub mod video_control;
pub mod videos;
pub mod worker;

pub use analyze::{
    Analysis, AnalyzeError, AnalyzeOptions, AnalyzedFace, Analyzer, Config, Enhance, MAX_FACES,
    MIN_SCORE_FLOOR, Passes, Pixels, StoredFaces, Thumbnails, Timings, profile_of, small_view,
};
pub use budget::{Budget, Exhausted, Share};
pub use cluster::Clusters;
pub use crawl::Crawls;
pub use domain::{
    CannotRefine, ChangeError, CrawlError, CrawlOptions, DEFAULT_COLLECTION, Dedupe, Interval,
    MatchThreshold, Rotate, Secret, Sitemaps, ThresholdSource, VideoLimits, VideoRequest, forget_jobs, jobs,
};
pub use ingest::{Ingest, IngestError, Ingested, Scan, Sketcher};
pub use maintenance::Maintenance;
pub use tracking::boxes::decode as decode_boxes;
pub use video_control::{Added, Upload, Videos};
pub use videos::{
    FrameFaces, Resume, ShotPictures, TrackFace, VideoAnalysis, VideoAnalyzeError, VideoEnd, VideoOptions,
    VideoPart, VideoParts, VideoProgress, VideoTrack,
};
