//! Tests the detection of faces in one image and in a batch, and the comparison of two images.
use crate::support::images::{drawing, png, truncate_file};
use crate::support::site::Site;
use crate::support::{App, Json, field, ok, problem};
use serde_json::{Value, json};

/// Returns the response for an image that must have one face. The face must be within 20 pixels of
/// `expected` (x, y, width, height).
async fn detect_one_face(image: Vec<u8>, expected: [f64; 4]) -> Value {
    let app = App::spawn().await;
    let response = ok(app.post_parts("/faces/detect", &[("image", image)]).await).await;
    let faces = response.list("faces");
    assert_eq!(faces.len(), 1);
    for (side, expected) in ["x", "y", "width", "height"].into_iter().zip(expected) {
        let actual = faces[0]["bbox"][side].as_f64().unwrap();
        assert!((actual - expected).abs() < 20.0, "{side}: {actual}, not {expected}");
    }
    response
}

#[testing::needs(shared)]
#[testing::test]
async fn photograph_face_agrees_with_reference_detector() {
    // The reference detector used the full size of the photograph, but this service uses 640
    // pixels. The box of such a face differs by a few pixels.
    let reference = &testing::oracle()["obama.jpg"]["yunet_native"][0]["bbox_xywh"];
    let reference = serde_json::from_value(reference.clone()).unwrap();
    detect_one_face(testing::image("obama.jpg"), reference).await;
}

#[testing::test]
async fn portrait_face_is_found_at_drawn_position() {
    let [left, top, width, height] = testing::gallery::face("ada.jpg").map(f64::from);
    let response = detect_one_face(drawing("ada.jpg"), [left, top, width, height]).await;
    let faces = response.list("faces");
    let embedding = faces[0].list("embedding");
    let length: f64 = embedding.iter().map(|x| x.as_f64().unwrap().powi(2)).sum();
    assert_eq!(embedding.len(), 128);
    assert!((length - 1.0).abs() < 1e-3, "{length}");
    assert!(response["timings_ms"]["total"].as_f64().unwrap() > 0.0);
    // Bits of the hash may differ between machines because of rounding.
    let phash = response["image"].text("phash");
    assert!(phash.len() == 16 && phash.bytes().all(|b| b.is_ascii_hexdigit()), "{phash}");
    insta::assert_json_snapshot!("ada", replace_numbers(&response), {".image.phash" => "[16 hex digits]"});
}

/// Replaces numbers and long lists in a response. The rest must be the same on every machine.
fn replace_numbers(value: &Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => json!("[number]"),
        Value::Array(items) if items.len() > 20 => json!(format!("[{} numbers]", items.len())),
        Value::Array(items) => items.iter().map(replace_numbers).collect(),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(name, value)| (name.clone(), replace_numbers(value))).collect())
        }
        other => other.clone(),
    }
}

#[testing::test]
async fn image_without_face_returns_empty_list() {
    let app = App::spawn().await;
    for image in [drawing("view.jpg"), png(64, 48)] {
        let response = ok(app.post_raw("/faces/detect", "image/jpeg", image).await).await;
        assert_eq!(response["faces"], json!([]));
    }
}

#[testing::test]
async fn detect_parameters_control_response_content() {
    let app = App::spawn().await;
    let image = drawing("two_people.jpg");
    let detect = async |query: &str| {
        ok(app.post_raw(&format!("/faces/detect?{query}"), "image/jpeg", image.clone()).await).await
    };
    let full = detect("").await;
    assert_eq!(full.list("faces").len(), 2);
    assert!(full["faces"][0]["det_score"].as_f64() >= full["faces"][1]["det_score"].as_f64());

    let short = detect("embeddings=false&quality=false").await;
    for face in short.list("faces") {
        assert!(face.get("embedding").is_none() && face.get("quality").is_none(), "{face}");
    }
    let best = detect("max_faces=1").await;
    assert_eq!(best.list("faces").len(), 1);
    assert_eq!(best["faces"][0]["bbox"], full["faces"][0]["bbox"]);
    assert_eq!(detect("min_score=1").await["faces"], json!([]));
    assert_eq!(detect("quality_profile=off").await["faces"][0]["quality"]["passed"], true);
    assert_eq!(detect("det_size=320").await.list("faces").len(), 2);
}

#[testing::test]
async fn rotated_faces_are_found_with_auto_rotation() {
    let app = App::spawn().await;
    let upright = ok(app.post_raw("/faces/detect", "image/jpeg", drawing("turned_0.jpg")).await).await;
    assert_eq!(upright["image"]["rotation"], 0);
    let turned =
        ok(app.post_raw("/faces/detect?rotate=auto", "image/jpeg", drawing("turned_180.jpg")).await).await;
    assert_eq!(turned["image"]["rotation"], 180);
    assert_eq!(turned.list("faces").len(), upright.list("faces").len());
}

#[testing::test]
async fn invalid_detect_parameter_error_names_value_and_range() {
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
        let response = app.post_raw(&format!("/faces/detect?{query}"), "image/png", png(32, 32)).await;
        let problem = problem(response, 400, "bad_query").await;
        assert_eq!(problem["field"], field, "{problem}");
        assert_eq!(problem["value"], value, "{problem}");
        assert_eq!(problem["allowed"][0], allowed, "{problem}");
    }
}

#[testing::test]
async fn batch_returns_one_result_per_image_in_order() {
    let app = App::spawn().await;
    let parts = [
        ("image", drawing("ada_small.jpg")),
        ("image", b"not an image".to_vec()),
        ("image", drawing("two_people.jpg")),
        ("image", truncate_file(&png(200, 200))),
        ("image", png(40, 40)),
        ("image", Vec::new()),
    ];
    let response = app.post_parts("/faces/detect/batch?embeddings=false", &parts).await;
    let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
    let response = ok(response).await;
    let results = response.list("results");
    assert_eq!(results.len(), 6);
    for (index, faces) in [(0, 1), (2, 2), (4, 0)] {
        assert_eq!(results[index].list("faces").len(), faces, "{}", results[index]);
    }
    assert!(results[0]["faces"][0].get("embedding").is_none());
    for (index, code) in [(1, "not_an_image"), (3, "corrupt_image"), (5, "missing_image")] {
        let problem = &results[index]["problem"];
        assert_eq!(problem["code"], code);
        assert_eq!(problem["request_id"], id);
        assert!(field(problem).starts_with(&format!("images[{index}]")), "{problem}");
    }
}

#[testing::test]
async fn batch_accepts_json_images() {
    let app = App::spawn().await;
    let site = Site::new(&["ada_small.jpg"]).await;
    let body = json!({"images": [
        {"url": site.image("ada_small.jpg")}, {"url": format!("{}/nowhere", site.url)}, {"image_base64": "AAAA"}
    ]});
    let response = app.post_ok("/faces/detect/batch", &body).await;
    assert_eq!(response["results"][0].list("faces").len(), 1);
    assert_eq!(response["results"][1]["problem"]["code"], "url_unreachable");
    assert_eq!(response["results"][1]["problem"]["field"], "images[1].url");
    assert_eq!(response["results"][2]["problem"]["code"], "not_an_image");
}

#[testing::test]
async fn invalid_batch_is_rejected() {
    let app = App::spawn().await;
    let path = "/faces/detect/batch";
    problem(app.post_json(path, &json!({"images": []})).await, 400, "missing_image").await;
    let many: Vec<_> = (0..65).map(|_| json!({"image_base64": "AAAA"})).collect();
    let problem_many =
        problem(app.post_json(path, &json!({"images": many})).await, 413, "too_many_images").await;
    assert_eq!(problem_many["allowed"], json!(["1 to 64 images"]));
    let parts: Vec<_> = (0..65).map(|_| ("image", png(8, 8))).collect();
    problem(app.post_parts(path, &parts).await, 413, "too_many_images").await;
    problem(app.post_raw(path, "image/png", png(8, 8)).await, 415, "unsupported_media_type").await;
    let error =
        problem(app.post_json(path, &json!({"images": [{"path": "x"}]})).await, 422, "invalid_field").await;
    assert!(field(&error).starts_with("images[0]"), "{error}");
}

#[testing::test]
async fn compare_matches_same_person_only() {
    let app = App::spawn().await;
    let path = "/faces/compare";
    let same =
        ok(app.post_parts(path, &[("image", drawing("ada.jpg")), ("image", drawing("ada_2.jpg"))]).await)
            .await;
    let different =
        ok(app.post_parts(path, &[("image_b", drawing("ben.jpg")), ("image_a", drawing("ada.jpg"))]).await)
            .await;
    assert_eq!((&same["match"], &different["match"]), (&json!(true), &json!(false)));
    // The similarities of drawn people are similar to those of people in photographs.
    assert!(same["similarity"].as_f64().unwrap() > 0.5, "{}", same["similarity"]);
    assert!(different["similarity"].as_f64().unwrap() < 0.3, "{}", different["similarity"]);
    // The parts may be in any order, because their names identify them.
    assert_eq!(different["a"]["image"]["sha256"], same["a"]["image"]["sha256"]);
    assert_eq!(different["b"]["image"]["width"], 640);
    assert!(same["a"]["face"].get("embedding").is_none());
}

#[testing::test]
async fn compare_accepts_json_and_selects_faces_and_threshold() {
    let app = App::spawn().await;
    let site = Site::new(&["ada_small.jpg", "ada_and_ben.jpg"]).await;
    let body =
        json!({"a": {"url": site.image("ada_small.jpg")}, "b": {"url": site.image("ada_and_ben.jpg")}});
    let compare = async |query: &str| app.post_ok(&format!("/faces/compare{query}"), &body).await;
    let first = compare("").await["similarity"].as_f64().unwrap();
    let second = compare("?face_b=1").await["similarity"].as_f64().unwrap();
    // One of the two people is also the person in the other image.
    assert!(first.max(second) > 0.5 && first.min(second) < 0.3, "{first} and {second}");
    let strict = compare("?threshold=1").await;
    assert_eq!((&strict["match"], &strict["threshold"]), (&json!(false), &json!(1.0)));
    assert_eq!(compare("?threshold=-1").await["match"], true);

    let response = app.post_json("/faces/compare?face_a=3", &body).await;
    let error = problem(response, 422, "no_such_face").await;
    assert_eq!((field(&error), &error["allowed"]), ("a", &json!(["0 to 0"])));
}

#[testing::test]
async fn compare_error_names_invalid_image() {
    let app = App::spawn().await;
    let path = "/faces/compare";
    let face = drawing("ada_small.jpg");
    let empty = app.post_parts(path, &[("image_a", face.clone()), ("image_b", png(64, 64))]).await;
    assert_eq!(field(&problem(empty, 422, "no_face").await), "b");
    let text = app.post_parts(path, &[("image_a", b"text".to_vec()), ("image_b", face.clone())]).await;
    assert_eq!(field(&problem(text, 415, "not_an_image").await), "a");
    let response = app.post_parts(path, &[("image", face.clone())]).await;
    assert_eq!(field(&problem(response, 400, "missing_image").await), "image_b");
    let response = app.post_parts(path, &[("image_a", face.clone()), ("image_a", face.clone())]).await;
    problem(response, 400, "unknown_part").await;
    let mixed = app.post_parts(path, &[("image_a", face.clone()), ("image", face.clone())]).await;
    assert_eq!(field(&problem(mixed, 400, "unknown_part").await), "image");
    problem(app.post_raw(path, "image/jpeg", face).await, 415, "unsupported_media_type").await;
    let incomplete =
        problem(app.post_json(path, &json!({"a": {"url": "http://127.0.0.1/"}})).await, 422, "invalid_field")
            .await;
    assert_eq!(field(&incomplete), "b");
    let url = json!({"a": {"image_base64": "?"}, "b": {"image_base64": "?"}});
    assert_eq!(field(&problem(app.post_json(path, &url).await, 422, "bad_base64").await), "a.image_base64");
}
