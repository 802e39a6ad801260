//! The tracker: one frame after the other in, tracks that ended out.

use crate::assignment::{Pair, assign};
use crate::association::Frame;
use crate::config::{Config, micros};
use crate::open_track::OpenTrack;
use crate::track::{Observation, Track};
use std::cmp::Ordering;
use vision::Rect;

/// Number of frames without the face that never end a track, however sparse the frames are.
const NEVER_LOST: u32 = 2;

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

        let mut seen: Vec<_> = self.sorted(observations).into_iter().map(Some).collect();
        let links = self.links(at_us, &seen, is_dense);
        for (track, column) in links {
            if let Some(observation) = seen.get_mut(column).and_then(Option::take) {
                self.open[track].extend(at_us, observation, is_dense, &self.config);
            }
        }
        for track in self.open.iter_mut().filter(|track| track.last.at_us != at_us) {
            track.miss(at_us);
        }
        for observation in seen.into_iter().flatten() {
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

    /// Ends all tracks, and returns them by number: the end of the film.
    pub fn finish(mut self) -> Vec<Track<P>> {
        self.cut()
    }

    /// Removes faces that cannot be used and sorts the others, the best score first.
    fn sorted(&self, observations: Vec<Observation<P>>) -> Vec<Observation<P>> {
        let mut seen: Vec<_> = observations.into_iter().filter_map(Observation::cleaned).collect();
        seen.retain(|observation| observation.score >= self.config.low_score);
        seen.sort_by(canonical);
        seen.truncate(self.config.max_observations);
        seen
    }

    /// Returns which track (index) each observation (index) continues.
    fn links(&self, at_us: i64, seen: &[Option<Observation<P>>], is_dense: bool) -> Vec<(usize, usize)> {
        let frame = Frame { at_us, config: &self.config };
        let mut round = Round {
            open: &self.open,
            seen,
            predicted: self.open.iter().map(|track| track.predict(at_us)).collect(),
            is_continued: vec![false; self.open.len()],
            is_linked: vec![false; seen.len()],
            links: Vec::new(),
            config: &self.config,
        };
        if is_dense {
            let is_known = |track: &OpenTrack<P>| !track.is_new();
            round.run(true, |track, predicted, face| {
                is_known(track).then(|| frame.dense(track, predicted, face)).flatten()
            });
            round.run(false, |track, predicted, face| frame.low(track, predicted, face));
            round.run(true, |track, predicted, face| {
                is_known(track).then(|| frame.recovery(track, predicted, face)).flatten()
            });
            round.run(true, |track, predicted, face| frame.recovery(track, predicted, face));
        } else {
            round.run(true, |track, _, face| frame.sparse(track, face));
            round.run(false, |track, _, face| frame.sparse(track, face));
        }
        round.links
    }

    /// Ends the tracks that have been lost for too long at `at_us`.
    fn end_lost(&mut self, at_us: i64) -> Vec<Track<P>> {
        let allowed = micros(self.config.lost_after);
        let is_lost = |track: &mut OpenTrack<P>| track.missed > NEVER_LOST && track.lost_us(at_us) > allowed;
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
        let ends: std::collections::HashSet<u64> = order[..excess].iter().map(|&i| self.open[i].id).collect();
        self.open.extract_if(.., |track| ends.contains(&track.id)).map(OpenTrack::end).collect()
    }
}

/// The links of one frame that are known so far.
struct Round<'a, P> {
    open: &'a [OpenTrack<P>],
    seen: &'a [Option<Observation<P>>],
    predicted: Vec<Rect>,
    is_continued: Vec<bool>,
    is_linked: Vec<bool>,
    links: Vec<(usize, usize)>,
    config: &'a Config,
}

impl<P> Round<'_, P> {
    /// Links remaining tracks with remaining faces, those with a high score or the others.
    fn run(&mut self, high: bool, rate: impl Fn(&OpenTrack<P>, &Rect, &Observation<P>) -> Option<f64>) {
        let mut pairs = Vec::new();
        for (row, track) in self.open.iter().enumerate().filter(|(row, _)| !self.is_continued[*row]) {
            for (column, face) in self.seen.iter().enumerate() {
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
fn canonical<P>(a: &Observation<P>, b: &Observation<P>) -> Ordering {
    let numbers =
        |o: &Observation<P>| [o.bbox.x, o.bbox.y, o.bbox.width, o.bbox.height, o.quality.unwrap_or(-1.0)];
    let compare = |a: &[f32], b: &[f32]| {
        let differing = a.iter().zip(b).map(|(a, b)| a.total_cmp(b)).find(|order| order.is_ne());
        differing.unwrap_or(a.len().cmp(&b.len()))
    };
    let embedding = |o: &Observation<P>| o.embedding.clone().unwrap_or_default();
    b.score
        .total_cmp(&a.score)
        .then_with(|| compare(&numbers(a), &numbers(b)))
        .then_with(|| compare(&embedding(a), &embedding(b)))
}
