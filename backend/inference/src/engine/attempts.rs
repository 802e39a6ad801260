//! Attempts to use devices during one start. A failure that affects all operations is not repeated
//! for each of them.
use super::candidates::candidates;
use super::fallbacks::Fallbacks;
use crate::ep::Provider;
use crate::runtime::Runtime;
use crate::unavailable::{Refusal, Unavailable};
use crate::{Config, UnavailableKind, preload};
use std::cell::RefCell;

/// The failed attempts of one start.
pub(super) struct Attempts<'a> {
    pub(super) config: &'a Config,
    pub(super) runtime: &'a Runtime,
    /// Failures that affect all operations, by provider and device.
    failed_for_all: RefCell<Vec<(Provider, u32, Unavailable)>>,
    pub(super) fallbacks: Fallbacks,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(config: &'a Config, runtime: &'a Runtime) -> Self {
        let fallbacks = Fallbacks::new(config.force_gpu_only);
        Self { config, runtime, failed_for_all: RefCell::default(), fallbacks }
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
}
