//! Tests the store against a real Postgres server, with one database per test.
#![allow(clippy::unwrap_used)]

mod blob_deletions;
mod blobs;
mod collection_deletion;
mod crawls;
mod database;
mod erasure;
mod face_index;
mod faces;
mod fixture;
mod host_delays;
mod hosts;
mod images;
mod index_changes;
mod keys;
mod ledgers;
mod likeness;
mod schema;

mod subjects;
mod suppressions;
mod tombstones;
mod transient;
mod videos;
mod webhook_secrets;
