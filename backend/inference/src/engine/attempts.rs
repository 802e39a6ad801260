//! Attempts to use devices during one start. A failure that affects all operations is not repeated
//! for each of them, and each reason is reported once.
use super::candidates::candidates;
use crate::ep::Provider;
use crate::runtime::Runtime;
use crate::unavailable::{Refusal, Unavailable};
use crate::{Config, Operation, StartError, UnavailableKind, preload};
use std::cell::RefCell;

/// Warning for operations that run on the CPU instead.
const ON_THE_CPU: &str = "no GPU for these operations; they run on the CPU";

/// The failed attempts of one start.
pub(super) struct Attempts<'a> {
    pub(super) config: &'a Config,
    pub(super) runtime: &'a Runtime,
    /// Failures that affect all operations, by provider and device.
    failed_for_all: RefCell<Vec<(Provider, u32, Unavailable)>>,
    fallbacks: RefCell<Vec<Fallback>>,
}

struct Fallback {
    operations: Vec<Operation>,
    /// The requested provider.
    provider: String,
    refusal: Refusal,
    message: &'static str,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(config: &'a Config, runtime: &'a Runtime) -> Self {
        Self { config, runtime, failed_for_all: RefCell::default(), fallbacks: RefCell::default() }
    }

    /// Runs `try_device` on all configured devices, with one provider after the other. Returns the
    /// results of the first provider that works on all of them, or the reason if there is none.
    pub(super) fn first_that_works<T>(
        &self,
        mut try_device: impl FnMut(Provider, u32) -> Result<T, Unavailable>,
    ) -> Result<Vec<T>, Refusal> {
        let candidates = candidates(self.config);
        if candidates.is_empty() {
            return Err(Unavailable::switched_off().into());
        }
        let ids = &self.config.device_ids;
        let mut tried = Vec::new();
        for provider in candidates {
            let found = match Unavailable::absence(*provider, self.runtime.path()) {
                Some(reason) => Err(reason),
                None if ids.is_empty() => {
                    Err(Unavailable::new(*provider, UnavailableKind::Failed, "no device id is given"))
                }
                None => {
                    ids.iter().map(|id| self.attempt(*provider, *id, || try_device(*provider, *id))).collect()
                }
            };
            match found {
                Ok(found) => return Ok(found),
                Err(reason) => tried.push(reason),
            }
        }
        Err(Refusal::from_attempts(&tried))
    }

    /// Runs `try_device` on one device, unless an earlier attempt failed for a reason that affects
    /// all operations.
    pub(super) fn attempt<T>(
        &self,
        provider: Provider,
        id: u32,
        try_device: impl FnOnce() -> Result<T, Unavailable>,
    ) -> Result<T, Unavailable> {
        let earlier_failure =
            self.failed_for_all.borrow().iter().find(|(p, at, _)| (*p, *at) == (provider, id)).cloned();
        if let Some((_, _, reason)) = earlier_failure {
            return Err(reason);
        }
        preload::libraries(provider, self.runtime);
        self.runtime.quietly(try_device).inspect_err(|reason| {
            tracing::debug!(
                provider = provider.name(),
                device = id,
                detail = reason.detail,
                "provider not usable"
            );
            if reason.kind.concerns_all_operations() {
                self.failed_for_all.borrow_mut().push((provider, id, reason.clone()));
            }
        })
    }

    /// Handles an operation for which no GPU is available. With `FORCE_GPU_ONLY` this is an error.
    /// Otherwise the fallback is counted, and [`Self::log_fallbacks`] logs a warning.
    pub(super) fn handle_refusal(
        &self,
        operation: Operation,
        provider: &str,
        refusal: &Refusal,
    ) -> Result<(), StartError> {
        if self.config.force_gpu_only {
            return Err(StartError::GpuOnly {
                operation: operation.name(),
                provider: provider.to_owned(),
                refusal: Box::new(refusal.clone()),
            });
        }
        self.record_fallback(operation, provider, refusal, ON_THE_CPU);
        Ok(())
    }

    /// Counts a fallback immediately; [`Self::log_fallbacks`] logs it later. Every fallback is
    /// reported.
    pub(super) fn record_fallback(
        &self,
        operation: Operation,
        provider: &str,
        refusal: &Refusal,
        message: &'static str,
    ) {
        metrics::counter!("facecrawl_ep_fallback_total", "operation" => operation.name(), "provider" => provider.to_owned())
            .increment(1);
        let mut fallbacks = self.fallbacks.borrow_mut();
        let same = |other: &&mut Fallback| {
            (other.provider.as_str(), other.message) == (provider, message)
                && other.refusal.nearest == refusal.nearest
        };
        match fallbacks.iter_mut().find(same) {
            Some(other) if other.operations.contains(&operation) => {}
            Some(other) => other.operations.push(operation),
            None => fallbacks.push(Fallback {
                operations: vec![operation],
                provider: provider.to_owned(),
                refusal: refusal.clone(),
                message,
            }),
        }
    }

    /// Logs each reason once, with the operations that it affects.
    pub(super) fn log_fallbacks(&self) {
        for Fallback { operations, provider, refusal, message } in self.fallbacks.borrow().iter() {
            let concerned = Operation::ALL.into_iter().filter(|operation| operations.contains(operation));
            let operations = concerned.map(Operation::name).collect::<Vec<_>>().join(", ");
            tracing::warn!(operations, provider, reason = %refusal, "{message}");
            tracing::debug!(
                operations,
                provider,
                detail = refusal.detail,
                "original messages of the providers"
            );
        }
    }
}
