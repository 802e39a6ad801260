use crate::support::pictures::{drawn, picture};
use crate::support::{App, ok, problem};
use serde_json::{Value, json};

/// Returns the response for an image that must have one face. The face must be within 20 pixels of
/// `wanted` (x, y, width, height).
async fn one_face(picture: Vec<u8>, wanted: [f64; 4]) -> Value {
    let app = App::spawn().await;
    let answer = ok(app.post_parts("/faces/detect", &[("image", picture)]).await).await;
    let faces = answer["faces"].as_array().unwrap();
    assert_eq!(faces.len(), 1);
    for (side, wanted) in ["x", "y", "width", "height"].into_iter().zip(wanted) {
        let got = faces[0]["bbox"][side].as_f64().unwrap();
        assert!((got - wanted).abs() < 20.0, "{side}: {got}, not {wanted}");
    }
    answer
}

#[testing::needs(shared)]
#[testing::test]
async fn a_photograph_answers_one_face_where_the_reference_has_it() {
    // The reference detector used the full size of the photograph, but this service uses 640
    // pixels. The box of such a face differs by a few pixels.
    let reference = &testing::oracle()["obama.jpg"]["yunet_native"][0]["bbox_xywh"];
    let reference = serde_json::from_value(reference.clone()).unwrap();
    one_face(testing::image("obama.jpg"), reference).await;
}

#[testing::test]
async fn a_portrait_answers_one_face_where_it_was_drawn() {
    let [left, top, width, height] = testing::gallery::face("ada.jpg").map(f64::from);
    let answer = one_face(picture("ada.jpg"), [left, top, width, height]).await;
    let faces = answer["faces"].as_array().unwrap();
    let embedding = faces[0]["embedding"].as_array().unwrap();
    let length: f64 = embedding.iter().map(|x| x.as_f64().unwrap().powi(2)).sum();
    assert_eq!(embedding.len(), 128);
    assert!((length - 1.0).abs() < 1e-3, "{length}");
    assert!(answer["timings_ms"]["total"].as_f64().unwrap() > 0.0);
    // Bits of the hash may differ between machines because of rounding.
    let phash = answer["image"]["phash"].as_str().unwrap();
    assert!(phash.len() == 16 && phash.bytes().all(|b| b.is_ascii_hexdigit()), "{phash}");
    insta::assert_json_snapshot!("ada", shape(&answer), {".image.phash" => "[16 hex digits]"});
}

/// Replaces numbers and long lists in a response. The rest must be the same on every machine.
fn shape(value: &Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => json!("[number]"),
        Value::Array(items) if items.len() > 20 => json!(format!("[{} numbers]", items.len())),
        Value::Array(items) => items.iter().map(shape).collect(),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(name, value)| (name.clone(), shape(value))).collect())
        }
        other => other.clone(),
    }
}

#[testing::test]
async fn a_picture_without_a_face_answers_an_empty_list() {
    let app = App::spawn().await;
    for picture in [picture("view.jpg"), drawn(64, 48)] {
        let answer = ok(app.post_raw("/faces/detect", "image/jpeg", picture).await).await;
        assert_eq!(answer["faces"], json!([]));
    }
}

#[testing::test]
async fn parameters_choose_what_is_answered() {
    let app = App::spawn().await;
    let picture = picture("two_people.jpg");
    let ask = async |query: &str| {
        ok(app.post_raw(&format!("/faces/detect?{query}"), "image/jpeg", picture.clone()).await).await
    };
    let all = ask("").await;
    assert_eq!(all["faces"].as_array().unwrap().len(), 2);
    assert!(all["faces"][0]["det_score"].as_f64() >= all["faces"][1]["det_score"].as_f64());

    let lean = ask("embeddings=false&quality=false").await;
    for face in lean["faces"].as_array().unwrap() {
        assert!(face.get("embedding").is_none() && face.get("quality").is_none(), "{face}");
    }
    let best = ask("max_faces=1").await;
    assert_eq!(best["faces"].as_array().unwrap().len(), 1);
    assert_eq!(best["faces"][0]["bbox"], all["faces"][0]["bbox"]);
    assert_eq!(ask("min_score=1").await["faces"], json!([]));
    assert_eq!(ask("quality_profile=off").await["faces"][0]["quality"]["passed"], true);
    assert_eq!(ask("det_size=320").await["faces"].as_array().unwrap().len(), 2);
}

#[testing::test]
async fn turned_faces_are_found_when_asked_for() {
    let app = App::spawn().await;
    let upright = ok(app.post_raw("/faces/detect", "image/jpeg", picture("turned_0.jpg")).await).await;
    assert_eq!(upright["image"]["rotation"], 0);
    let turned = app.post_raw("/faces/detect?rotate=auto", "image/jpeg", picture("turned_180.jpg")).await;
    let turned = ok(turned).await;
    assert_eq!(turned["image"]["rotation"], 180);
    assert_eq!(turned["faces"].as_array().unwrap().len(), upright["faces"].as_array().unwrap().len());
}

#[testing::test]
async fn wrong_parameters_are_named() {
    let app = App::spawn().await;
    for (query, field, value, allowed) in [
        ("min_score=2", "min_score", "2", "a number from 0.1 to 1"),
        ("max_faces=0", "max_faces", "0", "a whole number from 1 to 1000"),
        ("embeddings=maybe", "embeddings", "maybe", "a boolean"),
        ("rotate=left", "rotate", "left", "off"),
        ("det_size=100", "det_size", "100", "a multiple of 32 from 64 to 2048"),
        ("quality_profile=harsh", "quality_profile", "harsh", "off"),
        ("limit=3", "limit", "3", "min_score"),
    ] {
        let answer = app.post_raw(&format!("/faces/detect?{query}"), "image/png", drawn(32, 32)).await;
        let problem = problem(answer, 400, "bad_query").await;
        assert_eq!(problem["field"], field, "{problem}");
        assert_eq!(problem["value"], value, "{problem}");
        assert_eq!(problem["allowed"][0], allowed, "{problem}");
    }
}
