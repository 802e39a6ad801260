//! What the measuring examples share: the pipeline over a pack's models, and a folder of photographs.
#![allow(clippy::unwrap_used, dead_code)]

use inference::{Engine, Manifest, ResolvedPack};
use pipeline::Analyzer;
use std::path::{Path, PathBuf};

/// The pack, its files and where needed its description from the folder `models`.
pub(crate) fn pack(name: &str, models: &str) -> ResolvedPack {
    let manifest = Manifest::of(Path::new(models)).unwrap();
    ResolvedPack::verify(manifest.pack(name).unwrap(), Path::new(models)).unwrap()
}

/// The pipeline with its default settings, but for `CPU_BACKEND`; ONNX Runtime lies at `ORT_DYLIB_PATH`.
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

/// The files of a folder, by name.
pub(crate) fn files(folder: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}
