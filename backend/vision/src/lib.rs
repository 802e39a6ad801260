//! Image processing on the CPU: decode, orient, letterbox, enhance, align, NMS, quality, perceptual
//! hashes and crops.
//!
//! All functions are pure: they use no model runtime, files, network or clock. Coordinates are in
//! pixels of the upright image (EXIF orientation applied), with the origin at the top left, x to
//! the right, y down. Pixel (0, 0) covers the square from (0, 0) to (1, 1).

pub mod align;
pub mod crop;
pub mod decode;
pub mod encode;
pub mod enhance;
pub mod frame;
pub mod geometry;
pub mod nms;
pub mod phash;
pub mod quality;
mod resize;
mod turns;
pub mod view;

pub use align::{ARCFACE_TEMPLATE, CHIP_SIDE, SimilarityTransform, cover_in_chip, norm_crop};
pub use decode::{BYTES_PER_PIXEL, DecodeError, Decoded, Format, ImageHeader, Limits, decode, probe};
pub use enhance::Enhanced;
pub use frame::Frame;
pub use geometry::{Detection, Landmarks, Point, Rect};
pub use nms::{keep_best, nms};
pub use phash::PerceptualHashes;
pub use quality::{Profile, QualityReport};
pub use resize::Taps;
pub use turns::RotationScores;
pub use view::{AxisTaps, Letterbox, View};
