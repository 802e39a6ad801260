use crate::support::pictures::{drawn, picture, truncated};
use crate::support::site::Site;
use crate::support::{App, field, ok, problem};
use serde_json::json;

#[testing::test]
async fn every_picture_has_its_own_answer_in_order() {
    let app = App::spawn().await;
    let parts = [
        ("image", picture("ada_small.jpg")),
        ("image", b"no picture".to_vec()),
        ("image", picture("two_people.jpg")),
        ("image", truncated(&drawn(200, 200))),
        ("image", drawn(40, 40)),
        ("image", Vec::new()),
    ];
    let response = app.post_parts("/faces/detect/batch?embeddings=false", &parts).await;
    let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
    let answer = ok(response).await;
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), 6);
    for (index, faces) in [(0, 1), (2, 2), (4, 0)] {
        assert_eq!(results[index]["faces"].as_array().unwrap().len(), faces, "{}", results[index]);
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
async fn a_batch_may_come_as_json() {
    let app = App::spawn().await;
    let site = Site::with(&["ada_small.jpg"]).await;
    let body = json!({"images": [
        {"url": site.picture("ada_small.jpg")}, {"url": format!("{}/nowhere", site.url)}, {"image_base64": "AAAA"}
    ]});
    let answer = ok(app.post_json("/faces/detect/batch", &body).await).await;
    assert_eq!(answer["results"][0]["faces"].as_array().unwrap().len(), 1);
    assert_eq!(answer["results"][1]["problem"]["code"], "url_unreachable");
    assert_eq!(answer["results"][1]["problem"]["field"], "images[1].url");
    assert_eq!(answer["results"][2]["problem"]["code"], "not_an_image");
}

#[testing::test]
async fn batches_that_are_none_are_refused() {
    let app = App::spawn().await;
    let path = "/faces/detect/batch";
    problem(app.post_json(path, &json!({"images": []})).await, 400, "missing_image").await;
    let many: Vec<_> = (0..65).map(|_| json!({"image_base64": "AAAA"})).collect();
    let problem_many =
        problem(app.post_json(path, &json!({"images": many})).await, 413, "too_many_images").await;
    assert_eq!(problem_many["allowed"], json!(["1 to 64 images"]));
    let parts: Vec<_> = (0..65).map(|_| ("image", drawn(8, 8))).collect();
    problem(app.post_parts(path, &parts).await, 413, "too_many_images").await;
    problem(app.post_raw(path, "image/png", drawn(8, 8)).await, 415, "unsupported_media_type").await;
    let wrong =
        problem(app.post_json(path, &json!({"images": [{"path": "x"}]})).await, 422, "invalid_field").await;
    assert!(field(&wrong).starts_with("images[0]"), "{wrong}");
}
