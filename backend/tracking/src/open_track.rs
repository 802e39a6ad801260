//! A track that can still continue, and the selection of its best shots.
use crate::boxes::thin;
use crate::motion::Motion;
use crate::similarity::similarity;
use crate::track::{Config, Observation, Shot, TimedBox, Track, to_micros};
use std::sync::Arc;

/// The state of a track between its first and its last observation.
#[derive(Debug)]
pub(crate) struct OpenTrack<P> {
    pub(crate) id: u64,
    pub(crate) started_us: i64,
    pub(crate) last: TimedBox,
    pub(crate) motion: Motion,
    /// Number of frames since the last observation.
    pub(crate) missed_frames: u32,
    /// Time of the first of these frames.
    lost_since_us: Option<i64>,
    samples: u32,
    boxes: Vec<TimedBox>,
    shots: BestShots<P>,
    latest_embedding: Option<Arc<[f32]>>,
    /// The embedding of the observation with the best quality, and this quality.
    best_embedding: Option<(f32, Arc<[f32]>)>,
}

impl<P> OpenTrack<P> {
    pub(crate) fn new(id: u64, at_us: i64, observation: Observation<P>, config: &Config) -> Self {
        let bbox = observation.bbox;
        let mut track = Self {
            id,
            started_us: at_us,
            last: TimedBox { at_us, bbox },
            motion: Motion::new(at_us, bbox),
            missed_frames: 0,
            lost_since_us: None,
            samples: 0,
            boxes: Vec::new(),
            shots: BestShots::new(config.max_best_shots, to_micros(config.min_shot_gap)),
            latest_embedding: None,
            best_embedding: None,
        };
        track.record(at_us, observation, config);
        track
    }

    /// Adds the observation of a later frame. `is_dense`: the time between the frames is short
    /// enough to estimate a velocity.
    pub(crate) fn extend(
        &mut self,
        at_us: i64,
        observation: Observation<P>,
        is_dense: bool,
        config: &Config,
    ) {
        if is_dense {
            self.motion.update(at_us, observation.bbox, self.missed_frames);
        } else {
            self.motion = Motion::new(at_us, observation.bbox);
        }
        (self.missed_frames, self.lost_since_us) = (0, None);
        self.last = TimedBox { at_us, bbox: observation.bbox };
        self.record(at_us, observation, config);
    }

    fn record(&mut self, at_us: i64, observation: Observation<P>, config: &Config) {
        let Observation { bbox, score, quality, embedding, payload } = observation;
        self.samples = self.samples.saturating_add(1);
        self.boxes.push(TimedBox { at_us, bbox });
        if self.boxes.len() > config.max_boxes.max(2) {
            // A quarter is removed at a time, so that the mean cost of an observation is constant.
            thin(&mut self.boxes, config.max_boxes * 3 / 4);
        }
        // A face with a low score continues the track, but does not determine its identity.
        if score < config.high_score {
            return;
        }
        if let Some(embedding) = &embedding {
            let new_quality = quality.unwrap_or(0.0);
            if self.best_embedding.as_ref().is_none_or(|(best_quality, _)| new_quality > *best_quality) {
                self.best_embedding = Some((new_quality, embedding.clone()));
            }
            self.latest_embedding = Some(embedding.clone());
        }
        if let Some(quality) = quality {
            self.shots.push(Shot { at_us, bbox, score, quality, embedding, payload });
        }
    }

    /// Records that the frame at `at_us` did not contain the face.
    pub(crate) fn record_miss(&mut self, at_us: i64) {
        self.missed_frames = self.missed_frames.saturating_add(1);
        self.lost_since_us.get_or_insert(at_us);
    }

    /// Returns whether the track has a single observation. Most false detections are such tracks.
    pub(crate) fn has_one_observation(&self) -> bool {
        self.samples == 1
    }

    /// Returns the time in microseconds from the first frame without the face to `at_us`.
    pub(crate) fn lost_us(&self, at_us: i64) -> i64 {
        self.lost_since_us.map_or(0, |since| at_us.saturating_sub(since))
    }

    /// Returns the similarity to the latest or to the best embedding of the track, whichever is
    /// higher; `None` if there is no embedding to compare.
    pub(crate) fn similarity(&self, embedding: Option<&[f32]>) -> Option<f32> {
        let latest_embedding = similarity(self.latest_embedding.as_deref(), embedding);
        let best_embedding = similarity(self.best_embedding.as_ref().map(|(_, e)| &**e), embedding);
        latest_embedding.into_iter().chain(best_embedding).reduce(f32::max)
    }

    pub(crate) fn end(self) -> Track<P> {
        Track {
            id: self.id,
            started_us: self.started_us,
            ended_us: self.last.at_us,
            samples: self.samples,
            boxes: self.boxes,
            best_shots: self.shots.finish(),
        }
    }
}

/// The candidates for the best shots of one open track. Their number is at most twice `limit`,
/// because each contains pixels. The first result is always the best observation of the track. The
/// others are the best of the remaining candidates.
#[derive(Clone, Debug)]
struct BestShots<P> {
    candidates: Vec<Shot<P>>,
    limit: usize,
    min_gap_us: i64,
}

impl<P> BestShots<P> {
    /// Selects the `limit` best shots with at least `min_gap_us` microseconds between them.
    pub(crate) fn new(limit: usize, min_gap_us: i64) -> Self {
        Self { candidates: Vec::new(), limit, min_gap_us }
    }

    /// Adds a candidate. It must be later than the previous one.
    pub(crate) fn push(&mut self, shot: Shot<P>) {
        if self.limit == 0 {
            return;
        }
        self.candidates.push(shot);
        if self.candidates.len() > 2 * self.limit {
            let selected = self.select();
            // The worst candidate that is not selected; of equal ones, the latest.
            let others = (0..self.candidates.len()).filter(|i| !selected.contains(i));
            let worst_index = others.min_by(|&a, &b| self.compare_candidates(b, a));
            if let Some(worst_index) = worst_index {
                self.candidates.remove(worst_index);
            }
        }
    }

    /// Returns the best shots, the best quality first.
    pub(crate) fn finish(self) -> Vec<Shot<P>> {
        let selected = self.select();
        let mut shots: Vec<Option<Shot<P>>> = self.candidates.into_iter().map(Some).collect();
        selected.into_iter().filter_map(|i| shots.get_mut(i).and_then(Option::take)).collect()
    }

    /// Returns the indices of the best candidates, best first. Repeatedly selects the best one that
    /// has the minimum gap to all that are already selected.
    fn select(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.candidates.len()).collect();
        order.sort_by(|&a, &b| self.compare_candidates(a, b));
        let mut selected: Vec<usize> = Vec::with_capacity(self.limit);
        for i in order {
            let at_us = self.candidates[i].at_us;
            let is_far =
                |j: &usize| at_us.abs_diff(self.candidates[*j].at_us) >= self.min_gap_us.unsigned_abs();
            if selected.len() < self.limit && selected.iter().all(is_far) {
                selected.push(i);
            }
        }
        selected
    }

    /// Orders candidates by quality, best first, then by time.
    fn compare_candidates(&self, a: usize, b: usize) -> std::cmp::Ordering {
        let (first, second) = (&self.candidates[a], &self.candidates[b]);
        second.quality.total_cmp(&first.quality).then(first.at_us.cmp(&second.at_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vision::Rect;

    fn select(entries: &[(i64, f32)]) -> Vec<(i64, f32)> {
        let mut shots = BestShots::new(3, 500);
        for &(at_us, quality) in entries {
            let (bbox, embedding) = (Rect::default(), None);
            shots.push(Shot { at_us, bbox, score: 0.9, quality, embedding, payload: () });
        }
        assert!(shots.candidates.len() <= 6);
        shots.finish().iter().map(|shot| (shot.at_us, shot.quality)).collect()
    }

    #[test]
    fn best_shots_have_minimum_gap() {
        assert_eq!(select(&[(0, 0.5), (100, 0.9), (200, 0.8), (700, 0.3)]), [(100, 0.9), (700, 0.3)]);
        // The third shot excludes the second, so the first is far enough from all selected shots.
        assert_eq!(select(&[(0, 0.5), (400, 0.6), (800, 0.7)]), [(800, 0.7), (0, 0.5)]);
        assert!(select(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn first_best_shot_has_highest_quality(qualities in prop::collection::vec(0.0..1.0f32, 1..80)) {
            let entries: Vec<_> = qualities.iter().enumerate().map(|(i, q)| (i as i64 * 120, *q)).collect();
            let shots = select(&entries);
            prop_assert_eq!(shots[0].1, qualities.iter().copied().fold(0.0, f32::max));
            for (i, a) in shots.iter().enumerate() {
                prop_assert!(shots[i + 1..].iter().all(|b| a.0.abs_diff(b.0) >= 500 && a.1 >= b.1));
            }
        }
    }
}
