//! Scales pictures and blends them into a frame.

use crate::people::sprite::Sprite;
use vision::{Frame, Rect};

/// A sprite in several sizes, each half as large as the one before it.
#[derive(Debug)]
pub(super) struct Pyramid {
    levels: Vec<Sprite>,
}

impl Pyramid {
    pub(super) fn new(sprite: Sprite) -> Self {
        let mut levels = vec![sprite];
        while let Some(last) = levels.last().filter(|last| last.width.min(last.height) >= 32) {
            let half = halved(last);
            levels.push(half);
        }
        Self { levels }
    }

    /// Draws the sprite into the rectangle `area` of the frame, which may extend outside it.
    /// Colours are multiplied by `light`.
    pub(super) fn blend(&self, frame: &mut Frame, area: &Rect, light: f32) {
        // The smallest level that needs no enlargement, so that no pixel of it is skipped.
        let level = self
            .levels
            .iter()
            .rev()
            .find(|level| level.width as f32 >= area.width)
            .unwrap_or(&self.levels[0]);
        let columns = taps((area.x, area.width), frame.width(), level.width);
        let rows = taps((area.y, area.height), frame.height(), level.height);
        let light = (light * 256.0) as u32;
        let width = frame.width() as usize;
        for row in &rows {
            let [above, below] =
                [row.first, row.second].map(|y| &level.pixels[y * level.width..][..level.width]);
            for column in &columns {
                let corners =
                    [above[column.first], above[column.second], below[column.first], below[column.second]];
                let channel = |c: usize| mixed(corners.map(|corner| u32::from(corner[c])), column, row);
                let opacity = channel(3);
                if opacity == 0 {
                    continue;
                }
                let at = 3 * (row.at * width + column.at);
                for (c, value) in frame.data_mut()[at..at + 3].iter_mut().enumerate() {
                    let over = (channel(c) * light) >> 8;
                    *value = (over + u32::from(*value) * (255 - opacity) / 255).min(255) as u8;
                }
            }
        }
    }
}

/// Returns a part of `picture` in the size `width` x `height`. `part` is in pixels of the picture.
/// Outside the picture, its edge is repeated.
pub(super) fn view(picture: &Frame, part: &Rect, width: u32, height: u32) -> Frame {
    // The area of the whole picture, in pixels of the result.
    let (across, down) = (width as f32 / part.width, height as f32 / part.height);
    let whole = |start: f32, scale: f32, side: u32| (-start * scale, side as f32 * scale);
    let columns = edge_taps(whole(part.x, across, picture.width()), width, picture.width() as usize);
    let rows = edge_taps(whole(part.y, down, picture.height()), height, picture.height() as usize);
    let (stride, data) = (picture.width() as usize * 3, picture.data());
    let mut pixels = Vec::with_capacity(width as usize * height as usize * 3);
    for row in &rows {
        let [above, below] = [row.first, row.second].map(|y| &data[y * stride..][..stride]);
        for column in &columns {
            let (left, right) = (3 * column.first, 3 * column.second);
            pixels.extend([0, 1, 2].map(|c| {
                let corners = [above[left + c], above[right + c], below[left + c], below[right + c]];
                mixed(corners.map(u32::from), column, row) as u8
            }));
        }
    }
    Frame::new(width, height, pixels).expect("three bytes for each pixel")
}

/// The two source pixels of a target pixel, and the weight of the second, 0 to 256.
struct Tap {
    at: usize,
    first: usize,
    second: usize,
    weight: u32,
}

/// Returns the taps of the target pixels 0 to `side` that lie in the interval (start, length), into
/// which `source` pixels are scaled.
fn taps((start, length): (f32, f32), side: u32, source: usize) -> Vec<Tap> {
    let mut all = edge_taps((start, length), side, source);
    all.retain(|tap| (start..start + length).contains(&(tap.at as f32 + 0.5)));
    all
}

/// Returns the taps of all target pixels. Pixels outside the interval get the nearest edge.
fn edge_taps((start, length): (f32, f32), side: u32, source: usize) -> Vec<Tap> {
    let tap = |at: u32| {
        let from = (at as f32 + 0.5 - start) / length * source as f32 - 0.5;
        let from = from.clamp(0.0, source as f32 - 1.0);
        let first = from as usize;
        let weight = ((from - first as f32) * 256.0) as u32;
        Tap { at: at as usize, first, second: (first + 1).min(source - 1), weight }
    };
    (0..side).map(tap).collect()
}

/// Interpolates between the four corners: top left, top right, bottom left, bottom right.
fn mixed([a, b, c, d]: [u32; 4], column: &Tap, row: &Tap) -> u32 {
    let upper = a * (256 - column.weight) + b * column.weight;
    let lower = c * (256 - column.weight) + d * column.weight;
    (upper * (256 - row.weight) + lower * row.weight + (1 << 15)) >> 16
}

fn halved(sprite: &Sprite) -> Sprite {
    let (width, height) = (sprite.width / 2, sprite.height / 2);
    let mut pixels = Vec::with_capacity(width * height);
    for y in 0..height {
        for x in 0..width {
            let at = 2 * y * sprite.width + 2 * x;
            let four = [at, at + 1, at + sprite.width, at + sprite.width + 1].map(|at| sprite.pixels[at]);
            let mean = |c: usize| (four.iter().map(|pixel| u32::from(pixel[c])).sum::<u32>() + 2) / 4;
            pixels.push([mean(0) as u8, mean(1) as u8, mean(2) as u8, mean(3) as u8]);
        }
    }
    Sprite { width, height, pixels }
}
