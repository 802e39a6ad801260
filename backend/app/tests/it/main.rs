//! Tests of the program, in one test program, so that they are linked once. The tests in a browser
//! and the attacks under load are separate.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod cameras;
mod cli;
mod config;
mod deployment;
mod enrol;
mod erasures;
mod gpu_check;
mod gpu_runtime;
mod hostile;
mod installation;
mod kills;
mod models;
mod monitoring;
mod mqtt;
mod operators;
mod processes;
mod scan;
mod search_index;
mod service;
mod sources;
mod statements;
mod storage;
mod video;
mod watch;
mod webgpu;
