//! Entry point for the fuzz target of erasures: query and body as `POST /erasures` reads them.
//! What needs a database or a model is not called.
pub(crate) use super::target::ErasureBody;

use super::target::{TargetInput, address};
use super::threshold::{Thresholds, check_range};
use crate::ApiError;
use crate::extract::fuzzing::{body, parameters, picture};
use bytes::Bytes;
use uuid::Uuid;

/// What the threshold of a request is held against.
#[derive(Clone, Copy, Debug)]
pub struct Levels {
    /// The collection's own threshold.
    pub collection: Option<f32>,
    /// The service's.
    pub service: f32,
    /// The embedding model's.
    pub model: f32,
}

/// A target that was read.
#[derive(Debug)]
pub enum ErasureTarget {
    /// Faces as alike as this threshold, and the picture's bytes.
    Likeness(f32, Bytes),
    /// A face.
    Face(Uuid),
    /// An image.
    Image(Uuid),
    /// A person.
    Subject(Uuid),
    /// The normal form of an address.
    Url(String),
}

/// A request that was read.
#[derive(Debug)]
pub struct Erasure {
    /// What goes.
    pub target: ErasureTarget,
    /// Whether strangers may go, too.
    pub force: bool,
    /// Whether nothing goes yet.
    pub dry_run: bool,
}

/// Reads a request whose body is JSON; a picture has at most `picture_bytes` bytes.
///
/// # Errors
/// 400, 413 and 422, as the operation answers.
pub fn erasure(query: &str, text: &[u8], levels: Levels, picture_bytes: usize) -> Result<Erasure, ApiError> {
    let params = parameters(query)?;
    let (input, params) = body::<ErasureBody>(text)?.split(params)?;
    check_range(params.threshold)?;
    let force = params.force.unwrap_or(false);
    let likeness = |bytes| {
        let Levels { collection, service, model } = levels;
        let thresholds = Thresholds { request: params.threshold, collection, service, model, force };
        Ok::<_, ApiError>(ErasureTarget::Likeness(thresholds.resolve()?, bytes))
    };
    let target = match input {
        TargetInput::Picture(bytes) => likeness(bytes)?,
        TargetInput::Source(source) => likeness(picture(source, picture_bytes)?)?,
        TargetInput::Face(id) => ErasureTarget::Face(id),
        TargetInput::Image(id) => ErasureTarget::Image(id),
        TargetInput::Subject(id) => ErasureTarget::Subject(id),
        TargetInput::Url(text) => ErasureTarget::Url(address(&text)?.into()),
    };
    Ok(Erasure { target, force, dry_run: params.dry_run.unwrap_or(false) })
}
