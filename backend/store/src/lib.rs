//! Stores collections, crawls, pages, hosts, images, faces and search data in Postgres with
//! pgvector. Blobs are kept outside the database.
//!
//! Rows are plain structs with public fields. A call that can be part of a larger transaction takes
//! a `&mut PgConnection`; other calls use the pool. Crates that depend on this one do not use
//! `sqlx` types directly: they pass `tx.conn()`.
//!
//! A transaction locks rows in the order that `docs/explanation/ARCHITECTURE.md` lists under "Order
//! of locks".

pub mod blobs;
pub mod collections;
pub mod crawls;
pub mod db;
pub mod erasures;
pub mod faces;
pub mod images;
pub mod index;
pub mod keys;
pub mod people;
pub mod store;
pub mod streams;
pub mod videos;
pub mod watch;

pub use blobs::Blobs;
pub use blobs::reserve::{DiskReserve, SpoolFolder};
pub use collections::deletion::ErasureStep;
pub use db::transient::retried;
pub use db::{Config, StoreError, Tx};
pub use images::supersede::StoredFace;
pub use store::Store;
