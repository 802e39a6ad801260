//! Stores collections, crawls, pages, hosts, images, faces and search data in Postgres with
//! pgvector. Blobs are kept outside the database.
//!
//! Rows are plain structs with public fields. A call that can be part of a larger transaction takes
//! a `&mut PgConnection`; other calls use the pool. Crates that depend on this one name no `sqlx`
//! types: they pass `tx.conn()`.

pub mod audit;
pub mod blobs;
mod burial;
pub mod clusterings;
pub mod clusters;
pub mod collections;
mod condemned;
pub mod copies;
pub mod crawls;
pub mod database;
pub mod directories;
mod ends;
mod erasure;
pub mod erasures;
pub mod error;
pub mod export;
pub mod extent;
pub mod faces;
pub mod host_delays;
pub mod hosts;
pub mod images;
pub mod journal;
pub mod keys;
pub mod ledger;
pub mod models;
mod near;
pub mod pages;
pub mod reembedding;
pub mod retention;
pub mod search;
mod series;
pub mod sources;
pub mod subject_faces;
pub mod subjects;
mod supersede;
pub mod suppressions;
mod text;
pub mod tombstones;
pub mod traces;
pub mod transient;
pub mod visits;
pub mod webhook_secrets;

pub use blobs::Blobs;
pub use burial::Erased;
pub use database::{Config, DEFAULT_EXACT_LIMIT, Store, Tx};
pub use error::StoreError;
pub use supersede::OlderFace;
pub use transient::retried;
