//! Finds hard cuts between frames.
//!
//! Measure: mean absolute difference of hue, saturation and value at 64x36 pixels, as in
//! `ContentDetector` of PySceneDetect with its default threshold of 27:
//! <https://www.scenedetect.com/docs/latest/api/detectors.html>. Hue is 0..180, saturation and
//! value are 0..255, as in OpenCV.

use vision::Frame;

/// Size of the reduced frame in pixels.
const SIZE: (u32, u32) = (64, 36);
/// Number of pixels that are averaged in each direction for a pixel of the reduced frame.
const TAPS: u32 = 4;
/// Difference from which a frame belongs to another shot.
pub const THRESHOLD: f32 = 27.0;

/// Compares each frame with the one before.
#[derive(Clone, Debug, Default)]
pub struct CutDetector {
    last: Option<Vec<[f32; 3]>>,
}

impl CutDetector {
    /// Returns whether `frame` begins a new shot. The first frame does not.
    pub fn is_cut(&mut self, frame: &Frame) -> bool {
        let reduced = reduce(frame);
        let cut = self.last.as_ref().is_some_and(|last| difference(last, &reduced) >= THRESHOLD);
        self.last = Some(reduced);
        cut
    }

    /// Forgets the last frame, for example at a gap.
    pub fn reset(&mut self) {
        self.last = None;
    }
}

fn difference(one: &[[f32; 3]], other: &[[f32; 3]]) -> f32 {
    let of = |(a, b): (&[f32; 3], &[f32; 3])| {
        let hue = (a[0] - b[0]).abs();
        (hue.min(180.0 - hue) + (a[1] - b[1]).abs() + (a[2] - b[2]).abs()) / 3.0
    };
    one.iter().zip(other).map(of).sum::<f32>() / one.len().max(1) as f32
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
    fn a_cut_is_found_and_a_slow_change_is_not() {
        let mut cuts = CutDetector::default();
        assert!(!cuts.is_cut(&Frame::filled(640, 360, [200, 30, 30])));
        assert!(!cuts.is_cut(&Frame::filled(640, 360, [210, 36, 30])));
        assert!(cuts.is_cut(&Frame::filled(640, 360, [20, 30, 90])));
        cuts.reset();
        assert!(!cuts.is_cut(&Frame::filled(640, 360, [255; 3])));
        // Frames smaller than the reduced one.
        assert!(cuts.is_cut(&Frame::filled(1, 1, [0; 3])));
    }

    #[test]
    fn hue_is_a_circle() {
        let (a, b) = (hsv([255.0, 0.0, 4.0]), hsv([255.0, 4.0, 0.0]));
        assert!(difference(&[a], &[b]) < 2.0, "{a:?} {b:?}");
    }
}
