//! Predicts boxes with a Kalman filter with constant velocity.
//!
//! The state is the centre, the width and the height, each with its velocity, as in SORT (Bewley et
//! al., ICIP 2016). The noise depends on the size of the face, as in DeepSORT (Wojke et al., ICIP
//! 2017), and on the time between frames, so that any frame rate is possible.

use crate::track::interpolate_rect;
use vision::Rect;

/// Standard deviation of a detected coordinate, in sizes of the face.
const MEASUREMENT_DEVIATION: f64 = 0.04;
/// Standard deviation of the unknown velocity of a new track, in sizes of the face per second.
const VELOCITY_DEVIATION: f64 = 3.0;
/// Square root of the spectral density of the acceleration, in sizes of the face per s^1.5. Width
/// and height change more slowly than the centre.
const MOVEMENT_NOISE: f64 = 0.5;
const GROWTH_NOISE: f64 = 0.2;
/// Time in seconds in which a predicted velocity decreases to 1/e. Faces often change direction.
const MOVEMENT_DECAY_SECONDS: f64 = 2.0;
const GROWTH_DECAY_SECONDS: f64 = 0.5;
/// Limits of a predicted width or height, as multiples of the last observed one.
const SIZE_LIMITS: (f64, f64) = (0.5, 2.0);
/// Maximum number of virtual observations after a loss.
const MAX_VIRTUAL_OBSERVATIONS: u32 = 16;

/// A coordinate with its velocity per second, and their covariance.
#[derive(Clone, Copy, Debug)]
struct Axis {
    position: f64,
    velocity: f64,
    /// Variance of the position, covariance, variance of the velocity.
    covariance: [f64; 3],
}

impl Axis {
    fn new(position: f64, size: f64) -> Self {
        let (measured, velocity) = (MEASUREMENT_DEVIATION * size, VELOCITY_DEVIATION * size);
        Self { position, velocity: 0.0, covariance: [measured * measured, 0.0, velocity * velocity] }
    }

    /// Advances by `seconds`. The noise is a white acceleration of density `noise` (Bar-Shalom et
    /// al., Estimation with Applications to Tracking and Navigation, 2001, section 6.2.2).
    fn predict(&mut self, seconds: f64, noise: f64) {
        let [position, cross, velocity] = self.covariance;
        self.position += self.velocity * seconds;
        self.covariance = [
            position + seconds * (2.0 * cross + seconds * velocity) + noise * seconds.powi(3) / 3.0,
            cross + seconds * velocity + noise * seconds.powi(2) / 2.0,
            velocity + noise * seconds,
        ];
    }

    fn update(&mut self, observed: f64, variance: f64) {
        let [position, cross, velocity] = self.covariance;
        let total = position + variance;
        let (gain, velocity_gain) = (position / total, cross / total);
        let residual = observed - self.position;
        self.position += gain * residual;
        self.velocity += velocity_gain * residual;
        self.covariance = [(1.0 - gain) * position, (1.0 - gain) * cross, velocity - velocity_gain * cross];
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Motion {
    /// Centre x, centre y, width, height.
    axes: [Axis; 4],
    last: Rect,
    at_us: i64,
}

impl Motion {
    /// Returns the state after the first observation. The velocity is 0, with a high variance.
    pub(crate) fn new(at_us: i64, bbox: Rect) -> Self {
        let size = size(&bbox);
        Self { axes: to_centre_form(&bbox).map(|value| Axis::new(value, size)), last: bbox, at_us }
    }

    /// Returns the predicted box at `at_us`, which must not be before the last observation.
    pub(crate) fn predict(&self, at_us: i64) -> Rect {
        let seconds = seconds(self.at_us, at_us);
        let predict_axis = |axis: &Axis, decay: f64| {
            axis.position + axis.velocity * decay * (1.0 - (-seconds / decay).exp())
        };
        let [x, y] = [0, 1].map(|i| predict_axis(&self.axes[i], MOVEMENT_DECAY_SECONDS));
        let [width, height] = [2, 3].map(|i| predict_axis(&self.axes[i], GROWTH_DECAY_SECONDS));
        let clamp_size = |value: f64, last: f32| {
            value.clamp(f64::from(last) * SIZE_LIMITS.0, f64::from(last) * SIZE_LIMITS.1)
        };
        let (width, height) = (clamp_size(width, self.last.width), clamp_size(height, self.last.height));
        let [x, y, width, height] = [x - width / 2.0, y - height / 2.0, width, height].map(|v| v as f32);
        Rect { x, y, width, height }
    }

    /// Returns the velocity of the centre in sizes of the face per second.
    pub(crate) fn velocity(&self) -> (f64, f64) {
        let size = size(&self.last);
        (self.axes[0].velocity / size, self.axes[1].velocity / size)
    }

    /// Adds an observation after `missed_frames` frames without the face.
    ///
    /// The filter also processes virtual observations for the missed frames, at constant speed from
    /// the last observation to the new one. This is the observation-centric re-update of OC-SORT
    /// (Cao et al., CVPR 2023, section 4.1).
    pub(crate) fn update(&mut self, at_us: i64, bbox: Rect, missed_frames: u32) {
        let steps = missed_frames.saturating_add(1).min(MAX_VIRTUAL_OBSERVATIONS);
        let step = seconds(self.at_us, at_us) / f64::from(steps);
        for k in 1..=steps {
            let observed = interpolate_rect(&self.last, &bbox, k as f32 / steps as f32);
            let size = size(&observed);
            let variance = (MEASUREMENT_DEVIATION * size).powi(2);
            for (i, value) in to_centre_form(&observed).into_iter().enumerate() {
                let noise = if i < 2 { MOVEMENT_NOISE } else { GROWTH_NOISE } * size;
                self.axes[i].predict(step, noise * noise);
                self.axes[i].update(value, variance);
            }
        }
        (self.last, self.at_us) = (bbox, at_us);
    }
}

/// Returns the side of a square with the same area.
pub(crate) fn size(bbox: &Rect) -> f64 {
    (f64::from(bbox.width) * f64::from(bbox.height)).sqrt().max(f64::MIN_POSITIVE)
}

pub(crate) fn centre(bbox: &Rect) -> (f64, f64) {
    let [x, y, ..] = to_centre_form(bbox);
    (x, y)
}

fn to_centre_form(bbox: &Rect) -> [f64; 4] {
    let [x, y, width, height] = [bbox.x, bbox.y, bbox.width, bbox.height].map(f64::from);
    [x + width / 2.0, y + height / 2.0, width, height]
}

pub(crate) fn seconds(from_us: i64, to_us: i64) -> f64 {
    to_us.saturating_sub(from_us) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn square(x: f32, side: f32) -> Rect {
        Rect { x, y: 50.0, width: side, height: side }
    }

    #[test]
    fn motion_estimates_constant_velocity() {
        let mut motion = Motion::new(0, square(0.0, 40.0));
        for i in 1..=10 {
            motion.update(i * 40_000, square(i as f32 * 4.0, 40.0), 0);
        }
        assert!((motion.predict(440_000).x - 44.0).abs() < 0.2);
        assert!((motion.velocity().0 - 2.5).abs() < 0.05);
        // After another second, the prediction is further on, but less than at constant velocity.
        let later = motion.predict(1_400_000).x;
        assert!(later > 100.0 && later < 140.0, "{later}");
    }

    #[test]
    fn velocity_is_low_if_face_stopped_during_loss() {
        let mut motion = Motion::new(0, square(0.0, 40.0));
        for i in 1..=5 {
            motion.update(i * 40_000, square(i as f32 * 8.0, 40.0), 0);
        }
        motion.update(1_200_000, square(45.0, 40.0), 24);
        assert!(motion.velocity().0.abs() < 0.3, "{:?}", motion.velocity());
    }

    #[test]
    fn predicted_box_size_is_limited() {
        let mut motion = Motion::new(0, square(0.0, 40.0));
        motion.update(40_000, square(0.0, 60.0), 0);
        assert_eq!(motion.predict(60_000_000).width, 120.0);
    }
}
