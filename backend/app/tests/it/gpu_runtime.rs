//! Tests `scripts/gpu-runtime`, its callers, and the program with the installed libraries.
//!
//! Each test with the real libraries uses a separate process, because a process loads one ONNX
//! Runtime. These tests need no GPU, because they test how the program reports what is missing.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use crate::common::service::{Finished, TestFolder};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use testing::root;

/// Returns the output for a command with these variables. `GPU_BACKEND` is `cuda` unless they set a
/// different value.
fn wanted(place: &TestFolder, args: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = place.facecrawl(&["--gpu-runtime"]);
    command.args(args).env_remove("ORT_DYLIB_PATH").env("GPU_BACKEND", "cuda").envs(variables.to_vec());
    Finished::of(&mut command).expect(0).stdout.trim().to_owned()
}

#[test]
fn any_config_layer_can_request_gpu_libraries() {
    let place = TestFolder::new();
    assert_eq!(wanted(&place, &[], &[]), "", "no operation asks for a GPU");
    assert_eq!(wanted(&place, &[], &[("ALL_GPU", "true")]), "cuda");
    assert_eq!(wanted(&place, &["--set", "FACE_DETECTION_GPU=1", "gpu"], &[]), "cuda");
    place.put("facecrawl.toml", "quality_checks_gpu = true");
    assert_eq!(wanted(&place, &["scan", "."], &[]), "cuda", "facecrawl.toml");
    place.put("facecrawl.toml", "");
    place.put(".env", "FACE_EMBEDDING_GPU=true\n");
    assert_eq!(wanted(&place, &["worker"], &[]), "cuda", ".env");
    assert_eq!(wanted(&place, &["worker"], &[("FACE_EMBEDDING_GPU", "false")]), "");
}

#[test]
fn gpu_libraries_are_not_requested_when_unused() {
    let place = TestFolder::new();
    let all = |name, value| [("ALL_GPU", "true"), (name, value)];
    assert_eq!(wanted(&place, &[], &all("GPU_BACKEND", "cpu")), "");
    assert_eq!(wanted(&place, &[], &all("GPU_BACKEND", "mps")), "");
    assert_eq!(wanted(&place, &[], &all("GPU_BACKEND", "rocm")), "rocm");
    assert_eq!(wanted(&place, &[], &all("GPU_BACKEND", "tensorrt")), "cuda");
    assert_eq!(wanted(&place, &[], &all("ORT_DYLIB_PATH", "/opt/libonnxruntime.so")), "");
    // ffmpeg uses only the libraries of the driver.
    assert_eq!(wanted(&place, &[], &[("VIDEO_DECODING_GPU", "true")]), "");
    for command in [&["config", "check"][..], &["openapi"], &["keys", "list"]] {
        assert_eq!(wanted(&place, command, &all("GPU_BACKEND", "cuda")), "", "{command:?} loads no models");
    }
}

#[test]
fn selects_runtime_library_by_gpu_settings() {
    let place = TestFolder::new();
    let root = place.path().to_str().unwrap();
    let library = |folder: &str| place.put(&format!(".runtime/{folder}/libonnxruntime.so"), "");
    let (plain, cuda) = (library("onnxruntime"), library("cuda"));
    let in_force = |variables: &[(&str, &str)]| {
        let mut command = place.facecrawl(&["config", "check", "--json"]);
        command.env_remove("ORT_DYLIB_PATH").env("FACECRAWL_ROOT", root).envs(variables.to_vec());
        let listed = Finished::of(&mut command).expect(0).json();
        let all = listed["variables"].as_array().unwrap();
        let one = all.iter().find(|variable| variable["name"] == "ORT_DYLIB_PATH").unwrap();
        std::path::PathBuf::from(one["value"].as_str().unwrap())
    };
    assert_eq!(in_force(&[]), plain);
    assert_eq!(in_force(&[("FACE_DETECTION_GPU", "true"), ("GPU_BACKEND", "cuda")]), cuda);
    assert_eq!(in_force(&[("ALL_GPU", "true"), ("GPU_BACKEND", "cpu")]), plain);
    let own = [("ALL_GPU", "true"), ("ORT_DYLIB_PATH", "/own/libonnxruntime.so")];
    assert_eq!(in_force(&own), std::path::Path::new("/own/libonnxruntime.so"));
}

/// A checkout that contains only the script. Its `python3` runs `fetches` instead of pip and counts
/// its calls.
struct Checkout(tempfile::TempDir);

impl Checkout {
    fn new(fetches: &str) -> Self {
        let checkout = Self(tempfile::tempdir().unwrap());
        for file in ["gpu-runtime", "gpu-wheels.txt"] {
            let to = checkout.path().join("scripts").join(file);
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(root().join("scripts").join(file), to).unwrap();
        }
        checkout.program("bin/python3", "exit 0");
        checkout
            .program("scripts/unpack-wheels", &format!("echo \"$2\" >>calls\nmkdir -p \"$3\"\n{fetches}"));
        checkout
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn run(&self, args: &[&str]) -> Finished {
        let paths = format!("{}:{}", self.path().join("bin").display(), std::env::var("PATH").unwrap());
        Finished::of(Command::new(self.path().join("scripts/gpu-runtime")).args(args).env("PATH", paths))
    }

    fn calls(&self) -> String {
        std::fs::read_to_string(self.path().join("calls")).unwrap_or_default()
    }
}

#[test]
fn fetches_gpu_libraries_again_only_after_list_change() {
    let checkout = Checkout::new("echo here >\"$3/libonnxruntime.so\"");
    let first = checkout.run(&[]).expect(0);
    let said: Vec<&str> = first.stderr.lines().collect();
    assert!(said[0].contains("1.6 GB to download, 2.5 GB on disk"), "the size comes first: {said:?}");
    assert_eq!(checkout.calls(), "onnxruntime-gpu\nnvidia-\n");
    assert!(checkout.path().join(".runtime/cuda/libonnxruntime.so").exists());
    assert!(!checkout.path().join(".runtime/.cuda").exists(), "the temporary folder is removed");

    assert_eq!(checkout.run(&["cuda"]).expect(0).stderr, "");
    let list = checkout.path().join("scripts/gpu-wheels.txt");
    let text = std::fs::read_to_string(&list).unwrap();
    std::fs::write(&list, text.replace("onnxruntime-migraphx==", "onnxruntime-migraphx==9.")).unwrap();
    assert_eq!(checkout.run(&[]).expect(0).stderr, "", "a change of AMD's list has no effect");
    std::fs::write(&list, text.replace("nvidia-cublas==", "nvidia-cublas==9.")).unwrap();
    checkout.run(&[]).expect(0);
    assert_eq!(checkout.calls().lines().count(), 4);
}

#[test]
fn failed_fetch_keeps_existing_libraries() {
    let checkout = Checkout::new("[ \"$2\" = onnxruntime-gpu ]");
    checkout.run(&[]).fails(1, &["could not be fetched"]);
    let left = |name: &str| checkout.path().join(".runtime").join(name).exists();
    assert!(!left("cuda") && !left(".cuda"), "complete or absent");

    let old = checkout.path().join(".runtime/cuda/libonnxruntime.so");
    std::fs::create_dir_all(old.parent().unwrap()).unwrap();
    std::fs::write(&old, "an older one").unwrap();
    checkout.run(&[]).expect(1);
    assert_eq!(std::fs::read_to_string(old).unwrap(), "an older one");
}

#[test]
fn unsupported_requests_are_rejected_with_alternatives() {
    let checkout = Checkout::new("true");
    checkout.run(&["magic"]).fails(1, &["allowed: cuda, rocm"]);
    checkout.run(&["rocm"]).fails(1, &["ROCm 7.2.4", "onnxruntime-migraphx .runtime/rocm"]);
    checkout.program("bin/uname", "[ \"$1\" = -s ] && echo Linux || echo aarch64");
    checkout.run(&[]).fails(1, &["Linux aarch64", "ORT_DYLIB_PATH"]);
    checkout.program("bin/uname", "[ \"$1\" = -s ] && echo Linux || echo x86_64");
    checkout.program("bin/df", "echo header; echo disk 0 0 2000000 0 /");
    checkout.run(&[]).fails(1, &["5 GB", "there are 2 GB"]);
    assert_eq!(checkout.calls(), "");
}

fn runtime() -> PathBuf {
    let folder = root().join(".runtime/cuda");
    assert!(folder.join(".complete").exists(), "run ./scripts/gpu-runtime");
    folder
}

/// Returns a command with every operation on a GPU, without a variable that specifies a library.
fn facecrawl(place: &TestFolder, args: &[&str]) -> Command {
    let mut command = place.facecrawl(args);
    command.env_remove("ORT_DYLIB_PATH").env("FACECRAWL_ROOT", root()).env("ALL_GPU", "true");
    command.env("DATA_DIR", place.path().join("data")).env("MODELS_DIR", place.path().join("models"));
    command.env("GPU_BACKEND", "cuda").env("LOG_LEVEL", "warn");
    command
}

/// Returns the reason of a report. All five operations of ONNX Runtime must run on the CPU for the
/// same reason.
fn reason(report: &Value) -> (String, String, String) {
    let operations = report["operations"].as_array().unwrap();
    assert_eq!((operations.len(), &operations[5]["operation"]), (6, &"video_decoding".into()));
    let operations = &operations[..5];
    let of = |operation: &Value, key: &str| operation[key].as_str().unwrap_or_default().to_owned();
    let first = &operations[0];
    let all = (of(first, "reason_kind"), of(first, "reason"), of(first, "detail"));
    for one in operations {
        assert_eq!(one["effective"], "cpu", "{one}");
        assert_eq!((of(one, "reason_kind"), of(one, "reason")), (all.0.clone(), all.1.clone()), "{one}");
    }
    assert!(!all.1.contains(".cc:") && !all.1.contains('\n'), "plain and one line: {}", all.1);
    all
}

/// Creates a folder with only the libraries of ONNX Runtime itself. Hard links are necessary,
/// because the loader searches the folder of the target of a symbolic link.
fn without_cuda() -> tempfile::TempDir {
    let from = runtime();
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
    let (place, folder) = (TestFolder::new(), without_cuda());
    let mut command = facecrawl(&place, &["gpu", "--json"]);
    command.env("ORT_DYLIB_PATH", folder.path().join("libonnxruntime.so"));
    let (kind, said, detail) = reason(&Finished::of(&mut command).expect(0).json());
    assert_eq!(kind, "library_missing");
    assert!(
        said.starts_with("cuda: the library libcublasLt.so.13 is missing; `./scripts/gpu-runtime`"),
        "{said}"
    );
    assert!(said.contains("nvidia-cublas"), "{said}");
    assert!(detail.contains("libcublasLt.so.13: cannot open shared object file"), "the raw text: {detail}");
}

#[test]
#[ignore = "needs ./scripts/gpu-runtime"]
fn missing_tensorrt_is_distinguished_from_missing_cuda() {
    let place = TestFolder::new();
    let _ = runtime();
    let mut build = facecrawl(&place, &["models", "build"]);
    let refused = Finished::of(build.env("GPU_BACKEND", "tensorrt"))
        .fails(1, &["libnvinfer.so.10 is missing; install TensorRT 10"]);
    assert!(!refused.stderr.contains(".cc:"), "{refused:?}");
}

/// Without `LD_LIBRARY_PATH` all libraries are found, so the driver is the first missing part.
#[test]
#[ignore = "needs ./scripts/gpu-runtime"]
fn missing_driver_is_reported_once_with_libraries_loaded() {
    let place = TestFolder::new();
    let _ = runtime();
    let mut command = facecrawl(&place, &["gpu", "--json"]);
    let finished = Finished::of(command.env("LOG_LEVEL", "info")).expect(0);
    let (kind, said, detail) = reason(&finished.json());
    assert_eq!(kind, "driver_missing", "this test is for machines without NVIDIA's driver: {said}");
    assert!(said.contains("install driver 580 or newer"), "{said}");
    assert!(detail.contains("libcuda.so.1: cannot open shared object file"), "{detail}");

    let warnings: Vec<&str> = finished.stderr.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(warnings.len(), 1, "{}", finished.stderr);
    for operation in
        ["face_detection", "face_embedding", "image_processing", "image_enhancement", "quality_checks"]
    {
        assert!(warnings[0].contains(operation), "{}", warnings[0]);
    }
    assert!(!finished.stderr.contains(".cc:") && !finished.stderr.contains("ERROR"), "{}", finished.stderr);
    let debug = Finished::of(command.env("LOG_LEVEL", "debug")).expect(0).stderr;
    assert!(
        debug.contains("libcuda.so.1: cannot open shared object file"),
        "the raw text is at DEBUG: {debug}"
    );
    assert!(debug.contains("libcublasLt.so.13"), "libraries loaded by path are at DEBUG: {debug}");
}

#[test]
#[ignore = "needs ./scripts/gpu-runtime"]
fn force_gpu_only_error_has_three_lines() {
    let place = TestFolder::new();
    let _ = runtime();
    let refused = Finished::of(facecrawl(&place, &["gpu"]).env("FORCE_GPU_ONLY", "true")).expect(1);
    let said: Vec<&str> = refused.stderr.lines().collect();
    assert_eq!(said.len(), 3, "{}", refused.stderr);
    assert!(said[0].starts_with("error: FORCE_GPU_ONLY is set, but image_processing"), "{}", said[0]);
    assert!(said[1].starts_with("reason: cuda: the NVIDIA driver is missing"), "{}", said[1]);
    assert!(said[2].starts_with("what to do: install driver 580 or newer"), "{}", said[2]);
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
fn with_driver(version: &str, cuda: u32, code: u32) -> (String, String, String) {
    let place = TestFolder::new();
    let text = DRIVER.replace("CODE", &code.to_string()).replace("CUDA", &cuda.to_string());
    let text = if cuda < 12000 { text.replace("fn cuTensorMapEncodeTiled", "fn cuElse") } else { text };
    let source = place.put("driver/driver.rs", text.replace("VERSION", version));
    let folder = source.parent().unwrap();
    let library = folder.join("libcuda.so.1");
    testing::build_library(&source, &library, &["-C", "link-arg=-Wl,-soname,libcuda.so.1"]);
    for name in ["libnvidia-ml.so.1", "libnvidia-ml.so"] {
        std::fs::copy(&library, folder.join(name)).unwrap();
    }
    let _ = runtime();
    let mut command = facecrawl(&place, &["gpu", "--json"]);
    reason(&Finished::of(command.env("LD_LIBRARY_PATH", folder)).expect(0).json())
}

#[test]
#[ignore = "needs ./scripts/gpu-runtime"]
fn outdated_driver_error_names_both_versions() {
    let (kind, said, detail) = with_driver("535.183.01", 12020, 100);
    assert_eq!(kind, "driver_too_old", "{detail}");
    assert!(said.contains("driver 535.183.01 is too old; CUDA 13 needs 580 or newer"), "{said}");
    assert!(detail.contains("CUDA failure 35: CUDA driver version is insufficient"), "{detail}");
    // Drivers older than CUDA 12 lack an entry point that the provider is linked with.
    let (kind, said, detail) = with_driver("470.256.02", 11040, 0);
    assert_eq!(kind, "driver_too_old", "{detail}");
    assert!(said.contains("driver 470.256.02 is too old"), "{said}");
    assert!(detail.contains("undefined symbol: cuTensorMapEncodeTiled"), "{detail}");
}

#[test]
#[ignore = "needs ./scripts/gpu-runtime"]
fn cuda_error_codes_map_to_reason_kinds() {
    for (code, wanted, said_too) in [
        (100, "no_device", "the driver lists 2 GPUs, but this process has no access to them"),
        (101, "device_id", "there is no GPU with the number 0; the driver lists 2 GPUs"),
        (2, "out_of_memory", "lower GPU_MEMORY_LIMIT_GB"),
        (803, "driver_mismatch", "restart the machine"),
        (804, "driver_too_old", "driver 580.95.05 is too old for these libraries; update the driver"),
        (209, "device_unsupported", "compute capability 7.5 or newer"),
        (999, "failed", "CUDA failure 999: unknown error"),
    ] {
        let (kind, said, detail) = with_driver("580.95.05", 13000, code);
        assert_eq!(kind, wanted, "{code}: {detail}");
        assert!(said.contains(said_too), "{code}: {said}");
        assert!(detail.contains(&format!("CUDA failure {code}: ")), "{code}: {detail}");
    }
}
