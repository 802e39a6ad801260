//! Tests `scripts/gpu-runtime`, its callers, and the program with the installed libraries.
//!
//! Each test with the real libraries uses a separate process, because a process loads one ONNX
//! Runtime. These tests need no GPU, because they test how the program reports what is missing.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod asks;
mod reasons;
mod script;

use testing::root;
