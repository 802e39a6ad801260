//! Tests the web page in a real browser, with the real service and real models. Screenshots are in
//! `target/screenshots`.
#![allow(clippy::unwrap_used, unreachable_pub)]
#[path = "../common/mod.rs"]
mod common;

mod administration;
mod cameras;
mod chrome;
mod crawls;
mod faces;
mod modules;
mod sign_on;
mod stage;
mod tour;
mod videos;
mod watchlists;
