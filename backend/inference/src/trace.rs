//! Names of the spans that a profile shows. They are `tracing` spans at trace level, so they cost a comparison where nobody listens.

/// Target of spans that last across awaits: a stage of one picture.
pub const STAGE: &str = "facecrawl::stage";
/// Target of spans that stay on one thread: work on pixels, a run on a device. A field `label` is shown in place of the span's name.
pub const RUN: &str = "facecrawl::run";
