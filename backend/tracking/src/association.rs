//! Which observation may continue which track, and how well it fits. Each rule returns a gain:
//! positive if the link is possible, and higher for better links.

use crate::config::{Config, micros};
use crate::motion::{centre, seconds, size};
use crate::open_track::OpenTrack;
use crate::track::Observation;
use vision::Rect;

/// Minimum IoU of the predicted box and an observation with a high score. ByteTrack has 0.2, too.
const MIN_IOU: f32 = 0.2;
/// Minimum IoU of extended boxes for an observation with a low score.
const MIN_IOU_LOW: f32 = 0.3;
/// Maximum time since the last observation, for an observation with a low score, in microseconds.
/// ByteTrack allows no missed frame, which loses tracks at 5 frames per second.
const LOW_MAX_AGE_US: i64 = 1_000_000;
/// Maximum number of missed frames of a track with a single observation, which has no velocity.
const NEW_MAX_MISSED: u32 = 1;
/// Minimum IoU of extended boxes when a track is recovered.
const MIN_IOU_RECOVERY: f32 = 0.2;
/// Extension of both boxes on each side when a track is recovered, in sizes of the box: the start,
/// the increase per second, and the maximum. Extended boxes are the buffered IoU of C-BIoU-Tracker
/// (Yang et al., WACV 2023), with the buffers 0.3 and 0.5 there.
const BUFFER: (f32, f32, f32) = (0.3, 0.5, 1.0);
/// Highest ratio of the sizes of two boxes when a track is recovered.
const MAX_SIZE_RATIO: f64 = 2.0;
/// Minimum IoU of the last box and an observation after a long gap, without an embedding, and with
/// embeddings whose similarity is neither a match nor a veto.
const MIN_IOU_SPARSE: f32 = 0.3;
const MIN_IOU_DOUBTFUL: f32 = 0.5;
/// Weight of the direction of movement. OC-SORT has 0.2 (Cao et al., CVPR 2023, section 4.2).
const DIRECTION_WEIGHT: f64 = 0.2;
/// Speed below which a movement has no direction, in sizes of the face per second.
const MIN_SPEED: f64 = 0.5;
/// Decrease of the gain of a track that has been lost for as long as allowed, as a share.
const LOST_PENALTY: f64 = 0.5;

/// One frame, for which links are sought.
pub(crate) struct Frame<'a> {
    pub(crate) at_us: i64,
    pub(crate) config: &'a Config,
}

impl Frame<'_> {
    /// Rates a link to the predicted position: IoU, the direction, and the similarity if known.
    pub(crate) fn dense<P>(
        &self,
        track: &OpenTrack<P>,
        predicted: &Rect,
        seen: &Observation<P>,
    ) -> Option<f64> {
        let iou = predicted.iou(&seen.bbox);
        if iou < MIN_IOU {
            return None;
        }
        let similarity = self.allowed(track, seen)?;
        let gain = f64::from(iou) * self.freshness(track) + DIRECTION_WEIGHT * self.direction(track, seen);
        Some((gain + f64::from(similarity.unwrap_or(0.0))).max(f64::MIN_POSITIVE))
    }

    /// Rates a link of a low score: only to a track that was seen a moment ago.
    pub(crate) fn low<P>(
        &self,
        track: &OpenTrack<P>,
        predicted: &Rect,
        seen: &Observation<P>,
    ) -> Option<f64> {
        let is_recent = self.at_us.saturating_sub(track.last.at_us) <= LOW_MAX_AGE_US;
        let iou = extended(predicted, BUFFER.0).iou(&extended(&seen.bbox, BUFFER.0));
        if iou < MIN_IOU_LOW || !is_recent {
            return None;
        }
        self.allowed(track, seen)?;
        Some(f64::from(iou))
    }

    /// Rates the recovery of a track near its last or its predicted position, or anywhere if the
    /// faces match. The last observed position is the observation-centric recovery of OC-SORT.
    pub(crate) fn recovery<P>(
        &self,
        track: &OpenTrack<P>,
        predicted: &Rect,
        seen: &Observation<P>,
    ) -> Option<f64> {
        let buffer = (BUFFER.0 + BUFFER.1 * seconds(track.last.at_us, self.at_us) as f32).min(BUFFER.2);
        let reach = extended(&seen.bbox, buffer);
        let iou = reach.iou(&extended(predicted, buffer)).max(reach.iou(&extended(&track.last.bbox, buffer)));
        let similarity = self.allowed(track, seen)?;
        let is_match = similarity.is_some_and(|similarity| similarity >= self.config.match_threshold);
        let ratio = size(&track.last.bbox) / size(&seen.bbox);
        let is_known = !track.is_new() || track.missed <= NEW_MAX_MISSED;
        let is_near =
            is_known && iou >= MIN_IOU_RECOVERY && (1.0 / MAX_SIZE_RATIO..=MAX_SIZE_RATIO).contains(&ratio);
        let gain = f64::from(iou) + f64::from(similarity.unwrap_or(0.0));
        (is_match || is_near).then_some(gain.max(f64::MIN_POSITIVE))
    }

    /// Rates a link after a long gap: by similarity, and by overlap where that is in doubt. A match
    /// always has a higher gain than an overlap alone.
    pub(crate) fn sparse<P>(&self, track: &OpenTrack<P>, seen: &Observation<P>) -> Option<f64> {
        let iou = track.last.bbox.iou(&seen.bbox);
        let min_iou = match self.allowed(track, seen)? {
            Some(similarity) if similarity >= self.config.match_threshold => {
                // Of two faces that are equally similar, the one that overlaps is preferred.
                return Some(1.0 + f64::from(similarity) + 0.1 * f64::from(iou));
            }
            Some(_) => MIN_IOU_DOUBTFUL,
            None => MIN_IOU_SPARSE,
        };
        (iou >= min_iou).then_some(f64::from(iou) * 0.9)
    }

    /// Returns the similarity, if there is one; `None` outside if it forbids the link.
    fn allowed<P>(&self, track: &OpenTrack<P>, seen: &Observation<P>) -> Option<Option<f32>> {
        let similarity = track.similarity(seen.embedding.as_deref());
        let is_vetoed = similarity.is_some_and(|value| value < self.config.veto_threshold);
        (!is_vetoed).then_some(similarity)
    }

    /// Returns 1 for a track that was just seen, and less for one that is lost.
    fn freshness<P>(&self, track: &OpenTrack<P>) -> f64 {
        let allowed = micros(self.config.lost_after).max(1) as f64;
        1.0 - LOST_PENALTY * (track.lost_us(self.at_us) as f64 / allowed).min(1.0)
    }

    /// Returns the cosine of the angle between the velocity of the track and the step to the
    /// observation, -1..1; 0 if one of them is too small to have a direction.
    fn direction<P>(&self, track: &OpenTrack<P>, seen: &Observation<P>) -> f64 {
        let (vx, vy) = track.motion.velocity();
        let speed = vx.hypot(vy);
        let (from, to) = (centre(&track.last.bbox), centre(&seen.bbox));
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy);
        let passed = seconds(track.last.at_us, self.at_us);
        if speed < MIN_SPEED || length < MIN_SPEED * passed * size(&track.last.bbox) {
            return 0.0;
        }
        (vx * dx + vy * dy) / (speed * length)
    }
}

/// Returns the box, extended on each side by `share` of its width or height.
fn extended(bbox: &Rect, share: f32) -> Rect {
    let (dx, dy) = (bbox.width * share, bbox.height * share);
    Rect { x: bbox.x - dx, y: bbox.y - dy, width: bbox.width + 2.0 * dx, height: bbox.height + 2.0 * dy }
}
