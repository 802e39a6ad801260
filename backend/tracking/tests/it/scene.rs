//! Generated scenes: paths of faces, and what a detector reports about them.

use std::sync::Arc;
use tracking::evaluate::{IdentityCounts, MIN_IOU, Sample, identity_counts, track_recall};
use tracking::{Config, Observation, Track, Tracker};
use vision::Rect;

/// Random numbers that are the same everywhere (SplitMix64, Steele et al. 2014).
pub(crate) struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 up to 1.
    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a number of the standard normal distribution (Box and Muller 1958).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// Centre x, centre y and width at a time in seconds; the height is 1.2 times the width.
type Path = Box<dyn Fn(f64) -> (f64, f64, f64)>;

pub(crate) struct Person {
    pub(crate) identity: u64,
    pub(crate) path: Path,
    /// The times in seconds between which the face is in the image.
    pub(crate) visible: (f64, f64),
    /// Periods (start, end) in seconds in which something hides the face.
    pub(crate) hidden: Vec<(f64, f64)>,
    /// Periods in which the detector reports a low score.
    pub(crate) low_score: Vec<(f64, f64)>,
}

pub(crate) fn person(identity: u64, path: impl Fn(f64) -> (f64, f64, f64) + 'static) -> Person {
    Person { identity, path: Box::new(path), visible: (0.0, 1e9), hidden: vec![], low_score: vec![] }
}

/// The faults of the detector.
#[derive(Clone, Copy)]
pub(crate) struct Faults {
    /// Share of faces that are missed.
    pub(crate) missed: f64,
    /// Standard deviation of each coordinate, in widths of the face.
    pub(crate) jitter: f64,
    /// False faces for each frame.
    pub(crate) false_faces: f64,
    /// Standard deviation of the length of embeddings' noise; none without embeddings.
    pub(crate) embeddings: Option<f64>,
    /// The time between frames varies from a quarter to seven quarters of the mean.
    pub(crate) is_variable: bool,
}

pub(crate) const NO_FAULTS: Faults =
    Faults { missed: 0.0, jitter: 0.02, false_faces: 0.0, embeddings: None, is_variable: false };

pub(crate) struct Scene {
    pub(crate) frames: Vec<(i64, Vec<Observation<u64>>)>,
    pub(crate) truth: Vec<Sample>,
}

/// The identity of false faces.
const FALSE_FACE: u64 = u64::MAX;

/// Draws the frames of a scene. `fps` is the mean number of frames per second.
pub(crate) fn draw(people: &[Person], fps: f64, seconds: f64, faults: Faults, seed: u64) -> Scene {
    let mut random = Random(seed);
    let mut scene = Scene { frames: Vec::new(), truth: Vec::new() };
    let mut t = 0.0;
    while t < seconds {
        let at_us = (t * 1e6) as i64;
        let mut observations: Vec<Observation<u64>> = Vec::new();
        for person in people.iter().filter(|p| within(&[p.visible], t) && !within(&p.hidden, t)) {
            let bbox = rect((person.path)(t));
            // A detector reports one of two faces that cover each other.
            if observations.iter().any(|earlier| earlier.bbox.iou(&bbox) > 0.4) {
                continue;
            }
            scene.truth.push(Sample { identity: person.identity, at_us, bbox });
            if random.uniform() < faults.missed {
                continue;
            }
            let is_low = within(&person.low_score, t);
            let score = if is_low { 0.35 + 0.2 * random.uniform() } else { 0.7 + 0.3 * random.uniform() };
            observations.push(Observation {
                bbox: with_jitter(bbox, faults.jitter, &mut random),
                score: score as f32,
                quality: Some(random.uniform() as f32),
                embedding: faults.embeddings.map(|noise| embedding(person.identity, noise, &mut random)),
                payload: person.identity,
            });
        }
        if random.uniform() < faults.false_faces {
            observations.push(false_face(faults, &mut random));
        }
        scene.frames.push((at_us, observations));
        let step = if faults.is_variable { 0.25 + 1.5 * random.uniform() } else { 1.0 };
        t += step / fps;
    }
    scene
}

fn false_face(faults: Faults, random: &mut Random) -> Observation<u64> {
    let (x, y, width) =
        (random.uniform() * 1920.0, random.uniform() * 1080.0, 30.0 + 80.0 * random.uniform());
    Observation {
        bbox: rect((x, y, width)),
        score: (0.3 + 0.5 * random.uniform()) as f32,
        quality: None,
        embedding: faults.embeddings.map(|noise| embedding(random.next(), noise, random)),
        payload: FALSE_FACE,
    }
}

fn within(times: &[(f64, f64)], t: f64) -> bool {
    times.iter().any(|(from, to)| t >= *from && t < *to)
}

fn rect((x, y, width): (f64, f64, f64)) -> Rect {
    let height = width * 1.2;
    let [x, y, width, height] = [x - width / 2.0, y - height / 2.0, width, height].map(|v| v as f32);
    Rect { x, y, width, height }
}

fn with_jitter(bbox: Rect, jitter: f64, random: &mut Random) -> Rect {
    let mut noisy = |value: f32| value + (random.normal() * jitter * f64::from(bbox.width)) as f32;
    Rect { x: noisy(bbox.x), y: noisy(bbox.y), width: noisy(bbox.width), height: noisy(bbox.height) }
}

/// Returns an embedding of 128 numbers. The similarity of two embeddings of one person is about
/// 1 / (1 + noise²); of different people about 0, with a standard deviation of 0.09.
pub(crate) fn embedding(identity: u64, noise: f64, random: &mut Random) -> Arc<[f32]> {
    let mut identity_random = Random(identity.wrapping_mul(0x1234_5678_9abc_def1));
    let values: Vec<f64> = (0..128).map(|_| identity_random.normal() + noise * random.normal()).collect();
    let length = values.iter().map(|v| v * v).sum::<f64>().sqrt();
    values.iter().map(|v| (v / length) as f32).collect()
}

pub(crate) fn track(scene: &Scene, config: Config) -> Vec<Track<u64>> {
    let mut tracker = Tracker::new(config);
    let mut tracks = Vec::new();
    for (at_us, observations) in &scene.frames {
        tracks.extend(tracker.push(*at_us, observations.clone()));
    }
    tracks.extend(tracker.finish());
    tracks.sort_by_key(|track| track.id);
    tracks
}

pub(crate) struct Figures {
    pub(crate) recall: f64,
    pub(crate) counts: IdentityCounts,
    pub(crate) tracks: usize,
}

/// A person counts as found if one track has half of the frames.
const MIN_SHARE: f64 = 0.5;

/// Tracks the faces of a scene with the default settings, and measures the tracks.
pub(crate) fn measure_default(scene: &Scene) -> Figures {
    measure(scene, &track(scene, Config::default()))
}

pub(crate) fn measure(scene: &Scene, tracks: &[Track<u64>]) -> Figures {
    let sample =
        |id: u64| move |b: &tracking::TimedBox| Sample { identity: id, at_us: b.at_us, bbox: b.bbox };
    let predictions: Vec<Sample> = tracks.iter().flat_map(|t| t.boxes.iter().map(sample(t.id))).collect();
    Figures {
        recall: track_recall(&scene.truth, &predictions, MIN_IOU, MIN_SHARE),
        counts: identity_counts(&scene.truth, &predictions, MIN_IOU),
        tracks: tracks.len(),
    }
}
