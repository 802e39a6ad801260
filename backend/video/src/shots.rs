//! Finds hard cuts between frames.
//!
//! Measure: mean absolute difference of hue, saturation and value at 64x36 pixels. A cut is a
//! difference that is large compared with the differences before it, as in `AdaptiveDetector` of
//! PySceneDetect with its defaults (ratio 3, minimum 15):
//! <https://www.scenedetect.com/docs/latest/api/detectors.html>. Here, only earlier differences of
//! the same shot are used, because later frames are not known yet. So the first two frames of a
//! shot are never separated. Hue is 0..180, saturation and value are 0..255, as in OpenCV.
//!
//! Frames that are farther apart than [`MAX_GAP_US`] are not compared, because camera motion then
//! changes a frame as much as a cut.

use std::collections::VecDeque;
use vision::Frame;

/// Size of the reduced frame in pixels.
const SIZE: (u32, u32) = (64, 36);
/// Number of pixels that are averaged in each direction for a pixel of the reduced frame.
const TAPS: u32 = 4;
/// Longest time between two frames that are compared, in microseconds.
pub const MAX_GAP_US: i64 = 500_000;
/// Smallest difference that can be a cut.
const MIN_DIFFERENCE: f32 = 15.0;
/// Minimum ratio of a cut to the mean of the earlier differences.
const MIN_RATIO: f32 = 3.0;
/// Number of earlier differences that are used.
const WINDOW: usize = 5;

/// A frame, reduced to the values that are compared: hue, saturation and value of each pixel.
#[derive(Clone, PartialEq)]
pub struct ReducedFrame(Vec<[f32; 3]>);

/// Omits the pixels.
impl std::fmt::Debug for ReducedFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReducedFrame").finish_non_exhaustive()
    }
}

/// Compares each frame with the one before.
#[derive(Clone, Debug, Default)]
pub struct CutDetector {
    /// The last frame with its time.
    last: Option<(i64, ReducedFrame)>,
    /// The last differences inside a shot.
    earlier: VecDeque<f32>,
}

impl CutDetector {
    /// Returns whether the frame at `at_us` (microseconds) begins a new shot. The first does not.
    pub fn is_cut(&mut self, at_us: i64, frame: ReducedFrame) -> bool {
        let previous = self.last.as_ref().filter(|(time, _)| at_us.saturating_sub(*time) <= MAX_GAP_US);
        let change = previous.map(|(_, last)| difference(&last.0, &frame.0));
        self.last = Some((at_us, frame));
        let Some(change) = change else {
            self.earlier.clear();
            return false;
        };
        let mean = self.earlier.iter().sum::<f32>() / self.earlier.len().max(1) as f32;
        let is_cut = !self.earlier.is_empty() && change >= (mean * MIN_RATIO).max(MIN_DIFFERENCE);
        if is_cut {
            self.earlier.clear();
        } else {
            self.earlier.truncate(WINDOW - 1);
            self.earlier.push_front(change);
        }
        is_cut
    }

    /// Forgets all frames except the last one, which then counts as the first frame.
    pub fn restart(&mut self) {
        self.earlier.clear();
    }
}

fn difference(first: &[[f32; 3]], second: &[[f32; 3]]) -> f32 {
    let pixel_difference = |(a, b): (&[f32; 3], &[f32; 3])| {
        let hue = (a[0] - b[0]).abs();
        (hue.min(180.0 - hue) + (a[1] - b[1]).abs() + (a[2] - b[2]).abs()) / 3.0
    };
    first.iter().zip(second).map(pixel_difference).sum::<f32>() / first.len().max(1) as f32
}

impl ReducedFrame {
    pub const BYTES: u64 = SIZE.0 as u64 * SIZE.1 as u64 * size_of::<[f32; 3]>() as u64;

    /// Reduces a frame. This takes much longer than a comparison.
    pub fn of(frame: &Frame) -> Self {
        Self(reduce(frame))
    }
}

fn reduce(frame: &Frame) -> Vec<[f32; 3]> {
    let position = |index: u32, count: u32, side: u32| {
        (u64::from(2 * index + 1) * u64::from(side) / u64::from(2 * count)) as u32
    };
    let mut reduced = Vec::with_capacity((SIZE.0 * SIZE.1) as usize);
    for row in 0..SIZE.1 {
        for column in 0..SIZE.0 {
            let mut sum = [0_u32; 3];
            for y in (0..TAPS).map(|tap| position(row * TAPS + tap, SIZE.1 * TAPS, frame.height())) {
                for x in (0..TAPS).map(|tap| position(column * TAPS + tap, SIZE.0 * TAPS, frame.width())) {
                    let pixel = frame.pixel(x, y);
                    for (total, value) in sum.iter_mut().zip(pixel) {
                        *total += u32::from(value);
                    }
                }
            }
            reduced.push(hsv(sum.map(|total| total as f32 / (TAPS * TAPS) as f32)));
        }
    }
    reduced
}

/// Converts a colour, each value 0..255, as OpenCV does:
/// <https://docs.opencv.org/4.x/de/d25/imgproc_color_conversions.html>.
fn hsv([red, green, blue]: [f32; 3]) -> [f32; 3] {
    let value = red.max(green).max(blue);
    let range = value - red.min(green).min(blue);
    if range <= 0.0 {
        return [0.0, 0.0, value];
    }
    let sixth = match value {
        _ if value == red => (green - blue) / range,
        _ if value == green => 2.0 + (blue - red) / range,
        _ => 4.0 + (red - green) / range,
    };
    [(sixth * 30.0).rem_euclid(180.0), 255.0 * range / value, value]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_cuts_but_not_slow_changes() {
        let mut cuts = CutDetector::default();
        let mut at_us = 0;
        let mut is_cut = |frame: &Frame, gap_us: i64| {
            at_us += gap_us;
            cuts.is_cut(at_us, ReducedFrame::of(frame))
        };
        assert!(!is_cut(&Frame::filled(640, 360, [200, 30, 30]), 0));
        assert!(!is_cut(&Frame::filled(640, 360, [210, 36, 30]), 200_000));
        assert!(is_cut(&Frame::filled(640, 360, [20, 30, 90]), 200_000));
        // A still image, then a change that would be small in a shot with much motion.
        assert!(!is_cut(&Frame::filled(640, 360, [20, 31, 90]), 200_000));
        assert!(!is_cut(&Frame::filled(640, 360, [20, 30, 90]), 200_000));
        assert!(is_cut(&Frame::filled(640, 360, [40, 75, 120]), 200_000));
        // Too far apart.
        assert!(!is_cut(&Frame::filled(640, 360, [255; 3]), 1_000_000));
        // A frame smaller than the reduced one.
        assert!(!is_cut(&Frame::filled(1, 1, [255; 3]), 200_000));
        assert!(is_cut(&Frame::filled(1, 1, [0; 3]), 200_000));
    }

    #[test]
    fn fast_camera_motion_is_not_cut() {
        let mut cuts = CutDetector::default();
        // A still shot, then one with large differences: one cut.
        let shades = (0..20).map(|_| 10).chain((0..20).map(|step| if step % 2 == 0 { 100 } else { 160 }));
        let cut_steps = shades.enumerate().filter(|(step, shade)| {
            let frame = Frame::filled(64, 36, [*shade; 3]);
            cuts.is_cut(*step as i64 * 40_000, ReducedFrame::of(&frame))
        });
        assert_eq!(cut_steps.map(|(step, _)| step).collect::<Vec<_>>(), [20]);
    }

    #[test]
    fn hue_difference_wraps_around() {
        let (a, b) = (hsv([255.0, 0.0, 4.0]), hsv([255.0, 4.0, 0.0]));
        assert!(difference(&[a], &[b]) < 2.0, "{a:?} {b:?}");
    }
}
