//! `models list|fetch|verify|samples|build`.
use super::{Exit, UsageError, output, samples};
use crate::config::Settings;
use crate::models::{FileState, ModelStore};
use crate::service::prepare_models;
use clap::{Args, Subcommand};
use inference::{GpuBackend, Manifest, ModelKind, Pack};
use serde_json::{Value, json};

/// List, fetch and verify model packs
#[derive(Args, Debug)]
pub struct ModelsArgs {
    #[command(subcommand)]
    command: ModelsCommand,
}

#[derive(Debug, Subcommand)]
enum ModelsCommand {
    /// List the packs and what is there of them
    List {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Fetch a pack: from the mirror folder, or by download
    Fetch {
        /// The pack [default: the one of MODEL_PACK]
        pack: Option<String>,
    },
    /// Check the files of a pack against their checksums; status 1 if one is missing or corrupt
    Verify {
        /// The pack [default: the one of MODEL_PACK]
        pack: Option<String>,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    Samples(samples::SamplesArgs),
    /// Build the TensorRT engines of the pack ahead of time, for every GPU of GPU_DEVICE_IDS (GPU_BACKEND=tensorrt)
    Build {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

pub(super) async fn run(settings: &Settings, args: ModelsArgs) -> anyhow::Result<Exit> {
    let manifest = Manifest::of(&settings.models.dir).map_err(anyhow::Error::msg)?;
    let store = ModelStore::new(settings);
    match args.command {
        ModelsCommand::List { json } => list(&manifest, &store, settings, json),
        ModelsCommand::Fetch { pack } => {
            let pack = find(&manifest, settings, pack)?;
            let ready = store.prepare(pack).await?;
            output::line(format!("{} is ready in {}", pack.name, ready.directory.display()))?;
            Ok(Exit::Success)
        }
        ModelsCommand::Verify { pack, json } => verify(find(&manifest, settings, pack)?, &store, json),
        ModelsCommand::Samples(args) => samples::run(settings, args).await,
        ModelsCommand::Build { json } => build(settings, json).await,
    }
}

/// The engines of the models in use: those that the service would look for when it starts.
async fn build(settings: &Settings, json: bool) -> anyhow::Result<Exit> {
    if settings.gpu.backend != GpuBackend::Tensorrt {
        return Err(UsageError("engines are those of TensorRT: set GPU_BACKEND=tensorrt".into()).into());
    }
    let (config, pack) = (settings.inference(), prepare_models(settings).await?);
    let engines = tokio::task::spawn_blocking(move || inference::build_engines(&config, &pack)).await??;
    if json {
        output::json(&json!({ "engines": engines }))?;
        return Ok(Exit::Success);
    }
    for engine in &engines {
        output::line(format!(
            "{} on {}: {} in {:.1} s, {} file(s), {}, {}",
            engine.file,
            engine.device,
            if engine.reused { "was there, proven" } else { "built and proven" },
            engine.seconds,
            engine.files.len(),
            output::megabytes(engine.bytes),
            engine.folder.display()
        ))?;
    }
    Ok(Exit::Success)
}

fn find<'a>(manifest: &'a Manifest, settings: &Settings, asked: Option<String>) -> anyhow::Result<&'a Pack> {
    let name = asked.unwrap_or_else(|| settings.models.pack.clone());
    manifest.pack(&name).ok_or_else(|| {
        let names: Vec<&str> = manifest.packs.iter().map(|pack| pack.name.as_str()).collect();
        UsageError(format!("there is no pack {name}; there are {}", names.join(", "))).into()
    })
}

fn list(manifest: &Manifest, store: &ModelStore, settings: &Settings, json: bool) -> anyhow::Result<Exit> {
    let mut table =
        output::table(["pack", "state", "files", "size", "match from (FMR)", "licence", "description"]);
    let mut packs = Vec::new();
    for pack in &manifest.packs {
        let states = store.inspect(pack)?;
        let state = summary(&states);
        // The optional quality model is used wherever it is there.
        let optional = pack.files.iter().all(|file| file.kind == ModelKind::Quality);
        let in_use = pack.name == settings.models.pack || (optional && state == "ready");
        let bytes: Option<u64> = pack.files.iter().map(|file| file.bytes).sum();
        let mut licences: Vec<&str> = pack.files.iter().map(|file| file.licence.as_str()).collect();
        licences.dedup();
        let files: Vec<&str> = pack.files.iter().map(|file| file.file.as_str()).collect();
        table.add_row([
            format!("{}{}", pack.name, if in_use { " (in use)" } else { "" }),
            state.to_owned(),
            files.join("\n"),
            bytes.map_or_else(|| "?".into(), output::megabytes),
            matching(pack),
            licences.join("\n"),
            pack.description.clone(),
        ]);
        packs.push(json!({
            "name": pack.name, "description": pack.description, "state": state, "in_use": in_use, "bytes": bytes,
            "restricted": pack.restricted.is_some(), "files": files_json(pack, &states),
        }));
    }
    if json {
        output::json(&json!({ "directory": store.directory, "packs": packs }))?;
    } else {
        output::line(table)?;
    }
    Ok(Exit::Success)
}

/// The embedder's threshold for a match, and the share of pairs of different people that reach it.
fn matching(pack: &Pack) -> String {
    let embedder = pack.files.iter().find_map(|file| Some((file.match_threshold?, file.match_fmr)));
    match embedder {
        Some((threshold, Some(fmr))) => format!("{threshold} ({:.2} %)", fmr * 100.0),
        Some((threshold, None)) => format!("{threshold} (not measured)"),
        None => String::new(),
    }
}

fn verify(pack: &Pack, store: &ModelStore, json: bool) -> anyhow::Result<Exit> {
    let states = store.inspect(pack)?;
    if json {
        let files = files_json(pack, &states);
        output::json(
            &json!({ "pack": pack.name, "state": summary(&states), "directory": store.directory, "files": files }),
        )?;
    } else {
        for (file, state) in pack.files.iter().zip(&states) {
            let state = match state {
                FileState::Verified => "verified".into(),
                FileState::Missing => "missing".into(),
                FileState::Corrupt { sha256 } => format!("corrupt: sha256 {sha256}, not {}", file.sha256),
            };
            output::line(format!("{}: {state}", store.directory.join(&file.file).display()))?;
        }
    }
    let good = states.iter().all(|state| *state == FileState::Verified);
    Ok(if good { Exit::Success } else { Exit::Failure })
}

fn summary(states: &[FileState]) -> &'static str {
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
