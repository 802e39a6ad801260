//! Chooses the device of an operation: tries the configured providers, compares their results with
//! the CPU's, or reports why none is used.
use super::attempts::Attempts;
use super::candidate::{CandidateModel, Trial, cpu};
use super::candidates::candidates;
use super::cpu_backend;
use super::loading::Loading;
use crate::backend::{Backend, OnnxModel, Placement};
use crate::batcher::Device;
use crate::ep::Provider;
use crate::models::Model;
use crate::report::LoadedModel;
use crate::unavailable::{Refusal, diagnose};
use crate::{Config, Operation, OperationReport, StartError};
use std::time::Instant;

pub(super) struct PlacedModel<M> {
    pub(super) model: M,
    pub(super) devices: Vec<Device>,
    pub(super) max_batch: usize,
    pub(super) report: OperationReport,
    pub(super) loads: Vec<LoadedModel>,
}

/// Returns the requested provider in the form used in the report.
fn requested(config: &Config, gpu_requested: bool) -> String {
    if !gpu_requested {
        return Provider::Cpu.name().to_owned();
    }
    match candidates(config) {
        [] => Provider::Cpu.name().to_owned(),
        [one] => one.name().to_owned(),
        _ => "auto".to_owned(),
    }
}

/// Returns the report of an operation before its device is selected.
pub(super) fn on_the_cpu(config: &Config, operation: Operation) -> OperationReport {
    not_placed(config, operation.name(), config.gpu_operations.contains(&operation))
}

/// Works like [`on_the_cpu`], also for operations that the engine does not run.
pub(super) fn not_placed(config: &Config, operation: &'static str, gpu_requested: bool) -> OperationReport {
    OperationReport {
        operation,
        gpu_requested,
        requested: requested(config, gpu_requested),
        effective: Provider::Cpu.name().to_owned(),
        reason: None,
        reason_kind: None,
        detail: None,
    }
}

/// Places the model on the devices that its operation requests, or on the CPU. `reference` is the
/// CPU session that `candidate` was loaded with.
pub(super) fn place<M: Model>(
    attempts: &Attempts<'_>,
    mut candidate: CandidateModel<'_, M>,
    mut reference: OnnxModel,
    make_backend: impl Fn(&M, Trial, usize) -> Box<dyn Backend>,
) -> Result<PlacedModel<M>, StartError> {
    let config = candidate.config;
    let failed = |reason: String| StartError::Model { model: candidate.file.file.clone(), reason };
    let began = Instant::now();
    let operation = candidate.model.operation();
    let mut report = on_the_cpu(config, operation);

    if report.gpu_requested {
        match try_providers(attempts, &mut candidate, &mut reference) {
            Ok(mut found) => {
                // All devices take batches from one queue.
                let max_batch = found.iter().map(|trial| trial.load.max_batch).min().unwrap_or(1);
                for trial in &mut found {
                    trial.session.release_batches_above(max_batch);
                    (trial.load.sessions, trial.load.max_batch) = (trial.session.sessions(), max_batch);
                }
                let loads = found.iter().map(|trial| trial.load.clone()).collect();
                let sessions: Vec<_> =
                    found.into_iter().map(|trial| make_backend(&candidate.model, trial, max_batch)).collect();
                let labels: Vec<&str> = sessions.iter().map(|session| session.device()).collect();
                report.effective = labels.join(",");
                let devices = with_fallbacks(&candidate, sessions, reference).map_err(failed)?;
                return Ok(PlacedModel { max_batch, model: candidate.model, devices, report, loads });
            }
            Err(refusal) => {
                attempts.fallbacks.handle_refusal(operation.name(), &report.requested, &refusal)?;
                report.add_refusal(&refusal);
            }
        }
    }

    let sessions = cpu_sessions(config);
    let (mut first, mut placement) = (reference, cpu(config));
    if let Some(chosen) = cpu_backend::chosen(&candidate) {
        match cpu_backend::load_session(&candidate, &chosen) {
            Ok(session) => (first, placement) = (session, chosen),
            Err(reason) => {
                let refusal = Refusal::from(reason);
                attempts.fallbacks.record(
                    operation.name(),
                    cpu_backend::name(&chosen),
                    &refusal,
                    BY_ONNX_RUNTIME,
                );
                report.add_refusal(&refusal);
            }
        }
    }
    let devices = more_sessions(&candidate, first, sessions, &placement).map_err(failed)?;
    let (file, bytes) = (candidate.file.file.as_str(), candidate.forms.general.len());
    let load = Loading { operation, file, bytes, sessions, max_batch: 1, began, before: None };
    let loads = vec![load.finish(&placement)];
    let devices = devices.into_iter().map(|d| Device { primary: Box::new(d), fallback: None }).collect();
    Ok(PlacedModel { model: candidate.model, devices, max_batch: 1, report, loads })
}

/// Warning for operations that cannot use the backend that `CPU_BACKEND` selects. The start does
/// not fail, because the operations run on the CPU, as requested.
const BY_ONNX_RUNTIME: &str =
    "what CPU_BACKEND selects is not usable for these operations; ONNX Runtime computes them in FP32";

/// Loads sessions in parallel until there are `count` sessions, including `first`.
///
/// Each session has its own copy of the weights, because sharing saves almost nothing. At this
/// optimisation level, the runtime fuses the weights and rewrites them into its kernels' layout,
/// per session. The resident memory of each further session was measured without sharing, with a
/// container of prepacked weights, and additionally with every weight as a shared initialiser.
/// MobileFaceNet takes 8.4, 8.4 and 7.9 MB. YuNet takes 17.7 MB and SCRFD 2.5G 46.4 MB in all three
/// cases; most of this memory is activations.
fn more_sessions<M: Model>(
    candidate: &CandidateModel<'_, M>,
    first: OnnxModel,
    count: usize,
    placement: &Placement,
) -> Result<Vec<OnnxModel>, String> {
    let load = || candidate.cpu_session(placement);
    std::thread::scope(|scope| {
        let loading: Vec<_> = (1..count).map(|_| scope.spawn(load)).collect();
        let others = loading.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err("the session's thread panicked while loading".to_owned()))
        });
        std::iter::once(Ok(first)).chain(others).collect()
    })
}

fn cpu_sessions(config: &Config) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    match config.cpu_sessions {
        0 => (cores() / config.cpu_session_threads.max(1)).max(1),
        chosen => chosen,
    }
}

/// Returns one session per device on the first provider that works, or the reason if there is none.
fn try_providers<M: Model>(
    attempts: &Attempts<'_>,
    candidate: &mut CandidateModel<'_, M>,
    reference: &mut OnnxModel,
) -> Result<Vec<Trial>, Refusal> {
    let mut batches = false;
    attempts.first_that_works(|provider, id| {
        if !std::mem::replace(&mut batches, true) {
            candidate.allow_batches(reference);
        }
        candidate.try_on(provider, id, false).map_err(|text| diagnose(provider, id, &text))
    })
}

/// Adds a CPU session as fallback to each GPU, unless `FORCE_GPU_ONLY` forbids it.
fn with_fallbacks<M: Model>(
    candidate: &CandidateModel<'_, M>,
    found: Vec<Box<dyn Backend>>,
    reference: OnnxModel,
) -> Result<Vec<Device>, String> {
    let config = candidate.config;
    let mut spare = Some(reference);
    found
        .into_iter()
        .map(|primary| {
            let fallback = match (config.force_gpu_only, spare.take()) {
                (true, _) => None,
                (false, Some(reference)) => Some(reference),
                (false, None) => {
                    Some(OnnxModel::load(candidate.runtime, &candidate.forms.cpu, &cpu(config))?)
                }
            };
            Ok(Device { primary, fallback: fallback.map(|f| Box::new(f) as _) })
        })
        .collect()
}
