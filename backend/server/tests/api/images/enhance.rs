use crate::support::pictures::{drawn, enormous, picture};
use crate::support::{App, problem};
use reqwest::{Response, StatusCode};
use serde_json::json;

/// Returns the scale, the content type and the pixels of an enhanced image.
async fn enhanced(response: Response) -> (f32, String, image::RgbImage) {
    let headers = response.headers().clone();
    assert_eq!(response.status(), StatusCode::OK, "{:?}", response.text().await);
    let text = |name: &str| headers[name].to_str().unwrap().to_owned();
    let picture = image::load_from_memory(&response.bytes().await.unwrap()).unwrap().to_rgb8();
    (text("x-enhancement-scale").parse().unwrap(), text("content-type"), picture)
}

#[testing::test]
async fn a_small_picture_is_enlarged_and_says_by_how_much() {
    let app = App::spawn().await;
    let answer = app.post_raw("/images/enhance", "image/png", drawn(100, 80)).await;
    let (scale, media, picture) = enhanced(answer).await;
    assert_eq!((scale, media.as_str(), picture.dimensions()), (4.0, "image/png", (400, 320)));

    // The other ways to pass an image give the same result.
    let parts = enhanced(app.post_parts("/images/enhance", &[("image", drawn(100, 80))]).await).await;
    assert_eq!(parts.2, picture);
    use base64::Engine as _;
    let body = json!({"image_base64": base64::engine::general_purpose::STANDARD.encode(drawn(100, 80))});
    assert_eq!(enhanced(app.post_json("/images/enhance", &body).await).await.2, picture);

    let request = app.client.post(format!("{}/images/enhance", app.url)).header("accept", "image/jpeg");
    let answer = request.header("content-type", "image/png").body(drawn(100, 80)).send().await.unwrap();
    let (scale, media, jpeg) = enhanced(answer).await;
    assert_eq!((scale, media.as_str(), jpeg.dimensions()), (4.0, "image/jpeg", (400, 320)));
}

#[testing::test]
async fn a_large_picture_keeps_its_size() {
    let app = App::spawn().await;
    let (scale, _, picture) =
        enhanced(app.post_raw("/images/enhance", "image/jpeg", picture("ada.jpg")).await).await;
    assert_eq!((scale, picture.dimensions()), (1.0, (720, 900)));
}

#[testing::test]
async fn what_is_no_picture_is_refused_as_everywhere() {
    let app = App::spawn().await;
    problem(app.post_raw("/images/enhance", "image/png", b"text".to_vec()).await, 415, "not_an_image").await;
    problem(app.post_raw("/images/enhance", "image/png", Vec::new()).await, 400, "missing_image").await;
    problem(app.post_raw("/images/enhance", "image/gif", enormous()).await, 413, "image_too_large").await;
}
