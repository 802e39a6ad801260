use crate::support::pictures::{drawn, picture};
use crate::support::{App, Models, Options, field, ok, problem};
use serde_json::json;

#[testing::needs(shared)]
#[testing::test]
async fn the_statistics_agree_with_the_reference() {
    let app = App::spawn().await;
    let oracle = testing::oracle();
    for name in ["obama.jpg", "blur.jpg", "view.jpg"] {
        let photograph = testing::image(name);
        let answer = ok(app.post_raw("/images/quality", "image/jpeg", photograph).await).await;
        for measure in ["laplacian_variance", "tenengrad", "mean", "std"] {
            let wanted = oracle[name]["image_quality"][measure].as_f64().unwrap();
            let got = answer["statistics"][measure].as_f64().unwrap();
            assert!(
                (got - wanted).abs() <= wanted * 0.01,
                "{name}, {measure}: {got}, the reference has {wanted}"
            );
        }
        let clipped = answer["statistics"]["clipped"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&clipped));
        for face in answer["faces"].as_array().unwrap() {
            assert!(
                face["quality"]["overall"].as_f64().is_some() && face.get("embedding").is_none(),
                "{face}"
            );
        }
    }
}

#[testing::test]
async fn the_profile_decides_what_passes() {
    let app = App::spawn().await;
    let of = async |profile: &str| {
        let path = format!("/images/quality?quality_profile={profile}");
        ok(app.post_parts(&path, &[("image", picture("blur.jpg"))]).await).await["faces"][0]["quality"]
            .clone()
    };
    let (off, strict) = (of("off").await, of("strict").await);
    assert_eq!((&off["passed"], &off["reasons"]), (&json!(true), &json!([])));
    assert_eq!(strict["passed"], false);
    assert!(!strict["reasons"].as_array().unwrap().is_empty());
    assert_eq!(off["blur"], strict["blur"]);
}

#[testing::test]
async fn a_picture_without_faces_has_statistics_all_the_same() {
    let app = App::spawn().await;
    let answer = ok(app.post_raw("/images/quality", "image/png", drawn(100, 80)).await).await;
    assert_eq!((&answer["faces"], &answer["image"]["width"]), (&json!([]), &json!(100)));
    problem(app.post_raw("/images/quality", "image/png", b"text".to_vec()).await, 415, "not_an_image").await;
    let wrong = app.post_raw("/images/quality?embeddings=true", "image/png", drawn(8, 8)).await;
    assert_eq!(field(&problem(wrong, 400, "bad_query").await), "embeddings");
}

#[testing::test]
async fn an_installed_quality_model_adds_its_score_and_its_name() {
    let mut files = Vec::new();
    let mut picture = testing::fixture_models::Picture::from_raw(640, 480, vec![90; 640 * 480 * 3]).unwrap();
    testing::draw_face(&mut picture, 5, 5, 3);
    picture.write_to(&mut std::io::Cursor::new(&mut files), image::ImageFormat::Png).unwrap();
    let face = image::imageops::crop_imm(&picture, 5 * 32 - 16, 5 * 32 - 16, 64, 64).to_image();
    let mean =
        |channel: usize| face.pixels().map(|pixel| f32::from(pixel[channel])).sum::<f32>() / (64.0 * 64.0);
    let wanted = f64::from(testing::fixture_score([mean(0), mean(1), mean(2)]));

    for (models, installed) in [(Models::Scored, true), (Models::Fixture, false)] {
        let options = Options { models, worker: false, ..Options::default() };
        let app = App::spawn_with(options).await;
        for path in ["/images/quality", "/faces/detect"] {
            let answer = ok(app.post_raw(path, "image/png", files.clone()).await).await;
            let quality = &answer["faces"][0]["quality"];
            let learned = quality.get("learned");
            assert_eq!(learned.is_some(), installed, "{path}: {quality}");
            if let Some(learned) = learned {
                let (value, raw) = (learned["value"].as_f64().unwrap(), learned["raw"].as_f64().unwrap());
                assert!((raw - wanted).abs() < 0.01 && value == raw, "{path}: {learned}, not {wanted}");
            }
        }
        let answer = ok(app.post_raw("/faces/detect", "image/png", files.clone()).await).await;
        let name = installed.then_some("fixture_quality");
        assert_eq!(answer["models"].get("quality").and_then(|name| name.as_str()), name);
    }
}
