//! Tests the HTTP API over real sockets with the real models. Each test has its own database. The
//! modules mirror the URL tree.
#![allow(clippy::unwrap_used)]

mod support;

mod audit;
mod auth;
mod collections;
mod connections;
mod crawls;
mod database_outage;
mod edge;
mod erased;
mod erasures;
mod faces;
mod images;
mod jobs;
mod keys;
mod memory;
mod openapi;
mod problems;
mod subjects;
mod system;
mod tenants;
mod videos;
