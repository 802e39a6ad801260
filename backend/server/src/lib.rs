//! Contains the HTTP API: handlers, extractors, middleware and the server loop.
//!
//! `router` builds the API from an `AppState`; `openapi` needs no state. The operations are in
//! `routes`, grouped by the noun of their path. `extract` reads requests, and `admission` limits
//! the resources that they use. Errors are returned as `ApiError`.
//!
//! The work behind the API (analysis, crawls, storage) is in the other crates.

mod admission;
mod auth;
mod compat;
pub mod config;
mod confirmation;
pub mod error;
mod extract;
mod follow;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod hosts;
mod middleware;
mod openapi;
mod operation;
mod request;
mod router;
mod routes;
mod serve;
pub mod state;
pub mod telemetry;

use error::Result;
use operation::Spec;
use store::keys::Scope;

pub use axum::http::HeaderName;
pub use config::{Auth, Compat, Config, GroupRights, ProxyAuth};
pub use error::{ApiError, Code, Problem};
pub use hosts::PublicHost;
pub use router::{openapi, router, status_router};
pub use serve::serve;
pub use state::{AppState, Services};

/// Returns the response body of `POST /faces/detect` for an image that the caller analyzed itself.
/// The command line uses it to print the same JSON as the API.
pub fn detect_response(analysis: &pipeline::Analysis, engine: &inference::Engine) -> serde_json::Value {
    serde_json::json!(routes::faces::DetectAnswer::new(analysis, engine))
}

/// Returns the result of the analysis of a video as the command line prints it.
pub fn video_result(
    analysis: &pipeline::VideoAnalysis,
    engine: &inference::Engine,
    with_embeddings: bool,
) -> serde_json::Value {
    serde_json::json!(routes::videos::VideoResult::new(analysis, engine, with_embeddings))
}
