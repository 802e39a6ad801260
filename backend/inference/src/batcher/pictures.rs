//! A run on a backend that takes pictures.
use super::Entry;
use super::run::{Outcome, bucket};
use crate::backend::{Backend, BackendError};
use crate::models::Model;
use crate::trace::RUN;

/// Shows the backend every entry's picture and reads the results.
pub(super) fn run<M: Model>(
    model: &M,
    backend: &mut dyn Backend,
    buckets: &[usize],
    part: &[Entry<M>],
) -> Outcome<M> {
    let items = bucket(buckets, part.len());
    let pictures: Option<Vec<_>> = part.iter().map(|entry| model.picture(&entry.input)).collect();
    let pictures = pictures.ok_or_else(|| BackendError::Failed("a request has no picture".to_owned()))?;
    let running = tracing::trace_span!(target: RUN, "device").entered();
    let mut results = Vec::with_capacity(part.len());
    backend.run_pictures(&pictures, items, &mut |outputs| {
        let _reading = tracing::trace_span!(target: RUN, "read").entered();
        results.extend(
            part.iter().enumerate().map(|(index, entry)| model.read(&entry.input, outputs, index, items)),
        );
    })?;
    drop(running);
    if results.len() != part.len() {
        return Err(BackendError::Failed("the device gave no outputs".to_owned()));
    }
    Ok(results)
}
