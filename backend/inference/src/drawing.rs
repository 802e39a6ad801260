//! Synthetic images of faces, for warm-ups and measurements. The program contains no photographs.
use vision::{Frame, Rect};

/// Draws a head that fills the image, on a shaded background with some texture. The values are like
/// those of a photograph, so that activations are neither zero nor saturated.
pub fn draw_portrait(width: u32, height: u32) -> Frame {
    draw_heads(width, height, &[Rect { x: 0.0, y: 0.0, width: width as f32, height: height as f32 }])
}

/// Draws four people side by side. The height of a head is about a third of the image's height.
/// `number` shifts the people a little. Detectors find all four if a head has at least about 40
/// pixels on their canvas.
pub fn draw_group(width: u32, height: u32, number: u32) -> Frame {
    let (cell_width, image_height) = (width as f32 / 4.0, height as f32);
    let shift = (number % 7) as f32 / 7.0;
    let faces: Vec<Rect> = (0u8..4)
        .map(|column| {
            let face_height = (image_height * (0.34 + 0.02 * f32::from(column))).min(cell_width * 1.2);
            let face_width = face_height * 0.82;
            let margin = (cell_width - face_width).max(0.0);
            let left = cell_width * f32::from(column) + margin * (0.2 + 0.6 * shift);
            let top = (image_height - face_height) * (0.25 + 0.4 * ((shift + 0.3 * f32::from(column)) % 1.0));
            Rect { x: left, y: top, width: face_width, height: face_height }
        })
        .collect();
    draw_heads(width, height, &faces)
}

/// Draws a head in every box of `faces` (pixels); the boxes must not overlap.
fn draw_heads(width: u32, height: u32, faces: &[Rect]) -> Frame {
    let mut data = Vec::with_capacity(width as usize * height as usize * 3);
    let mut noise = 0x2545_f491_u32;
    for row in 0..height {
        for column in 0..width {
            let skin = faces.iter().find_map(|face| {
                let x = (column as f32 - face.x) / face.width - 0.5;
                let y = (row as f32 - face.y) / face.height - 0.5;
                (x.abs() < 0.5 && y.abs() < 0.5).then(|| head_colour(x, y)).flatten()
            });
            let (x, y) = (column as f32 / width as f32 - 0.5, row as f32 / height as f32 - 0.5);
            let colour = skin.unwrap_or([90.0 + 80.0 * x, 110.0 - 60.0 * y, 130.0 + 60.0 * y]);
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let grain = ((noise >> 28) as f32) - 8.0;
            data.extend(colour.map(|v| (v + grain).clamp(0.0, 255.0) as u8));
        }
    }
    Frame::new(width, height, data).expect("three values were written per pixel")
}

/// Returns the colour at (x, y), both -0.5..0.5 of the face's box; `None` outside the head. SCRFD
/// needs eyes with whites, brows, nose and lips to reach the same score as YuNet.
fn head_colour(x: f32, y: f32) -> Option<[f32; 3]> {
    let light = 1.0 - x.abs() - 0.3 * y;
    let skin = [225.0 * light, 180.0 * light, 150.0 * light];
    let (eye, nostril) = (0.13_f32.copysign(x), 0.035_f32.copysign(x));
    // Ellipses: centre, radii and colour. An ellipse covers those after it.
    let parts = [
        ((eye, -0.06), (0.022, 0.022), [35.0, 28.0, 25.0]),
        ((eye, -0.06), (0.055, 0.026), [225.0, 220.0, 215.0]),
        ((eye, -0.13), (0.07, 0.016), [80.0, 60.0, 45.0]),
        ((nostril, 0.085), (0.014, 0.011), [120.0, 75.0, 65.0]),
        ((0.0, 0.02), (0.03, 0.1), skin.map(|v| v * 1.08)),
        ((0.0, 0.085), (0.06, 0.03), skin.map(|v| v * 0.9)),
        ((0.0, 0.2), (0.1, 0.008), [95.0, 40.0, 40.0]),
        ((0.0, 0.2), (0.1, 0.032), [175.0, 85.0, 85.0]),
        ((0.0, 0.0), (0.3, 0.4), skin),
    ];
    let mut parts = parts.into_iter();
    let part = parts.find(|((cx, cy), (rx, ry), _)| ((x - cx) / rx).powi(2) + ((y - cy) / ry).powi(2) < 1.0);
    part.map(|(_, _, colour)| colour)
}
