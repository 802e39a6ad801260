//! Measures single operations, the whole pipeline from bytes to embeddings, and the analysis of a
//! video, on the CPU and on a GPU.
//!
//! The measurements use the same code as the service: [`pipeline::Analyzer`] and
//! [`inference::Engine`]. `docs/reference/BENCHMARKS.md` describes the report.
mod batch_search;
mod images;
mod measure;
mod report;
mod side;
mod side_report;
mod spread;
mod video;

pub use batch_search::{AutoBatch, BatchSearch, SearchReport, Step};
pub use images::{BenchImages, ImageSize};
pub use measure::{Plan, measure};
pub use report::{Analysis, Gain, PlanReport, Report, Summary, System, compute_gain, draw_svg};
pub use side::{BenchTarget, Counters, Device, Process, Side};
pub use side_report::{Bottleneck, Results, SideReport, sorted_reports};
pub use spread::{Spread, Tail};
pub use video::{VideoPlan, VideoPlanReport, VideoReport, VideoResults, VideoSide, measure_video};
