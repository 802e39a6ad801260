//! `scripts/gpu-runtime`, what asks for it, and the program with the libraries that it brings.
//!
//! The tests with the real libraries run a process each, because a process loads one ONNX Runtime.
//! They need no GPU: what they show is how the program says what is missing.
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
