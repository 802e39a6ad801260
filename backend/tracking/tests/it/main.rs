//! Tests of the tracker with generated trajectories, whose ground truth is exact. The detections
//! have the errors of real detectors.
#![allow(clippy::unwrap_used)]

mod properties;
mod scene;
mod tracks;
