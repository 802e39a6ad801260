use crate::support::pictures::{drawn, picture};
use crate::support::site::Site;
use crate::support::{App, field, ok, problem};
use serde_json::json;

#[testing::test]
async fn one_person_matches_and_two_do_not() {
    let app = App::spawn().await;
    let path = "/faces/compare";
    let same =
        ok(app.post_parts(path, &[("image", picture("ada.jpg")), ("image", picture("ada_2.jpg"))]).await)
            .await;
    let different =
        ok(app.post_parts(path, &[("image_b", picture("ben.jpg")), ("image_a", picture("ada.jpg"))]).await)
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
async fn json_names_the_two_and_parameters_choose_faces_and_threshold() {
    let app = App::spawn().await;
    let site = Site::with(&["ada_small.jpg", "ada_and_ben.jpg"]).await;
    let body =
        json!({"a": {"url": site.picture("ada_small.jpg")}, "b": {"url": site.picture("ada_and_ben.jpg")}});
    let of = async |query: &str| ok(app.post_json(&format!("/faces/compare{query}"), &body).await).await;
    let first = of("").await["similarity"].as_f64().unwrap();
    let second = of("?face_b=1").await["similarity"].as_f64().unwrap();
    // One of the two people is also the person in the other image.
    assert!(first.max(second) > 0.5 && first.min(second) < 0.3, "{first} and {second}");
    let strict = of("?threshold=1").await;
    assert_eq!((&strict["match"], &strict["threshold"]), (&json!(false), &json!(1.0)));
    assert_eq!(of("?threshold=-1").await["match"], true);

    let beyond = app.post_json("/faces/compare?face_a=3", &body).await;
    let beyond = problem(beyond, 422, "no_such_face").await;
    assert_eq!((field(&beyond), &beyond["allowed"]), ("a", &json!(["0 to 0"])));
}

#[testing::test]
async fn the_picture_that_is_wrong_is_named() {
    let app = App::spawn().await;
    let path = "/faces/compare";
    let face = picture("ada_small.jpg");
    let empty = app.post_parts(path, &[("image_a", face.clone()), ("image_b", drawn(64, 64))]).await;
    assert_eq!(field(&problem(empty, 422, "no_face").await), "b");
    let text = app.post_parts(path, &[("image_a", b"text".to_vec()), ("image_b", face.clone())]).await;
    assert_eq!(field(&problem(text, 415, "not_an_image").await), "a");
    let one = app.post_parts(path, &[("image", face.clone())]).await;
    assert_eq!(field(&problem(one, 400, "missing_image").await), "image_b");
    let twice = app.post_parts(path, &[("image_a", face.clone()), ("image_a", face.clone())]).await;
    problem(twice, 400, "unknown_part").await;
    let mixed = app.post_parts(path, &[("image_a", face.clone()), ("image", face.clone())]).await;
    assert_eq!(field(&problem(mixed, 400, "unknown_part").await), "image");
    problem(app.post_raw(path, "image/jpeg", face).await, 415, "unsupported_media_type").await;
    let half =
        problem(app.post_json(path, &json!({"a": {"url": "http://127.0.0.1/"}})).await, 422, "invalid_field")
            .await;
    assert_eq!(field(&half), "b");
    let url = json!({"a": {"image_base64": "?"}, "b": {"image_base64": "?"}});
    assert_eq!(field(&problem(app.post_json(path, &url).await, 422, "bad_base64").await), "a.image_base64");
}
