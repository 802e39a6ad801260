//! Tests the web page in a real browser, with the real service and real models. Screenshots are in
//! `target/screenshots`.
#![cfg(unix)]
#![allow(clippy::unwrap_used, unreachable_pub)]
#[path = "../common/mod.rs"]
mod common;

mod audit;
mod chrome;
mod collections;
mod crawl;
mod detect;
mod erasures;
mod keys;
mod modules;
mod people;
mod site;
mod stage;
mod system;
mod tour;
mod videos;
