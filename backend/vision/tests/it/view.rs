//! Tests that views cover the image, stay inside it, and report which faces they cut.

use proptest::prelude::*;
use vision::{Detection, Frame, Point, Rect, View};

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
        // The overlap minus a margin on each side. The views of half the scale show larger faces at
        // half of this size.
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
    fn tiles_lie_inside_and_cover_everything(
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
        for corner in [(0, 0), (width - 1, 0), (0, height - 1), (width - 1, height - 1), (width / 2, height / 2)] {
            let covered = tiles.iter().any(|tile| {
                let r = tile.region;
                (r.x..r.x + r.width).contains(&corner.0) && (r.y..r.y + r.height).contains(&corner.1)
            });
            prop_assert!(covered);
        }
    }
}

#[test]
fn a_view_around_a_box_has_it_in_the_middle_and_lies_inside() {
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
fn a_picture_that_fits_is_one_tile() {
    let tiles = View::tiles((640, 400), CANVAS, 1.0);
    assert_eq!(tiles, [View::whole((640, 400), CANVAS)]);
    assert!(tiles[0].is_whole());
    // Two tiles that share a fifth of a canvas.
    let two = View::tiles((1152, 640), CANVAS, 1.0);
    assert_eq!(
        two.iter().map(|tile| (tile.region.x, tile.region.width)).collect::<Vec<_>>(),
        [(0, 640), (512, 640)]
    );
}

#[test]
fn only_borders_inside_the_picture_cut() {
    let tiles = View::tiles((1152, 640), CANVAS, 1.0);
    let at = |x: f32, y: f32| Rect { x, y, width: 100.0, height: 100.0 };
    // A detector's box may extend outside the image; that is not a cut.
    assert!(!tiles[0].cuts(&at(-20.0, -30.0)) && !tiles[1].cuts(&at(1090.0, 560.0)));
    assert!(!tiles[0].cuts(&at(520.0, 100.0)) && tiles[0].cuts(&at(535.0, 100.0)));
    assert!(!tiles[1].cuts(&at(530.0, 100.0)) && tiles[1].cuts(&at(515.0, 100.0)));
}

#[test]
fn coordinates_come_back_to_the_picture() {
    let frame =
        Frame::new(1152, 640, (0..1152 * 640).flat_map(|i| [(i % 251) as u8, (i / 1152) as u8, 7]).collect());
    let frame = frame.unwrap();
    let tile = View::tiles((1152, 640), CANVAS, 1.0)[1];
    let cut = tile.crop(&frame);
    assert_eq!((cut.width(), cut.height(), cut.pixel(8, 9)), (640, 640, frame.pixel(520, 9)));
    assert_eq!(tile.letterbox.draw(&cut).pixel(8, 9), frame.pixel(520, 9));
    let restored = tile.restore(&face(Rect { x: 8.0, y: 9.0, width: 64.0, height: 64.0 }));
    assert_eq!(restored.bbox, Rect { x: 520.0, y: 9.0, width: 64.0, height: 64.0 });
    assert_eq!(restored.landmarks[2], Point { x: 552.0, y: 41.0 });

    let small = View::small((1152, 640), (192, 192), CANVAS);
    assert_eq!((small.letterbox.content, small.letterbox.canvas), ((192, 106), CANVAS));
    let restored = small.restore(&face(Rect { x: 0.0, y: 0.0, width: 192.0, height: 106.0 }));
    assert!((restored.bbox.width - 1152.0).abs() < 10.0, "{restored:?}");
}
