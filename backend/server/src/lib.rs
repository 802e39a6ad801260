//! The HTTP API.
//!
//! `router` needs an `AppState`; `openapi` needs nothing. One file per operation under `routes/<resource>/`; images come in through
//! `extract::image`, errors go out through `ApiError`.

mod auth;
pub mod config;
mod confirmation;
pub mod error;
mod extract;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod hosts;
mod limit;
mod middleware;
mod openapi;
mod operation;
mod router;
mod routes;
mod serve;
mod shares;
mod stall;
pub mod state;
pub mod telemetry;

pub use auth::CACHED as KEY_CACHED;
pub use config::{Auth, Config};
pub use error::{ApiError, Code, Problem};
pub use hosts::PublicHost;
pub use router::{openapi, router, status_router};
pub use serve::serve;
pub use state::{AppState, Services};

use operation::Spec;
use store::keys::Scope;

/// The answer of `POST /faces/detect` for a picture that was analysed elsewhere, so that the command line speaks like the API.
pub fn detect_answer(analysis: &pipeline::Analysis, engine: &inference::Engine) -> serde_json::Value {
    serde_json::json!(routes::faces::DetectAnswer::of(analysis, engine))
}
