//! Pixels to files: JPEG for people, PNG where every bit counts.
use crate::Frame;

/// JPEG, `quality` 1..=100.
pub fn jpeg(_frame: &Frame, _quality: u8) -> Vec<u8> {
    todo!()
}

/// PNG, lossless.
pub fn png(_frame: &Frame) -> Vec<u8> {
    todo!()
}
