#![allow(clippy::unwrap_used)]
use super::*;
use crate::{Manifest, ModelKind, PerformanceMode};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("facecrawl-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn gpu() -> GpuDevice {
    GpuDevice {
        id: 0,
        name: "NVIDIA A10".into(),
        backend: "cuda",
        memory_total: None,
        memory_used: None,
        driver: None,
        utilization: None,
        compute_capability: Some("8.6".into()),
    }
}

fn key() -> EngineKey {
    EngineKey {
        model_sha256: "ab".repeat(32),
        onnxruntime: "1.31.1".into(),
        tensorrt: "10.9.0".into(),
        gpu: "NVIDIA A10".into(),
        compute_capability: "8.6".into(),
        fp16: true,
        calibration_sha256: None,
        profile: "min input:1x3x640x640".into(),
    }
}

#[test]
fn every_part_of_the_key_makes_another_folder() {
    let changes: [fn(&mut EngineKey); 8] = [
        |key| key.model_sha256 = "cd".repeat(32),
        |key| key.onnxruntime = "1.31.2".into(),
        |key| key.tensorrt = "10.10.0".into(),
        |key| key.gpu = "NVIDIA L4".into(),
        |key| key.compute_capability = "8.9".into(),
        |key| key.fp16 = false,
        |key| key.calibration_sha256 = Some("ef".repeat(32)),
        |key| key.profile = "min input:1x3x320x320".into(),
    ];
    let mut folders = vec![key().folder("yunet")];
    assert_eq!(folders[0], key().folder("yunet"), "the same parts give the same folder");
    assert!(folders[0].starts_with("yunet-") && folders[0].len() == 22);
    for change in changes {
        let mut changed = key();
        change(&mut changed);
        folders.push(changed.folder("yunet"));
    }
    let all = folders.len();
    folders.sort();
    folders.dedup();
    assert_eq!(folders.len(), all);
}

#[test]
fn the_profile_covers_every_bucket_and_nothing_else() {
    let profile = Profile::new("input", [3, 640, 640], 32, PerformanceMode::Throughput);
    assert_eq!(profile.ranges(), ["input:1x3x640x640", "input:32x3x640x640", "input:32x3x640x640"]);
    for items in crate::batcher::buckets(32) {
        assert!(profile.contains([items, 3, 640, 640]));
    }
    assert!(!profile.contains([33, 3, 640, 640]));
    assert!(!profile.contains([1, 3, 320, 640]));
    assert!(!profile.contains([1, 3, 640, 672]));
    let latency = Profile::new("input", [3, 640, 640], 4, PerformanceMode::Latency);
    assert_eq!(latency.ranges()[1], "input:1x3x640x640");
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
fn the_provider_is_told_everything_and_the_folder_says_what_for() {
    let folder = Folder::new("tensorrt-options");
    let table = folder.0.join("faces.table");
    std::fs::write(&table, "TRT-100900-EntropyCalibration2\ninput: 3c010a14\n").unwrap();
    let pack = Manifest::builtin().pack("compact").unwrap().clone();
    let file = pack.file(ModelKind::Embedder).unwrap();
    let mut config = Config::default();
    config.tensorrt.cache_dir = folder.0.join("engines");
    config.tensorrt.workspace_gb = 1.5;
    let plain = EngineOptions::prepare(&config, source(file, &gpu())).unwrap();
    assert!(plain.folder.starts_with(folder.0.canonicalize().unwrap()) && plain.engines().is_empty());
    let told = std::fs::read_to_string(plain.folder.join("key.txt")).unwrap();
    for part in ["1.31.1", "10.9.0", "NVIDIA A10", "8.6", "fp16", "input:32x3x112x112"] {
        assert!(told.contains(part), "{told} lacks {part}");
    }
    assert!(!plain.found);
    std::fs::write(plain.folder.join("x_sm86.engine"), [0; 7]).unwrap();
    assert!(EngineOptions::prepare(&config, source(file, &gpu())).unwrap().found);
    assert_eq!(plain.engines(), [(plain.folder.join("x_sm86.engine"), 7)]);

    config.tensorrt.calibration = Some(table.clone());
    let int8 = EngineOptions::prepare(&config, source(file, &gpu())).unwrap();
    assert_ne!(int8.folder, plain.folder);
    assert_eq!(int8.int8, Some(true), "a table of TensorRT's own");
    assert_eq!(std::fs::read(int8.folder.join(TABLE)).unwrap(), std::fs::read(&table).unwrap());

    #[cfg(feature = "tensorrt")]
    {
        let shown = format!("{:?}", int8.provider(3));
        let path = format!("{:?}", int8.folder.display().to_string());
        for (name, value) in [
            ("device_id", "\"3\""),
            ("trt_max_workspace_size", "\"1610612736\""),
            ("trt_engine_cache_path", &path),
            ("trt_timing_cache_path", &path),
            ("trt_profile_min_shapes", "\"input:1x3x112x112\""),
            ("trt_profile_opt_shapes", "\"input:32x3x112x112\""),
            ("trt_profile_max_shapes", "\"input:32x3x112x112\""),
            ("trt_int8_calibration_table_name", "\"calibration.table\""),
        ] {
            let at = shown.find(&format!("\"{name}\"")).unwrap_or_else(|| panic!("{name}: {shown}"));
            assert!(shown[at..].starts_with(&format!("\"{name}\": {value}")), "{name}: {shown}");
        }
        for name in
            ["trt_fp16_enable", "trt_int8_enable", "trt_engine_cache_enable", "trt_timing_cache_enable"]
        {
            assert!(shown.contains(name), "{name}: {shown}");
        }
        assert!(!format!("{:?}", plain.provider(0)).contains("int8"));
    }

    // A folder contains one table per model.
    config.tensorrt.calibration = Some(folder.0.clone());
    let missing = EngineOptions::prepare(&config, source(file, &gpu())).unwrap_err();
    assert!(missing.contains("mobilefacenet.table"), "{missing}");
    std::fs::write(folder.0.join("mobilefacenet.table"), b"\x18\x00\x00\x00").unwrap();
    let own = EngineOptions::prepare(&config, source(file, &gpu())).unwrap();
    assert_eq!(own.int8, Some(false), "a table of ONNX Runtime");
}
