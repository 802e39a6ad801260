//! Tests the HTTP API over real sockets with the real models. Each test has its own database. The
//! modules mirror the URL tree.
#![allow(clippy::unwrap_used)]

mod support;

mod collections;
mod compat;
mod connections;
mod crawls {
    mod create;
    mod export;
    mod webhooks;
}
mod database_outage;
mod erasures;
mod faces {
    mod detect;
    mod input;
    mod stored;
}
mod images;
mod imports;
mod keys;
mod memory;
mod openapi;
mod origins;
mod page;
mod people;
mod problems;
mod proxy;
mod shares;
mod streams;
mod system;
mod tenants;
mod videos;
mod watch;
