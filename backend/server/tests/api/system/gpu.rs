use crate::support::pictures::{drawn, picture};
use crate::support::{App, Models, Options, ok};

#[testing::test]
async fn every_operation_says_where_it_runs() {
    let app = App::spawn().await;
    let report = app.get_ok("/gpu").await;
    let operations = report["operations"].as_array().unwrap();
    let names: Vec<&str> = operations.iter().map(|one| one["operation"].as_str().unwrap()).collect();
    let engine = inference::Operation::ALL.map(inference::Operation::name);
    assert_eq!(names, [engine.as_slice(), &["video_decoding"]].concat());
    assert_eq!((&operations[5]["requested"], &operations[5]["effective"]), (&"cpu".into(), &"cpu".into()));
    assert!(!report["runtime_version"].as_str().unwrap().is_empty());
    assert!(!report["backends"].as_array().unwrap().is_empty());
    for model in report["models"].as_array().unwrap() {
        assert_eq!(
            (&model["device"], &model["provider"], &model["precision"]),
            (&"cpu".into(), &"cpu".into(), &"fp32".into())
        );
    }
    matches_are_told_alike(&app, [picture("ada.jpg"), picture("ada_2.jpg")]).await;

    // The response to a face detection contains the same devices. No video is decoded for it.
    let answer = app.post_raw("/faces/detect", "image/png", drawn(32, 32)).await;
    let answer = ok(answer).await;
    for operation in &operations[..5] {
        assert_eq!(answer["devices"][operation["operation"].as_str().unwrap()], operation["effective"]);
    }
}

/// Checks that a pair of images of one person matches. The threshold and the false match rate must
/// equal those of `/gpu`.
async fn matches_are_told_alike(app: &App, pair: [Vec<u8>; 2]) {
    let matching = app.get_ok("/gpu").await["matching"].clone();
    let compared = ok(app.post_parts("/faces/compare", &pair.map(|file| ("image", file))).await).await;
    assert_eq!(compared["match"], true, "{compared}");
    assert!(matching["threshold"].as_f64().unwrap() > 0.0);
    assert_eq!((&matching["threshold"], &matching["fmr"]), (&compared["threshold"], &compared["match_fmr"]));
}

#[testing::test]
async fn a_measured_rate_of_false_matches_is_told_with_the_match() {
    let app = App::spawn_with(Options { models: Models::Fixture, worker: false, ..Options::default() }).await;
    assert_eq!(app.get_ok("/gpu").await["matching"]["fmr"], testing::fixture_models::MATCH_FMR);
    let mut picture = testing::fixture_models::Picture::from_raw(640, 480, vec![90; 640 * 480 * 3]).unwrap();
    testing::draw_face(&mut picture, 5, 5, 3);
    let frame = vision::Frame::new(640, 480, picture.into_raw()).unwrap();
    let file = vision::encode::png(&frame);
    matches_are_told_alike(&app, [file.clone(), file]).await;
}
