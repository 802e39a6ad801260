//! Measures single operations, the whole pipeline from bytes to embeddings, and the analysis of a
//! video, on the CPU and on a GPU.
//!
//! The measurements use the same code as the service: [`pipeline::Analyzer`] and
//! [`inference::Engine`]. `docs/reference/BENCHMARKS.md` describes the report.
mod batch_search;
mod bottleneck;
mod counters;
mod measure;
mod pictures;
mod plot;
mod report;
mod rounds;
mod side;
mod side_report;
mod spread;
mod video;
mod work;

pub use batch_search::{AutoBatch, BatchSearch, SearchReport, Step};
pub use bottleneck::Bottleneck;
pub use counters::Counters;
pub use measure::{Plan, measure};
pub use pictures::{ImageSize, Pictures};
pub use plot::svg;
pub use report::{Analysis, Gain, PlanReport, Report, Summary, System, gain};
pub use side::{BenchTarget, Device, Process, Side};
pub use side_report::{Results, SideReport, ordered};
pub use spread::{Spread, Tail};
pub use video::{VideoPlan, VideoPlanReport, VideoReport, VideoResults, VideoSide, measure_video};
