//! Tests which libraries the program requests from `scripts/run`.
use crate::common::process::{Finished, TestFolder};

/// Returns the output for a command with these variables. `GPU_BACKEND` is `cuda` unless they set a
/// different value.
fn wanted(place: &TestFolder, args: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = place.facecrawl(&["--gpu-runtime"]);
    command.args(args).env_remove("ORT_DYLIB_PATH").env("GPU_BACKEND", "cuda").envs(variables.to_vec());
    Finished::of(&mut command).expect(0).stdout.trim().to_owned()
}

#[test]
fn every_layer_of_the_configuration_can_ask() {
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
fn nothing_is_brought_where_it_would_not_be_used() {
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
fn the_library_of_the_gpu_is_found_by_itself() {
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
