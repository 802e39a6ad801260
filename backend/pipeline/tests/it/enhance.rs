use crate::support::{analyzer, similarity};
use inference::Priority;
use pipeline::{Analysis, AnalyzeOptions, Analyzer, Enhance};
use testing::picture;
use vision::{Frame, crop, encode};

async fn analyze(analyzer: &Analyzer, frame: &Frame, enhance: Enhance) -> Analysis {
    let options = AnalyzeOptions { enhance, ..AnalyzeOptions::default() };
    analyzer.analyze(encode::png(frame).into(), &options, Priority::Interactive).await.unwrap()
}

/// Returns `ada_wide.jpg`, scaled down until its face is 48 pixels high and with its contrast
/// multiplied by `contrast`.
fn faint(contrast: f32) -> Frame {
    let frame = vision::decode(&picture("ada_wide.jpg"), &vision::Limits::default()).unwrap().frame;
    let mut small = crop::thumbnail(&frame, 295);
    for value in small.data_mut() {
        *value = (f32::from(*value) * contrast + 90.0 * (1.0 - contrast)) as u8;
    }
    small
}

#[testing::test]
async fn a_faint_face_is_found_and_recognised_on_the_enhanced_picture() {
    let analyzer = analyzer().await;
    let small = faint(0.12);
    let plain = analyze(&analyzer, &small, Enhance::Off).await;
    assert_eq!((plain.faces.len(), plain.enhancement_scale), (0, None), "too faint without enhancement");

    let found = analyze(&analyzer, &small, Enhance::Auto).await;
    let scale = found.enhancement_scale.unwrap();
    assert!((scale - 640.0 / 166.0).abs() < 1e-3, "{scale}");
    assert_eq!((found.frame.width(), found.frame.height()), (295, 166), "the frame is the original image");
    let clear = analyze(&analyzer, &faint(1.0), Enhance::Auto).await;
    assert_eq!(clear.enhancement_scale, None, "no enhancement if a reliable face is found");
    let (wanted, bbox) = (clear.faces[0].detection.bbox, found.faces[0].detection.bbox);
    assert!((46.0..52.0).contains(&bbox.height), "{bbox:?}");
    let apart = (bbox.x - wanted.x).abs().max((bbox.y - wanted.y).abs());
    assert!(apart < 4.0, "{bbox:?} is not in coordinates of the image; expected {wanted:?}");

    let options = AnalyzeOptions::default();
    let large = analyzer.analyze(picture("ada.jpg").into(), &options, Priority::Interactive).await.unwrap();
    let alike = similarity(&found, &large);
    assert!(alike >= analyzer.engine().embedder().match_threshold, "{alike}");
}

#[testing::test]
async fn a_large_picture_is_never_enhanced() {
    let analyzer = analyzer().await;
    let frame = vision::decode(&picture("view.jpg"), &vision::Limits::default()).unwrap().frame;
    let found = analyze(&analyzer, &frame, Enhance::Auto).await;
    assert_eq!((found.faces.len(), found.enhancement_scale), (0, None));
}
