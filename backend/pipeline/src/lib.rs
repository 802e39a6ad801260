//! Bytes to faces, and the job bodies that crawl, fetch and store. The one path that jobs, API and command line share.

pub mod analyze;
pub mod budget;
pub mod cluster;
pub mod crawl;
pub mod ingest;
pub mod jobs;
pub mod reapply;
mod traces;
mod transient;
pub mod upkeep;

pub use analyze::{
    Analysis, AnalyzeError, AnalyzeOptions, AnalyzedFace, Analyzer, Config, Enhance, MAX_FACES,
    MIN_SCORE_FLOOR, Passes, Pixels, Rotate, StoredFaces, Timings, profile_of,
};
pub use budget::{Budget, Exhausted, Share};
pub use cluster::Clusters;
pub use crawl::{CrawlError, CrawlOptions, Crawls, Dedupe, Sitemaps};
pub use ingest::{Ingest, IngestError, Ingested, Scan, Sketcher};
pub use traces::forget_jobs;
pub use upkeep::Upkeep;
