//! TensorRT: the key of an engine, its folder, and the options of its provider.
//!
//! An engine is valid for one model, one GPU, one pair of library versions, one precision and one
//! range of shapes. Its key contains all of these, and every key has its own folder, so an engine
//! that does not match is never loaded. No engine is built at run time, because no input outside
//! the [`Profile`] reaches it (see [`crate::backend::OnnxModel::with_profile`]).
use crate::manifest::ModelFile;
use crate::{Config, GpuDevice, PerformanceMode, TensorrtConfig};
use sha2::{Digest, Sha256};
use std::fmt;
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
    /// The format of the calibration table: `Some(true)` for TensorRT's own format, `Some(false)`
    /// for ONNX Runtime's. `None` disables 8-bit computation.
    pub int8: Option<bool>,
    /// Bytes of memory that the build may use.
    pub workspace: usize,
    /// The shapes that the engine accepts.
    pub profile: Profile,
    /// Whether the folder already contained an engine.
    pub is_cached: bool,
}

/// The inputs of an engine's build.
pub(crate) struct EngineSource<'a> {
    pub(crate) file: &'a ModelFile,
    /// The bytes that are loaded; the batch axis may differ from the file's.
    pub(crate) bytes: &'a [u8],
    pub(crate) profile: Profile,
    pub(crate) runtime_version: &'a str,
    pub(crate) tensorrt_version: &'a str,
    /// Engines are tuned to the product: GPUs of the same compute capability differ in memory and
    /// cores.
    pub(crate) gpu: Option<&'a GpuDevice>,
}

impl EngineSource<'_> {
    /// Returns the properties for which an engine is valid, one per line; a change of any of them
    /// makes it invalid. `table` is the calibration table for 8-bit computation. This text is
    /// hashed, and it is the content of `key.txt` in the folder.
    fn key(&self, fp16: bool, table: Option<&[u8]>) -> String {
        let gpu = self.gpu.map_or("unknown", |gpu| &gpu.name);
        let capability = self.gpu.and_then(|gpu| gpu.compute_capability.as_deref()).unwrap_or("unknown");
        let table_line = table.map(|table| format!("calibration table sha256: {}\n", sha256(table)));
        format!(
            "model sha256: {}\nONNX Runtime: {}\nTensorRT: {}\nGPU: {gpu}, compute capability {capability}\n\
             precision: {}\n{}shapes: {}\n",
            sha256(self.bytes),
            self.runtime_version,
            self.tensorrt_version,
            precision(table.is_some(), fp16),
            table_line.unwrap_or_default(),
            self.profile
        )
    }
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Returns the name of an engine's folder: the model's name, for readability, and a hash of the
/// key.
fn folder_name(model: &str, key: &str) -> String {
    format!("{model}-{}", &sha256(key.as_bytes())[..16])
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
        let key = source.key(*fp16, table.as_deref());
        let folder = cache_dir.join(folder_name(source.file.stem(), &key));
        let io_error = |e: std::io::Error| format!("TENSORRT_CACHE_DIR: {}: {e}", folder.display());
        std::fs::create_dir_all(&folder).map_err(io_error)?;
        // ONNX Runtime resolves relative names against the working directory of the run.
        let folder = folder.canonicalize().map_err(io_error)?;
        let write = |name: &str, content: &[u8]| std::fs::write(folder.join(name), content);
        write("key.txt", key.as_bytes()).map_err(io_error)?;
        if let Some(table) = &table {
            write(TABLE, table).map_err(io_error)?;
        }
        let options = Self {
            fp16: *fp16,
            int8: table.map(|table| table.starts_with(NATIVE_TABLE_PREFIX)),
            workspace: (workspace_gb * f64::from(1 << 30)) as usize,
            profile: source.profile,
            folder,
            is_cached: false,
        };
        Ok(Self { is_cached: !options.engine_files().is_empty(), ..options })
    }

    /// Returns the engine files in the folder, with their sizes in bytes.
    pub(crate) fn engine_files(&self) -> Vec<(PathBuf, u64)> {
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

/// Start of the file name of TensorRT's main library.
const LIBRARY: &str = "libnvinfer.so";

/// Returns the version of the TensorRT library that the process has loaded. The provider must be
/// loaded.
pub(crate) fn library_version() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    find_library(&maps).map_or_else(|| "unknown".to_owned(), |path| library_file_version(&path))
}

/// Returns the library's file from the process's memory mappings (proc(5): the sixth column).
fn find_library(maps: &str) -> Option<PathBuf> {
    maps.lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .map(Path::new)
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(LIBRARY)))
        .map(Path::to_owned)
}

/// Returns the version from a name such as `libnvinfer.so.10.9.0`. Some packages have only
/// `libnvinfer.so.10`; for these the file's size is added.
fn library_file_version(path: &Path) -> String {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = real.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let version = name.strip_prefix(LIBRARY).unwrap_or_default().trim_start_matches('.').to_owned();
    match std::fs::metadata(&real) {
        Ok(file) if version.split('.').count() < 3 => format!("{version} ({} bytes)", file.len()),
        _ => version,
    }
}

/// The smallest, best and largest shape `[items, channels, height, width]` of a model's input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    input: String,
    min: [usize; 4],
    best: [usize; 4],
    max: [usize; 4],
}

impl Profile {
    /// Creates the profile for batches of 1 to `max_batch` items of `item` (`[channels, height,
    /// width]`). The engine is tuned to one item for latency and to `max_batch` items for
    /// throughput. It also accepts all smaller batch sizes.
    pub fn new(input: &str, item: [usize; 3], max_batch: usize, mode: PerformanceMode) -> Self {
        let shape = |items: usize| [items, item[0], item[1], item[2]];
        let max_batch = max_batch.max(1);
        let best = match mode {
            PerformanceMode::Latency => 1,
            PerformanceMode::Throughput => max_batch,
        };
        Self { input: input.to_owned(), min: shape(1), best: shape(best), max: shape(max_batch) }
    }

    pub fn contains(&self, shape: [usize; 4]) -> bool {
        (0..4).all(|axis| (self.min[axis]..=self.max[axis]).contains(&shape[axis]))
    }

    /// Returns the three shapes in the provider's syntax: `input:1x3x640x640`.
    pub fn ranges(&self) -> [String; 3] {
        [self.min, self.best, self.max]
            .map(|shape| format!("{}:{}", self.input, shape.map(|d| d.to_string()).join("x")))
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [min, best, max] = self.ranges();
        write!(f, "min {min} opt {best} max {max}")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Manifest, ModelKind};
    use std::collections::HashSet;

    fn gpu() -> GpuDevice {
        GpuDevice {
            name: "NVIDIA A10".into(),
            backend: "cuda",
            compute_capability: Some("8.6".into()),
            ..GpuDevice::default()
        }
    }

    fn source<'a>(file: &'a ModelFile, gpu: &'a GpuDevice) -> EngineSource<'a> {
        EngineSource {
            file,
            bytes: b"model",
            profile: Profile::new("input", [3, 112, 112], 32, PerformanceMode::Throughput),
            runtime_version: "1.31.1",
            tensorrt_version: "10.9.0",
            gpu: Some(gpu),
        }
    }

    #[test]
    fn every_engine_key_part_changes_folder() {
        let pack = Manifest::builtin().pack("compact").unwrap().clone();
        let (file, gpu) = (pack.file(ModelKind::Embedder).unwrap(), gpu());
        let other_name = GpuDevice { name: "NVIDIA L4".into(), ..gpu.clone() };
        let other_generation = GpuDevice { compute_capability: Some("8.9".into()), ..gpu.clone() };
        let other_profile = Profile::new("input", [3, 112, 112], 16, PerformanceMode::Throughput);
        let source = || source(file, &gpu);
        let keys = [
            source().key(true, None),
            EngineSource { bytes: b"other model", ..source() }.key(true, None),
            EngineSource { runtime_version: "1.31.2", ..source() }.key(true, None),
            EngineSource { tensorrt_version: "10.10.0", ..source() }.key(true, None),
            EngineSource { gpu: Some(&other_name), ..source() }.key(true, None),
            EngineSource { gpu: Some(&other_generation), ..source() }.key(true, None),
            EngineSource { profile: other_profile, ..source() }.key(true, None),
            source().key(false, None),
            source().key(true, Some(b"table")),
        ];
        assert_eq!(keys[0], source().key(true, None), "the same source has the same key");
        let folders = keys.each_ref().map(|key| folder_name("yunet", key));
        assert!(folders[0].starts_with("yunet-") && folders[0].len() == 22);
        assert_eq!(HashSet::from(folders).len(), keys.len());
    }

    #[test]
    fn engine_profile_covers_exactly_all_batch_sizes() {
        let profile = Profile::new("input", [3, 640, 640], 32, PerformanceMode::Throughput);
        assert_eq!(profile.ranges(), ["input:1x3x640x640", "input:32x3x640x640", "input:32x3x640x640"]);
        for items in crate::batcher::batch_sizes(32) {
            assert!(profile.contains([items, 3, 640, 640]));
        }
        assert!(!profile.contains([33, 3, 640, 640]));
        assert!(!profile.contains([1, 3, 320, 640]));
        assert!(!profile.contains([1, 3, 640, 672]));
        let latency = Profile::new("input", [3, 640, 640], 4, PerformanceMode::Latency);
        assert_eq!(latency.ranges()[1], "input:1x3x640x640");
    }

    #[test]
    fn tensorrt_options_reach_provider_and_key_file() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("faces.table");
        std::fs::write(&table, "TRT-100900-EntropyCalibration2\ninput: 3c010a14\n").unwrap();
        let pack = Manifest::builtin().pack("compact").unwrap().clone();
        let file = pack.file(ModelKind::Embedder).unwrap();
        let mut config = Config::default();
        config.tensorrt.cache_dir = folder.path().join("engines");
        config.tensorrt.workspace_gb = 1.5;
        let plain = EngineOptions::prepare(&config, source(file, &gpu())).unwrap();
        assert!(
            plain.folder.starts_with(folder.path().canonicalize().unwrap())
                && plain.engine_files().is_empty()
        );
        let key_text = std::fs::read_to_string(plain.folder.join("key.txt")).unwrap();
        for part in ["1.31.1", "10.9.0", "NVIDIA A10", "8.6", "fp16", "input:32x3x112x112"] {
            assert!(key_text.contains(part), "{key_text} does not contain {part}");
        }
        assert!(!plain.is_cached);
        std::fs::write(plain.folder.join("x_sm86.engine"), [0; 7]).unwrap();
        assert!(EngineOptions::prepare(&config, source(file, &gpu())).unwrap().is_cached);
        assert_eq!(plain.engine_files(), [(plain.folder.join("x_sm86.engine"), 7)]);

        config.tensorrt.calibration = Some(table.clone());
        let int8 = EngineOptions::prepare(&config, source(file, &gpu())).unwrap();
        assert_ne!(int8.folder, plain.folder);
        assert_eq!(int8.int8, Some(true), "the table is in TensorRT's format");
        assert_eq!(std::fs::read(int8.folder.join(TABLE)).unwrap(), std::fs::read(&table).unwrap());

        #[cfg(feature = "tensorrt")]
        {
            let options = format!("{:?}", int8.provider(3));
            let path = int8.folder.display().to_string();
            for (name, value) in [
                ("device_id", "3"),
                ("trt_max_workspace_size", "1610612736"),
                ("trt_engine_cache_path", &path),
                ("trt_timing_cache_path", &path),
                ("trt_profile_min_shapes", "input:1x3x112x112"),
                ("trt_profile_opt_shapes", "input:32x3x112x112"),
                ("trt_profile_max_shapes", "input:32x3x112x112"),
                ("trt_int8_calibration_table_name", "calibration.table"),
            ] {
                assert!(options.contains(&format!("{name:?}: {value:?}")), "{name}: {options}");
            }
            for name in
                ["trt_fp16_enable", "trt_int8_enable", "trt_engine_cache_enable", "trt_timing_cache_enable"]
            {
                assert!(options.contains(name), "{name}: {options}");
            }
            assert!(!format!("{:?}", plain.provider(0)).contains("int8"));
        }

        // A folder contains one table per model.
        config.tensorrt.calibration = Some(folder.path().into());
        let missing = EngineOptions::prepare(&config, source(file, &gpu())).unwrap_err();
        assert!(missing.contains("mobilefacenet.table"), "{missing}");
        std::fs::write(folder.path().join("mobilefacenet.table"), b"\x18\x00\x00\x00").unwrap();
        let native = EngineOptions::prepare(&config, source(file, &gpu())).unwrap();
        assert_eq!(native.int8, Some(false), "the table is in ONNX Runtime's format");
    }

    #[test]
    fn reads_tensorrt_version_from_mapped_file() {
        let maps = "7f00-7f01 r--p 00000000 08:01 11 /usr/lib/libc.so.6\n\
             7f02-7f03 r-xp 00000000 08:01 12 /nowhere/libnvinfer.so.10.9.0\n\
             7f04-7f05 r-xp 00000000 08:01 13 /nowhere/libnvinfer_plugin.so.10\n";
        let path = find_library(maps);
        assert_eq!(path.as_deref(), Some(Path::new("/nowhere/libnvinfer.so.10.9.0")));
        assert_eq!(library_file_version(Path::new("/nowhere/libnvinfer.so.10.9.0")), "10.9.0");
        assert_eq!(find_library("7f00-7f01 rw-p 00000000 00:00 0\n"), None);
    }
}
