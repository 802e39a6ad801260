//! A track that may still continue, and the choice of its best shots.
use crate::boxes::thin;
use crate::motion::Motion;
use crate::similarity::similarity;
use crate::track::{Config, Observation, Shot, TimedBox, Track, micros};
use std::sync::Arc;

/// The state of a track between its first and its last observation.
#[derive(Debug)]
pub(crate) struct OpenTrack<P> {
    pub(crate) id: u64,
    pub(crate) started_us: i64,
    pub(crate) last: TimedBox,
    pub(crate) motion: Motion,
    /// Number of frames since the last observation, and the time of the first of them.
    pub(crate) missed: u32,
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
            missed: 0,
            lost_since_us: None,
            samples: 0,
            boxes: Vec::new(),
            shots: BestShots::new(config.best_shots, micros(config.shot_gap)),
            latest_embedding: None,
            best_embedding: None,
        };
        track.record(at_us, observation, config);
        track
    }

    /// Adds the observation of a later frame. `is_dense`: the frames are close enough together to
    /// learn a velocity from them.
    pub(crate) fn extend(
        &mut self,
        at_us: i64,
        observation: Observation<P>,
        is_dense: bool,
        config: &Config,
    ) {
        if is_dense {
            self.motion.update(at_us, observation.bbox, self.missed);
        } else {
            self.motion = Motion::new(at_us, observation.bbox);
        }
        (self.missed, self.lost_since_us) = (0, None);
        self.last = TimedBox { at_us, bbox: observation.bbox };
        self.record(at_us, observation, config);
    }

    fn record(&mut self, at_us: i64, observation: Observation<P>, config: &Config) {
        let Observation { bbox, score, quality, embedding, payload } = observation;
        self.samples = self.samples.saturating_add(1);
        self.boxes.push(TimedBox { at_us, bbox });
        if self.boxes.len() > config.max_boxes.max(2) {
            // Removes a quarter at a time, so that the mean cost of an observation is constant.
            thin(&mut self.boxes, config.max_boxes * 3 / 4);
        }
        // A face with a low score continues a track, but is no evidence of an identity.
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
    pub(crate) fn miss(&mut self, at_us: i64) {
        self.missed = self.missed.saturating_add(1);
        self.lost_since_us.get_or_insert(at_us);
    }

    /// Returns whether the track has a single observation. Most false detections are such tracks.
    pub(crate) fn has_one_observation(&self) -> bool {
        self.samples == 1
    }

    /// Returns for how many microseconds the track has been lost at `at_us`, counted from the first
    /// frame without the face.
    pub(crate) fn lost_us(&self, at_us: i64) -> i64 {
        self.lost_since_us.map_or(0, |since| at_us.saturating_sub(since))
    }

    /// Returns the similarity to the latest or to the clearest embedding of the track, whichever is
    /// higher; `None` if there is nothing to compare.
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
            best: self.shots.finish(),
        }
    }
}

/// The candidates for the best shots of one open track. Holds at most twice as many candidates as
/// `limit`, because each holds pixels. The first result is always the best observation of the
/// track. The others are the best of the candidates that were still held.
#[derive(Clone, Debug)]
struct BestShots<P> {
    candidates: Vec<Shot<P>>,
    limit: usize,
    gap_us: i64,
}

impl<P> BestShots<P> {
    /// Keeps the `limit` best shots, at least `gap_us` microseconds apart.
    pub(crate) fn new(limit: usize, gap_us: i64) -> Self {
        Self { candidates: Vec::new(), limit, gap_us }
    }

    /// Adds a candidate. It must be later than the previous one.
    pub(crate) fn push(&mut self, shot: Shot<P>) {
        if self.limit == 0 {
            return;
        }
        self.candidates.push(shot);
        if self.candidates.len() > 2 * self.limit {
            let picks = self.choose();
            // The worst candidate outside the selection; of equal ones, the latest.
            let worst_index =
                (0..self.candidates.len()).filter(|i| !picks.contains(i)).min_by(|&a, &b| self.rank(b, a));
            if let Some(worst_index) = worst_index {
                self.candidates.remove(worst_index);
            }
        }
    }

    /// Returns the best shots, the best quality first.
    pub(crate) fn finish(self) -> Vec<Shot<P>> {
        let picks = self.choose();
        let mut shots: Vec<Option<Shot<P>>> = self.candidates.into_iter().map(Some).collect();
        picks.into_iter().filter_map(|i| shots.get_mut(i).and_then(Option::take)).collect()
    }

    /// Returns the indices of the best candidates, best first: the best one, then repeatedly the
    /// best one that is far enough from those selected before.
    fn choose(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.candidates.len()).collect();
        order.sort_by(|&a, &b| self.rank(a, b));
        let mut picks: Vec<usize> = Vec::with_capacity(self.limit);
        for i in order {
            let at = self.candidates[i].at_us;
            let is_far =
                |pick: &usize| at.abs_diff(self.candidates[*pick].at_us) >= self.gap_us.unsigned_abs();
            if picks.len() < self.limit && picks.iter().all(is_far) {
                picks.push(i);
            }
        }
        picks
    }

    /// Orders the better quality first, then the earlier time.
    fn rank(&self, a: usize, b: usize) -> std::cmp::Ordering {
        let (first, second) = (&self.candidates[a], &self.candidates[b]);
        second.quality.total_cmp(&first.quality).then(first.at_us.cmp(&second.at_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vision::Rect;

    fn best_shots(entries: &[(i64, f32)]) -> Vec<(i64, f32)> {
        let mut shots = BestShots::new(3, 500);
        for &(at_us, quality) in entries {
            let (bbox, embedding) = (Rect::default(), None);
            shots.push(Shot { at_us, bbox, score: 0.9, quality, embedding, payload: () });
        }
        assert!(shots.candidates.len() <= 6);
        shots.finish().iter().map(|shot| (shot.at_us, shot.quality)).collect()
    }

    #[test]
    fn best_shots_are_kept_with_minimum_distance() {
        assert_eq!(best_shots(&[(0, 0.5), (100, 0.9), (200, 0.8), (700, 0.3)]), [(100, 0.9), (700, 0.3)]);
        // The second hides the first until the third hides the second.
        assert_eq!(best_shots(&[(0, 0.5), (400, 0.6), (800, 0.7)]), [(800, 0.7), (0, 0.5)]);
        assert!(best_shots(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn first_best_shot_has_highest_quality(qualities in prop::collection::vec(0.0..1.0f32, 1..80)) {
            let entries: Vec<_> = qualities.iter().enumerate().map(|(i, q)| (i as i64 * 120, *q)).collect();
            let shots = best_shots(&entries);
            prop_assert_eq!(shots[0].1, qualities.iter().copied().fold(0.0, f32::max));
            for (i, a) in shots.iter().enumerate() {
                prop_assert!(shots[i + 1..].iter().all(|b| a.0.abs_diff(b.0) >= 500 && a.1 >= b.1));
            }
        }
    }
}
