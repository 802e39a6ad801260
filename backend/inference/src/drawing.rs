//! Pictures of people who do not exist, for warm-ups and measurements: no photograph travels with the program.
use vision::{Frame, Rect};

/// A head with eyes and mouth that fills the picture, on a shaded background with some texture: values as a photograph has
/// them, so that activations are neither zero nor saturated.
pub fn portrait(width: u32, height: u32) -> Frame {
    scene(width, height, &[Rect { x: 0.0, y: 0.0, width: width as f32, height: height as f32 }])
}

/// Four people side by side, their heads about a third of the picture's height; `number` moves them a little. Detectors find
/// all four once a head is some 40 pixels high on their canvas.
pub fn group(width: u32, height: u32, number: u32) -> Frame {
    let (cell, tall) = (width as f32 / 4.0, height as f32);
    let shift = (number % 7) as f32 / 7.0;
    let faces: Vec<Rect> = (0u8..4)
        .map(|column| {
            let high = (tall * (0.34 + 0.02 * f32::from(column))).min(cell * 1.2);
            let wide = high * 0.82;
            let left = cell * f32::from(column) + (cell - wide).max(0.0) * (0.2 + 0.6 * shift);
            let top = (tall - high) * (0.25 + 0.4 * ((shift + 0.3 * f32::from(column)) % 1.0));
            Rect { x: left, y: top, width: wide, height: high }
        })
        .collect();
    scene(width, height, &faces)
}

/// A head in every box of `faces` (pixels); the boxes must not overlap.
fn scene(width: u32, height: u32, faces: &[Rect]) -> Frame {
    let mut data = Vec::with_capacity(width as usize * height as usize * 3);
    let mut noise = 0x2545_f491_u32;
    for row in 0..height {
        for column in 0..width {
            let skin = faces.iter().find_map(|face| {
                let x = (column as f32 - face.x) / face.width - 0.5;
                let y = (row as f32 - face.y) / face.height - 0.5;
                (x.abs() < 0.5 && y.abs() < 0.5).then(|| head(x, y)).flatten()
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

/// The colour at (x, y), both -0.5..0.5 of the face's box; `None` beside the head.
fn head(x: f32, y: f32) -> Option<[f32; 3]> {
    let inside = |cx: f32, cy: f32, rx: f32, ry: f32| ((x - cx) / rx).powi(2) + ((y - cy) / ry).powi(2) < 1.0;
    if inside(-0.13, -0.08, 0.05, 0.025) || inside(0.13, -0.08, 0.05, 0.025) {
        Some([60.0, 45.0, 40.0])
    } else if inside(0.0, 0.2, 0.1, 0.03) {
        Some([150.0, 70.0, 70.0])
    } else if inside(0.0, 0.0, 0.3, 0.4) {
        let light = 1.0 - x.abs() - 0.3 * y;
        Some([225.0 * light, 180.0 * light, 150.0 * light])
    } else {
        None
    }
}
