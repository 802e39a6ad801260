//! A track that may still continue.

use crate::best_shots::BestShots;
use crate::config::{Config, micros};
use crate::motion::Motion;
use crate::similarity::similarity;
use crate::thinning::thin;
use crate::track::{Observation, Shot, TimedBox, Track};
use std::sync::Arc;
use vision::Rect;

/// The state of a track between its first and its last observation.
#[derive(Debug)]
pub(crate) struct OpenTrack<P> {
    pub(crate) id: u64,
    pub(crate) started_us: i64,
    pub(crate) last: TimedBox,
    pub(crate) motion: Motion,
    /// Number of frames since the last observation, and the time of the first of them.
    pub(crate) missed: u32,
    pub(crate) lost_since_us: Option<i64>,
    samples: u32,
    boxes: Vec<TimedBox>,
    shots: BestShots<P>,
    latest: Option<Arc<[f32]>>,
    /// The embedding of the observation with the best quality, and this quality.
    clearest: Option<(f32, Arc<[f32]>)>,
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
            latest: None,
            clearest: None,
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
            self.motion.restart(at_us, observation.bbox);
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
            // A quarter at a time, so that the cost for each observation is constant on average.
            thin(&mut self.boxes, config.max_boxes * 3 / 4);
        }
        // A face with a low score continues a track, but is no evidence of an identity.
        if score < config.high_score {
            return;
        }
        if let Some(embedding) = &embedding {
            let clear = quality.unwrap_or(0.0);
            if self.clearest.as_ref().is_none_or(|(known, _)| clear > *known) {
                self.clearest = Some((clear, embedding.clone()));
            }
            self.latest = Some(embedding.clone());
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
    pub(crate) fn is_new(&self) -> bool {
        self.samples == 1
    }

    /// Returns for how many microseconds the track has been lost at `at_us`, counted from the first
    /// frame without the face.
    pub(crate) fn lost_us(&self, at_us: i64) -> i64 {
        self.lost_since_us.map_or(0, |since| at_us.saturating_sub(since))
    }

    pub(crate) fn predict(&self, at_us: i64) -> Rect {
        self.motion.predict(at_us)
    }

    /// Returns the similarity to the latest or to the clearest embedding of the track, whichever is
    /// higher; `None` if there is nothing to compare.
    pub(crate) fn similarity(&self, embedding: Option<&[f32]>) -> Option<f32> {
        let latest = similarity(self.latest.as_deref(), embedding);
        let clearest = similarity(self.clearest.as_ref().map(|(_, e)| &**e), embedding);
        match (latest, clearest) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        }
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
