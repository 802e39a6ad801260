//! Targets of the spans that a profile contains. They are `tracing` spans at trace level, so
//! without a subscriber each costs only a comparison.

/// Target of spans that last across awaits: a stage of one image.
pub const STAGE: &str = "facecrawl::stage";
/// Target of spans that stay on one thread: image processing, or a run on a device. A field `label`
/// is shown instead of the span's name.
pub const RUN: &str = "facecrawl::run";
