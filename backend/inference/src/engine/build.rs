//! Builds TensorRT engines in advance.
use super::candidate::CandidateModel;
use super::load::{detector, embedder, scorer};
use crate::backend::{OnnxModel, load_library};
use crate::ep::Provider;
use crate::models::Model;
use crate::runtime::Runtime;
use crate::unavailable::{Unavailable, diagnose};
use crate::{Config, ResolvedPack, StartError, preload};
use serde::Serialize;
use std::path::PathBuf;

/// The TensorRT engine of a model on one device.
#[derive(Clone, Debug, Serialize)]
pub struct BuiltEngine {
    /// `face_detection`, …
    pub operation: &'static str,
    pub file: String,
    /// `tensorrt:0`, …
    pub device: String,
    /// Whether the engine existed already.
    pub reused: bool,
    /// Seconds of the build, including every batch size and the comparison with the CPU.
    pub seconds: f64,
    /// The engine's folder; `key.txt` in it lists everything that the engine depends on.
    pub folder: PathBuf,
    /// The engine's files. A model can have several, or none if TensorRT runs no part of it.
    pub files: Vec<PathBuf>,
    /// Total size of these files in bytes.
    pub bytes: u64,
}

/// Builds the engines of all models of the pack for every configured device. Blocks for minutes.
///
/// # Errors
/// Fails with [`StartError::NoTensorrt`] if TensorRT cannot be used, or with
/// [`StartError::Library`] or [`StartError::Model`].
pub fn build_engines(config: &Config, pack: &ResolvedPack) -> Result<Vec<BuiltEngine>, StartError> {
    let runtime = Runtime::load(config.dylib_path.as_deref())?;
    // Checked before the models are read, because a missing TensorRT is the most frequent failure.
    available(config, &runtime).map_err(|reason| StartError::NoTensorrt { reason })?;
    let (candidate, reference) = detector(config, &runtime, pack)?;
    let mut built = build(candidate, reference)?;
    let (candidate, reference) = embedder(config, &runtime, pack)?;
    built.extend(build(candidate, reference)?);
    if let Some((candidate, reference)) = scorer(config, &runtime, pack)? {
        built.extend(build(candidate, reference)?);
    }
    Ok(built)
}

fn available(config: &Config, runtime: &Runtime) -> Result<(), String> {
    let provider = Provider::Tensorrt;
    if let Some(reason) = Unavailable::absence(provider, runtime.path()) {
        return Err(reason.to_string());
    }
    let Some(&first) = config.device_ids.first() else { return Err("no device id is given".to_owned()) };
    preload::libraries(provider, runtime);
    runtime.quietly(|| load_library(runtime, provider, first)).map_err(|error| {
        let reason = diagnose(provider, first, &error.to_string());
        tracing::debug!(provider = provider.name(), detail = reason.detail, "provider not usable");
        reason.to_string()
    })
}

fn build<M: Model>(
    mut candidate: CandidateModel<'_, M>,
    mut reference: OnnxModel,
) -> Result<Vec<BuiltEngine>, StartError> {
    candidate.allow_batches(&mut reference);
    let file = &candidate.file.file;
    let on = |id: &u32| {
        let trial = candidate.try_on(Provider::Tensorrt, *id, false).map_err(|reason| StartError::Model {
            model: file.clone(),
            reason: format!("on tensorrt:{id}: {reason}"),
        })?;
        let engine = trial.placement.tensorrt.ok_or_else(|| StartError::NoTensorrt {
            reason: "the session was made without an engine".to_owned(),
        })?;
        let (files, bytes): (Vec<_>, Vec<_>) = engine.engines().into_iter().unzip();
        Ok(BuiltEngine {
            operation: trial.load.operation,
            file: file.clone(),
            device: trial.load.device,
            reused: engine.found,
            seconds: trial.load.seconds,
            folder: engine.folder,
            files,
            bytes: bytes.iter().sum(),
        })
    };
    candidate.config.device_ids.iter().map(on).collect()
}
