//! Tests the service with the WebGPU plug-in on SwiftShader, a software Vulkan driver.
use crate::common::service::{Service, TestFolder, client, get, wait_until};
use futures::future::join_all;
use serde_json::Value;
use std::process::Command;
use std::time::Duration;
use testing::{DeviceLoss, TestDatabase};

/// Maximum time of an analysis on the software GPU.
const MAX_ANALYSIS: Duration = Duration::from_secs(600);

/// Returns a command that starts the service with all operations on the software GPU.
fn gpu_service(folder: &TestFolder, database: &TestDatabase, settings: &[(&str, &str)]) -> Command {
    let mut command = folder.facecrawl_with(database, &["up", "--port", "0"]);
    command.envs(testing::software_gpu_variables()).env("GPU_PLUGINS_DIR", testing::plugins_dir());
    command.env("ALL_GPU", "true").env("VIDEO_DECODING_GPU", "false").env("GPU_BACKEND", "webgpu");
    // A square canvas, so that the CPU and the software GPU process the same input. A larger canvas
    // takes seconds on SwiftShader.
    command.env("DETECTION_CANVAS", "square").env("DETECTION_SIZE", "320").env("GPU_BATCH_SIZE", "1");
    // The software GPU is slow if other tests use the processor.
    command.env("REQUEST_TIMEOUT_SECONDS", MAX_ANALYSIS.as_secs().to_string());
    command.env("DETECTION_PASSES", "single").env("CPU_BACKEND", "onnxruntime").envs(settings.to_vec());
    command
}

async fn post_drawing(base: &str, image: &str) -> reqwest::Response {
    let request = client().post(format!("{base}/faces/detect?quality_profile=standard"));
    let request = request.header("content-type", "image/jpeg").body(testing::drawing(image));
    request.timeout(MAX_ANALYSIS).send().await.unwrap()
}

async fn detect(base: &str, image: &str) -> Vec<Value> {
    let response = post_drawing(base, image).await;
    assert_eq!(response.status(), 200);
    let mut body: Value = response.json().await.unwrap();
    body["faces"].take().as_array().unwrap().clone()
}

async fn report(base: &str) -> Value {
    serde_json::from_str(&get(&format!("{base}/gpu")).await.1).unwrap()
}

/// Returns the devices of the five operations that ONNX Runtime runs (all except video decoding).
fn effective_devices(report: &Value) -> Vec<&str> {
    report["operations"].as_array().unwrap()[..5].iter().map(|op| op["effective"].as_str().unwrap()).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// Returns the cosine of two embeddings.
fn cosine(a: &Value, b: &Value) -> f64 {
    let [a, b] = [a, b].map(|v| v.as_array().unwrap().iter().map(number).collect::<Vec<_>>());
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt()
}

#[testing::needs(webgpu, slow)]
#[testing::test(flavor = "multi_thread")]
async fn webgpu_detects_and_embeds_portraits_like_cpu() {
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let forced = [("FORCE_GPU_ONLY", "true")];
    let mut gpu = Service::start(&mut gpu_service(&folder, &database, &forced));
    let (cpu_folder, cpu_database) = (TestFolder::new(), TestDatabase::create().await);
    let mut cpu = Service::start(&mut gpu_service(&cpu_folder, &cpu_database, &[("ALL_GPU", "false")]));

    let report = report(&gpu.base).await;
    assert_eq!(effective_devices(&report), ["webgpu:0"; 5], "{report:#}");
    let adapter = &report["devices"].as_array().unwrap()[0];
    assert_eq!(adapter["backend"], "webgpu");
    assert!(adapter["name"].as_str().unwrap().contains("SwiftShader"), "{adapter}");

    let portraits = ["ada.jpg", "ben.jpg", "small_pair.jpg"];
    // The sessions of all operations run at the same time.
    let on_gpu = join_all(portraits.map(|portrait| detect(&gpu.base, portrait))).await;
    for (portrait, on_gpu) in portraits.into_iter().zip(on_gpu) {
        let on_cpu = detect(&cpu.base, portrait).await;
        assert!(!on_cpu.is_empty() && on_gpu.len() == on_cpu.len(), "{portrait}");
        for (on_gpu, on_cpu) in on_gpu.iter().zip(&on_cpu) {
            for side in ["x", "y", "width", "height"] {
                let difference = number(&on_gpu["bbox"][side]) - number(&on_cpu["bbox"][side]);
                assert!(difference.abs() < 1.0, "{portrait}: {side} differs by {difference} pixels");
            }
            let cosine = cosine(&on_gpu["embedding"], &on_cpu["embedding"]);
            assert!(cosine > 0.9999, "{portrait}: {cosine}");
            assert_eq!(on_gpu["quality"]["passed"], on_cpu["quality"]["passed"], "{portrait}");
        }
    }
    gpu.stop();
    cpu.stop();
}

#[testing::needs(webgpu)]
#[testing::test(flavor = "multi_thread")]
async fn service_without_vulkan_driver_uses_cpu_or_refuses_to_start() {
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let without_driver = [("VK_DRIVER_FILES", "/nowhere.json"), ("VK_ICD_FILENAMES", "/nowhere.json")];
    let mut service = Service::start(&mut gpu_service(&folder, &database, &without_driver));
    let report = report(&service.base).await;
    assert_eq!(effective_devices(&report), ["cpu"; 5]);
    for operation in &report["operations"].as_array().unwrap()[..5] {
        assert_eq!(operation["reason_kind"], "no_device", "{operation}");
        let reason = operation["reason"].as_str().unwrap();
        assert!(reason.starts_with("webgpu: there is no GPU with a Vulkan driver"), "{reason}");
        assert_eq!(operation["passed_over"][0]["provider"], "webgpu");
    }
    assert_eq!(detect(&service.base, "ada.jpg").await.len(), 1);
    service.stop();

    let strict = [&without_driver[..], &[("FORCE_GPU_ONLY", "true")]].concat();
    let (status, log) = Service::spawn(&mut gpu_service(&folder, &database, &strict)).wait_for_exit();
    assert_eq!(status, Some(1), "{log}");
    assert!(log.contains("FORCE_GPU_ONLY is set") && log.contains("mesa-vulkan-drivers"), "{log}");
}

#[testing::needs(webgpu, slow)]
#[testing::test(flavor = "multi_thread")]
async fn service_runs_on_cpu_and_is_not_ready_after_gpu_loss() {
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let loss = DeviceLoss::build(folder.path());
    let mut command = gpu_service(&folder, &database, &[]);
    let mut service = Service::start(command.envs(loss.variables()));
    let before = detect(&service.base, "ada.jpg").await;
    assert_eq!(get(&format!("{}/health/ready", service.base)).await.0, 200);

    loss.lose_device();
    let after = detect(&service.base, "ada.jpg").await;
    assert_eq!((before.len(), after.len()), (1, 1));
    assert!(cosine(&before[0]["embedding"], &after[0]["embedding"]) > 0.9999);
    let ready = format!("{}/health/ready", service.base);
    wait_until("the service is not ready", async || get(&ready).await.0 == 503).await;
    assert!(get(&ready).await.1.contains("lost"), "{}", get(&ready).await.1);
    let metrics = get(&format!("{}/metrics", service.base)).await.1;
    assert!(metrics.contains("facecrawl_ep_fallback_total"), "{metrics}");
    service.stop();
}

#[testing::needs(webgpu, slow)]
#[testing::test(flavor = "multi_thread")]
async fn request_fails_after_gpu_loss_with_force_gpu_only() {
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let loss = DeviceLoss::build(folder.path());
    let mut command = gpu_service(&folder, &database, &[("FORCE_GPU_ONLY", "true")]);
    let mut service = Service::start(command.envs(loss.variables()));
    assert_eq!(detect(&service.base, "ada.jpg").await.len(), 1);
    loss.lose_device();
    let response = post_drawing(&service.base, "ada.jpg").await;
    assert!(response.status().is_server_error(), "{response:?}");
    service.stop();
}

#[testing::needs(webgpu)]
#[testing::test(flavor = "multi_thread")]
async fn software_driver_is_no_gpu_unless_allowed() {
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let mut command = gpu_service(&folder, &database, &[]);
    let mut service = Service::start(command.env_remove("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"));
    let report = report(&service.base).await;
    assert_eq!(effective_devices(&report), ["cpu"; 5]);
    let detail = report["operations"][0]["detail"].as_str().unwrap();
    assert!(detail.contains("SwiftShader") && detail.contains("computes on the CPU"), "{detail}");
    service.stop();
}
