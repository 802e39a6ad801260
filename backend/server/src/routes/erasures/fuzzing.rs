//! Contains the entry point for the fuzz target of erasures. The entry point reads query and body
//! as `POST /erasures` does, without a database or a model.
pub(crate) use super::target::ErasureBody;

use super::target::{TargetInput, parse_address};
use crate::extract::fuzzing::{body, decode_image, parameters};
use crate::routes::erasures::target::{check_range, erasure_threshold};
use crate::{ApiError, Result};
use bytes::Bytes;
use pipeline::MatchThreshold;
use uuid::Uuid;

/// Holds the thresholds that a request's threshold is compared with.
#[derive(Clone, Copy, Debug)]
pub struct Thresholds {
    pub collection: Option<f32>,
    pub service: f32,
    pub model: f32,
}

#[derive(Debug)]
pub enum ErasureTarget {
    /// Faces with at least this similarity to the image. The second field contains the bytes of the
    /// image.
    Likeness(f32, Bytes),
    Face(Uuid),
    Image(Uuid),
    Video(Uuid),
    Subject(Uuid),
    /// The normal form of an address.
    Url(String),
}

#[derive(Debug)]
pub struct Erasure {
    pub target: ErasureTarget,
    /// Whether the request may also erase strangers (see `force` of `POST /erasures`).
    pub force: bool,
    pub dry_run: bool,
}

/// Reads a request with a JSON body. An image may have at most `image_bytes` bytes.
///
/// # Errors
/// Fails with 400, 413 and 422, like the operation.
pub fn erasure(query: &str, text: &[u8], thresholds: Thresholds, image_bytes: usize) -> Result<Erasure> {
    let params = parameters(query)?;
    let (input, params) = body::<ErasureBody>(text)?.split(params)?;
    check_range(params.threshold)?;
    let force = params.force.unwrap_or(false);
    let likeness = |bytes| {
        let Thresholds { collection, service, model } = thresholds;
        let request = params.threshold.map(|threshold| threshold as f32);
        let threshold = MatchThreshold::resolve(request, collection, Some(service), model);
        Ok::<_, ApiError>(ErasureTarget::Likeness(erasure_threshold(threshold, model, force)?, bytes))
    };
    let target = match input {
        TargetInput::ImageBytes(bytes) => likeness(bytes)?,
        TargetInput::Source(source) => likeness(decode_image(source, image_bytes)?)?,
        TargetInput::Face(id) => ErasureTarget::Face(id),
        TargetInput::Image(id) => ErasureTarget::Image(id),
        TargetInput::Video(id) => ErasureTarget::Video(id),
        TargetInput::Subject(id) => ErasureTarget::Subject(id),
        TargetInput::Url(text) => ErasureTarget::Url(parse_address(&text)?.into()),
    };
    Ok(Erasure { target, force, dry_run: params.dry_run.unwrap_or(false) })
}
