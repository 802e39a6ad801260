//! Tests the settings of devices.
use super::{Layers, assert_says};
use inference::{CpuBackend, GpuBackend, Operation, Precision};
use std::path::Path;
use std::time::Duration;

#[test]
fn all_gpu_sets_only_what_is_not_set_itself() {
    let layers = Layers::new().env("ALL_GPU", "true").env("IMAGE_ENHANCEMENT_GPU", "false");
    let operations = layers.ok().settings.gpu_operations();
    assert_eq!(operations.len(), 4);
    assert!(!operations.contains(&Operation::ImageEnhancement));
    assert!(layers.ok().settings.video_decoding_gpu());
    assert!(!layers.env("VIDEO_DECODING_GPU", "false").ok().settings.video_decoding_gpu());
    let video = Layers::new().env("VIDEO_DECODING_GPU", "true").ok().settings;
    assert!(video.video_decoding_gpu() && video.gpu_operations().is_empty());
    let layers = Layers::new().env("QUALITY_CHECKS_GPU", "1").env("GPU_BACKEND", "CUDA");
    let engine = layers.ok().settings.inference();
    assert_eq!(engine.gpu_operations, [Operation::QualityChecks]);
    assert_eq!(engine.backend, GpuBackend::Cuda);
}

#[test]
fn what_computes_on_the_cpu_is_chosen_by_name() {
    let backend = |name: &str| Layers::new().env("CPU_BACKEND", name).ok().settings.inference().cpu_backend;
    assert_eq!(Layers::new().ok().settings.inference().cpu_backend, CpuBackend::Auto);
    assert_eq!(backend("onnxruntime"), CpuBackend::OnnxRuntime);
    assert_eq!(backend("onnxruntime-int8"), CpuBackend::OnnxRuntimeInt8);
    assert_eq!(backend("openvino"), CpuBackend::OpenVino(Precision::Fp32));
    assert_eq!(backend("openvino-bf16"), CpuBackend::OpenVino(Precision::Bf16));
    let text = Layers::new().env("CPU_BACKEND", "bf16").mistake();
    assert_says(
        &text,
        &["CPU_BACKEND", "bf16", "auto, onnxruntime, onnxruntime-int8, openvino, openvino-bf16"],
    );
}

#[test]
fn the_performance_mode_sets_delay_batch_and_sessions_unless_they_are_explicit() {
    let cores = app::config::cores();
    let engine = |layers: &Layers| {
        let engine = layers.ok().settings.inference();
        (engine.batch_max_delay, engine.gpu_batch_size, engine.cpu_sessions, engine.cpu_session_threads)
    };
    let throughput = Layers::new().env("PERFORMANCE_MODE", "throughput");
    assert_eq!(engine(&throughput), (Duration::from_millis(2), 32, cores, 1));
    let latency = || Layers::new().env("PERFORMANCE_MODE", "latency");
    let threads = cores.min(4);
    assert_eq!(engine(&latency()), (Duration::ZERO, 4, (cores / threads).max(1), threads));
    let explicit = latency()
        .env("BATCH_MAX_DELAY_MS", "7.5")
        .env("GPU_BATCH_SIZE", "16")
        .env("CPU_SESSIONS", "3")
        .env("CPU_SESSION_THREADS", "2");
    assert_eq!(engine(&explicit), (Duration::from_micros(7500), 16, 3, 2));
    assert_eq!(
        engine(&latency().env("CPU_SESSION_THREADS", "1")).2,
        cores,
        "sessions times threads equal the cores"
    );

    // Values from the mode are listed with the mode as their source.
    let loaded = latency().env("GPU_BATCH_SIZE", "8").ok();
    let listed = |name: &str| (loaded.value(name).unwrap(), loaded.source(name));
    assert_eq!(listed("BATCH_MAX_DELAY_MS"), ("0", "PERFORMANCE_MODE"));
    assert_eq!(listed("GPU_BATCH_SIZE"), ("8", "environment"));
    assert_eq!(listed("CPU_SESSION_THREADS"), (threads.to_string().as_str(), "PERFORMANCE_MODE"));
    assert_eq!(Layers::new().ok().value("GPU_BATCH_SIZE"), Some("32"));
}

#[test]
fn tensorrt_is_configured_only_where_it_is_used_and_8_bits_need_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("faces.table");
    let path = table.to_str().unwrap();
    let with = |pairs: &[(&str, &str)]| {
        pairs.iter().fold(Layers::new().env("GPU_BACKEND", "tensorrt"), |layers, (name, value)| {
            layers.env(name, value)
        })
    };
    for (name, value) in
        [("TENSORRT_FP16", "false"), ("TENSORRT_WORKSPACE_GB", "4"), ("TENSORRT_CACHE_DIR", "/cache")]
    {
        let text = Layers::new().env(name, value).mistake();
        assert_says(
            &text,
            &[&format!("{name}={value} (environment)"), "GPU_BACKEND=auto (default)", "tensorrt"],
        );
        with(&[(name, value)]).ok();
    }
    let text = with(&[("TENSORRT_INT8", "true")]).mistake();
    assert_says(&text, &["TENSORRT_INT8=true (environment)", "TENSORRT_CALIBRATION_TABLE=FILE"]);
    let text = with(&[("TENSORRT_CALIBRATION_TABLE", path)]).mistake();
    assert_says(&text, &[path, "TENSORRT_INT8=false (default)", "TENSORRT_INT8=true"]);
    let text = with(&[("TENSORRT_INT8", "true"), ("TENSORRT_CALIBRATION_TABLE", path)]).mistake();
    assert_says(&text, &[path, "does not exist"]);

    std::fs::write(&table, "TRT-100100-EntropyCalibration2\n").unwrap();
    let engine = with(&[("TENSORRT_INT8", "true"), ("TENSORRT_CALIBRATION_TABLE", path)]).ok();
    assert_eq!(engine.settings.inference().tensorrt.calibration.as_deref(), Some(table.as_path()));
    let defaults = with(&[("DATA_DIR", "/srv/faces")]).ok().settings.inference().tensorrt;
    assert_eq!(defaults.cache_dir, Path::new("/srv/faces/tensorrt"));
    assert!(defaults.fp16 && defaults.calibration.is_none() && defaults.workspace_gb == 2.0);
}
