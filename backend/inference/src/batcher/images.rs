//! A run on a backend that takes images.
use super::Entry;
use super::run::{BatchResult, bucket, collect};
use crate::backend::{Backend, BackendError};
use crate::models::Model;

/// Passes the image of every entry to the backend and reads the results.
pub(super) fn run<M: Model>(
    model: &M,
    backend: &mut dyn Backend,
    buckets: &[usize],
    part: &[Entry<M>],
) -> BatchResult<M> {
    let items = bucket(buckets, part.len());
    let images: Option<Vec<_>> = part.iter().map(|entry| model.image_input(&entry.input)).collect();
    let images = images.ok_or_else(|| BackendError::Failed("the request contains no image".to_owned()))?;
    collect(model, part, items, |read| backend.run_images(&images, items, read))
}
