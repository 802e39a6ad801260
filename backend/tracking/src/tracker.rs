//! The tracker: accepts frames in order and returns the tracks that ended. Decides which
//! observation continues which track.
use crate::assignment::{Pair, assign};
use crate::motion::{centre, seconds, size};
use crate::open_track::OpenTrack;
use crate::track::{Config, Observation, Track, TrackInfo, to_micros};
use std::cmp::Ordering;
use vision::Rect;

/// Number of frames without the face that never end a track.
const MAX_MISSED_FRAMES: u32 = 2;

/// Joins the faces of successive frames into tracks.
///
/// Dense frames (with at most [`Config::max_gap_for_motion`] between them) are associated in three
/// rounds. First, faces with a high score are linked to tracks at the predicted positions. Then,
/// faces with a low score are linked to the remaining tracks (ByteTrack). Finally, the remaining
/// faces with a high score are linked to lost tracks (OC-SORT). Sparse frames are associated by
/// similarity, and by overlap.
///
/// Rules for every frame:
/// - Each face with at least [`Config::high_score`] belongs to exactly one track, if its box is
///   finite and not empty and the frame has at most [`Config::max_observations`] faces.
/// - Each face with at least [`Config::low_score`] belongs to at most one track.
/// - The result does not depend on the order of the observations, except for faces that differ only
///   in the payload.
#[derive(Debug)]
pub struct Tracker<P> {
    config: Config,
    tracks: Vec<OpenTrack<P>>,
    last_us: Option<i64>,
    next_id: u64,
}

impl<P> Tracker<P> {
    /// Returns a tracker without tracks. The first track has the number 0.
    pub fn new(config: Config) -> Self {
        Self { config, tracks: Vec::new(), last_us: None, next_id: 0 }
    }

    /// Adds the faces of the frame at `at_us`, and returns the tracks that ended before it, by
    /// number. All tracks end first after a gap of more than [`Config::max_frame_gap`], and if
    /// `at_us` is not after the previous frame because the clock of the source has jumped.
    pub fn push(&mut self, at_us: i64, observations: Vec<Observation<P>>) -> Vec<Track<P>> {
        let gap_us = self.last_us.map(|last| at_us.saturating_sub(last));
        let is_continuous = gap_us.is_some_and(|gap| gap > 0 && gap <= to_micros(self.config.max_frame_gap));
        let mut ended = if is_continuous { self.end_lost(at_us) } else { self.end_all() };
        let is_dense = gap_us.is_some_and(|gap| gap <= to_micros(self.config.max_gap_for_motion));
        self.last_us = Some(at_us);

        let mut faces: Vec<_> = self.usable_faces(observations).into_iter().map(Some).collect();
        let links = self.links(at_us, &faces, is_dense);
        for (track, column) in links {
            if let Some(observation) = faces.get_mut(column).and_then(Option::take) {
                self.tracks[track].extend(at_us, observation, is_dense, &self.config);
            }
        }
        for track in self.tracks.iter_mut().filter(|track| track.last.at_us != at_us) {
            track.record_miss(at_us);
        }
        for observation in faces.into_iter().flatten() {
            if observation.score >= self.config.high_score {
                self.tracks.push(OpenTrack::new(self.next_id, at_us, observation, &self.config));
                self.next_id += 1;
            }
        }
        ended.extend(self.end_excess());
        ended.sort_by_key(|track| track.id);
        ended
    }

    /// Returns whether no track is open.
    pub fn is_empty(&self) -> bool {
        self.tracks.is_empty()
    }

    /// Returns the open track with the observation `bbox` in the frame at `at_us`, which was pushed
    /// last.
    pub fn track_at(&self, at_us: i64, bbox: &Rect) -> Option<TrackInfo> {
        let is_same = |track: &&OpenTrack<P>| track.last.at_us == at_us && track.last.bbox == *bbox;
        self.tracks.iter().find(is_same).map(|track| TrackInfo { id: track.id, started_us: track.started_us })
    }

    /// Ends all tracks at a shot boundary, and returns them by number.
    pub fn end_all(&mut self) -> Vec<Track<P>> {
        self.tracks.drain(..).map(OpenTrack::end).collect()
    }

    /// Ends all tracks at the end of the video, and returns them by number.
    pub fn finish(mut self) -> Vec<Track<P>> {
        self.end_all()
    }

    /// Returns the usable faces, the best score first.
    fn usable_faces(&self, observations: Vec<Observation<P>>) -> Vec<Observation<P>> {
        let mut faces: Vec<_> = observations.into_iter().filter_map(Observation::clean).collect();
        faces.retain(|observation| observation.score >= self.config.low_score);
        faces.sort_by(compare_observations);
        faces.truncate(self.config.max_observations);
        faces
    }

    /// Returns the links as pairs of the index of a track and the index of its observation.
    fn links(&self, at_us: i64, faces: &[Option<Observation<P>>], is_dense: bool) -> Vec<(usize, usize)> {
        let rater = LinkRater { at_us, config: &self.config };
        let mut round = Round {
            tracks: &self.tracks,
            faces,
            predicted: self.tracks.iter().map(|track| track.motion.predict(at_us)).collect(),
            is_continued: vec![false; self.tracks.len()],
            is_linked: vec![false; faces.len()],
            links: Vec::new(),
            config: &self.config,
        };
        if is_dense {
            let is_established = |track: &OpenTrack<P>| !track.has_one_observation();
            round.link(true, |track, predicted, face| {
                is_established(track).then(|| rater.rate_dense(track, predicted, face)).flatten()
            });
            round.link(false, |track, predicted, face| rater.rate_low(track, predicted, face));
            round.link(true, |track, predicted, face| {
                is_established(track).then(|| rater.rate_recovery(track, predicted, face)).flatten()
            });
            round.link(true, |track, predicted, face| rater.rate_recovery(track, predicted, face));
        } else {
            round.link(true, |track, _, face| rater.rate_sparse(track, face));
            round.link(false, |track, _, face| rater.rate_sparse(track, face));
        }
        round.links
    }

    /// Ends the tracks that are lost for too long at `at_us`.
    fn end_lost(&mut self, at_us: i64) -> Vec<Track<P>> {
        let max_us = to_micros(self.config.max_lost_time);
        let is_lost = |track: &mut OpenTrack<P>| {
            track.missed_frames > MAX_MISSED_FRAMES && track.lost_us(at_us) > max_us
        };
        self.tracks.extract_if(.., is_lost).map(OpenTrack::end).collect()
    }

    /// Ends the tracks with the oldest last observations, if too many tracks are open.
    fn end_excess(&mut self) -> Vec<Track<P>> {
        let excess = self.tracks.len().saturating_sub(self.config.max_tracks);
        if excess == 0 {
            return Vec::new();
        }
        let mut order: Vec<usize> = (0..self.tracks.len()).collect();
        order.sort_by_key(|&i| (self.tracks[i].last.at_us, self.tracks[i].id));
        let ids: std::collections::HashSet<u64> =
            order[..excess].iter().map(|&i| self.tracks[i].id).collect();
        self.tracks.extract_if(.., |track| ids.contains(&track.id)).map(OpenTrack::end).collect()
    }
}

/// The links of one frame that were already selected.
struct Round<'a, P> {
    tracks: &'a [OpenTrack<P>],
    faces: &'a [Option<Observation<P>>],
    predicted: Vec<Rect>,
    is_continued: Vec<bool>,
    is_linked: Vec<bool>,
    links: Vec<(usize, usize)>,
    config: &'a Config,
}

impl<P> Round<'_, P> {
    /// Links the remaining tracks and the remaining faces with a high or with a low score.
    fn link(&mut self, is_high: bool, rate: impl Fn(&OpenTrack<P>, &Rect, &Observation<P>) -> Option<f64>) {
        let mut pairs = Vec::new();
        for (row, track) in self.tracks.iter().enumerate().filter(|(row, _)| !self.is_continued[*row]) {
            for (column, face) in self.faces.iter().enumerate() {
                let Some(face) = face.as_ref().filter(|_| !self.is_linked[column]) else { continue };
                if (face.score >= self.config.high_score) == is_high {
                    let gain = rate(track, &self.predicted[row], face);
                    pairs.extend(gain.map(|gain| Pair { row, column, gain }));
                }
            }
        }
        for (row, column) in assign(pairs, self.config.max_exact_group) {
            (self.is_continued[row], self.is_linked[column]) = (true, true);
            self.links.push((row, column));
        }
    }
}

/// Orders observations by score, best first, and then by all other values except the payload.
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

/// Minimum IoU of the predicted box and an observation with a high score, as in ByteTrack.
const MIN_IOU: f32 = 0.2;
/// Minimum IoU of extended boxes for an observation with a low score.
const MIN_IOU_LOW: f32 = 0.3;
/// Maximum time since the last observation, for an observation with a low score, in microseconds.
/// ByteTrack allows no missed frame, but then tracks are lost at 5 frames per second.
const MAX_AGE_LOW_US: i64 = 1_000_000;
/// Maximum number of missed frames of a track with a single observation, which has no velocity.
const MAX_MISSED_FRAMES_NEW: u32 = 1;
/// Minimum IoU of extended boxes when a track is recovered.
const MIN_IOU_RECOVERY: f32 = 0.2;
/// Extension of both boxes on each side when a track is recovered, in sizes of the box: the start,
/// the increase per second, and the maximum. The IoU of extended boxes is the buffered IoU of
/// C-BIoU-Tracker (Yang et al., WACV 2023), which has the buffers 0.3 and 0.5.
const BUFFER: (f32, f32, f32) = (0.3, 0.5, 1.0);
/// Highest ratio of the sizes of two boxes when a track is recovered.
const MAX_SIZE_RATIO: f64 = 2.0;
/// Minimum IoU of the last box and an observation after a long gap, without an embedding.
const MIN_IOU_SPARSE: f32 = 0.3;
/// The same with embeddings whose similarity is between the veto and the match threshold.
const MIN_IOU_NO_MATCH: f32 = 0.5;
/// Weight of the direction of movement, as in OC-SORT (Cao et al., CVPR 2023, section 4.2).
const DIRECTION_WEIGHT: f64 = 0.2;
/// Minimum speed at which the direction of movement is used, in sizes of the face per second.
const MIN_SPEED: f64 = 0.5;
/// Share by which the gain of a track decreases when it is lost for the maximum time.
const LOST_PENALTY: f64 = 0.5;

/// Rates the links of a frame.
struct LinkRater<'a> {
    at_us: i64,
    config: &'a Config,
}

impl LinkRater<'_> {
    /// Rates a link to the predicted position by IoU, by direction, and by similarity if available.
    fn rate_dense<P>(&self, track: &OpenTrack<P>, predicted: &Rect, face: &Observation<P>) -> Option<f64> {
        let iou = predicted.iou(&face.bbox);
        if iou < MIN_IOU {
            return None;
        }
        let similarity = self.permitted_similarity(track, face)?;
        let gain = f64::from(iou) * self.recency(track) + DIRECTION_WEIGHT * self.direction(track, face);
        Some((gain + f64::from(similarity.unwrap_or(0.0))).max(f64::MIN_POSITIVE))
    }

    /// Rates a link of a face with a low score to a recently observed track.
    fn rate_low<P>(&self, track: &OpenTrack<P>, predicted: &Rect, face: &Observation<P>) -> Option<f64> {
        let is_recent = self.at_us.saturating_sub(track.last.at_us) <= MAX_AGE_LOW_US;
        let iou = extend(predicted, BUFFER.0).iou(&extend(&face.bbox, BUFFER.0));
        if iou < MIN_IOU_LOW || !is_recent {
            return None;
        }
        self.permitted_similarity(track, face)?;
        Some(f64::from(iou))
    }

    /// Rates the recovery of a track near its last or its predicted position, or anywhere if the
    /// faces match. OC-SORT calls the use of the last position observation-centric recovery.
    fn rate_recovery<P>(&self, track: &OpenTrack<P>, predicted: &Rect, face: &Observation<P>) -> Option<f64> {
        let buffer = (BUFFER.0 + BUFFER.1 * seconds(track.last.at_us, self.at_us) as f32).min(BUFFER.2);
        let bbox = extend(&face.bbox, buffer);
        let iou = bbox.iou(&extend(predicted, buffer)).max(bbox.iou(&extend(&track.last.bbox, buffer)));
        let similarity = self.permitted_similarity(track, face)?;
        let is_match = similarity.is_some_and(|similarity| similarity >= self.config.match_threshold);
        let ratio = size(&track.last.bbox) / size(&face.bbox);
        let is_reliable = !track.has_one_observation() || track.missed_frames <= MAX_MISSED_FRAMES_NEW;
        let is_near = is_reliable
            && iou >= MIN_IOU_RECOVERY
            && (1.0 / MAX_SIZE_RATIO..=MAX_SIZE_RATIO).contains(&ratio);
        let gain = f64::from(iou) + f64::from(similarity.unwrap_or(0.0));
        (is_match || is_near).then_some(gain.max(f64::MIN_POSITIVE))
    }

    /// Rates a link after a long gap by similarity, or by overlap if the faces do not match. A
    /// match always has a higher gain than an overlap.
    fn rate_sparse<P>(&self, track: &OpenTrack<P>, face: &Observation<P>) -> Option<f64> {
        let iou = track.last.bbox.iou(&face.bbox);
        let min_iou = match self.permitted_similarity(track, face)? {
            Some(similarity) if similarity >= self.config.match_threshold => {
                // If two faces are equally similar, the one with more overlap is preferred.
                return Some(1.0 + f64::from(similarity) + 0.1 * f64::from(iou));
            }
            Some(_) => MIN_IOU_NO_MATCH,
            None => MIN_IOU_SPARSE,
        };
        (iou >= min_iou).then_some(f64::from(iou) * 0.9)
    }

    /// Returns the similarity, if there is one. The outer `None` is a veto against the link.
    fn permitted_similarity<P>(&self, track: &OpenTrack<P>, face: &Observation<P>) -> Option<Option<f32>> {
        let similarity = track.similarity(face.embedding.as_deref());
        let is_vetoed = similarity.is_some_and(|value| value < self.config.veto_threshold);
        (!is_vetoed).then_some(similarity)
    }

    /// Returns 1 for a track that was observed in the previous frame, and less for a lost track.
    fn recency<P>(&self, track: &OpenTrack<P>) -> f64 {
        let max_lost_us = to_micros(self.config.max_lost_time).max(1) as f64;
        1.0 - LOST_PENALTY * (track.lost_us(self.at_us) as f64 / max_lost_us).min(1.0)
    }

    /// Returns the cosine of the angle between the velocity of the track and the movement to the
    /// observation, -1..1; 0 if one of them is too slow.
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
fn extend(bbox: &Rect, share: f32) -> Rect {
    let (dx, dy) = (bbox.width * share, bbox.height * share);
    Rect { x: bbox.x - dx, y: bbox.y - dy, width: bbox.width + 2.0 * dx, height: bbox.height + 2.0 * dy }
}
