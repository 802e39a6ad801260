//! Tests `scripts/gpu-runtime`, its callers, and the program with the installed libraries.
//!
//! Each test with the real libraries uses a separate process, because a process loads one ONNX
//! Runtime. These tests need no GPU, because they test how the program reports what is missing.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use crate::common::service::{Output, TestFolder};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use testing::root;

/// Returns the output for a command with these variables. `GPU_BACKEND` is `cuda` unless they set a
/// different value.
fn gpu_runtime(folder: &TestFolder, args: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = folder.facecrawl(&["--gpu-runtime"]);
    command.args(args).env_remove("ORT_DYLIB_PATH").env("GPU_BACKEND", "cuda").envs(variables.to_vec());
    Output::run(&mut command).success().stdout.trim().to_owned()
}

#[test]
fn any_config_layer_can_request_gpu_libraries() {
    let folder = TestFolder::new();
    assert_eq!(gpu_runtime(&folder, &[], &[]), "", "no operation uses a GPU");
    assert_eq!(gpu_runtime(&folder, &[], &[("ALL_GPU", "true")]), "cuda");
    assert_eq!(gpu_runtime(&folder, &["--set", "FACE_DETECTION_GPU=1", "gpu"], &[]), "cuda");
    folder.put("facecrawl.toml", "quality_checks_gpu = true");
    assert_eq!(gpu_runtime(&folder, &["scan", "."], &[]), "cuda", "facecrawl.toml");
    folder.put("facecrawl.toml", "");
    folder.put(".env", "FACE_EMBEDDING_GPU=true\n");
    assert_eq!(gpu_runtime(&folder, &["worker"], &[]), "cuda", ".env");
    assert_eq!(gpu_runtime(&folder, &["worker"], &[("FACE_EMBEDDING_GPU", "false")]), "");
}

#[test]
fn gpu_libraries_are_not_requested_when_unused() {
    let folder = TestFolder::new();
    let set = |name, value| [("ALL_GPU", "true"), (name, value)];
    assert_eq!(gpu_runtime(&folder, &[], &set("GPU_BACKEND", "cpu")), "");
    assert_eq!(gpu_runtime(&folder, &[], &set("GPU_BACKEND", "mps")), "");
    assert_eq!(gpu_runtime(&folder, &[], &set("GPU_BACKEND", "rocm")), "rocm");
    assert_eq!(gpu_runtime(&folder, &[], &set("GPU_BACKEND", "tensorrt")), "tensorrt-rtx");
    assert_eq!(gpu_runtime(&folder, &[], &set("GPU_BACKEND", "openvino")), "openvino");
    assert_eq!(gpu_runtime(&folder, &[], &set("GPU_BACKEND", "webgpu")), "webgpu");
    assert_eq!(gpu_runtime(&folder, &[], &set("GPU_DEVICE_IDS", "webgpu:0,cuda:0")), "cuda\nwebgpu");
    assert_eq!(gpu_runtime(&folder, &[], &set("ORT_DYLIB_PATH", "/opt/libonnxruntime.so")), "");
    // ffmpeg uses only the libraries of the driver.
    assert_eq!(gpu_runtime(&folder, &[], &[("VIDEO_DECODING_GPU", "true")]), "");
    for command in [&["config", "check"][..], &["openapi"], &["keys", "list"]] {
        let output = gpu_runtime(&folder, command, &set("GPU_BACKEND", "cuda"));
        assert_eq!(output, "", "{command:?} loads no models");
    }
}

#[test]
fn selects_runtime_library_by_gpu_settings() {
    let folder = TestFolder::new();
    let root = folder.path().to_str().unwrap();
    let library = |name: &str| folder.put(&format!(".runtime/{name}/libonnxruntime.so"), "");
    let (cpu_library, cuda_library) = (library("onnxruntime"), library("cuda"));
    let selected_library = |variables: &[(&str, &str)]| {
        let mut command = folder.facecrawl(&["config", "check", "--json"]);
        command.env_remove("ORT_DYLIB_PATH").env("FACECRAWL_ROOT", root).envs(variables.to_vec());
        let listed = Output::run(&mut command).success().json();
        let variables = listed["variables"].as_array().unwrap();
        let variable = variables.iter().find(|variable| variable["name"] == "ORT_DYLIB_PATH").unwrap();
        std::path::PathBuf::from(variable["value"].as_str().unwrap())
    };
    assert_eq!(selected_library(&[]), cpu_library);
    assert_eq!(selected_library(&[("FACE_DETECTION_GPU", "true"), ("GPU_BACKEND", "cuda")]), cuda_library);
    assert_eq!(selected_library(&[("ALL_GPU", "true"), ("GPU_BACKEND", "cpu")]), cpu_library);
    let operator_library = [("ALL_GPU", "true"), ("ORT_DYLIB_PATH", "/own/libonnxruntime.so")];
    assert_eq!(selected_library(&operator_library), std::path::Path::new("/own/libonnxruntime.so"));
}

/// A checkout that contains only the script. Its `unpack-wheels` records each call and runs
/// `fetch_script`.
struct Checkout(tempfile::TempDir);

impl Checkout {
    fn new(fetch_script: &str) -> Self {
        let checkout = Self(tempfile::tempdir().unwrap());
        for file in ["gpu-runtime", "gpu-wheels.txt"] {
            let to = checkout.path().join("scripts").join(file);
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(root().join("scripts").join(file), to).unwrap();
        }
        checkout.write_script("bin/python3", "exit 0");
        checkout.write_script(
            "scripts/unpack-wheels",
            &format!("echo \"$2\" >>calls\nmkdir -p \"$3\"\n{fetch_script}"),
        );
        checkout
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write_script(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn run(&self, args: &[&str]) -> Output {
        let paths = format!("{}:{}", self.path().join("bin").display(), std::env::var("PATH").unwrap());
        Output::run(Command::new(self.path().join("scripts/gpu-runtime")).args(args).env("PATH", paths))
    }

    fn calls(&self) -> String {
        std::fs::read_to_string(self.path().join("calls")).unwrap_or_default()
    }
}

#[test]
fn fetches_gpu_libraries_again_only_after_list_change() {
    let checkout = Checkout::new("echo here >\"$3/libonnxruntime.so\"");
    let first = checkout.run(&["cuda"]).success();
    let message: Vec<&str> = first.stderr.lines().collect();
    assert!(message[0].contains("1.6 GB to download, 2.5 GB on disk"), "the size comes first: {message:?}");
    assert_eq!(checkout.calls(), "onnxruntime-gpu\nnvidia-\n");
    assert!(checkout.path().join(".runtime/cuda/libonnxruntime.so").exists());
    assert!(!checkout.path().join(".runtime/.cuda").exists(), "the temporary folder is removed");

    assert_eq!(checkout.run(&["cuda"]).success().stderr, "");
    let list = checkout.path().join("scripts/gpu-wheels.txt");
    let text = std::fs::read_to_string(&list).unwrap();
    std::fs::write(&list, text.replace("onnxruntime-migraphx==", "onnxruntime-migraphx==9.")).unwrap();
    assert_eq!(checkout.run(&["cuda"]).success().stderr, "", "a change of AMD's list has no effect");
    std::fs::write(&list, text.replace("nvidia-cublas==", "nvidia-cublas==9.")).unwrap();
    checkout.run(&["cuda"]).success();
    assert_eq!(checkout.calls().lines().count(), 4);

    let plugins = ["webgpu", "openvino", "tensorrt-rtx"];
    checkout.run(&plugins).success();
    for package in ["onnxruntime_ep_webgpu", "onnxruntime_ep_openvino", "onnxruntime_ep_nv_tensorrt_rtx"] {
        assert!(checkout.path().join(".runtime/plugins").join(package).join(".complete").exists());
    }
    assert_eq!(checkout.run(&plugins).success().stderr, "");
    assert_eq!(checkout.calls().lines().count(), 7);
}

#[test]
fn failed_fetch_keeps_existing_libraries() {
    let checkout = Checkout::new("[ \"$2\" = onnxruntime-gpu ]");
    checkout.run(&["cuda"]).fails(1, &["could not be fetched"]);
    let exists = |name: &str| checkout.path().join(".runtime").join(name).exists();
    assert!(!exists("cuda") && !exists(".cuda"), "no incomplete folder may be left");

    let existing_library = checkout.path().join(".runtime/cuda/libonnxruntime.so");
    std::fs::create_dir_all(existing_library.parent().unwrap()).unwrap();
    std::fs::write(&existing_library, "an older one").unwrap();
    checkout.run(&["cuda"]).assert_status(1);
    assert_eq!(std::fs::read_to_string(existing_library).unwrap(), "an older one");
}

#[test]
fn unsupported_requests_are_rejected_with_alternatives() {
    let checkout = Checkout::new("true");
    let allowed = "allowed: tensorrt-rtx, openvino, webgpu, cuda, rocm";
    checkout.run(&["magic"]).fails(1, &[allowed]);
    checkout.run(&[]).fails(1, &[allowed]);
    checkout.run(&["rocm"]).fails(1, &["ROCm 7.2.4", "onnxruntime-migraphx .runtime/rocm"]);
    checkout.write_script("bin/uname", "[ \"$1\" = -s ] && echo Linux || echo aarch64");
    checkout.run(&["cuda"]).fails(1, &["Linux aarch64", "ORT_DYLIB_PATH"]);
    checkout.write_script("bin/uname", "[ \"$1\" = -s ] && echo Linux || echo x86_64");
    checkout.write_script("bin/df", "echo header; echo disk 0 0 2000000 0 /");
    checkout.run(&["cuda"]).fails(1, &["5 GB", "there are 2 GB"]);
    assert_eq!(checkout.calls(), "");
}

fn runtime_folder() -> PathBuf {
    let runtime = root().join(".runtime/cuda");
    assert!(runtime.join(".complete").exists(), "run ./scripts/gpu-runtime");
    runtime
}

/// Returns a command with every operation on a GPU, without a variable that specifies a library.
fn facecrawl(folder: &TestFolder, args: &[&str]) -> Command {
    let mut command = folder.facecrawl(args);
    command.env_remove("ORT_DYLIB_PATH").env("FACECRAWL_ROOT", root()).env("ALL_GPU", "true");
    command.env("DATA_DIR", folder.path().join("data")).env("MODELS_DIR", folder.path().join("models"));
    command.env("GPU_BACKEND", "cuda").env("LOG_LEVEL", "warn");
    command
}

/// Returns the reason of a report. All five operations of ONNX Runtime must run on the CPU for the
/// same reason.
fn common_reason(report: &Value) -> (String, String, String) {
    let operations = report["operations"].as_array().unwrap();
    assert_eq!((operations.len(), &operations[5]["operation"]), (6, &"video_decoding".into()));
    let operations = &operations[..5];
    let field = |op: &Value, key: &str| op[key].as_str().unwrap_or_default().to_owned();
    let first = &operations[0];
    let result = (field(first, "reason_kind"), field(first, "reason"), field(first, "detail"));
    for op in operations {
        assert_eq!(op["effective"], "cpu", "{op}");
        let expected = (result.0.clone(), result.1.clone());
        assert_eq!((field(op, "reason_kind"), field(op, "reason")), expected, "{op}");
    }
    assert!(
        !result.1.contains(".cc:") && !result.1.contains('\n'),
        "the reason must be one line of plain text: {}",
        result.1
    );
    result
}

/// Creates a folder with only the libraries of ONNX Runtime itself. Hard links are necessary,
/// because the loader searches the folder of the target of a symbolic link.
fn onnx_runtime_only() -> tempfile::TempDir {
    let from = runtime_folder();
    let folder = tempfile::tempdir_in(from.parent().unwrap()).unwrap();
    for entry in std::fs::read_dir(&from).unwrap().map(|entry| entry.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        if name.starts_with("libonnxruntime") && entry.file_type().unwrap().is_file() {
            std::fs::hard_link(entry.path(), folder.path().join(&name)).unwrap();
            if name.starts_with("libonnxruntime.so.") {
                std::os::unix::fs::symlink(&name, folder.path().join("libonnxruntime.so")).unwrap();
            }
        }
    }
    folder
}

#[test]
#[ignore = "needs ./scripts/gpu-runtime"]
fn missing_library_error_names_package() {
    let (folder, runtime) = (TestFolder::new(), onnx_runtime_only());
    let mut command = facecrawl(&folder, &["gpu", "--json"]);
    command.env("ORT_DYLIB_PATH", runtime.path().join("libonnxruntime.so"));
    let (kind, message, detail) = common_reason(&Output::run(&mut command).success().json());
    assert_eq!(kind, "library_missing");
    assert!(
        message.starts_with("cuda: the library libcublasLt.so.13 is missing; `./scripts/gpu-runtime cuda`"),
        "{message}"
    );
    assert!(message.contains("nvidia-cublas"), "{message}");
    assert!(detail.contains("libcublasLt.so.13: cannot open shared object file"), "the raw text: {detail}");
}

#[test]
#[ignore = "needs ./scripts/gpu-runtime"]
fn missing_tensorrt_is_distinguished_from_missing_cuda() {
    let folder = TestFolder::new();
    let _ = runtime_folder();
    let mut build = facecrawl(&folder, &["models", "build"]);
    let refused = Output::run(build.env("GPU_BACKEND", "tensorrt"))
        .fails(1, &["libnvinfer.so.10 is missing; install TensorRT 10"]);
    assert!(!refused.stderr.contains(".cc:"), "{refused:?}");
}

/// Without `LD_LIBRARY_PATH` all libraries are found, so the driver is the first missing part.
#[test]
#[ignore = "needs ./scripts/gpu-runtime"]
fn missing_driver_is_reported_once_with_libraries_loaded() {
    let folder = TestFolder::new();
    let _ = runtime_folder();
    let mut command = facecrawl(&folder, &["gpu", "--json"]);
    let finished = Output::run(command.env("LOG_LEVEL", "info")).success();
    let (kind, message, detail) = common_reason(&finished.json());
    assert_eq!(kind, "driver_missing", "this test is for machines without NVIDIA's driver: {message}");
    assert!(message.contains("install driver 580 or newer"), "{message}");
    assert!(detail.contains("libcuda.so.1: cannot open shared object file"), "{detail}");

    let warnings: Vec<&str> = finished.stderr.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(warnings.len(), 1, "{}", finished.stderr);
    for operation in
        ["face_detection", "face_embedding", "image_processing", "image_enhancement", "quality_checks"]
    {
        assert!(warnings[0].contains(operation), "{}", warnings[0]);
    }
    assert!(!finished.stderr.contains(".cc:") && !finished.stderr.contains("ERROR"), "{}", finished.stderr);
    let debug = Output::run(command.env("LOG_LEVEL", "debug")).success().stderr;
    assert!(
        debug.contains("libcuda.so.1: cannot open shared object file"),
        "the raw text is at DEBUG: {debug}"
    );
    assert!(debug.contains("libcublasLt.so.13"), "libraries loaded by path are at DEBUG: {debug}");
}

#[test]
#[ignore = "needs ./scripts/gpu-runtime"]
fn force_gpu_only_error_has_three_lines() {
    let folder = TestFolder::new();
    let _ = runtime_folder();
    let refused = Output::run(facecrawl(&folder, &["gpu"]).env("FORCE_GPU_ONLY", "true")).assert_status(1);
    let message: Vec<&str> = refused.stderr.lines().collect();
    assert_eq!(message.len(), 3, "{}", refused.stderr);
    assert!(message[0].starts_with("error: FORCE_GPU_ONLY is set, but image_processing"), "{}", message[0]);
    assert!(message[1].starts_with("reason: cuda: the NVIDIA driver is missing"), "{}", message[1]);
    assert!(message[2].starts_with("what to do: install driver 580 or newer"), "{}", message[2]);
}

/// A driver library whose initialisation returns a code, and an NVIDIA management library that
/// reports a version and counts GPUs. The test compiles both. The real CUDA library calls them, so
/// its messages are real.
const DRIVER: &str = r#"
    #![allow(non_snake_case)]
    use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
    extern "C" fn other() -> c_int { CODE }
    #[unsafe(no_mangle)] pub extern "C" fn cuInit(_: c_uint) -> c_int { CODE }
    #[unsafe(no_mangle)] pub extern "C" fn cuTensorMapEncodeTiled() -> c_int { CODE }
    #[unsafe(no_mangle)] pub unsafe extern "C" fn cuDriverGetVersion(to: *mut c_int) -> c_int { unsafe { *to = CUDA }; 0 }
    #[unsafe(no_mangle)] pub unsafe extern "C" fn cuGetProcAddress_v2(name: *const c_char, to: *mut *const c_void, _: c_int, _: u64, _: *mut c_void) -> c_int {
        let entry = match unsafe { CStr::from_ptr(name) }.to_bytes() {
            b"cuInit" => cuInit as *const c_void,
            b"cuDriverGetVersion" => cuDriverGetVersion as *const c_void,
            b"cuGetProcAddress" | b"cuGetProcAddress_v2" => cuGetProcAddress_v2 as *const c_void,
            _ => other as *const c_void,
        };
        unsafe { *to = entry };
        0
    }
    #[unsafe(no_mangle)] pub extern "C" fn nvmlInit_v2() -> c_int { 0 }
    #[unsafe(no_mangle)] pub extern "C" fn nvmlShutdown() -> c_int { 0 }
    #[unsafe(no_mangle)] pub unsafe extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, _: c_uint) -> c_int {
        unsafe { std::ptr::copy_nonoverlapping(c"VERSION".as_ptr(), to, "VERSION".len() + 1) };
        0
    }
    #[unsafe(no_mangle)] pub unsafe extern "C" fn nvmlDeviceGetCount_v2(to: *mut c_uint) -> c_int { unsafe { *to = 2 }; 0 }
    #[unsafe(no_mangle)] pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(at: c_uint, to: *mut *mut c_void) -> c_int { unsafe { *to = (at as usize + 1) as *mut c_void }; 0 }
"#;

/// Returns the reason with a driver of `version` that supports `cuda` and returns `code`.
fn reason_with_driver(version: &str, cuda: u32, code: u32) -> (String, String, String) {
    let folder = TestFolder::new();
    let text = DRIVER.replace("CODE", &code.to_string()).replace("CUDA", &cuda.to_string());
    let text = if cuda < 12000 { text.replace("fn cuTensorMapEncodeTiled", "fn cuElse") } else { text };
    let source = folder.put("driver/driver.rs", text.replace("VERSION", version));
    let driver_folder = source.parent().unwrap();
    let library = driver_folder.join("libcuda.so.1");
    testing::build_library(&source, &library, &["-C", "link-arg=-Wl,-soname,libcuda.so.1"]);
    for name in ["libnvidia-ml.so.1", "libnvidia-ml.so"] {
        std::fs::copy(&library, driver_folder.join(name)).unwrap();
    }
    let _ = runtime_folder();
    let mut command = facecrawl(&folder, &["gpu", "--json"]);
    common_reason(&Output::run(command.env("LD_LIBRARY_PATH", driver_folder)).success().json())
}

#[test]
#[ignore = "needs ./scripts/gpu-runtime"]
fn outdated_driver_error_names_both_versions() {
    let (kind, message, detail) = reason_with_driver("535.183.01", 12020, 100);
    assert_eq!(kind, "driver_too_old", "{detail}");
    assert!(message.contains("driver 535.183.01 is too old; CUDA 13 needs 580 or newer"), "{message}");
    assert!(detail.contains("CUDA failure 35: CUDA driver version is insufficient"), "{detail}");
    // Drivers older than CUDA 12 lack an entry point that the provider is linked with.
    let (kind, message, detail) = reason_with_driver("470.256.02", 11040, 0);
    assert_eq!(kind, "driver_too_old", "{detail}");
    assert!(message.contains("driver 470.256.02 is too old"), "{message}");
    assert!(detail.contains("undefined symbol: cuTensorMapEncodeTiled"), "{detail}");
}

#[test]
#[ignore = "needs ./scripts/gpu-runtime"]
fn cuda_error_codes_map_to_reason_kinds() {
    for (code, expected_kind, expected_message) in [
        (100, "no_device", "the driver lists 2 GPUs, but this process has no access to them"),
        (101, "device_id", "there is no GPU with the number 0; the driver lists 2 GPUs"),
        (2, "out_of_memory", "lower GPU_MEMORY_LIMIT_GB"),
        (803, "driver_mismatch", "restart the machine"),
        (804, "driver_too_old", "driver 580.95.05 is too old for these libraries; update the driver"),
        (209, "device_unsupported", "compute capability 7.5 or newer"),
        (999, "failed", "CUDA failure 999: unknown error"),
    ] {
        let (kind, message, detail) = reason_with_driver("580.95.05", 13000, code);
        assert_eq!(kind, expected_kind, "{code}: {detail}");
        assert!(message.contains(expected_message), "{code}: {message}");
        assert!(detail.contains(&format!("CUDA failure {code}: ")), "{code}: {detail}");
    }
}
