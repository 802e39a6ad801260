//! Operations that get no GPU at start: an error, or the CPU with one warning for each reason.
use crate::unavailable::Refusal;
use crate::{Operation, StartError};
use std::cell::RefCell;

const ON_THE_CPU: &str = "no GPU for these operations; they run on the CPU";

/// The operations of one start that got no GPU.
pub(super) struct Fallbacks {
    force_gpu_only: bool,
    recorded: RefCell<Vec<Fallback>>,
}

struct Fallback {
    operations: Vec<&'static str>,
    /// The requested provider.
    provider: String,
    refusal: Refusal,
    message: &'static str,
}

impl Fallbacks {
    pub(super) fn new(force_gpu_only: bool) -> Self {
        Self { force_gpu_only, recorded: RefCell::default() }
    }

    /// Handles an operation for which no GPU is available. With `FORCE_GPU_ONLY` this is an error.
    /// Otherwise the fallback is counted, and [`Self::log`] logs a warning.
    pub(super) fn handle_refusal(
        &self,
        operation: &'static str,
        provider: &str,
        refusal: &Refusal,
    ) -> Result<(), StartError> {
        if self.force_gpu_only {
            return Err(StartError::GpuOnly {
                operation,
                provider: provider.to_owned(),
                refusal: Box::new(refusal.clone()),
            });
        }
        self.record(operation, provider, refusal, ON_THE_CPU);
        Ok(())
    }

    /// Counts a fallback immediately; [`Self::log`] logs it later. Every fallback is reported.
    pub(super) fn record(
        &self,
        operation: &'static str,
        provider: &str,
        refusal: &Refusal,
        message: &'static str,
    ) {
        metrics::counter!("facecrawl_ep_fallback_total", "operation" => operation, "provider" => provider.to_owned())
            .increment(1);
        let mut fallbacks = self.recorded.borrow_mut();
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
    pub(super) fn log(&self) {
        for Fallback { operations, provider, refusal, message } in self.recorded.borrow().iter() {
            let mut operations = operations.clone();
            operations.sort_by_key(|name| Operation::ALL.iter().position(|known| known.name() == *name));
            let operations = operations.join(", ");
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
