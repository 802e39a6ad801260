//! Tests the store against a real Postgres server, with one database per test.
#![allow(clippy::unwrap_used)]

mod blob_parts;
mod blobs;
mod collections;
mod crawls;
mod database;
mod erasures;
mod face_index;
mod faces;
mod fixture;
mod hosts;
mod images;
mod index_changes;
mod keys;
mod people;
mod tombstones;
mod videos;
