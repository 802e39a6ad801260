//! `POST /images/quality`
use crate::support::pictures::{drawn, photo};
use crate::support::{App, field, ok, problem};
use serde_json::json;

#[tokio::test]
async fn the_statistics_agree_with_the_reference() {
    let Some(app) = App::spawn().await else { return };
    let oracle = testing::oracle().unwrap();
    for name in ["obama.jpg", "blur.jpg", "view.jpg"] {
        let answer = ok(app.post_raw("/images/quality", "image/jpeg", photo(name)).await).await;
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

#[tokio::test]
async fn the_profile_decides_what_passes() {
    let Some(app) = App::spawn().await else { return };
    let of = async |profile: &str| {
        let path = format!("/images/quality?quality_profile={profile}");
        ok(app.post_parts(&path, &[("image", photo("blur.jpg"))]).await).await["faces"][0]["quality"].clone()
    };
    let (off, strict) = (of("off").await, of("strict").await);
    assert_eq!((&off["passed"], &off["reasons"]), (&json!(true), &json!([])));
    assert_eq!(strict["passed"], false);
    assert!(!strict["reasons"].as_array().unwrap().is_empty());
    assert_eq!(off["blur"], strict["blur"]);
}

#[tokio::test]
async fn a_picture_without_faces_has_statistics_all_the_same() {
    let Some(app) = App::spawn().await else { return };
    let answer = ok(app.post_raw("/images/quality", "image/png", drawn(100, 80)).await).await;
    assert_eq!((&answer["faces"], &answer["image"]["width"]), (&json!([]), &json!(100)));
    problem(app.post_raw("/images/quality", "image/png", b"text".to_vec()).await, 415, "not_an_image").await;
    let wrong = app.post_raw("/images/quality?embeddings=true", "image/png", drawn(8, 8)).await;
    assert_eq!(field(&problem(wrong, 400, "bad_query").await), "embeddings");
}
