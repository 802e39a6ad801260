//! The configured cameras.
use crate::streams::schedule::Schedule;
use camera::Address;
use domain::{StreamKind, StreamStore};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use vision::{Profile, Rect};

/// Maximum number of cameras.
pub const MAX_STREAMS: usize = 1_000;
/// Maximum number of regions of a camera.
pub const MAX_REGIONS: usize = 20;

/// A camera of the file `STREAMS_FILE`.
#[derive(Clone, Debug)]
pub struct StreamConfig {
    pub address: Address,
    /// Name of the collection whose watchlists apply.
    pub collection: String,
    /// Why it is watched.
    pub purpose: String,
    pub store: StreamStore,
    pub retention_hours: u16,
    /// Number of frames that are analysed per second.
    pub fps: f32,
    /// Parts of the picture that are watched, in shares of its width and height. Empty: all of it.
    pub regions: Vec<Rect>,
    pub schedule: Schedule,
    /// The quality profile that faces must meet; `None` means that of the collection.
    pub quality_profile: Option<Profile>,
}

impl StreamConfig {
    pub fn kind(&self) -> StreamKind {
        match self.address.kind {
            camera::Kind::Rtsp => StreamKind::Rtsp,
            camera::Kind::Hls => StreamKind::Hls,
            camera::Kind::Mjpeg => StreamKind::Mjpeg,
        }
    }

    /// Returns the time between two analysed frames.
    pub(crate) fn interval(&self) -> Duration {
        Duration::from_secs_f32(1.0 / self.fps.clamp(0.1, 30.0))
    }

    /// Returns whether the centre of a box is in a watched part of a frame of this size.
    pub(crate) fn is_watched(&self, bbox: &Rect, (width, height): (u32, u32)) -> bool {
        let x = (bbox.x + bbox.width / 2.0) / width.max(1) as f32;
        let y = (bbox.y + bbox.height / 2.0) / height.max(1) as f32;
        let contains = |region: &Rect| {
            (region.x..=region.x + region.width).contains(&x)
                && (region.y..=region.y + region.height).contains(&y)
        };
        self.regions.is_empty() || self.regions.iter().any(contains)
    }
}

/// The cameras by name. Cheap to clone.
pub type StreamConfigs = Arc<BTreeMap<String, StreamConfig>>;
