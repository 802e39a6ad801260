//! Tests geometric properties that must hold for all inputs. Tests that views cover the image, are
//! inside it, and detect which faces they cut.
use proptest::prelude::*;
use vision::{
    ARCFACE_TEMPLATE, Detection, Frame, Landmarks, Letterbox, Point, Rect, SimilarityTransform, View, crop,
    nms,
};

fn points() -> impl Strategy<Value = Landmarks> {
    prop::array::uniform5((0.0f32..2000.0, 0.0f32..2000.0).prop_map(|(x, y)| Point { x, y }))
}

fn boxes(max: f32) -> impl Strategy<Value = Rect> {
    let numbers = (-50.0..max, -50.0..max, 1.0..max, 1.0..max);
    numbers.prop_map(|(x, y, width, height)| Rect { x, y, width, height })
}

fn detections() -> impl Strategy<Value = Vec<Detection>> {
    let one = (boxes(300.0), 0.0f32..1.0, points()).prop_map(|(bbox, det_score, landmarks)| Detection {
        bbox,
        det_score,
        landmarks,
    });
    prop::collection::vec(one, 0..40)
}

fn frames() -> impl Strategy<Value = Frame> {
    (1u32..80, 1u32..80, any::<u64>()).prop_map(|(width, height, seed)| {
        let byte = |i: u32| (seed.rotate_left(i % 64) ^ u64::from(i).wrapping_mul(0x9E37_79B9)) as u8;
        Frame::new(width, height, (0..width * height * 3).map(byte).collect()).unwrap()
    })
}

#[test]
fn clipping_keeps_inside_boxes_and_drops_outside_boxes() {
    let image = (535, 400);
    let inside = Rect { x: 12.3, y: 0.0, width: 500.1, height: 400.0 };
    assert_eq!(inside.clip_to(image), Some(inside));
    let partly_outside = Rect { x: 500.0, y: -6.0, width: 63.0, height: 420.0 };
    assert_eq!(partly_outside.clip_to(image), Some(Rect { x: 500.0, y: 0.0, width: 35.0, height: 400.0 }));
    for outside_or_invalid in [
        Rect { x: 535.0, ..inside },
        Rect { x: -500.1, ..inside },
        Rect { width: 0.0, ..inside },
        Rect { y: f32::NAN, ..inside },
        Rect { width: f32::NAN, ..inside },
        Rect { x: f32::NEG_INFINITY, ..inside },
    ] {
        assert_eq!(outside_or_invalid.clip_to(image), None, "{outside_or_invalid:?}");
    }
}

proptest! {
    #[test]
    fn letterbox_fills_one_side_and_maps_coordinates_to_image(
        image in (1u32..9000, 1u32..9000), side in 32u32..1600, bbox in boxes(600.0), landmarks in points(),
    ) {
        let fitted = Letterbox::fit(image, (side, side));
        let (width, height) = fitted.content;
        prop_assert!((1..=side).contains(&width) && (1..=side).contains(&height));
        prop_assert!(width == side || height == side);

        let to_canvas = |v: f32| v * fitted.scale;
        let detection = Detection { bbox, det_score: 0.5, landmarks };
        let on_canvas = Detection {
            bbox: Rect {
                x: to_canvas(bbox.x), y: to_canvas(bbox.y), width: to_canvas(bbox.width), height: to_canvas(bbox.height),
            },
            det_score: 0.5,
            landmarks: landmarks.map(|p| Point { x: to_canvas(p.x), y: to_canvas(p.y) }),
        };
        let mapped = fitted.map_to_image(&on_canvas);
        let is_close = |a: f32, b: f32| (a - b).abs() <= 1e-3 + b.abs() * 1e-5;
        prop_assert!(is_close(mapped.bbox.x, detection.bbox.x) && is_close(mapped.bbox.height, detection.bbox.height));
        for (a, b) in mapped.landmarks.iter().zip(&detection.landmarks) {
            prop_assert!(is_close(a.x, b.x) && is_close(a.y, b.y));
        }
        prop_assert_eq!(mapped.det_score, detection.det_score);
    }

    #[test]
    fn clipped_boxes_lie_inside_image(bbox in boxes(600.0), image in (1u32..16_385, 1u32..700), zoom in 1.0f32..25.0) {
        let bbox = Rect { x: bbox.x * zoom, width: bbox.width * zoom, ..bbox };
        let whole = Rect { x: 0.0, y: 0.0, width: image.0 as f32, height: image.1 as f32 };
        let Some(clipped) = bbox.clip_to(image) else {
            prop_assert!(bbox.intersection(&whole).area() < 1e-2, "{bbox:?} in {image:?}");
            return Ok(());
        };
        prop_assert!(clipped.width > 0.0 && clipped.height > 0.0);
        // A client parses the shortest decimals with 64 bits.
        let parsed: Vec<f64> = [clipped.x, clipped.y, clipped.width, clipped.height]
            .iter()
            .map(|value| serde_json::to_string(value).unwrap().parse().unwrap())
            .collect();
        prop_assert!(parsed[0] >= 0.0 && parsed[0] + parsed[2] <= f64::from(image.0), "{clipped:?} in {image:?}");
        prop_assert!(parsed[1] >= 0.0 && parsed[1] + parsed[3] <= f64::from(image.1), "{clipped:?} in {image:?}");
        let exact = |start: f32, length: f32| f64::from(start) + f64::from(length);
        prop_assert!(exact(clipped.x, clipped.width) <= f64::from(image.0));
        prop_assert!(exact(clipped.y, clipped.height) <= f64::from(image.1));
        // Apart from rounding, the result is the intersection.
        let expected = bbox.intersection(&whole);
        let is_close = |a: f32, b: f32| (a - b).abs() <= 2e-2;
        prop_assert!(is_close(clipped.x, expected.x) && is_close(clipped.width, expected.width));
        prop_assert!(is_close(clipped.y, expected.y) && is_close(clipped.height, expected.height));
        prop_assert_eq!(clipped.clip_to(image), Some(clipped));
    }

    #[test]
    fn estimate_recovers_known_transform(
        angle in -3.1f32..3.1, scale in 0.05f32..20.0, tx in -500.0f32..500.0, ty in -500.0f32..500.0,
    ) {
        let known = SimilarityTransform { a: scale * angle.cos(), b: scale * angle.sin(), tx, ty };
        let transformed = ARCFACE_TEMPLATE.map(|p| known.apply(p));
        let estimated = SimilarityTransform::estimate(&ARCFACE_TEMPLATE, &transformed).unwrap();
        for p in ARCFACE_TEMPLATE {
            let (a, b) = (known.apply(p), estimated.apply(p));
            prop_assert!(a.distance(b) < 1e-2 + scale * 1e-3, "{known:?} {estimated:?}");
        }
    }

    #[test]
    fn estimated_transform_is_locally_optimal(from in points(), to in points(), change in prop::array::uniform4(-0.01f32..0.01)) {
        let best = SimilarityTransform::estimate(&from, &to);
        prop_assume!(best.is_some());
        let best = best.unwrap();
        let other = SimilarityTransform { a: best.a + change[0], b: best.b + change[1], tx: best.tx + change[2], ty: best.ty + change[3] };
        let cost = |s: &SimilarityTransform| -> f64 {
            from.iter().zip(&to).map(|(f, t)| f64::from(s.apply(*f).distance(*t)).powi(2)).sum()
        };
        prop_assert!(cost(&best) <= cost(&other) * (1.0 + 1e-5) + 1e-3);
    }

    #[test]
    fn four_quarter_rotations_restore_image(frame in frames()) {
        let rotated_once = crop::rotate(&frame, 90);
        prop_assert_eq!((rotated_once.width(), rotated_once.height()), (frame.height(), frame.width()));
        // Clockwise: the top left corner moves to the top right.
        prop_assert_eq!(rotated_once.pixel(rotated_once.width() - 1, 0), frame.pixel(0, 0));
        let rotated_twice = crop::rotate(&rotated_once, 90);
        prop_assert_eq!(&rotated_twice, &crop::rotate(&frame, 180));
        let rotated_three_times = crop::rotate(&rotated_twice, 90);
        prop_assert_eq!(&rotated_three_times, &crop::rotate(&frame, 270));
        prop_assert_eq!(&crop::rotate(&rotated_three_times, 90), &frame);
        prop_assert_eq!(&crop::mirror(&crop::mirror(&frame)), &frame);
    }

    #[test]
    fn crops_and_thumbnails_stay_inside_image(
        frame in frames(), x in -1e6f32..1e6, y in -100f32..100.0, width in 0f32..200.0, height in 0f32..200.0,
        margin in -1f32..2.0, side in 0u32..100,
    ) {
        let face_crop = crop::face_crop(&frame, &Rect { x, y, width, height }, margin);
        prop_assert!(face_crop.width() <= frame.width() && face_crop.height() <= frame.height());
        let small = crop::thumbnail(&frame, side);
        prop_assert!(small.width().max(small.height()) <= side.max(1));
        prop_assert!(small.width() <= frame.width() && small.height() <= frame.height());
    }

    #[test]
    fn nms_keeps_best_of_each_group(found in detections(), iou in 0.0f32..1.0) {
        let kept = nms(found.clone(), iou);
        prop_assert!(kept.windows(2).all(|pair| pair[0].det_score >= pair[1].det_score));
        for (i, a) in kept.iter().enumerate() {
            prop_assert!(kept[i + 1..].iter().all(|b| a.bbox.iou(&b.bbox) <= iou));
        }
        // Every removed detection repeats one with at least the same score.
        let is_repeat = |d: &Detection, k: &Detection| {
            let is_inside = |p: &&Point| {
                let (x, y) = (p.x - k.bbox.x, p.y - k.bbox.y);
                (-1e-3..=k.bbox.width + 1e-3).contains(&x) && (-1e-3..=k.bbox.height + 1e-3).contains(&y)
            };
            let is_part = d.bbox.intersection(&k.bbox).area() > 0.6 * d.bbox.area();
            k.bbox.iou(&d.bbox) > iou || (is_part && d.landmarks.iter().filter(is_inside).count() >= 4)
        };
        for d in &found {
            prop_assert!(kept.iter().any(|k| k == d || (k.det_score >= d.det_score && is_repeat(d, k))));
        }
    }
}

const CANVAS: (u32, u32) = (640, 640);

fn face(bbox: Rect) -> Detection {
    let landmarks = [Point { x: bbox.x + bbox.width / 2.0, y: bbox.y + bbox.height / 2.0 }; 5];
    Detection { bbox, det_score: 0.9, landmarks }
}

proptest! {
    #[test]
    fn every_small_face_is_whole_in_some_tile(
        (width, height) in (1u32..6000, 1u32..6000),
        doublings in 1u32..5,
        (x, y, side) in (0.0f32..1.0, 0.0f32..1.0, 0.01f32..1.0),
    ) {
        let whole = View::whole((width, height), CANVAS);
        let scale = f64::from(whole.letterbox.scale) * f64::from(1 << doublings);
        let tiles = View::tiles((width, height), CANVAS, scale);
        // The largest face is the overlap without a margin on each side. The views of half the
        // scale contain larger faces.
        let side = (side * (0.2 / 1.2) * (640.0 / scale) as f32 - 2.0).max(1.0).min(width.min(height) as f32);
        let bbox = Rect {
            x: x * (width as f32 - side),
            y: y * (height as f32 - side),
            width: side,
            height: side,
        };
        prop_assert!(tiles.iter().any(|tile| !tile.cuts(&bbox)), "{bbox:?} in {width}x{height}");
    }

    #[test]
    fn tiles_lie_inside_image_and_cover_it(
        (width, height) in (1u32..6000, 1u32..6000),
        scale in 0.02f64..3.0,
    ) {
        let tiles = View::tiles((width, height), CANVAS, scale);
        for tile in &tiles {
            let r = tile.region;
            prop_assert!(r.width > 0 && r.height > 0);
            prop_assert!(r.x + r.width <= width && r.y + r.height <= height);
            prop_assert_eq!(tile.letterbox.canvas, CANVAS);
        }
        for (x, y) in [(0, 0), (width - 1, 0), (0, height - 1), (width - 1, height - 1), (width / 2, height / 2)] {
            let is_covered = tiles.iter().any(|tile| {
                let r = tile.region;
                (r.x..r.x + r.width).contains(&x) && (r.y..r.y + r.height).contains(&y)
            });
            prop_assert!(is_covered);
        }
    }
}

#[test]
fn view_around_box_centres_it_inside_image() {
    let bbox = Rect { x: 300.0, y: 200.0, width: 20.0, height: 40.0 };
    let view = View::around((1000, 800), &bbox, (192, 192), 2.0);
    let r = view.region;
    assert_eq!((r.x, r.y, r.width, r.height), (262, 172, 96, 96));
    assert_eq!((view.letterbox.canvas, view.letterbox.scale), ((192, 192), 2.0));
    for (x, y) in [(-10.0, -10.0), (995.0, 790.0), (500.0, -3.0)] {
        let bbox = Rect { x, y, ..bbox };
        let r = View::around((1000, 800), &bbox, (192, 192), 0.5).region;
        assert_eq!((r.width, r.height), (384, 384));
        assert!(r.x + r.width <= 1000 && r.y + r.height <= 800, "{r:?}");
    }
    // An image that is smaller than the canvas at that scale is completely visible.
    let view = View::around((50, 30), &bbox, (192, 192), 1.0);
    assert!(view.is_whole());
}

#[test]
fn image_that_fits_canvas_is_one_tile() {
    let tiles = View::tiles((640, 400), CANVAS, 1.0);
    assert_eq!(tiles, [View::whole((640, 400), CANVAS)]);
    assert!(tiles[0].is_whole());
    // Two tiles that overlap by a fifth of a canvas.
    let two = View::tiles((1152, 640), CANVAS, 1.0);
    assert_eq!(
        two.iter().map(|tile| (tile.region.x, tile.region.width)).collect::<Vec<_>>(),
        [(0, 640), (512, 640)]
    );
}

#[test]
fn only_tile_borders_inside_image_cut_boxes() {
    let tiles = View::tiles((1152, 640), CANVAS, 1.0);
    let at = |x: f32, y: f32| Rect { x, y, width: 100.0, height: 100.0 };
    // A box that extends outside the image is not cut.
    assert!(!tiles[0].cuts(&at(-20.0, -30.0)) && !tiles[1].cuts(&at(1090.0, 560.0)));
    assert!(!tiles[0].cuts(&at(520.0, 100.0)) && tiles[0].cuts(&at(535.0, 100.0)));
    assert!(!tiles[1].cuts(&at(530.0, 100.0)) && tiles[1].cuts(&at(515.0, 100.0)));
}

#[test]
fn tile_coordinates_are_mapped_to_image() {
    let frame =
        Frame::new(1152, 640, (0..1152 * 640).flat_map(|i| [(i % 251) as u8, (i / 1152) as u8, 7]).collect());
    let frame = frame.unwrap();
    let tile = View::tiles((1152, 640), CANVAS, 1.0)[1];
    let crop = tile.crop(&frame);
    assert_eq!((crop.width(), crop.height(), crop.pixel(8, 9)), (640, 640, frame.pixel(520, 9)));
    assert_eq!(tile.letterbox.draw(&crop).pixel(8, 9), frame.pixel(520, 9));
    let mapped = tile.map_to_image(&face(Rect { x: 8.0, y: 9.0, width: 64.0, height: 64.0 }));
    assert_eq!(mapped.bbox, Rect { x: 520.0, y: 9.0, width: 64.0, height: 64.0 });
    assert_eq!(mapped.landmarks[2], Point { x: 552.0, y: 41.0 });

    let small = View::small((1152, 640), (192, 192), CANVAS);
    assert_eq!((small.letterbox.content, small.letterbox.canvas), ((192, 106), CANVAS));
    let mapped = small.map_to_image(&face(Rect { x: 0.0, y: 0.0, width: 192.0, height: 106.0 }));
    assert!((mapped.bbox.width - 1152.0).abs() < 10.0, "{mapped:?}");
}
