//! Draws the frames of a film, each with its number, and reads the number.
//!
//! The number consists of two rows of black and white cells in the top left corner. The first row
//! has a mark of 4 cells (1101), 16 bits from the highest, and a checksum of 4 bits.
//! Each cell of the second row has the opposite colour of the cell above. A cell is a square of at
//! least 8 pixels, so lossy codecs keep it readable.
use super::script::{Film, PlacedPerson, Shot, View};
use crate::people::{Expression, PATCHWORK, Sprite, draw, draw_sprite};
use std::collections::HashMap;
use vision::{Frame, Rect};

/// Height in pixels above which heads are enlarged instead of drawn.
const MAX_DRAWN_HEIGHT: f32 = 400.0;

/// Draws frames of a film. It keeps the drawn people and the wall of the last shot.
pub struct Frames<'a> {
    film: &'a Film,
    /// Largest height of each person's head in the film, in pixels.
    heights: HashMap<u32, f32>,
    people: HashMap<(u32, i32, Expression), Pyramid>,
    /// Number of the first frame of the shot, its wall, and the part of the scene that it covers.
    wall: Option<(u32, Frame, Rect)>,
    next: u32,
}

impl Film {
    /// Returns all frames in order, upright.
    pub fn frames(&self) -> Frames<'_> {
        let mut heights: HashMap<u32, f32> = HashMap::new();
        for placed in (0..self.length()).flat_map(|index| self.people_in_frame(index)) {
            let height = heights.entry(placed.head.person).or_default();
            *height = height.max(placed.head.height.ceil().min(MAX_DRAWN_HEIGHT));
        }
        Frames { film: self, heights, people: HashMap::new(), wall: None, next: 0 }
    }

    /// Returns the part of the scene in a view, in heights of the frame.
    fn view_area(&self, view: &View) -> Rect {
        let (width, height) = (self.width as f32 / self.height as f32 / view.zoom, 1.0 / view.zoom);
        Rect { x: view.x - width / 2.0, y: view.y - height / 2.0, width, height }
    }
}

impl Frames<'_> {
    /// Draws frame `index`. Panics if the film has no such frame.
    pub fn draw(&mut self, index: u32) -> Frame {
        let film = self.film;
        let (shot, first, share) = film.shot_at(index);
        let visible_part = film.view_area(&View::between(shot.camera, share));
        let mut frame = self.draw_background(shot, first, &visible_part);
        draw_discs(&mut frame, shot, share, &visible_part);
        for placed in film.people_in_frame(index) {
            self.draw_person(&mut frame, &placed);
        }
        write_number(&mut frame, index);
        frame
    }

    fn draw_background(&mut self, shot: &Shot, first: u32, visible_part: &Rect) -> Frame {
        if self.wall.as_ref().is_none_or(|(start, ..)| *start != first) {
            self.wall = Some(draw_wall(self.film, shot, first));
        }
        let (_, image, covered) = self.wall.as_ref().expect("the wall was just drawn");
        let scale = image.height() as f32 / covered.height;
        let part = Rect {
            x: (visible_part.x - covered.x) * scale,
            y: (visible_part.y - covered.y) * scale,
            width: visible_part.width * scale,
            height: visible_part.height * scale,
        };
        resample(image, &part, self.film.width, self.film.height)
    }

    fn draw_person(&mut self, frame: &mut Frame, placed: &PlacedPerson) {
        let head = placed.head;
        let key = (head.person, (head.turn * 1000.0) as i32, placed.expression);
        let height = self.heights[&head.person];
        let person = self
            .people
            .entry(key)
            .or_insert_with(|| Pyramid::new(draw_sprite(head.person, head.turn, placed.expression, height)));
        person.blend(frame, &placed.extent(), placed.light);
    }
}

impl Iterator for Frames<'_> {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        let index = self.next;
        (index < self.film.length()).then(|| {
            self.next += 1;
            self.draw(index)
        })
    }
}

/// Draws the part of the wall that the camera shows in the shot that begins with frame `first`.
fn draw_wall(film: &Film, shot: &Shot, first: u32) -> (u32, Frame, Rect) {
    let [from, to] = shot.camera.map(|view| film.view_area(&view));
    let (x, y) = (from.x.min(to.x), from.y.min(to.y));
    let width = (from.x + from.width).max(to.x + to.width) - x;
    let height = (from.y + from.height).max(to.y + to.height) - y;
    // An enlarged wall looks almost the same, because the wall is smooth.
    let scale = film.height as f32 * shot.camera[0].zoom.min(shot.camera[1].zoom);
    let side = |length: f32| (length * scale).round().max(1.0) as u32;
    let (across, down) = (side(width), side(height));
    let pixels = draw(across, down, PATCHWORK + shot.wall, &[]);
    let frame = Frame::new(across, down, pixels).expect("three bytes for each pixel");
    (first, frame, Rect { x, y, width: across as f32 / scale, height: down as f32 / scale })
}

fn draw_discs(frame: &mut Frame, shot: &Shot, share: f32, visible_part: &Rect) {
    let scale = frame.height() as f32 / visible_part.height;
    for disc in 0..shot.discs {
        let phase = disc as f32 * 2.4 + shot.wall as f32;
        let x = (0.9 + 0.8 * (phase + 5.0 * share).sin() - visible_part.x) * scale;
        let y = (0.5 + 0.35 * (1.7 * phase + 7.0 * share).cos() - visible_part.y) * scale;
        let radius = (0.05 + 0.02 * (disc % 3) as f32) * scale;
        let colour = [90, 60, 160].map(|base: u32| ((base + 67 * disc) % 200 + 30) as u8);
        let range = |centre: f32, side: u32| {
            let limit = |at: f32| at.clamp(0.0, side as f32) as u32;
            limit(centre - radius)..limit(centre + radius + 1.0)
        };
        let width = frame.width() as usize;
        for row in range(y, frame.height()) {
            for column in range(x, frame.width()) {
                let (dx, dy) = (column as f32 + 0.5 - x, row as f32 + 0.5 - y);
                if dx * dx + dy * dy < radius * radius {
                    let at = 3 * (row as usize * width + column as usize);
                    frame.data_mut()[at..at + 3].copy_from_slice(&colour);
                }
            }
        }
    }
}

/// A sprite in several sizes, each half as large as the one before it.
#[derive(Debug)]
struct Pyramid {
    levels: Vec<Sprite>,
}

impl Pyramid {
    pub(super) fn new(sprite: Sprite) -> Self {
        let mut levels = vec![sprite];
        while let Some(last) = levels.last().filter(|last| last.width.min(last.height) >= 32) {
            let half = half_size(last);
            levels.push(half);
        }
        Self { levels }
    }

    /// Draws the sprite into the rectangle `area` of the frame, which may extend outside it.
    /// Colours are multiplied by `light`.
    fn blend(&self, frame: &mut Frame, area: &Rect, light: f32) {
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
                let channel = |c: usize| interpolate(corners.map(|corner| u32::from(corner[c])), column, row);
                let opacity = channel(3);
                if opacity == 0 {
                    continue;
                }
                let at = 3 * (row.at * width + column.at);
                for (c, value) in frame.data_mut()[at..at + 3].iter_mut().enumerate() {
                    let value_above = (channel(c) * light) >> 8;
                    *value = (value_above + u32::from(*value) * (255 - opacity) / 255).min(255) as u8;
                }
            }
        }
    }
}

/// Returns a part of `image` in the size `width` x `height`. `part` is in pixels of the image.
/// Outside the image, its edge is repeated.
pub(super) fn resample(image: &Frame, part: &Rect, width: u32, height: u32) -> Frame {
    // The area of the whole image, in pixels of the result.
    let (across, down) = (width as f32 / part.width, height as f32 / part.height);
    let image_span = |start: f32, scale: f32, side: u32| (-start * scale, side as f32 * scale);
    let columns = edge_taps(image_span(part.x, across, image.width()), width, image.width() as usize);
    let rows = edge_taps(image_span(part.y, down, image.height()), height, image.height() as usize);
    let (stride, data) = (image.width() as usize * 3, image.data());
    let mut pixels = Vec::with_capacity(width as usize * height as usize * 3);
    for row in &rows {
        let [above, below] = [row.first, row.second].map(|y| &data[y * stride..][..stride]);
        for column in &columns {
            let (left, right) = (3 * column.first, 3 * column.second);
            pixels.extend([0, 1, 2].map(|c| {
                let corners = [above[left + c], above[right + c], below[left + c], below[right + c]];
                interpolate(corners.map(u32::from), column, row) as u8
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
    let mut taps = edge_taps((start, length), side, source);
    taps.retain(|tap| (start..start + length).contains(&(tap.at as f32 + 0.5)));
    taps
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
fn interpolate([a, b, c, d]: [u32; 4], column: &Tap, row: &Tap) -> u32 {
    let upper = a * (256 - column.weight) + b * column.weight;
    let lower = c * (256 - column.weight) + d * column.weight;
    (upper * (256 - row.weight) + lower * row.weight + (1 << 15)) >> 16
}

fn half_size(sprite: &Sprite) -> Sprite {
    let (width, height) = (sprite.width / 2, sprite.height / 2);
    let mut pixels = Vec::with_capacity(width * height);
    for y in 0..height {
        for x in 0..width {
            let at = 2 * y * sprite.width + 2 * x;
            let block = [at, at + 1, at + sprite.width, at + sprite.width + 1].map(|at| sprite.pixels[at]);
            let mean = |c: usize| (block.iter().map(|pixel| u32::from(pixel[c])).sum::<u32>() + 2) / 4;
            pixels.push([mean(0) as u8, mean(1) as u8, mean(2) as u8, mean(3) as u8]);
        }
    }
    Sprite { width, height, pixels }
}

const MARK: u32 = 0b1101;
const CELLS: u32 = 24;

/// Returns the side of a cell in pixels.
fn cell_side(width: u32, height: u32) -> f32 {
    (width.min(height) as f32 / 36.0).max(8.0)
}

/// Returns the cells of the first row, the first cell in the highest of 24 bits.
fn number_cells(number: u32) -> u32 {
    let number = number & 0xffff;
    let checksum = (number >> 12) ^ (number >> 8) ^ (number >> 4) ^ number ^ 0b0110;
    MARK << 20 | number << 4 | checksum & 0xf
}

/// Returns the area of the number in a frame of this size, in pixels. No face may touch it.
pub fn number_area(width: u32, height: u32) -> Rect {
    let cell = cell_side(width, height);
    Rect { x: 0.0, y: 0.0, width: cell * CELLS as f32, height: cell * 2.0 }
}

/// Draws the lowest 16 bits of `number`.
fn write_number(frame: &mut Frame, number: u32) {
    let area = number_area(frame.width(), frame.height());
    let (pattern, cell, width) = (number_cells(number), area.height / 2.0, frame.width() as usize);
    for y in 0..area.height.round() as usize {
        for x in 0..(area.width.round() as usize).min(width) {
            let (column, row) = (((x as f32 + 0.5) / cell) as u32, ((y as f32 + 0.5) / cell) as u32);
            let bit = pattern >> (CELLS - 1 - column.min(CELLS - 1)) & 1 ^ row.min(1);
            let at = 3 * (y * width + x);
            frame.data_mut()[at..at + 3].fill(if bit == 1 { 235 } else { 16 });
        }
    }
}

/// Returns the number in a decoded frame, 0 to 65535, also if the frame is rotated by a multiple of
/// 90 degrees. Returns `None` if a cell is unclear or the checksum is wrong.
pub fn read_number(frame: &Frame) -> Option<u32> {
    read_number_and_rotation(frame).map(|(number, _)| number)
}

/// Returns the number, as [`read_number`] does, and the clockwise rotation of the frame in degrees.
pub fn read_number_and_rotation(frame: &Frame) -> Option<(u32, u32)> {
    (0..4).find_map(|quarters| Some((read_rotated(frame, quarters)?, 90 * quarters)))
}

/// Reads the number in a frame that is rotated clockwise by `quarters` of a turn.
fn read_rotated(frame: &Frame, quarters: u32) -> Option<u32> {
    let (width, height) = (frame.width() as f32, frame.height() as f32);
    let cell = cell_side(frame.width(), frame.height());
    let brightness = |u: f32, v: f32| {
        let (x, y) = match quarters {
            0 => (u, v),
            1 => (width - v, u),
            2 => (width - u, height - v),
            _ => (v, height - u),
        };
        let clamp = |at: f32, side: u32| (at.max(0.0) as u32).min(side - 1);
        frame.pixel(clamp(x, frame.width()), clamp(y, frame.height())).map(f32::from).iter().sum::<f32>()
            / 3.0
    };
    // The mean of a grid of points in the middle of the cell.
    let mean = |column: f32, row: f32| {
        let points =
            (0..16).map(|point| [point % 4, point / 4].map(|step| (0.32 + 0.12 * step as f32) * cell));
        points.map(|[x, y]| brightness(column * cell + x, row * cell + y)).sum::<f32>() / 16.0
    };
    let mut cells = 0;
    for column in 0..CELLS {
        let contrast = mean(column as f32, 0.0) - mean(column as f32, 1.0);
        if contrast.abs() < 60.0 {
            return None;
        }
        cells = cells << 1 | u32::from(contrast > 0.0);
    }
    let number = cells >> 4 & 0xffff;
    (cells == number_cells(number)).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vision::crop::rotate;

    #[test]
    fn reads_frame_number_at_every_size_and_rotation() {
        for (width, height) in [(200, 160), (640, 360), (360, 640), (1920, 1080)] {
            for number in [0, 1, 0x1234, 0xa5c3, 0xffff] {
                let mut frame = Frame::filled(width, height, [120, 90, 60]);
                assert_eq!(read_number(&frame), None);
                write_number(&mut frame, number);
                for degrees in [0, 90, 180, 270] {
                    assert_eq!(
                        read_number(&rotate(&frame, degrees)),
                        Some(number),
                        "{width}x{height} {degrees}"
                    );
                }
            }
        }
    }

    #[test]
    fn rejects_damaged_frame_number() {
        let mut frame = Frame::filled(640, 360, [0; 3]);
        write_number(&mut frame, 77);
        // Exchanges the two rows of one cell, which keeps the contrast.
        let area = number_area(640, 360);
        for y in 0..area.height as usize {
            let at = 3 * (y * 640 + 105);
            frame.data_mut()[at..at + 30].iter_mut().for_each(|v| *v = 251 - *v);
        }
        assert_eq!(read_number(&frame), None);
    }
}
