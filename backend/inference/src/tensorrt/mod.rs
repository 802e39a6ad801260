//! TensorRT: the key of an engine, its folder, and the options of its provider.
//!
//! An engine is valid for one model, one GPU, one pair of library versions, one precision and one
//! range of shapes. The [`EngineKey`] contains all of these, and every key has its own folder, so
//! an engine that does not match is never loaded. No engine is built at run time, because no input
//! outside the [`Profile`] reaches it (see [`crate::backend::OnnxModel::limited_to`]).
mod key;
mod profile;
mod version;

pub(crate) use key::EngineKey;
pub use profile::Profile;
pub(crate) use version::library_version;

use crate::manifest::ModelFile;
use crate::{Config, GpuDevice, TensorrtConfig};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Name of the calibration table in an engine's folder.
const TABLE: &str = "calibration.table";
/// TensorRT's own tables start with these bytes; other tables are in ONNX Runtime's format.
const NATIVE_TABLE_PREFIX: &[u8] = b"TRT-";

/// The folder of an engine and the options of its build.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineOptions {
    /// The folder of the engine's key.
    pub folder: PathBuf,
    /// Whether half precision is allowed where it is faster.
    pub fp16: bool,
    /// 8-bit computation with the table in the folder: `Some(true)` for TensorRT's own format,
    /// `Some(false)` for ONNX Runtime's, `None` without 8 bits.
    pub int8: Option<bool>,
    /// Bytes of memory that the build may use.
    pub workspace: usize,
    /// The shapes that the engine accepts.
    pub profile: Profile,
    /// Whether an engine existed in the folder before.
    pub found: bool,
}

/// The inputs of an engine's build.
pub(crate) struct EngineSource<'a> {
    pub(crate) file: &'a ModelFile,
    /// The bytes that are loaded; the batch axis may differ from the file's.
    pub(crate) bytes: &'a [u8],
    pub(crate) profile: Profile,
    pub(crate) runtime_version: &'a str,
    pub(crate) tensorrt_version: &'a str,
    pub(crate) gpu: Option<&'a GpuDevice>,
}

/// Returns the name of the allowed precisions.
fn precision(int8: bool, fp16: bool) -> &'static str {
    match (int8, fp16) {
        (true, true) => "int8+fp16",
        (true, false) => "int8",
        (false, true) => "fp16",
        (false, false) => "fp32",
    }
}

impl EngineOptions {
    /// Returns `fp32`, `fp16`, `int8` or `int8+fp16`. TensorRT uses the fastest of them, or FP32,
    /// for each layer.
    pub(crate) fn precision(&self) -> &'static str {
        precision(self.int8.is_some(), self.fp16)
    }

    /// Prepares the folder for `source`: writes the key and, for 8 bits, the calibration table.
    pub(crate) fn prepare(config: &Config, source: EngineSource<'_>) -> Result<Self, String> {
        let TensorrtConfig { fp16, calibration, workspace_gb, cache_dir } = &config.tensorrt;
        let table = calibration.as_deref().map(|path| read_table(path, source.file)).transpose()?;
        let hash = |bytes: &[u8]| hex::encode(Sha256::digest(bytes));
        let unknown = || "unknown".to_owned();
        let key = EngineKey {
            model_sha256: hash(source.bytes),
            onnxruntime: source.runtime_version.to_owned(),
            tensorrt: source.tensorrt_version.to_owned(),
            gpu: source.gpu.map_or_else(unknown, |gpu| gpu.name.clone()),
            compute_capability: source
                .gpu
                .and_then(|gpu| gpu.compute_capability.clone())
                .unwrap_or_else(unknown),
            fp16: *fp16,
            calibration_sha256: table.as_deref().map(hash),
            profile: source.profile.to_string(),
        };
        let folder = cache_dir.join(key.folder(source.file.stem()));
        let failed = |e: std::io::Error| format!("TENSORRT_CACHE_DIR: {}: {e}", folder.display());
        std::fs::create_dir_all(&folder).map_err(failed)?;
        // ONNX Runtime resolves relative names against the working directory of the run.
        let folder = folder.canonicalize().map_err(failed)?;
        let write = |name: &str, content: &[u8]| std::fs::write(folder.join(name), content);
        write("key.txt", key.to_string().as_bytes()).map_err(failed)?;
        if let Some(table) = &table {
            write(TABLE, table).map_err(failed)?;
        }
        let options = Self {
            fp16: *fp16,
            int8: table.map(|table| table.starts_with(NATIVE_TABLE_PREFIX)),
            workspace: (workspace_gb * f64::from(1 << 30)) as usize,
            profile: source.profile,
            folder,
            found: false,
        };
        Ok(Self { found: !options.engines().is_empty(), ..options })
    }

    /// Returns the engine files in the folder, with their sizes in bytes.
    pub(crate) fn engines(&self) -> Vec<(PathBuf, u64)> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut engines: Vec<_> = entries
            .filter(|entry| entry.path().extension().is_some_and(|e| e == "engine"))
            .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?.len())))
            .collect();
        engines.sort();
        engines
    }

    #[cfg(feature = "tensorrt")]
    pub(crate) fn provider(&self, device: i32) -> ort::ep::TensorRT {
        let [min, best, max] = self.profile.ranges();
        let folder = self.folder.display();
        let mut provider = ort::ep::TensorRT::default()
            .with_device_id(device)
            .with_fp16(self.fp16)
            .with_max_workspace_size(self.workspace)
            .with_engine_cache(true)
            .with_engine_cache_path(&folder)
            .with_timing_cache(true)
            .with_timing_cache_path(&folder)
            .with_profile_min_shapes(min)
            .with_profile_opt_shapes(best)
            .with_profile_max_shapes(max);
        if let Some(native) = self.int8 {
            provider = provider
                .with_int8(true)
                .with_int8_calibration_table_name(TABLE)
                .with_int8_use_native_calibration_table(native);
        }
        provider
    }
}

/// Reads the calibration table for `file`: `path`, or the model's table in the folder `path`.
fn read_table(path: &Path, file: &ModelFile) -> Result<Vec<u8>, String> {
    let path = if path.is_dir() { path.join(format!("{}.table", file.stem())) } else { path.to_owned() };
    std::fs::read(&path).map_err(|e| format!("TENSORRT_CALIBRATION_TABLE: {}: {e}", path.display()))
}

#[cfg(test)]
mod tests;
