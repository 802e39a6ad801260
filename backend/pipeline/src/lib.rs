//! Bytes to faces, and the job bodies that crawl, fetch and store. The one path that jobs, API and command line share.

pub mod analyze;
pub mod budget;
pub mod cluster;
mod completion;
pub mod crawl;
pub(crate) mod domain;
pub mod ingest;
pub mod maintenance;
pub mod reapply;
pub mod worker;

pub use analyze::{
    Analysis, AnalyzeError, AnalyzeOptions, AnalyzedFace, Analyzer, Config, Enhance, MAX_FACES,
    MIN_SCORE_FLOOR, Passes, Pixels, Rotate, StoredFaces, Timings, profile_of,
};
pub use budget::{Budget, Exhausted, Share};
pub use cluster::Clusters;
pub use crawl::Crawls;
pub use domain::{
    CrawlError, CrawlOptions, DEFAULT_COLLECTION, Dedupe, Interval, Secret, Sitemaps, forget_jobs, jobs,
};
pub use ingest::{Ingest, IngestError, Ingested, Scan, Sketcher};
pub use maintenance::Maintenance;
