//! Tests the passes `single`, `auto` and `thorough` with both families of detectors.
use crate::support::{analyze, analyzer, analyzer_on, pixels};
use inference::Priority;
use pipeline::{Analysis, AnalyzeOptions, Analyzer, Enhance, Passes, Rotate};
use std::sync::Arc;
use testing::people::Head;
use testing::{drawing, gallery, image};
use vision::{Detection, Frame, Letterbox, Rect, crop, encode};

const DETECTION_ONLY: AnalyzeOptions = AnalyzeOptions {
    min_score: None,
    max_faces: None,
    embeddings: false,
    passed_only: false,
    quality: false,
    chips: false,
    rotate: Rotate::Off,
    enhance: Enhance::Off,
    det_size: None,
    passes: None,
    quality_profile: None,
};

async fn detect(analyzer: &Analyzer, bytes: Vec<u8>, passes: Passes) -> Analysis {
    let options = AnalyzeOptions { passes: Some(passes), ..DETECTION_ONLY };
    analyze(analyzer, bytes, &options).await
}

fn boxes(analysis: &Analysis) -> Vec<Rect> {
    analysis.faces.iter().map(|face| face.detection.bbox).collect()
}

/// Returns the number of pairs of boxes of one face, in which one covers most of the other.
fn count_duplicates(boxes: &[Rect]) -> usize {
    let overlap = |a: &Rect, b: &Rect| a.intersection(b).area() > 0.5 * a.area().min(b.area());
    boxes.iter().enumerate().map(|(i, a)| boxes[..i].iter().filter(|b| overlap(a, b)).count()).sum()
}

/// Cuts the face of a portrait so that it fills `share` of the frame in both directions. Returns
/// the image as a PNG and the box of the face.
async fn crop_to_face(analyzer: &Analyzer, portrait: Vec<u8>, share: f32) -> (Vec<u8>, Rect) {
    let frame = pixels(&portrait);
    let face = boxes(&detect(analyzer, portrait, Passes::Auto).await)[0];
    let (width, height) = (face.width / share, face.height / share);
    let (x, y) = (face.x - (width - face.width) / 2.0, face.y - (height - face.height) / 2.0);
    let cut = crop::face_crop(&frame, &Rect { x, y, width, height }, 0.0);
    let inside = Rect { x: face.x - x.max(0.0).floor(), y: face.y - y.max(0.0).floor(), ..face };
    (encode::png(&cut), inside)
}

/// On a canvas without the black border, the same faces are found with almost the same scores. Only
/// boxes next to the former border differ.
#[testing::needs(shared, slow)]
#[testing::test]
async fn trimmed_canvas_border_does_not_change_faces() {
    for pack in ["compact", "research"] {
        let analyzer = analyzer_on(pack).await;
        let engine = analyzer.engine();
        let (mut found, mut with_border, mut offsets) = (0, 0, Vec::new());
        for path in testing::images() {
            let name = path.display();
            let frame = pixels(&std::fs::read(&path).unwrap());
            let square = Letterbox::fit((frame.width(), frame.height()), (640, 640));
            let trimmed = engine.face_detector().adapt_letterbox(square);
            let [square_faces, trimmed_faces] = [square, trimmed].map(|letterbox| {
                let canvas = Arc::new(letterbox.draw(&frame));
                engine.detect(canvas, engine.detector().min_score, Priority::Interactive)
            });
            let (square_faces, trimmed_faces) =
                (square_faces.await.unwrap().output, trimmed_faces.await.unwrap().output);
            assert_eq!(square_faces.len(), trimmed_faces.len(), "{pack} {name}");
            found += square_faces.len();
            with_border += usize::from(trimmed != square);
            for face in &square_faces {
                let overlap = |other: &Detection| face.bbox.iou(&other.bbox);
                let best = trimmed_faces.iter().max_by(|a, b| overlap(a).total_cmp(&overlap(b))).unwrap();
                assert!(overlap(best) > 0.85, "{pack} {name}: {face:?} became {best:?}");
                assert!((face.det_score - best.det_score).abs() < 0.02, "{pack} {name}: {face:?}, {best:?}");
                offsets.push((face.bbox.x - best.bbox.x).abs());
            }
        }
        assert!(
            found > 400 && with_border > 30,
            "{pack}: {found} faces, {with_border} images with a black border"
        );
        offsets.sort_by(f32::total_cmp);
        assert!(
            offsets[offsets.len() * 9 / 10] < 0.1,
            "{pack}: 90% of the boxes move by less than 0.1 pixels: {offsets:?}"
        );
    }
}

#[testing::test]
async fn finds_face_filling_frame() {
    let analyzer = analyzer().await;
    for name in ["ada.jpg", "ben.jpg", "cora.jpg", "dan.jpg"] {
        assert_close_face_found(&analyzer, name, drawing(name), false).await;
    }
}

async fn assert_close_face_found(analyzer: &Analyzer, name: &str, portrait: Vec<u8>, single_fails: bool) {
    let (image, face) = crop_to_face(analyzer, portrait, 0.9).await;
    let single = detect(analyzer, image.clone(), Passes::Single).await;
    // The reason for the small view: on a canvas of 640 pixels, SCRFD does not find such a face.
    assert!(!single_fails || single.faces.is_empty(), "{name}");
    for passes in [Passes::Auto, Passes::Thorough] {
        let face_boxes = boxes(&detect(analyzer, image.clone(), passes).await);
        assert_eq!(face_boxes.len(), 1, "{name} {passes:?}: {face_boxes:?}");
        assert!(face_boxes[0].iou(&face) > 0.7, "{name} {passes:?}: {face_boxes:?}, not {face:?}");
    }
}

fn drawn_faces(heads: &[Head]) -> Vec<Rect> {
    let face_box = |head: &Head| {
        let [x, y, width, height] = head.face();
        Rect { x, y, width, height }
    };
    heads.iter().map(face_box).collect()
}

/// Returns the clear faces that the reference implementation found at full resolution.
fn reference_faces(name: &str) -> Vec<Rect> {
    let faces = testing::oracle()[name]["yunet_native"].as_array().unwrap().clone();
    faces
        .iter()
        .filter(|face| face["score"].as_f64().unwrap() >= 0.7)
        .map(|face| {
            let [x, y, width, height] = serde_json::from_value(face["bbox_xywh"].clone()).unwrap();
            Rect { x, y, width, height }
        })
        .collect()
}

/// Returns the number of `faces` that are among `boxes`.
fn count_found(boxes: &[Rect], faces: &[Rect]) -> usize {
    faces.iter().filter(|face| boxes.iter().any(|b| b.iou(face) > 0.4)).count()
}

#[testing::test]
async fn tiles_find_each_crowd_face_once() {
    check_tiles(&analyzer().await, "drawn", drawing("throng.jpg"), &drawn_faces(&gallery::throng()), 1.8)
        .await;
}

/// Asserts that tiles find `ratio` times as many faces as one view, and almost none twice.
async fn check_tiles(analyzer: &Analyzer, name: &str, image: Vec<u8>, faces: &[Rect], ratio: f64) {
    let single = boxes(&detect(analyzer, image.clone(), Passes::Single).await);
    let tiled = boxes(&detect(analyzer, image, Passes::Thorough).await);
    assert!(tiled.len() as f64 >= single.len() as f64 * ratio, "{name}: {} {}", single.len(), tiled.len());
    let (single_hits, tile_hits, total) =
        (count_found(&single, faces), count_found(&tiled, faces), faces.len());
    assert!(
        tile_hits >= single_hits && tile_hits * 100 >= total * 95,
        "{name}: {single_hits}, {tile_hits} of {total}"
    );
    assert!(
        count_duplicates(&tiled) * 100 <= tiled.len() * 2,
        "{name}: {} of {} faces are found twice",
        count_duplicates(&tiled),
        tiled.len()
    );
}

#[testing::test]
async fn auto_uses_tiles_for_tiny_faces() {
    let analyzer = analyzer().await;
    let auto = detect(&analyzer, drawing("crowd.jpg"), Passes::Auto).await;
    let thorough = detect(&analyzer, drawing("crowd.jpg"), Passes::Thorough).await;
    assert_eq!((auto.views, boxes(&auto)), (thorough.views, boxes(&thorough)));
    assert!(auto.views > 6, "{}", auto.views);
}

#[testing::test]
async fn auto_uses_one_more_view_than_single() {
    let analyzer = analyzer().await;
    for name in ["ada.jpg", "ada_3.jpg", "two_people.jpg", "group.jpg"] {
        assert_one_more_view(&analyzer, name, drawing(name)).await;
    }
}

#[testing::test]
async fn auto_skips_search_of_image_without_face_signs() {
    let analyzer = analyzer().await;
    for (name, image) in [
        ("view", drawing("view.jpg")),
        ("grey", encode::png(&Frame::filled(900, 600, [128; 3]))),
        ("large", encode::png(&Frame::filled(2000, 1500, [200, 30, 90]))),
    ] {
        let auto = detect(&analyzer, image, Passes::Auto).await;
        // One look, and a second one at the image's own scale if the image is large.
        let looks = if auto.frame.width() > 960 { 2 } else { 1 };
        assert_eq!((auto.faces.len(), auto.views), (0, looks), "{name}");
    }
}

/// Draws a portrait, with a face of `height` pixels, into an image that is scaled to `width`.
async fn draw_small_face(
    analyzer: &Analyzer,
    view: &[u8],
    portrait: Vec<u8>,
    width: u32,
    height: f32,
) -> Vec<u8> {
    let face = boxes(&detect(analyzer, portrait.clone(), Passes::Single).await)[0];
    let portrait = pixels(&portrait);
    let longer = portrait.width().max(portrait.height()) as f32;
    let portrait = crop::thumbnail(&portrait, (longer * height / face.height) as u32);
    let view = pixels(view);
    let mut image = Letterbox::fit((view.width(), view.height()), (width, width)).trim_canvas(1).draw(&view);
    let (left, top) = (image.width() / 3, image.height() / 5);
    for y in 0..portrait.height().min(image.height() - top) {
        for x in 0..portrait.width().min(image.width() - left) {
            let at = (((top + y) * image.width() + left + x) * 3) as usize;
            image.data_mut()[at..at + 3].copy_from_slice(&portrait.pixel(x, y));
        }
    }
    encode::png(&image)
}

/// At every image size, the first look overlooks no face that the quality profile `standard`
/// accepts.
#[testing::needs(shared, slow)]
#[testing::test]
async fn auto_finds_usable_face_at_any_image_size() {
    for pack in ["compact", "research"] {
        let analyzer = analyzer_on(pack).await;
        for width in [300, 640, 960, 1280, 1920, 2560] {
            for name in ["obama.jpg", "biden.jpg", "obama3.jpg"] {
                let scene = draw_small_face(&analyzer, &image("view.jpg"), image(name), width, 48.0).await;
                let found = detect(&analyzer, scene, Passes::Auto).await;
                assert_eq!(found.faces.len(), 1, "{pack}: {name} in {width} pixels");
            }
        }
    }
}

/// The cheaper detector only decides which images are searched, so the faces are those of the slow
/// one. The slow one takes seconds for a crowd, so this uses every third photograph.
#[testing::needs(shared, slow)]
#[testing::test]
async fn cheap_first_look_finds_same_faces_as_slow_detector() {
    let (cheap, slow) = (analyzer_on("research").await, analyzer_on("research-alone").await);
    assert!(cheap.engine().has_first_look() && !slow.engine().has_first_look());
    let (mut found, mut searched) = (0, 0);
    for path in testing::images().into_iter().step_by(3) {
        let (name, bytes) = (path.display(), std::fs::read(&path).unwrap());
        let [actual, expected] =
            [detect(&cheap, bytes.clone(), Passes::Auto), detect(&slow, bytes, Passes::Auto)];
        let (actual, expected) = (boxes(&actual.await), boxes(&expected.await));
        assert_eq!(actual.len(), expected.len(), "{name}");
        for face in &actual {
            assert!(expected.iter().any(|other| other.iou(face) > 0.9), "{name}: {face:?}");
        }
        found += actual.len();
        searched += usize::from(!actual.is_empty());
    }
    assert!(found > 100 && searched > 12, "{found} faces in {searched} images");
    // In an image without a face, the slow detector does not run: one look decides.
    let empty = Frame::filled(600, 400, [120, 130, 90]);
    let result = detect(&cheap, encode::png(&empty), Passes::Auto).await;
    assert_eq!((result.faces.len(), result.views), (0, 1));
}

async fn assert_one_more_view(analyzer: &Analyzer, name: &str, image: Vec<u8>) {
    let single = detect(analyzer, image.clone(), Passes::Single).await;
    let auto = detect(analyzer, image, Passes::Auto).await;
    assert_eq!((single.views, auto.views), (1, 2), "{name}");
    assert_eq!(single.faces.len(), auto.faces.len(), "{name}");
}

/// Returns an image of 24 megapixels with a group scaled by `scale`, and the boxes of its faces.
fn place_group(view: &[u8], group: &[u8], faces: &[Rect], scale: f64) -> (Vec<u8>, Vec<Rect>) {
    let scene = testing::gallery::scene(&pixels(view), &pixels(group), scale, (6000, 4000));
    let [left, top, scale] = [scene.left as f32, scene.top as f32, scene.scale];
    let faces = faces.iter().map(|face| {
        let Rect { x, y, width, height } = face;
        Rect { x: left + x * scale, y: top + y * scale, width: width * scale, height: height * scale }
    });
    (encode::jpeg(&scene.frame, 92), faces.collect())
}

#[testing::test]
async fn auto_finds_group_too_small_for_first_look() {
    let faces = drawn_faces(&gallery::group());
    let scale = 40.0 / f64::from(faces[0].height);
    let (image, faces) = place_group(&drawing("view.jpg"), &drawing("group.jpg"), &faces, scale);
    check_first_look(&analyzer().await, "drawn", image, &faces).await;
}

async fn check_first_look(analyzer: &Analyzer, name: &str, image: Vec<u8>, faces: &[Rect]) {
    let single = detect(analyzer, image.clone(), Passes::Single).await;
    assert_eq!((single.faces.len(), single.views), (0, 1), "{name}: too small for a single view");
    let auto = boxes(&detect(analyzer, image, Passes::Auto).await);
    let true_hits = count_found(&auto, faces);
    assert!(true_hits + 1 >= faces.len(), "{name}: {true_hits} of {}: {auto:?}", faces.len());
    assert!(auto.len() <= true_hits + 1, "{name}: {auto:?}");
}

#[testing::test]
async fn large_image_without_faces_uses_bounded_number_of_views() {
    let analyzer = analyzer().await;
    let view = pixels(&drawing("view.jpg"));
    let empty = testing::gallery::scene(&view, &view, 0.5, (6000, 4000));
    let auto = detect(&analyzer, encode::jpeg(&empty.frame, 92), Passes::Auto).await;
    // The small view, the whole image, and the level at which usable faces are visible: 5 x 3.
    assert_eq!((auto.faces.len(), auto.views), (0, 2 + 15));
}

/// The level at which usable faces are visible has more tiles than are searched without a sign. The
/// levels below it are searched instead.
#[testing::test]
async fn very_large_image_is_searched_at_affordable_levels() {
    let image = encode::png(&Frame::filled(8064, 6048, [120, 130, 90]));
    let auto = detect(&analyzer().await, image, Passes::Auto).await;
    assert_eq!((auto.faces.len(), auto.views), (0, 2 + 6 + 20));
}

/// A larger canvas is requested to find smaller faces, so the first look has to show them too.
#[testing::needs(shared)]
#[testing::test]
async fn first_look_scales_with_requested_canvas() {
    let analyzer = analyzer_on("compact").await;
    let scene = draw_small_face(&analyzer, &image("view.jpg"), image("obama.jpg"), 900, 24.0).await;
    let options = AnalyzeOptions { det_size: Some(1280), passes: Some(Passes::Auto), ..DETECTION_ONLY };
    let found = analyze(&analyzer, scene, &options).await;
    assert_eq!(found.faces.len(), 1);
}

#[testing::test]
async fn face_on_tile_border_is_found_whole() {
    check_tile_borders(&analyzer().await, "drawn", &drawing("ada.jpg")).await;
}

/// Asserts that a face on the borders of tiles is found once and completely, at several positions.
async fn check_tile_borders(analyzer: &Analyzer, name: &str, portrait: &[u8]) {
    let portrait = crop::thumbnail(&pixels(portrait), 300);
    let single = boxes(&detect(analyzer, encode::png(&portrait), Passes::Single).await)[0];
    let mut failures = Vec::new();
    for step in 0..12 {
        let (left, top) = (200 + 40 * step, 40 + 20 * step);
        let mut image = Frame::filled(1152, 800, [90, 110, 130]);
        for y in 0..portrait.height() {
            let at = (((top + y) * 1152 + left) * 3) as usize;
            let row =
                &portrait.data()[(y * portrait.width() * 3) as usize..][..portrait.width() as usize * 3];
            image.data_mut()[at..at + row.len()].copy_from_slice(row);
        }
        let result = detect(analyzer, encode::png(&image), Passes::Thorough).await;
        assert!(result.views > 6, "the image is searched in tiles");
        let expected = Rect { x: single.x + left as f32, y: single.y + top as f32, ..single };
        let result = boxes(&result);
        if result.len() != 1 || result[0].iou(&expected) < 0.75 {
            failures.push(format!("{name} at {left},{top}: {result:?}, not {expected:?}"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Repeats the tests above on photographs and with both families of detectors.
#[testing::needs(shared, slow)]
#[testing::test]
async fn passes_work_on_photographs_with_both_detector_families() {
    let all = testing::oracle()["group_6.jpg"]["yunet_native"].as_array().unwrap().len();
    let group = reference_faces("group_6.jpg");
    assert_eq!((all, group.len()), (14, 14));
    let (scene, scene_faces) = place_group(&image("view.jpg"), &image("group_6.jpg"), &group, 40.0 / 75.0);
    for (pack, single_fails) in [("compact", false), ("research", true)] {
        let analyzer = analyzer_on(pack).await;
        for name in ["obama.jpg", "biden.jpg", "mask2.jpg", "pose_left_face.jpeg"] {
            assert_close_face_found(&analyzer, &format!("{pack} {name}"), image(name), single_fails).await;
        }
        for (name, ratio) in
            [("group_17.jpg", 3.0), ("group_25.jpg", 1.8), ("group_1.jpg", 1.0), ("group_26.jpg", 1.0)]
        {
            check_tiles(&analyzer, &format!("{pack} {name}"), image(name), &reference_faces(name), ratio)
                .await;
        }
        check_first_look(&analyzer, pack, scene.clone(), &scene_faces).await;
        check_tile_borders(&analyzer, pack, &image("obama.jpg")).await;
    }
    let analyzer = analyzer().await;
    for name in ["obama.jpg", "obama3.jpg", "two_people.jpg", "group_6.jpg"] {
        assert_one_more_view(&analyzer, name, image(name)).await;
    }
}

#[testing::needs(shared)]
#[testing::test]
async fn fixed_size_detector_supports_all_passes() {
    let analyzer = analyzer_on("fixed").await;
    assert!(analyzer.engine().detector().fixed_size.is_some());
    let single = detect(&analyzer, image("group_25.jpg"), Passes::Single).await;
    let thorough = detect(&analyzer, image("group_25.jpg"), Passes::Thorough).await;
    assert!(thorough.faces.len() as f64 > 1.8 * single.faces.len() as f64);
    // Boxes are not enlarged on a canvas that this detector does not accept.
    let large = draw_small_face(&analyzer, &image("view.jpg"), image("obama.jpg"), 2000, 48.0).await;
    detect(&analyzer, large, Passes::Auto).await;
    // For this detector a small view is expensive, so `auto` skips it if a face was found.
    assert_eq!(detect(&analyzer, image("obama.jpg"), Passes::Auto).await.views, 1);
    assert_eq!(detect(&analyzer, image("view.jpg"), Passes::Auto).await.views, 2);
}
