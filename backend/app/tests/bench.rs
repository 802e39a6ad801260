//! Tests `bench`: the measuring library with models without weights, and the command with the
//! default pack.
#![allow(clippy::unwrap_used, missing_docs)]
mod common;

use app::bench::{
    Counters, Device, Pictures, Plan, Process, Side, SideReport, Spread, Subject, gain, measure, svg,
};
use common::process::{Finished, Workplace};
use inference::{Engine, Manifest, Operation, ResolvedPack};
use pipeline::Analyzer;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;
use testing::{draw_face, fixture_pack};
use vision::{Frame, Limits};

/// Returns a side whose engine uses models without weights.
fn side() -> Side {
    let folder = tempfile::tempdir().unwrap();
    let fixture = fixture_pack(folder.path());
    let manifest = Manifest::parse(&fixture.manifest()).unwrap();
    let pack = ResolvedPack::verify(manifest.pack("fixture").unwrap(), &fixture.directory).unwrap();
    let config = inference::Config { dylib_path: Some(testing::library()), ..inference::Config::default() };
    let engine = Engine::start(&config, &pack).unwrap();
    Side { gpu: false, analyzer: Analyzer::new(engine, pipeline::Config::default()) }
}

fn process() -> Process {
    Process { cores: 2, cpu_seconds: || Some(1.0), counters: Counters::default() }
}

/// Returns a PNG with `faces` faces that the fixture's detector finds.
fn picture(faces: u32) -> Vec<u8> {
    let mut frame = Frame::filled(640, 480, [70, 80, 60]);
    let mut drawing = testing::fixture_models::Picture::from_raw(640, 480, frame.data().to_vec()).unwrap();
    for number in 0..faces {
        draw_face(&mut drawing, 2 + 4 * number, 3, number);
    }
    frame.data_mut().copy_from_slice(&drawing);
    vision::encode::png(&frame)
}

fn plan(subjects: &[Subject]) -> Plan {
    Plan { subjects: subjects.to_vec(), batch_size: 4, iterations: 3, warmup: 1 }
}

fn pictures(files: &[&[u8]]) -> Pictures {
    Pictures::of(files.iter().map(|file| file.to_vec().into()).collect(), &Limits::default())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_is_measured_by_the_guides_names() {
    let side = side();
    let files = [picture(2), picture(1)];
    let pictures = pictures(&[&files[0], &files[1]]);
    let mut told = Vec::new();
    let results =
        measure(&plan(&Subject::ALL), std::slice::from_ref(&side), &[pictures], &process(), |what| {
            told.push(what.to_owned())
        })
        .await
        .unwrap();
    assert_eq!(told.len(), 6);
    let json = serde_json::to_value(&results).unwrap();
    for subject in Subject::ALL {
        let result = &json[subject.name()]["original"]["gpu_false"];
        assert_eq!((&result["success_rate"], &result["images"]), (&1.0.into(), &12.into()), "{result}");
        let (time, throughput) =
            (result["mean_time_ms"].as_f64().unwrap(), result["mean_throughput"].as_f64().unwrap());
        assert!(time > 0.0 && (time * throughput / 1000.0 - 1.0).abs() < 1e-6, "{result}");
        for figure in ["median_time_ms", "p95_time_ms", "min_time_ms", "max_time_ms", "stdev_time_ms"] {
            assert!(result[figure].is_number(), "{figure}: {result}");
        }
        for operation in subject.uses() {
            assert_eq!(result["device"][operation.name()]["effective"], "cpu", "{result}");
        }
        assert_eq!((&result["on_gpu"], &result["fell_back"]), (&"none".into(), &false.into()));
        assert!(result["bottleneck"]["why"].is_string(), "{result}");
    }
    let whole = &json["pipeline"]["original"]["gpu_false"];
    assert_eq!(whole["faces"], 18, "images with two faces and with one face alternate");
    for stage in ["decode", "letterbox", "detect", "align", "quality", "embed", "queue"] {
        assert!(whole["stages"][stage].is_number(), "{stage}: {whole}");
    }
    assert_eq!(json["face_embedding"]["original"]["gpu_false"]["unit"], "face");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_that_fails_lowers_the_success_rate_and_says_why() {
    let side = side();
    let good = picture(1);
    let mixed = pictures(&[&good, b"no picture", &good, &good]);
    let operations = [Subject::Pipeline, Subject::Operation(Operation::QualityChecks)];
    let sides = std::slice::from_ref(&side);
    let results = measure(&plan(&operations), sides, &[mixed], &process(), |_| ()).await.unwrap();
    for operation in operations {
        let result = &results[operation.name()]["original"]["gpu_false"];
        assert_eq!((result.success_rate, result.images, result.failed), (0.75, 9, 3));
        assert_eq!(result.errors.values().sum::<usize>(), 3, "{:?}", result.errors);
        assert!(result.errors.keys().all(|reason| reason.contains("image")), "{:?}", result.errors);
    }
    let broken = pictures(&[b"no picture"]);
    let refused = measure(&plan(&operations), sides, &[broken], &process(), |_| ()).await;
    assert!(refused.unwrap_err().to_string().contains("none of the pictures can be used"));
}

/// Returns a side's report with the given time and the effective device of detection.
fn report(time: f64, effective: &str) -> SideReport {
    let fell_back = effective == "cpu";
    let reason = fell_back.then(|| "no driver".to_owned());
    let device = Device { asked: "cuda".into(), effective: effective.into(), reason, fell_back };
    SideReport {
        mean_time_ms: Some(time),
        mean_throughput: 1000.0 / time,
        success_rate: 1.0,
        median_time_ms: Some(time),
        p95_time_ms: Some(time),
        min_time_ms: Some(time),
        max_time_ms: Some(time),
        stdev_time_ms: Some(0.0),
        latency_ms: Spread::of(&[time]),
        unit: "picture",
        images: 1,
        failed: 0,
        errors: BTreeMap::new(),
        faces: 1,
        faces_per_second: 1000.0 / time,
        stages: BTreeMap::new(),
        cpu_ms_per_image: Some(time),
        cores_used: Some(1.0),
        mean_batch: BTreeMap::new(),
        device: BTreeMap::from([("face_detection", device)]),
        on_gpu: if fell_back { "none" } else { "all" },
        fell_back,
        runtime_fallbacks: 0,
        bottleneck: None,
    }
}

#[test]
fn gains_are_the_guides_and_a_fallback_is_none() {
    // The example in the guide.
    let found = gain(&report(78.5, "cpu"), &report(45.2, "cuda:0"));
    assert!((found.time_improvement_percent.unwrap() - 42.4).abs() < 0.05, "{found:?}");
    assert!((found.throughput_improvement_percent.unwrap() - 73.7).abs() < 0.05, "{found:?}");
    let fallen = gain(&report(78.5, "cpu"), &report(45.2, "cpu"));
    assert_eq!((fallen.time_improvement_percent, fallen.throughput_improvement_percent), (None, None));
    assert!(fallen.note.unwrap().contains("no driver"));
    let failing = SideReport { runtime_fallbacks: 3, ..report(45.2, "cuda:0") };
    assert_eq!(gain(&report(78.5, "cpu"), &failing).time_improvement_percent, None);
}

#[test]
fn the_plot_is_a_well_formed_document_with_every_bar() {
    let sides = BTreeMap::from([
        ("gpu_false".to_owned(), report(40.0, "cpu")),
        ("gpu_true".to_owned(), report(10.0, "cuda:0")),
    ]);
    let sizes = BTreeMap::from([("medium".to_owned(), sides)]);
    let drawn = svg(&BTreeMap::from([("face_detection".to_owned(), sizes)]), "a < b & \"c\"");
    assert_eq!(drawn.matches("<rect").count(), 3, "the background and two bars");
    assert!(
        drawn.contains(">25.0<")
            && drawn.contains(">100.0<")
            && drawn.contains("a &lt; b &amp; &quot;c&quot;")
    );
    // Every opened tag is closed, in order.
    let mut open = Vec::new();
    for tag in drawn.split('<').skip(1).map(|rest| rest.split_once('>').unwrap().0) {
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().unwrap());
        }
    }
    assert!(open.is_empty());
}

#[test]
fn wrong_arguments_are_refused_with_what_is_allowed() {
    let place = Workplace::new();
    std::fs::create_dir(place.path().join("empty")).unwrap();
    for (args, said) in [
        (&["--operation", "dancing"][..], "face_detection"),
        (&["--image-size", "huge"], "medium"),
        (&["--gpu", "--no-gpu"], "cannot be used with"),
        (&["--batch-size", "0"], "1..=4096"),
        (&["--iterations", "0"], "1..=1000000"),
        (&["--plot", "plot.png"], ".svg"),
        (&["--json", "nowhere/report.json"], "folder does not exist"),
        (&["--no-gpu", "--images", "nowhere"], "no folder"),
        (&["--no-gpu", "--images", "empty"], "no pictures"),
    ] {
        let refused = place.run(&[&["bench"], args].concat()).expect(2);
        assert!(refused.stderr.contains(said) && refused.stdout.is_empty(), "{args:?}: {refused:?}");
    }
    let refused = place.run(&["bench", "--profile", "nowhere/trace.json"]).expect(1);
    assert!(refused.stderr.contains("cannot write the profile nowhere/trace.json"), "{refused:?}");
}

#[test]
fn the_command_writes_report_trace_and_plot() {
    let place = Workplace::new();
    let printed = place
        .run(&[
            "bench",
            "--operation",
            "pipeline",
            "--image-size",
            "small",
            "--no-gpu",
            "--batch-size",
            "2",
            "--iterations",
            "2",
            "--json",
            "-",
            "--profile",
            "trace.json",
            "--plot",
            "plot.svg",
            "--auto-batch",
            "--set",
            "GPU_BATCH_SIZE=2",
        ])
        .expect(0);
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
    assert!(std::fs::read_to_string(place.path().join("plot.svg")).unwrap().starts_with("<svg"));
    trace_is_nested(
        &serde_json::from_slice(&std::fs::read(place.path().join("trace.json")).unwrap()).unwrap(),
    );
}

/// Requires that every stage lies within the time of its image, and that every run has a named
/// thread.
fn trace_is_nested(trace: &Value) {
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |phase: &'static str| events.iter().filter(move |event| event["ph"] == phase);
    let named: Vec<&Value> = of("M").map(|event| &event["tid"]).collect();
    assert!(of("X").all(|event| named.contains(&&event["tid"])));
    for run in ["decode and hash", "letterbox", "face_detection", "face_embedding", "device"] {
        assert!(of("X").any(|event| event["name"] == run), "{run}");
    }
    let time = |phase: &'static str, name: &str, id: &Value| {
        of(phase)
            .filter(|e| e["name"] == name && e["id"] == *id)
            .map(|e| e["ts"].as_f64().unwrap())
            .collect::<Vec<_>>()
    };
    let pictures: Vec<&Value> =
        of("b").filter(|event| event["name"] == "analyze").map(|event| &event["id"]).collect();
    assert!(pictures.len() >= 4, "four images and the warm-up");
    for id in pictures {
        let (begun, ended) = (time("b", "analyze", id), time("e", "analyze", id));
        for stage in ["decode", "detect", "align", "embed"] {
            let (from, to) = (time("b", stage, id), time("e", stage, id));
            assert!(!from.is_empty() && from.len() == to.len(), "{stage} of {id}");
            assert!(from.iter().zip(&to).all(|(from, to)| from <= to), "{stage} of {id}");
            // A later image may reuse an id after the stages of the earlier image are closed.
            let inside = |at: &f64| begun.iter().zip(&ended).any(|(begun, ended)| begun <= at && at <= ended);
            assert!(from.iter().chain(&to).all(inside), "{stage} of {id}");
        }
    }
}

#[test]
fn the_default_detector_finds_everybody_who_was_drawn() {
    let place = Workplace::new();
    everybody_is_found(testing::DEFAULT_PACK, |args| place.facecrawl(args));
}

#[testing::needs(shared)]
#[test]
fn both_families_of_detectors_find_everybody_who_was_drawn() {
    let place = Workplace::new();
    for pack in ["compact", "research"] {
        everybody_is_found(pack, |args| {
            let mut command = place.facecrawl(args);
            command.env("FACE_MODEL_MIRROR", testing::shared_models());
            command
        });
    }
}

fn everybody_is_found(pack: &str, facecrawl: impl Fn(&[&str]) -> Command) {
    for size in ["small", "medium"] {
        let args = ["bench", "--operation", "pipeline", "--image-size", size, "--no-gpu", "--json", "-"];
        let few = ["--batch-size", "4", "--iterations", "1", "--warmup", "0"];
        let models = ["--model-pack", pack, "--accept-license"];
        let command = &mut facecrawl(&[&args[..], &few, &models].concat());
        let report = Finished::of(command).expect(0).json();
        let result = &report["benchmark_results"]["pipeline"][size]["gpu_false"];
        assert_eq!((&result["images"], &result["faces"]), (&4.into(), &16.into()), "{pack}: {result}");
    }
}

#[test]
fn a_gpu_that_is_not_there_is_an_error_when_asked_for_and_a_note_when_not() {
    let place = Workplace::new();
    let common = [
        "--operation",
        "face_detection",
        "--image-size",
        "small",
        "--batch-size",
        "1",
        "--iterations",
        "1",
        "--warmup",
        "0",
    ];
    let cpu_library = "was built for the CPU alone";
    let both = place.run(&[&["bench", "--json", "report.json"], &common[..]].concat()).expect(0);
    let report: Value =
        serde_json::from_slice(&std::fs::read(place.path().join("report.json")).unwrap()).unwrap();
    let sides = report["benchmark_results"]["face_detection"]["small"].as_object().unwrap();
    if sides.contains_key("gpu_true") {
        // This machine has a GPU and its library, so `--gpu` would not fail.
        return;
    }
    let notes = report["notes"].as_array().unwrap();
    assert!(notes.iter().any(|note| note.as_str().unwrap().contains(cpu_library)), "{report}");
    both.fits();
    assert!(both.stdout.contains("images/s") && both.stdout.contains(cpu_library), "{}", both.stdout);
    let refused = place.run(&[&["bench", "--gpu"], &common[..]].concat()).expect(1);
    assert!(refused.stderr.contains("there is no GPU to measure: face_detection:"), "{}", refused.stderr);
    let refused =
        place.run(&[&["bench", "--gpu", "--set", "GPU_BACKEND=cpu"], &common[..]].concat()).expect(1);
    assert!(refused.stderr.contains("GPU_BACKEND is cpu"), "{}", refused.stderr);
}
