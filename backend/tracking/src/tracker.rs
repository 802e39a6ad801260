//! The tracker: accepts one frame after the other and returns the tracks that ended. Decides which
//! observation may continue which track, and how well it fits.
use crate::assignment::{Pair, assign};
use crate::motion::{centre, seconds, size};
use crate::open_track::OpenTrack;
use crate::track::{Config, Observation, Track, micros};
use std::cmp::Ordering;
use vision::Rect;

/// Number of frames without the face that never end a track, however sparse the frames are.
const MAX_MISSED: u32 = 2;

/// Joins the faces of successive frames into tracks.
///
/// Dense frames (at most [`Config::max_gap_for_motion`] apart) are associated in three rounds:
/// faces with a high score at the predicted positions; faces with a low score with the remaining
/// tracks, which they can only continue (ByteTrack); remaining faces with tracks that are lost
/// (OC-SORT). Sparse frames are associated by similarity, and by overlap.
///
/// Rules for every frame:
/// - Each face with at least [`Config::high_score`] belongs to exactly one track, if its box is
///   finite and not empty and the frame has at most [`Config::max_observations`] faces.
/// - Each face with at least [`Config::low_score`] belongs to at most one track.
/// - The order of the observations has no influence. Only faces that are equal in everything but
///   the payload may be exchanged.
#[derive(Debug)]
pub struct Tracker<P> {
    config: Config,
    open: Vec<OpenTrack<P>>,
    last_us: Option<i64>,
    next_id: u64,
}

impl<P> Tracker<P> {
    /// Returns a tracker without tracks. The first track has the number 0.
    pub fn new(config: Config) -> Self {
        Self { config, open: Vec::new(), last_us: None, next_id: 0 }
    }

    /// Adds the faces of the frame at `at_us`, and returns the tracks that ended before it, by
    /// number. If time does not advance, all tracks end first, as at a shot boundary: the clock of
    /// the source has jumped. The same happens after a gap of more than [`Config::max_frame_gap`].
    pub fn push(&mut self, at_us: i64, observations: Vec<Observation<P>>) -> Vec<Track<P>> {
        let gap_us = self.last_us.map(|last| at_us.saturating_sub(last));
        let is_continuous = gap_us.is_some_and(|gap| gap > 0 && gap <= micros(self.config.max_frame_gap));
        let mut ended = if is_continuous { self.end_lost(at_us) } else { self.cut() };
        let is_dense = gap_us.is_some_and(|gap| gap <= micros(self.config.max_gap_for_motion));
        self.last_us = Some(at_us);

        let mut faces: Vec<_> = self.sorted(observations).into_iter().map(Some).collect();
        let links = self.links(at_us, &faces, is_dense);
        for (track, column) in links {
            if let Some(observation) = faces.get_mut(column).and_then(Option::take) {
                self.open[track].extend(at_us, observation, is_dense, &self.config);
            }
        }
        for track in self.open.iter_mut().filter(|track| track.last.at_us != at_us) {
            track.miss(at_us);
        }
        for observation in faces.into_iter().flatten() {
            if observation.score >= self.config.high_score {
                self.open.push(OpenTrack::new(self.next_id, at_us, observation, &self.config));
                self.next_id += 1;
            }
        }
        ended.extend(self.end_excess());
        ended.sort_by_key(|track| track.id);
        ended
    }

    /// Ends all tracks, and returns them by number: a shot boundary.
    pub fn cut(&mut self) -> Vec<Track<P>> {
        self.open.drain(..).map(OpenTrack::end).collect()
    }

    /// Ends all tracks, and returns them by number: the end of the video.
    pub fn finish(mut self) -> Vec<Track<P>> {
        self.cut()
    }

    /// Removes faces that cannot be used and sorts the others, the best score first.
    fn sorted(&self, observations: Vec<Observation<P>>) -> Vec<Observation<P>> {
        let mut faces: Vec<_> = observations.into_iter().filter_map(Observation::cleaned).collect();
        faces.retain(|observation| observation.score >= self.config.low_score);
        faces.sort_by(compare_observations);
        faces.truncate(self.config.max_observations);
        faces
    }

    /// Returns which track (index) each observation (index) continues.
    fn links(&self, at_us: i64, faces: &[Option<Observation<P>>], is_dense: bool) -> Vec<(usize, usize)> {
        let frame = Frame { at_us, config: &self.config };
        let mut round = Round {
            open: &self.open,
            faces,
            predicted: self.open.iter().map(|track| track.motion.predict(at_us)).collect(),
            is_continued: vec![false; self.open.len()],
            is_linked: vec![false; faces.len()],
            links: Vec::new(),
            config: &self.config,
        };
        if is_dense {
            let is_established = |track: &OpenTrack<P>| !track.has_one_observation();
            round.run(true, |track, predicted, face| {
                is_established(track).then(|| frame.rate_dense(track, predicted, face)).flatten()
            });
            round.run(false, |track, predicted, face| frame.rate_low(track, predicted, face));
            round.run(true, |track, predicted, face| {
                is_established(track).then(|| frame.rate_recovery(track, predicted, face)).flatten()
            });
            round.run(true, |track, predicted, face| frame.rate_recovery(track, predicted, face));
        } else {
            round.run(true, |track, _, face| frame.rate_sparse(track, face));
            round.run(false, |track, _, face| frame.rate_sparse(track, face));
        }
        round.links
    }

    /// Ends the tracks that have been lost for too long at `at_us`.
    fn end_lost(&mut self, at_us: i64) -> Vec<Track<P>> {
        let max_us = micros(self.config.lost_after);
        let is_lost = |track: &mut OpenTrack<P>| track.missed > MAX_MISSED && track.lost_us(at_us) > max_us;
        self.open.extract_if(.., is_lost).map(OpenTrack::end).collect()
    }

    /// Ends the tracks that were lost first, if too many are open.
    fn end_excess(&mut self) -> Vec<Track<P>> {
        let excess = self.open.len().saturating_sub(self.config.max_open);
        if excess == 0 {
            return Vec::new();
        }
        let mut order: Vec<usize> = (0..self.open.len()).collect();
        order.sort_by_key(|&i| (self.open[i].last.at_us, self.open[i].id));
        let ids: std::collections::HashSet<u64> = order[..excess].iter().map(|&i| self.open[i].id).collect();
        self.open.extract_if(.., |track| ids.contains(&track.id)).map(OpenTrack::end).collect()
    }
}

/// The links of one frame that are known so far.
struct Round<'a, P> {
    open: &'a [OpenTrack<P>],
    faces: &'a [Option<Observation<P>>],
    predicted: Vec<Rect>,
    is_continued: Vec<bool>,
    is_linked: Vec<bool>,
    links: Vec<(usize, usize)>,
    config: &'a Config,
}

impl<P> Round<'_, P> {
    /// Links remaining tracks with remaining faces, which have a high or a low score.
    fn run(&mut self, high: bool, rate: impl Fn(&OpenTrack<P>, &Rect, &Observation<P>) -> Option<f64>) {
        let mut pairs = Vec::new();
        for (row, track) in self.open.iter().enumerate().filter(|(row, _)| !self.is_continued[*row]) {
            for (column, face) in self.faces.iter().enumerate() {
                let Some(face) = face.as_ref().filter(|_| !self.is_linked[column]) else { continue };
                if (face.score >= self.config.high_score) == high {
                    let gain = rate(track, &self.predicted[row], face);
                    pairs.extend(gain.map(|gain| Pair { row, column, gain }));
                }
            }
        }
        for (row, column) in assign(pairs, self.config.exact_group) {
            (self.is_continued[row], self.is_linked[column]) = (true, true);
            self.links.push((row, column));
        }
    }
}

/// Orders observations by everything but the payload: the best score first, then by position.
fn compare_observations<P>(a: &Observation<P>, b: &Observation<P>) -> Ordering {
    let numbers =
        |o: &Observation<P>| [o.bbox.x, o.bbox.y, o.bbox.width, o.bbox.height, o.quality.unwrap_or(-1.0)];
    let compare = |a: &[f32], b: &[f32]| {
        let first_difference = a.iter().zip(b).map(|(a, b)| a.total_cmp(b)).find(|order| order.is_ne());
        first_difference.unwrap_or(a.len().cmp(&b.len()))
    };
    let embedding = |o: &Observation<P>| o.embedding.clone().unwrap_or_default();
    b.score
        .total_cmp(&a.score)
        .then_with(|| compare(&numbers(a), &numbers(b)))
        .then_with(|| compare(&embedding(a), &embedding(b)))
}

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
/// Share by which the gain of a track decreases until it has been lost for the maximum time.
const LOST_PENALTY: f64 = 0.5;

/// The frame whose links are rated.
struct Frame<'a> {
    at_us: i64,
    config: &'a Config,
}

impl Frame<'_> {
    /// Rates a link to the predicted position: IoU, the direction, and the similarity if known.
    fn rate_dense<P>(&self, track: &OpenTrack<P>, predicted: &Rect, face: &Observation<P>) -> Option<f64> {
        let iou = predicted.iou(&face.bbox);
        if iou < MIN_IOU {
            return None;
        }
        let similarity = self.permitted_similarity(track, face)?;
        let gain = f64::from(iou) * self.freshness(track) + DIRECTION_WEIGHT * self.direction(track, face);
        Some((gain + f64::from(similarity.unwrap_or(0.0))).max(f64::MIN_POSITIVE))
    }

    /// Rates a link of a low score: only to a recently observed track.
    fn rate_low<P>(&self, track: &OpenTrack<P>, predicted: &Rect, face: &Observation<P>) -> Option<f64> {
        let is_recent = self.at_us.saturating_sub(track.last.at_us) <= LOW_MAX_AGE_US;
        let iou = extended(predicted, BUFFER.0).iou(&extended(&face.bbox, BUFFER.0));
        if iou < MIN_IOU_LOW || !is_recent {
            return None;
        }
        self.permitted_similarity(track, face)?;
        Some(f64::from(iou))
    }

    /// Rates the recovery of a track near its last or its predicted position, or anywhere if the
    /// faces match. The last observed position is the observation-centric recovery of OC-SORT.
    fn rate_recovery<P>(&self, track: &OpenTrack<P>, predicted: &Rect, face: &Observation<P>) -> Option<f64> {
        let buffer = (BUFFER.0 + BUFFER.1 * seconds(track.last.at_us, self.at_us) as f32).min(BUFFER.2);
        let reach = extended(&face.bbox, buffer);
        let iou = reach.iou(&extended(predicted, buffer)).max(reach.iou(&extended(&track.last.bbox, buffer)));
        let similarity = self.permitted_similarity(track, face)?;
        let is_match = similarity.is_some_and(|similarity| similarity >= self.config.match_threshold);
        let ratio = size(&track.last.bbox) / size(&face.bbox);
        let is_known = !track.has_one_observation() || track.missed <= NEW_MAX_MISSED;
        let is_near =
            is_known && iou >= MIN_IOU_RECOVERY && (1.0 / MAX_SIZE_RATIO..=MAX_SIZE_RATIO).contains(&ratio);
        let gain = f64::from(iou) + f64::from(similarity.unwrap_or(0.0));
        (is_match || is_near).then_some(gain.max(f64::MIN_POSITIVE))
    }

    /// Rates a link after a long gap: by similarity, and by overlap where that is in doubt. A match
    /// always has a higher gain than an overlap alone.
    fn rate_sparse<P>(&self, track: &OpenTrack<P>, face: &Observation<P>) -> Option<f64> {
        let iou = track.last.bbox.iou(&face.bbox);
        let min_iou = match self.permitted_similarity(track, face)? {
            Some(similarity) if similarity >= self.config.match_threshold => {
                // Of two faces that are equally similar, the one that overlaps is preferred.
                return Some(1.0 + f64::from(similarity) + 0.1 * f64::from(iou));
            }
            Some(_) => MIN_IOU_DOUBTFUL,
            None => MIN_IOU_SPARSE,
        };
        (iou >= min_iou).then_some(f64::from(iou) * 0.9)
    }

    /// Returns the similarity, if there is one; the outer `None` if it forbids the link.
    fn permitted_similarity<P>(&self, track: &OpenTrack<P>, face: &Observation<P>) -> Option<Option<f32>> {
        let similarity = track.similarity(face.embedding.as_deref());
        let is_vetoed = similarity.is_some_and(|value| value < self.config.veto_threshold);
        (!is_vetoed).then_some(similarity)
    }

    /// Returns 1 for a track that was just observed, and less for one that is lost.
    fn freshness<P>(&self, track: &OpenTrack<P>) -> f64 {
        let max_lost_us = micros(self.config.lost_after).max(1) as f64;
        1.0 - LOST_PENALTY * (track.lost_us(self.at_us) as f64 / max_lost_us).min(1.0)
    }

    /// Returns the cosine of the angle between the velocity of the track and the step to the
    /// observation, -1..1; 0 if one of them is too small to have a direction.
    fn direction<P>(&self, track: &OpenTrack<P>, face: &Observation<P>) -> f64 {
        let (vx, vy) = track.motion.velocity();
        let speed = vx.hypot(vy);
        let (from, to) = (centre(&track.last.bbox), centre(&face.bbox));
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy);
        let elapsed = seconds(track.last.at_us, self.at_us);
        if speed < MIN_SPEED || length < MIN_SPEED * elapsed * size(&track.last.bbox) {
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
