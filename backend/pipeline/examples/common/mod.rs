//! Code common to the examples that take measurements: an analyzer with the models of a pack, and a
//! folder of photographs.
#![allow(clippy::unwrap_used, dead_code)]

use inference::{Engine, Manifest, ResolvedPack};
use pipeline::Analyzer;
use std::path::{Path, PathBuf};

/// Returns the pack `name` with its files from the folder `models`. The pack's description is read
/// from that folder if it exists there.
pub(crate) fn pack(name: &str, models: &str) -> ResolvedPack {
    let manifest = Manifest::load(Path::new(models)).unwrap();
    ResolvedPack::verify(manifest.pack(name).unwrap(), Path::new(models)).unwrap()
}

/// Returns an analyzer with default settings except for `CPU_BACKEND`. ONNX Runtime is loaded from
/// `ORT_DYLIB_PATH`.
pub(crate) fn analyzer(pack: &ResolvedPack) -> Analyzer {
    let named = std::env::var("CPU_BACKEND").unwrap_or_else(|_| "onnxruntime".into());
    let (_, cpu_backend) = inference::CpuBackend::NAMES.into_iter().find(|(name, _)| *name == named).unwrap();
    let config = inference::Config {
        cpu_backend,
        dylib_path: std::env::var_os("ORT_DYLIB_PATH").map(Into::into),
        ..inference::Config::default()
    };
    Analyzer::new(Engine::start(&config, pack).unwrap(), pipeline::Config::default())
}

/// Returns the files of a folder, sorted by name.
pub(crate) fn files(folder: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}
