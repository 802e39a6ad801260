//! Tests `scripts/gpu-check` with the real program on this machine, and with programs that simulate
//! a GPU.
use crate::common::service::Output;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/gpu-check").canonicalize().unwrap()
}

/// Runs the script and reads its report.
fn run_check(folder: &Path, binary: &Path, args: &[impl AsRef<std::ffi::OsStr>]) -> (Output, Value) {
    let out = folder.join("gpu-check.json");
    let mut command = Command::new("python3");
    command.arg(script()).args(["--binary".as_ref(), binary.as_os_str(), "--out".as_ref(), out.as_os_str()]);
    // Without this variable, the WebGPU plug-in ignores the software GPU, which takes minutes.
    command.args(args).current_dir(folder).env_remove("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER");
    command.env("POSTGRES_BIN_DIR", testing::database::programs());
    let finished = Output::run(&mut command);
    let report = std::fs::read(&out).unwrap_or_else(|error| panic!("{error}: {finished:?}"));
    (finished, serde_json::from_slice(&report).unwrap())
}

/// Creates a folder with one image. Returns it with the arguments for a check with the default
/// models, followed by `extra_args`.
fn image_folder(image: &str, extra_args: &[&str]) -> (tempfile::TempDir, Vec<String>) {
    let (models, image) = (testing::models_dir(), testing::drawing(image));
    let folder = tempfile::tempdir().unwrap();
    let images = folder.path().join("images");
    std::fs::create_dir(&images).unwrap();
    std::fs::write(images.join("ada.jpg"), image).unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let path_args =
        [("--models", text(&models)), ("--library", text(&testing::library())), ("--images", text(&images))];
    let path_args = path_args.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
    let extra_args = ["--iterations", "1"].iter().chain(extra_args).map(|arg| (*arg).to_owned());
    (folder, path_args.chain(extra_args).collect())
}

fn outcome<'a>(report: &'a Value, check: &str) -> (&'a str, &'a str) {
    let checks = report["checks"].as_array().unwrap();
    let row = checks.iter().find(|row| row["check"] == check).unwrap_or_else(|| panic!("{check}: {report}"));
    (row["outcome"].as_str().unwrap(), row["reason"].as_str().unwrap_or_default())
}

#[testing::needs(no_gpu, slow)]
#[test]
fn gpu_checks_are_skipped_without_gpu() {
    let (folder, args) = image_folder("ada.jpg", &[]);
    let (finished, report) = run_check(folder.path(), Path::new(env!("CARGO_BIN_EXE_facecrawl")), &args);
    assert_eq!(finished.status, 0, "{finished:?}");
    for cpu in ["device", "models", "cpu_test", "cpu_faces", "cpu_bench", "strict_refusal"] {
        assert_eq!(outcome(&report, cpu).0, "passed", "{cpu}: {report}");
    }
    let gpu_checks = "providers provider service gpu_test agreement strict_start pixel_operations video_decoding \
         embedding_throughput tensorrt";
    for gpu in gpu_checks.split(' ') {
        let (outcome, reason) = outcome(&report, gpu);
        assert!(outcome == "skipped" && reason.contains("without cuda"), "{gpu}: {reason}");
    }
    assert!(finished.stdout.contains("6 passed, 0 failed"), "{}", finished.stdout);
}

/// Writes a program that claims to have a GPU and finds `faces` faces. On the GPU, it finds the
/// first face `shift` pixels further to the right and with the embedding `[1, turn]`. The report
/// states that the GPU's operations run on `device`.
fn write_fake_program(folder: &Path, faces: usize, shift: f64, turn: f64, device: &str) -> PathBuf {
    let path = folder.join("fake_program");
    let program = format!(
        r#"#!/usr/bin/env python3
import json, os, sys
gpu = os.environ.get("FACE_DETECTION_GPU") == "true"
device = "{device}" if gpu or os.environ.get("VIDEO_DECODING_GPU") == "true" else "cpu"
if sys.argv[1] == "gpu":
    names = ("face_detection", "face_embedding", "image_processing", "image_enhancement", "quality_checks", "video_decoding")
    print(json.dumps({{"devices": [{{"name": "simulated"}}], "backends": ["cpu", "cuda"], "runtime_version": "1",
        "operations": [{{"operation": n, "effective": device, "reason": "no driver" if device in ("cpu", "none") else None}} for n in names]}}))
elif sys.argv[1] == "detect":
    first = {{"bbox": {{"x": 10 + ({shift} if gpu else 0), "y": 10, "width": 50, "height": 60}}, "embedding": [1.0, {turn} if gpu else 0.0]}}
    faces = [first] + [{{"bbox": {{"x": 10 + 60 * n, "y": 10, "width": 52, "height": 60}}, "embedding": [1.0, 0.0]}} for n in range(1, {faces})]
    print(json.dumps({{"results": [{{"file": f, "faces": faces, "devices": {{"face_detection": device, "face_embedding": device}}}} for f in sys.argv[3:]]}}))
else:
    sys.exit("not simulated")
"#
    );
    std::fs::write(&path, program).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Runs the check `agreement` on such a program.
fn agreement(faces: usize, shift: f64, turn: f64, device: &str) -> (i32, Value) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.jpg"), "never read").unwrap();
    let binary = write_fake_program(folder.path(), faces, shift, turn, device);
    let args = [
        "--images",
        folder.path().to_str().unwrap(),
        "--only",
        "provider,agreement,video_decoding,embedding_throughput",
    ];
    let (finished, report) = run_check(folder.path(), &binary, &args);
    (finished.status, report)
}

#[test]
fn wrong_result_fails_only_affected_check() {
    let (status, report) = agreement(1, 0.4, 0.01, "cuda:0");
    assert_eq!(outcome(&report, "agreement").0, "passed", "{report}");
    assert_eq!(outcome(&report, "video_decoding").0, "passed", "{report}");
    assert_eq!(outcome(&report, "embedding_throughput").0, "failed", "the fake program measures nothing");
    assert_eq!(status, 1);

    // One face of 200 may differ, if it is not the largest. A face that moved counts as a missing
    // and an additional one.
    assert_eq!(outcome(&agreement(200, 1.5, 0.0, "cuda:0").1, "agreement").0, "passed");
    for (faces, shift, turn, part) in [
        (1, 1.5, 0.01, "a.jpg: a box is 1.50 px off"),
        (1, 0.0, 0.1, "cosine 0.995"),
        (200, 50.0, 0.0, "a face is missing; a.jpg: an additional face"),
    ] {
        let (_, report) = agreement(faces, shift, turn, "cuda:0");
        let (result, reason) = outcome(&report, "agreement");
        assert!(result == "failed" && reason.contains(part), "{reason}");
    }

    // Equal results from a CPU prove nothing about a GPU.
    let (_, report) = agreement(1, 0.0, 0.0, "cpu");
    assert_eq!(outcome(&report, "provider").0, "failed");
    assert_eq!(outcome(&report, "video_decoding"), ("failed", "no driver"));
    let (result, reason) = outcome(&report, "agreement");
    assert!(result == "failed" && reason.contains("ran on the CPU"), "{reason}");

    // Without ffmpeg, no videos are decoded anywhere.
    let (_, report) = agreement(1, 0.0, 0.0, "none");
    assert_eq!(outcome(&report, "video_decoding"), ("skipped", "no driver"));
}

/// Writes a wrapper of the real program that reports the CPU as a GPU. Every output has the real
/// format.
fn write_wrapper(folder: &Path) -> PathBuf {
    let program = r#"#!/usr/bin/env python3
import json, os, subprocess, sys
args, gpu = sys.argv[1:], os.environ.get("FACE_DETECTION_GPU") == "true"
env = {k: v for k, v in os.environ.items() if not k.endswith("_GPU") and k not in ("GPU_BACKEND", "FORCE_GPU_ONLY")}
env["GPU_BATCH_SIZE"] = "2"
if args[0] == "up":
    os.execve(REAL, [REAL, *args], env)
if args[0] == "bench":
    wanted, args = "--gpu" in args, [a for a in args if a != "--gpu"] + ["--no-gpu", "--warmup", "0"]
    if "--batch-size" in args:
        args[args.index("--batch-size") + 1] = "1"
done = subprocess.run([REAL, *args], env=env, capture_output=True, text=True)
sys.stderr.write(done.stderr)
if not gpu or done.returncode:
    sys.stdout.write(done.stdout)
    sys.exit(done.returncode)
output = json.loads(done.stdout)
if "--test" in args:
    output["tests"] += [test | {"provider": "cuda", "device": "cuda:0"} for test in output["tests"] if test["provider"] == "cpu"]
    output["tests"] = [test for test in output["tests"] if test["outcome"] == "passed"]
elif args[0] == "gpu":
    output["backends"].append("cuda")
    output["devices"] = [{"id": 0, "name": "simulated"}]
    for operation in output["operations"]:
        operation["effective"] = "cuda:0"
elif args[0] == "detect":
    for result in output["results"]:
        result["devices"] = dict.fromkeys(result["devices"], "cuda:0")
else:
    for operation, sizes in output["benchmark_results"].items():
        for size, sides in sizes.items():
            side = json.loads(json.dumps(sides["gpu_false"]))
            side["on_gpu"] = "all"
            side["cpu_ms_per_image"] = (side["cpu_ms_per_image"] or 1.0) / 2
            sides["gpu_true"] = side
            output["analysis"]["performance_gains"][operation] = {size: {"time_improvement_percent": 0.0}}
            if wanted:
                del sides["gpu_false"]
print(json.dumps(output))
"#;
    let path = folder.join("wrapper");
    let real = format!("{:?}", env!("CARGO_BIN_EXE_facecrawl"));
    std::fs::write(&path, program.replace("REAL", &real)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[testing::needs(slow)]
#[test]
fn every_check_parses_program_output() {
    let only = [
        "--only",
        "strict_refusal,providers,provider,service,gpu_test,agreement,strict_start,pixel_operations,embedding_throughput,pipeline,small_memory,\
         batch_size,tensorrt",
        "--seconds",
        "1",
    ];
    let (folder, args) = image_folder("ada_wide.jpg", &only);
    let (_, report) = run_check(folder.path(), &write_wrapper(folder.path()), &args);
    let expected = "device providers provider service gpu_test agreement strict_start pixel_operations \
         embedding_throughput pipeline small_memory batch_size tensorrt";
    for row in expected.split(' ') {
        assert_eq!(outcome(&report, row), ("passed", ""), "{row}: {report}");
    }
    let facts = |check: &str| {
        let checks = report["checks"].as_array().unwrap();
        checks.iter().find(|row| row["check"] == check).unwrap()["facts"].clone()
    };
    assert_eq!(
        (&facts("agreement")["faces"], &facts("agreement")["largest_box_difference_px"]),
        (&1.into(), &0.0.into())
    );
    let measured = &facts("providers")["cuda:0"]["face_embedding"]["batch_2"];
    assert!(measured["steady_seconds"].as_f64().unwrap() > 0.0, "{measured}");
    for key in ["16_connections", "64_connections"] {
        let load = &facts("service")[key];
        assert!(load["images_per_second"].as_f64().unwrap() > 0.0 && load["errors"] == 0, "{load}");
    }
    assert!(
        facts("service")["ready_seconds"]["existing_database"].as_f64().unwrap() > 0.0,
        "{}",
        facts("service")
    );
    assert!(facts("pipeline")["share_of_embedding_rate"].as_f64().unwrap() > 0.0, "{}", facts("pipeline"));
    assert!(facts("batch_size")["steps"].as_array().unwrap().len() > 1);
    assert!(outcome(&report, "strict_refusal").1.contains("there is a GPU"));
}

#[test]
fn invalid_gpu_check_argument_error_names_cause() {
    Output::run(Command::new("python3").arg(script()).args(["--binary", "/nowhere/facecrawl"]))
        .fails(2, &["specify the facecrawl program"]);
    let binary = env!("CARGO_BIN_EXE_facecrawl");
    Output::run(Command::new("python3").arg(script()).args(["--binary", binary, "--only", "magic"]))
        .fails(2, &["there is no check magic"]);
}
