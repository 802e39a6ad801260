//! Tests of the tracker with drawn trajectories: exact truth, and detections with the faults of
//! real detectors.
#![allow(clippy::unwrap_used)]

mod closer;
mod dense;
mod people;
mod properties;
mod scene;
mod sparse;
