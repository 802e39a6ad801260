//! Tests `scripts/gpu-runtime`, its callers, and the program with the installed libraries.
//!
//! Each test with the real libraries uses a separate process, because a process loads one ONNX
//! Runtime. These tests need no GPU, because they test how the program reports what is missing.
#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod common;

#[path = "gpu_runtime/asks.rs"]
mod asks;
#[path = "gpu_runtime/reasons.rs"]
mod reasons;
#[path = "gpu_runtime/script.rs"]
mod script;

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}
