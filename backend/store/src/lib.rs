//! Stores collections, crawls, pages, hosts, images, faces and search data in Postgres with
//! pgvector. Blobs are kept outside the database.
//!
//! Rows are plain structs with public fields. A call that can be part of a larger transaction takes
//! a `&mut PgConnection`; other calls use the pool. Crates that depend on this one do not use
//! `sqlx` types directly: they pass `tx.conn()`.
//!
//! A transaction locks rows in the order that `docs/explanation/ARCHITECTURE.md` lists under "Order
//! of locks".

pub mod audit;
mod blob_deletions;
pub mod blobs;
pub mod clusterings;
pub mod clusters;
mod collection_deletion;
pub mod collections;
pub mod copies;
pub mod crawl_closing;
mod crawl_deletion;
pub mod crawled_videos;
pub mod crawls;
pub mod database;
pub mod deletion_log;
pub mod directories;
pub mod disk;
mod embeddings;
mod erasure;
pub mod erasures;
pub mod error;
pub mod export;
pub mod extent;
pub mod external_index;
pub mod face_index;
pub mod face_scope;
pub mod faces;
pub mod host_delays;
pub mod hosts;
pub mod http_cache;
pub mod images;
pub mod index_changes;
pub mod index_sets;
pub mod keys;
mod large_scopes;
pub mod ledger;
pub mod models;
mod near;
pub mod pages;
pub mod probes;
pub mod reembedding;
pub mod retention;
pub mod scanned_videos;
mod schedule;
pub mod schema;
pub mod search;
pub mod sources;
pub mod subject_faces;
pub mod subjects;
mod supersede;
pub mod suppressions;
mod text;
pub mod tombstones;
pub mod traces;
pub mod tracks;
pub mod transient;
pub mod vector_engine;
pub mod videos;
pub mod webhook_secrets;

pub use blobs::Blobs;
pub use collection_deletion::Erased;
pub use database::{Config, Store, Tx};
pub use disk::{DiskReserve, SpoolFolder};
pub use error::StoreError;
pub use supersede::StoredFace;
pub use transient::retried;
