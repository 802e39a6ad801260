//! What the measuring examples share: the pipeline over a pack's models, and a folder of photographs.
#![allow(clippy::unwrap_used)]

use inference::{Engine, Manifest, ResolvedPack};
use pipeline::Analyzer;
use std::path::{Path, PathBuf};

/// The pipeline with its default settings; the pack's files lie in `models`, ONNX Runtime at `ORT_DYLIB_PATH`.
pub fn analyzer(pack: &str, models: &str) -> Analyzer {
    let manifest = Manifest::builtin();
    let pack = ResolvedPack::verify(manifest.pack(pack).unwrap(), Path::new(models)).unwrap();
    let config = inference::Config {
        dylib_path: std::env::var_os("ORT_DYLIB_PATH").map(Into::into),
        ..inference::Config::default()
    };
    Analyzer::new(Engine::start(&config, &pack).unwrap(), pipeline::Config::default())
}

/// The files of a folder, by name.
pub fn files(folder: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}
