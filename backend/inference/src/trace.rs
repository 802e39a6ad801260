//! Targets of the spans that a profile contains. They are `tracing` spans at trace level, so
//! without a subscriber each costs only a comparison.

/// Target of spans that include await points: a stage of one image.
pub const STAGE: &str = "facecrawl::stage";
/// Target of spans on a single thread: image processing, or a run on a device. A field `label`
/// replaces the span's name.
pub const RUN: &str = "facecrawl::run";
