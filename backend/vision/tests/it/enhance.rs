//! Compares enhanced images with the documented formulas.
use vision::enhance::{
    BLUR_RADIUS, BLUR_SIGMA, LOW_RESOLUTION_SIDE, MAX_GAIN, MAX_SCALE, Plan, TARGET_SIDE, UNSHARP_AMOUNT,
    enhance,
};
use vision::{Frame, Limits};

/// Draws an image with edges, gradients and noise, with levels from `low` to `high`.
fn scene(width: u32, height: u32, low: u8, high: u8) -> Frame {
    let mut noise = 0x9e37_79b9_u32;
    let mut data = Vec::new();
    for y in 0..height {
        for x in 0..width {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let grain = (noise >> 29) as f32;
            let edge = if (x / 7 + y / 5).is_multiple_of(2) { 90.0 } else { 0.0 };
            let level = 120.0 * x as f32 / width as f32 + edge + grain + 30.0 * y as f32 / height as f32;
            let share = (level / 247.0).min(1.0);
            let value = |tint: f32| (f32::from(low) + f32::from(high - low) * share * tint) as u8;
            data.extend([value(1.0), value(0.9), value(0.8)]);
        }
    }
    Frame::new(width, height, data).unwrap()
}

fn limits() -> Limits {
    Limits::default()
}

#[test]
fn enhancement_scales_short_side_within_limits() {
    let scale = |width, height, limits: &Limits| {
        let frame = Frame::filled(width, height, [7; 3]);
        let plan = Plan::of(&frame, limits);
        assert!(plan.size.0 <= limits.max_side && plan.size.1 <= limits.max_side, "{plan:?}");
        assert!(u64::from(plan.size.0) * u64::from(plan.size.1) <= limits.max_pixels, "{plan:?}");
        assert!((plan.size.0 as f32 - width as f32 * plan.scale).abs() <= 0.51, "{plan:?}");
        plan.scale
    };
    assert_eq!(scale(LOW_RESOLUTION_SIDE, 900, &limits()), 1.0);
    assert_eq!(scale(320, 500, &limits()), TARGET_SIDE as f32 / 320.0);
    assert_eq!(scale(500, 320, &limits()), 2.0);
    assert_eq!(scale(20, 30, &limits()), MAX_SCALE as f32);
    assert_eq!(scale(1, 1, &limits()), 4.0);
    assert!(scale(300, 12_000, &limits()) < 1.37, "the maximum side limits the scale");
    let tight = Limits { max_pixels: 40_000, ..limits() };
    let bounded = scale(100, 200, &tight);
    assert!(bounded > 1.3 && bounded < 1.42, "the maximum number of pixels limits the scale: {bounded}");
    assert_eq!(scale(100, 400, &tight), 1.0, "an image at the limit is not enlarged");
}

#[test]
fn contrast_is_stretched_only_if_low() {
    let full = scene(420, 410, 0, 255);
    let plan = Plan::of(&full, &limits());
    assert!(plan.gain < 1.4, "{plan:?}");

    let low_contrast = scene(420, 410, 100, 180);
    let enhanced = enhance(&low_contrast, &limits());
    assert_eq!((enhanced.scale, enhanced.frame.width()), (1.0, 420));
    let (before, after) =
        (vision::quality::grey_statistics(&low_contrast), vision::quality::grey_statistics(&enhanced.frame));
    assert!(after.std > 2.0 * before.std, "{before:?} {after:?}");

    let very_low_contrast = scene(420, 410, 60, 80);
    assert_eq!(Plan::of(&very_low_contrast, &limits()).gain, MAX_GAIN, "the gain is limited");
    for level in [0, 90, 255] {
        let flat = Frame::filled(500, 500, [level; 3]);
        assert_eq!(enhance(&flat, &limits()).frame, flat, "an image of one level does not change");
    }
}

#[test]
fn enhancement_matches_documented_formula() {
    let frame = scene(45, 37, 40, 210);
    let plan = Plan::of(&frame, &limits());
    let actual = enhance(&frame, &limits()).frame;
    assert_eq!((actual.width(), actual.height()), (180, 148));
    let expected = expected_levels(&frame, &plan);
    let difference = actual.data().iter().zip(expected).map(|(a, b)| a.abs_diff(b)).max().unwrap();
    assert!(difference <= 2, "{difference} levels");
}

#[test]
fn enhances_images_of_every_size() {
    for (width, height) in [(1, 1), (1, 50), (50, 1), (2, 3), (399, 2), (9, 399)] {
        let enhanced = enhance(&scene(width, height, 10, 200), &limits());
        let expected = (width as f32 * enhanced.scale).round() as u32;
        assert_eq!(enhanced.frame.width(), expected, "{width}x{height}");
    }
}

/// Computes the three steps directly from their definitions, with 64-bit floats.
fn expected_levels(frame: &Frame, plan: &Plan) -> Vec<u8> {
    let round = |v: f64| (v.clamp(0.0, 255.0) + 0.5).floor();
    let (width, height) = (frame.width() as usize, frame.height() as usize);
    let (wide, high) = (plan.size.0 as usize, plan.size.1 as usize);
    let mut out = vec![0; wide * high * 3];
    for channel in 0..3 {
        let stretched: Vec<f64> = frame
            .data()
            .iter()
            .skip(channel)
            .step_by(3)
            .map(|v| round(f64::from(*v) * f64::from(plan.gain) + f64::from(plan.offset)))
            .collect();
        let column = |x: usize| (0..height).map(|y| stretched[y * width + x]).collect::<Vec<f64>>();
        let columns: Vec<Vec<f64>> = (0..width).map(|x| enlarge(&column(x), high)).collect();
        let mut enlarged = vec![0.0; wide * high];
        for (y, line) in enlarged.chunks_exact_mut(wide).enumerate() {
            let row: Vec<f64> = columns.iter().map(|column| round(column[y])).collect();
            for (value, level) in line.iter_mut().zip(enlarge(&row, wide)) {
                *value = round(level);
            }
        }
        let weight = |d: isize| (-(d as f64).powi(2) / (2.0 * f64::from(BLUR_SIGMA).powi(2))).exp();
        let radius = BLUR_RADIUS as isize;
        let weight_sum: f64 = (-radius..=radius).map(weight).sum();
        let at = |x: isize, y: isize| {
            enlarged[y.clamp(0, high as isize - 1) as usize * wide + x.clamp(0, wide as isize - 1) as usize]
        };
        for y in 0..high {
            for x in 0..wide {
                let mut blurred = 0.0;
                for dy in -radius..=radius {
                    for dx in -radius..=radius {
                        blurred += at(x as isize + dx, y as isize + dy) * weight(dx) * weight(dy);
                    }
                }
                let level = enlarged[y * wide + x];
                let sharp = level + f64::from(UNSHARP_AMOUNT) * (level - blurred / (weight_sum * weight_sum));
                out[(y * wide + x) * 3 + channel] = round(sharp) as u8;
            }
        }
    }
    out
}

/// Enlarges a row or column with a Lanczos kernel of three lobes. Pixels outside have weight 0.
fn enlarge(line: &[f64], length: usize) -> Vec<f64> {
    let sinc = |x: f64| {
        let x = x * std::f64::consts::PI;
        if x == 0.0 { 1.0 } else { x.sin() / x }
    };
    let kernel = |x: f64| if x.abs() < 3.0 { sinc(x) * sinc(x / 3.0) } else { 0.0 };
    (0..length)
        .map(|i| {
            let centre = (i as f64 + 0.5) * line.len() as f64 / length as f64 - 0.5;
            let weights: Vec<f64> = (0..line.len()).map(|x| kernel(x as f64 - centre)).collect();
            weights.iter().zip(line).map(|(w, v)| w * v).sum::<f64>() / weights.iter().sum::<f64>()
        })
        .collect()
}
