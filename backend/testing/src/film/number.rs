//! The binary number of a frame: two rows of black and white cells in the top left corner.
//!
//! The first row has a mark of 4 cells (1101), 16 bits from the highest, and a checksum of 4 bits.
//! Each cell of the second row has the opposite colour of the cell above. A cell is a square of at
//! least 8 pixels, so lossy codecs keep it readable.

use vision::{Frame, Rect};

const MARK: u32 = 0b1101;
const CELLS: u32 = 24;

/// Returns the side of a cell in pixels.
fn cell(width: u32, height: u32) -> f32 {
    (width.min(height) as f32 / 36.0).max(8.0)
}

/// Returns the cells of the first row, the first cell in the highest of 24 bits.
fn pattern(number: u32) -> u32 {
    let number = number & 0xffff;
    let checksum = (number >> 12) ^ (number >> 8) ^ (number >> 4) ^ number ^ 0b0110;
    MARK << 20 | number << 4 | checksum & 0xf
}

/// Returns the area of the number in a frame of this size, in pixels. No face may touch it.
pub fn number_area(width: u32, height: u32) -> Rect {
    let cell = cell(width, height);
    Rect { x: 0.0, y: 0.0, width: cell * CELLS as f32, height: cell * 2.0 }
}

/// Draws the lowest 16 bits of `number`.
pub(super) fn write_number(frame: &mut Frame, number: u32) {
    let area = number_area(frame.width(), frame.height());
    let (pattern, cell, width) = (pattern(number), area.height / 2.0, frame.width() as usize);
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
    let cell = cell(frame.width(), frame.height());
    let brightness = |u: f32, v: f32| {
        let (x, y) = match quarters {
            0 => (u, v),
            1 => (width - v, u),
            2 => (width - u, height - v),
            _ => (v, height - u),
        };
        let inside = |at: f32, side: u32| (at.max(0.0) as u32).min(side - 1);
        frame.pixel(inside(x, frame.width()), inside(y, frame.height())).map(f32::from).iter().sum::<f32>()
            / 3.0
    };
    // The mean of a grid of points in the middle of the cell.
    let mean = |column: f32, row: f32| {
        let points =
            (0..16).map(|point| [point % 4, point / 4].map(|step| (0.32 + 0.12 * step as f32) * cell));
        points.map(|[x, y]| brightness(column * cell + x, row * cell + y)).sum::<f32>() / 16.0
    };
    let mut read = 0;
    for column in 0..CELLS {
        let contrast = mean(column as f32, 0.0) - mean(column as f32, 1.0);
        if contrast.abs() < 60.0 {
            return None;
        }
        read = read << 1 | u32::from(contrast > 0.0);
    }
    let number = read >> 4 & 0xffff;
    (read == pattern(number)).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vision::crop::rotate;

    #[test]
    fn a_number_is_read_in_every_size_and_direction() {
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
    fn a_damaged_number_is_not_read() {
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
