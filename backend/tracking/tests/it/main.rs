//! Tests of the tracker with generated trajectories: exact truth, and detections with the faults
//! of real detectors.
#![allow(clippy::unwrap_used)]

mod properties;
mod scene;
mod tracks;
