//! Generates scenes: the paths of faces, and the detections of a detector with errors.

use std::sync::Arc;
use tracking::evaluate::{IdentityCounts, MIN_IOU, Sample, identity_counts, track_recall};
use tracking::{Config, Observation, Track, Tracker};
use vision::Rect;

/// A random number generator with the same results on all platforms (SplitMix64, Steele et al.
/// 2014).
pub(crate) struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number of the uniform distribution, 0..1.
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
    /// The period (start, end) in seconds in which the face is in the image.
    pub(crate) visible: (f64, f64),
    /// Periods in which the face is hidden.
    pub(crate) hidden: Vec<(f64, f64)>,
    /// Periods in which the detector reports a low score.
    pub(crate) low_score: Vec<(f64, f64)>,
}

pub(crate) fn person(identity: u64, path: impl Fn(f64) -> (f64, f64, f64) + 'static) -> Person {
    Person { identity, path: Box::new(path), visible: (0.0, 1e9), hidden: vec![], low_score: vec![] }
}

/// The errors of the detector.
#[derive(Clone, Copy)]
pub(crate) struct Errors {
    /// Share of faces that are not detected.
    pub(crate) missed_share: f64,
    /// Standard deviation of each coordinate, in widths of the face.
    pub(crate) jitter: f64,
    /// Share of frames with a false face.
    pub(crate) false_face_share: f64,
    /// Length of the noise of embeddings; `None` if there are no embeddings.
    pub(crate) embedding_noise: Option<f64>,
    /// Whether the time between frames varies from a quarter to seven quarters of the mean.
    pub(crate) has_variable_rate: bool,
}

pub(crate) const NO_ERRORS: Errors = Errors {
    missed_share: 0.0,
    jitter: 0.02,
    false_face_share: 0.0,
    embedding_noise: None,
    has_variable_rate: false,
};

pub(crate) struct Scene {
    pub(crate) frames: Vec<(i64, Vec<Observation<u64>>)>,
    pub(crate) truth: Vec<Sample>,
}

/// The identity of false faces.
const FALSE_FACE: u64 = u64::MAX;

/// Draws the frames of a scene. `fps` is the mean number of frames per second.
pub(crate) fn draw(people: &[Person], fps: f64, seconds: f64, errors: Errors, seed: u64) -> Scene {
    let mut random = Random(seed);
    let mut scene = Scene { frames: Vec::new(), truth: Vec::new() };
    let mut t = 0.0;
    while t < seconds {
        let at_us = (t * 1e6) as i64;
        let mut observations: Vec<Observation<u64>> = Vec::new();
        for person in people.iter().filter(|p| is_within(&[p.visible], t) && !is_within(&p.hidden, t)) {
            let bbox = rect((person.path)(t));
            // If faces overlap, a detector reports only one of them.
            if observations.iter().any(|earlier| earlier.bbox.iou(&bbox) > 0.4) {
                continue;
            }
            scene.truth.push(Sample { identity: person.identity, at_us, bbox });
            if random.uniform() < errors.missed_share {
                continue;
            }
            let has_low_score = is_within(&person.low_score, t);
            let score =
                if has_low_score { 0.35 + 0.2 * random.uniform() } else { 0.7 + 0.3 * random.uniform() };
            observations.push(Observation {
                bbox: with_jitter(bbox, errors.jitter, &mut random),
                score: score as f32,
                quality: Some(random.uniform() as f32),
                embedding: errors.embedding_noise.map(|noise| embedding(person.identity, noise, &mut random)),
                payload: person.identity,
            });
        }
        if random.uniform() < errors.false_face_share {
            observations.push(false_face(errors, &mut random));
        }
        scene.frames.push((at_us, observations));
        let step = if errors.has_variable_rate { 0.25 + 1.5 * random.uniform() } else { 1.0 };
        t += step / fps;
    }
    scene
}

fn false_face(errors: Errors, random: &mut Random) -> Observation<u64> {
    let (x, y, width) =
        (random.uniform() * 1920.0, random.uniform() * 1080.0, 30.0 + 80.0 * random.uniform());
    Observation {
        bbox: rect((x, y, width)),
        score: (0.3 + 0.5 * random.uniform()) as f32,
        quality: None,
        embedding: errors.embedding_noise.map(|noise| embedding(random.next(), noise, random)),
        payload: FALSE_FACE,
    }
}

fn is_within(periods: &[(f64, f64)], t: f64) -> bool {
    periods.iter().any(|(from, to)| t >= *from && t < *to)
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

pub(crate) struct Measures {
    pub(crate) recall: f64,
    pub(crate) counts: IdentityCounts,
    pub(crate) tracks: usize,
}

/// Minimum share of a person's frames in one track at which the person counts as found.
const MIN_SHARE: f64 = 0.5;

/// Tracks the faces of a scene with the default settings, and measures the tracks.
pub(crate) fn measure_default(scene: &Scene) -> Measures {
    measure(scene, &track(scene, Config::default()))
}

pub(crate) fn measure(scene: &Scene, tracks: &[Track<u64>]) -> Measures {
    let sample =
        |id: u64| move |b: &tracking::TimedBox| Sample { identity: id, at_us: b.at_us, bbox: b.bbox };
    let predictions: Vec<Sample> = tracks.iter().flat_map(|t| t.boxes.iter().map(sample(t.id))).collect();
    Measures {
        recall: track_recall(&scene.truth, &predictions, MIN_IOU, MIN_SHARE),
        counts: identity_counts(&scene.truth, &predictions, MIN_IOU),
        tracks: tracks.len(),
    }
}
