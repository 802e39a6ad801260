//! Measures single operations, the whole pipeline from bytes to embeddings, and the analysis of a
//! video, on the CPU and on a GPU.
//!
//! The measurements use the same code as the service: [`pipeline::Analyzer`] and
//! [`inference::Engine`]. `docs/reference/BENCHMARKS.md` describes the report.
mod analysis;
mod auto_batch;
mod batch_search;
mod bottleneck;
mod counters;
mod device;
mod measure;
mod pictures;
mod plot;
mod process;
mod report;
mod results;
mod rounds;
mod side;
mod side_report;
mod spread;
mod target;
mod video;
mod work;

pub use analysis::{Analysis, Gain, Summary, gain};
pub use auto_batch::{AutoBatch, Step, recommend};
pub use batch_search::{BatchSearch, SearchReport};
pub use bottleneck::{Bottleneck, Facts, bottleneck};
pub use counters::Counters;
pub use device::Device;
pub use measure::{Plan, measure};
pub use pictures::{ImageSize, Pictures};
pub use plot::svg;
pub use process::Process;
pub use report::{PlanReport, Report, System};
pub use results::{Results, ordered};
pub use side::Side;
pub use side_report::SideReport;
pub use spread::Spread;
pub use target::BenchTarget;
pub use video::{VideoPlan, VideoPlanReport, VideoReport, VideoResults, VideoSide, measure_video};
