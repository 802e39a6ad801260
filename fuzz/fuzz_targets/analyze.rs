//! Computes hashes, thumbnail, views, chip and quality with arbitrary coordinates for any image
//! that can be decoded.
#![no_main]
use libfuzzer_sys::fuzz_target;
use vision::{Detection, Limits, PerceptualHashes, Point, Profile, Rect, View, crop, decode, norm_crop, quality};

const LIMITS: Limits = Limits { max_bytes: 1 << 20, max_pixels: 1 << 16, max_side: 1024 };

fuzz_target!(|bytes: &[u8]| {
    let Ok(decoded) = decode(bytes, &LIMITS) else { return };
    let frame = decoded.frame;
    let size = (frame.width(), frame.height());
    assert!(PerceptualHashes::of(&frame).is_near(&PerceptualHashes::of(&frame)));
    let small = crop::thumbnail(&frame, 64);
    assert!(small.width().max(small.height()) <= 64.max(1));
    // The coordinates are taken from the bytes of the file, so any bit pattern is possible.
    let number = |i: usize| {
        let byte = |k| bytes[(i * 4 + k) % bytes.len()];
        f32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)])
    };
    let detection = Detection {
        bbox: Rect { x: number(0), y: number(1), width: number(2), height: number(3) },
        det_score: number(4),
        landmarks: std::array::from_fn(|i| Point { x: number(5 + 2 * i), y: number(6 + 2 * i) }),
    };
    let face = crop::face_crop(&frame, &detection.bbox, 0.25);
    assert!(face.width() <= size.0 && face.height() <= size.1);
    for view in View::tiles(size, (64, 64), 0.5) {
        let crop = view.crop(&frame);
        assert_eq!((crop.width(), crop.height()), (view.region.width, view.region.height));
        let _ = view.cuts(&view.map_to_image(&detection).bbox);
    }
    if let Some(chip) = norm_crop(&frame, &detection.landmarks, 112) {
        let report = quality::assess(&chip, &detection, size, Profile::Strict);
        assert!((0.0..=1.0).contains(&report.overall));
    }
});
