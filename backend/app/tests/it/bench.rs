//! Tests the command `bench` with the default pack. `backend/bench` tests the measurements.

use crate::common::service::{Output, TestFolder};
use serde_json::Value;
use std::process::Command;

#[test]
fn invalid_bench_argument_error_names_allowed_values() {
    let folder = TestFolder::new();
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    for (args, expected_text) in [
        (&["--operation", "dancing"][..], "face_detection"),
        (&["--image-size", "huge"], "medium"),
        (&["--gpu", "--no-gpu"], "cannot be used with"),
        (&["--batch-size", "0"], "1..=4096"),
        (&["--iterations", "0"], "1..=1000000"),
        (&["--plot", "plot.png"], ".svg"),
        (&["--json", "nowhere/report.json"], "folder does not exist"),
        (&["--no-gpu", "--images", "nowhere"], "not a folder"),
        (&["--no-gpu", "--images", "empty"], "contains no images"),
        (&["--operation", "video"], "facecrawl bench --operation video FILE"),
        (&["--operation", "video", "nowhere.mp4"], "no such file"),
        (&["--operation", "video", "a.mp4", "--images", "empty"], "--images is not for --operation video"),
        (&["--operation", "video", "a.mp4", "--sampling", "fps=0"], "such as fps=5"),
        (&["a.mp4"], "FILE is only for --operation video"),
        (&["--sampling", "auto"], "--sampling is only for --operation video"),
    ] {
        let refused = folder.run(&[&["bench"], args].concat()).assert_status(2);
        assert!(refused.stderr.contains(expected_text) && refused.stdout.is_empty(), "{args:?}: {refused:?}");
    }
    folder
        .run(&["bench", "--profile", "nowhere/trace.json"])
        .fails(1, &["cannot write the profile nowhere/trace.json"]);
}

#[test]
fn bench_writes_report_trace_and_plot() {
    let folder = TestFolder::new();
    let measurement_args = "--operation pipeline --image-size small --no-gpu --batch-size 2 --iterations 2";
    let output_args = "--json - --profile trace.json --plot plot.svg --auto-batch --set GPU_BATCH_SIZE=2";
    let args: Vec<&str> =
        ["bench"].into_iter().chain(measurement_args.split(' ')).chain(output_args.split(' ')).collect();
    let printed = folder.run(&args).success();
    let report = printed.json();
    let result = &report["benchmark_results"]["pipeline"]["small"]["gpu_false"];
    assert_eq!((&result["success_rate"], &result["images"]), (&1.0.into(), &4.into()), "{report}");
    assert!(report["analysis"]["performance_gains"].as_object().unwrap().is_empty());
    assert_eq!(report["summary"]["operation"], "pipeline");
    assert!(report["summary"]["bottleneck"]["why"].is_string());
    assert!(report["system"]["cores"].as_u64().unwrap() > 0 && report["system"]["detector"].is_string());
    assert!(result["mean_batch"]["face_detection"].as_f64().unwrap() >= 1.0, "{result}");
    let steps = report["auto_batch"]["steps"].as_array().unwrap();
    assert_eq!(steps.iter().map(|step| step["batch"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(report["auto_batch"]["recommended_gpu_batch_size"], Value::Null);
    assert!(std::fs::read_to_string(folder.path().join("plot.svg")).unwrap().starts_with("<svg"));
    assert_trace_is_nested(
        &serde_json::from_slice(&std::fs::read(folder.path().join("trace.json")).unwrap()).unwrap(),
    );
}

/// Requires that every stage lies within the time of its image, and that every run has a named
/// thread.
fn assert_trace_is_nested(trace: &Value) {
    let events = trace["traceEvents"].as_array().unwrap();
    let events_of_phase = |phase: &'static str| events.iter().filter(move |event| event["ph"] == phase);
    let named: Vec<&Value> = events_of_phase("M").map(|event| &event["tid"]).collect();
    assert!(events_of_phase("X").all(|event| named.contains(&&event["tid"])));
    for name in ["decode and hash", "letterbox", "face_detection", "face_embedding", "device"] {
        assert!(events_of_phase("X").any(|event| event["name"] == name), "{name}");
    }
    let time = |phase: &'static str, name: &str, id: &Value| {
        events_of_phase(phase)
            .filter(|e| e["name"] == name && e["id"] == *id)
            .map(|e| e["ts"].as_f64().unwrap())
            .collect::<Vec<_>>()
    };
    let images: Vec<&Value> =
        events_of_phase("b").filter(|event| event["name"] == "analyze").map(|event| &event["id"]).collect();
    assert!(images.len() >= 4, "four images and the warm-up");
    for id in images {
        let (starts, ends) = (time("b", "analyze", id), time("e", "analyze", id));
        for stage in ["decode", "detect", "align", "embed"] {
            let (from, to) = (time("b", stage, id), time("e", stage, id));
            assert!(!from.is_empty() && from.len() == to.len(), "{stage} of {id}");
            assert!(from.iter().zip(&to).all(|(from, to)| from <= to), "{stage} of {id}");
            // A later image may reuse an id after the stages of the earlier image are closed.
            let is_inside =
                |at: &f64| starts.iter().zip(&ends).any(|(starts, ends)| starts <= at && at <= ends);
            assert!(from.iter().chain(&to).all(is_inside), "{stage} of {id}");
        }
    }
}

#[test]
fn default_detector_finds_every_drawn_face() {
    let folder = TestFolder::new();
    assert_all_faces_are_found(testing::DEFAULT_PACK, |args| folder.facecrawl(args));
}

#[testing::needs(shared)]
#[test]
fn both_detector_families_find_every_drawn_face() {
    let folder = TestFolder::new();
    for pack in ["compact", "research"] {
        assert_all_faces_are_found(pack, |args| {
            let mut command = folder.facecrawl(args);
            command.env("FACE_MODEL_MIRROR", testing::shared_models());
            command
        });
    }
}

fn assert_all_faces_are_found(pack: &str, facecrawl: impl Fn(&[&str]) -> Command) {
    for size in ["small", "medium"] {
        let args = ["bench", "--operation", "pipeline", "--image-size", size, "--no-gpu", "--json", "-"];
        let limits_args = ["--batch-size", "4", "--iterations", "1", "--warmup", "0"];
        let models = ["--model-pack", pack, "--accept-license"];
        let command = &mut facecrawl(&[&args[..], &limits_args, &models].concat());
        let report = Output::run(command).success().json();
        let result = &report["benchmark_results"]["pipeline"][size]["gpu_false"];
        assert_eq!((&result["images"], &result["faces"]), (&4.into(), &16.into()), "{pack}: {result}");
    }
}

#[testing::needs(no_gpu)]
#[test]
fn missing_gpu_fails_only_when_requested() {
    let folder = TestFolder::new();
    let options = "--operation face_detection --image-size small --batch-size 1 --iterations 1 --warmup 0";
    let options: Vec<&str> = options.split(' ').collect();
    let cpu_library = "was built for the CPU only";
    let output = folder.run(&[&["bench", "--json", "report.json"], &options[..]].concat()).success();
    let report: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("report.json")).unwrap()).unwrap();
    let results_by_device = report["benchmark_results"]["face_detection"]["small"].as_object().unwrap();
    assert!(!results_by_device.contains_key("gpu_true"), "{report}");
    let notes = report["notes"].as_array().unwrap();
    assert!(notes.iter().any(|note| note.as_str().unwrap().contains(cpu_library)), "{report}");
    output.assert_table_width();
    assert!(output.stdout.contains("images/s") && output.stdout.contains(cpu_library), "{}", output.stdout);
    folder
        .run(&[&["bench", "--gpu"], &options[..]].concat())
        .fails(1, &["there is no GPU to measure: face_detection:"]);
    folder
        .run(&[&["bench", "--gpu", "--set", "GPU_BACKEND=cpu"], &options[..]].concat())
        .fails(1, &["GPU_BACKEND is cpu"]);
}
