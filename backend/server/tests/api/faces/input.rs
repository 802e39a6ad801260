//! Tests all ways to pass an image, all errors that concern an image, and damaged files.
use crate::support::images::{arithmetic_jpeg, avif, drawing, enormous_gif, png, tiff, truncate_file};
use crate::support::site::Site;
use crate::support::{App, Json, Models, Options, field, ok, problem};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use server::Config;
use std::collections::BTreeMap;
use std::path::Path;
use testing::damage::{Random, damage};

/// Encodes base64 without the library that the service uses.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    bytes
        .chunks(3)
        .flat_map(|chunk| {
            let word = chunk.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte))
                << (8 * (3 - chunk.len()));
            (0..4).map(move |i| {
                if i <= chunk.len() { ALPHABET[(word >> (18 - 6 * i)) as usize & 63] as char } else { '=' }
            })
        })
        .collect()
}

#[testing::test]
async fn every_image_input_method_gives_same_result() {
    let app = App::spawn().await;
    let site = Site::new(&["ada_small.jpg"]).await;
    let image = drawing("ada_small.jpg");
    let path = "/faces/detect";
    let encoded = base64(&image);
    let responses = [
        app.post_parts(path, &[("image", image.clone())]).await,
        app.post_raw(path, "image/jpeg", image.clone()).await,
        app.post_raw(path, "image/png", image.clone()).await,
        app.post_raw(path, "application/octet-stream", image.clone()).await,
        app.post_json(path, &json!({"image_base64": encoded})).await,
        app.post_json(path, &json!({"image_base64": format!("data:image/jpeg;base64,{encoded}")})).await,
        app.post_json(path, &json!({"url": site.image("ada_small.jpg")})).await,
    ];
    let mut first: Option<Value> = None;
    for response in responses {
        let response = ok(response).await;
        assert_eq!(response.list("faces").len(), 1);
        let described = json!([response["image"], response["faces"]]);
        assert_eq!(*first.get_or_insert(described.clone()), described);
    }
}

#[testing::test]
async fn unusable_image_content_has_distinct_error_codes() {
    let app = App::spawn().await;
    let jpeg = drawing("ada_small.jpg");
    for (name, bytes, status, code) in [
        ("text", b"hello, this is not an image".to_vec(), 415, "not_an_image"),
        ("html", b"<!doctype html><title>404</title>".to_vec(), 415, "not_an_image"),
        ("the head of an avif", avif(), 422, "corrupt_image"),
        // The service of this test has no ffmpeg.
        ("tiff", tiff(), 415, "needs_ffmpeg"),
        ("a jpeg with arithmetic coding", arithmetic_jpeg(&jpeg), 415, "unsupported_format"),
        ("the head of a jpeg", truncate_file(&jpeg), 422, "corrupt_image"),
        ("the head of a png", truncate_file(&png(300, 200)), 422, "corrupt_image"),
        ("enormous", enormous_gif(), 413, "image_too_large"),
        ("nothing", Vec::new(), 400, "missing_image"),
    ] {
        eprintln!("{name}");
        problem(app.post_raw("/faces/detect", "image/jpeg", bytes.clone()).await, status, code).await;
        problem(app.post_parts("/faces/detect", &[("image", bytes)]).await, status, code).await;
    }
}

#[testing::test]
async fn multipart_error_names_invalid_part() {
    let app = App::spawn().await;
    let path = "/faces/detect";
    let response = app.post_parts(path, &[("picture", png(32, 32)), ("image", png(32, 32))]).await;
    let error = problem(response, 400, "unknown_part").await;
    assert_eq!((field(&error), &error["allowed"]), ("picture", &json!(["image"])));

    let two = app.post_parts(path, &[("image", png(32, 32)), ("image", png(32, 32))]).await;
    assert_eq!(field(&problem(two, 413, "too_many_images").await), "image");

    let none = app.post_raw(path, "multipart/form-data; boundary=x", b"--x--\r\n".to_vec()).await;
    assert_eq!(field(&problem(none, 400, "missing_image").await), "image");

    let truncated = b"--x\r\ncontent-disposition: form-data; name=\"image\"\r\n\r\nhalf".to_vec();
    problem(app.post_raw(path, "multipart/form-data; boundary=x", truncated).await, 400, "bad_multipart")
        .await;
    problem(app.post_raw(path, "multipart/form-data", Vec::new()).await, 400, "bad_multipart").await;
}

#[testing::test]
async fn json_image_error_names_invalid_field() {
    let app = App::spawn().await;
    let path = "/faces/detect";
    problem(app.post_raw(path, "application/json", b"{\"url\": ".to_vec()).await, 400, "bad_json").await;
    problem(app.post_raw(path, "application/json", Vec::new()).await, 400, "bad_json").await;
    for body in
        [json!({}), json!([]), json!({"url": "http://127.0.0.1/", "image_base64": "AA=="}), json!({"url": 5})]
    {
        problem(app.post_json(path, &body).await, 422, "invalid_field").await;
    }
    let error = problem(app.post_json(path, &json!({"file": "x"})).await, 422, "invalid_field").await;
    assert_eq!((field(&error), &error["allowed"]), ("file", &json!(["url", "image_base64"])));
    let error = problem(app.post_json(path, &json!({"image_base64": "%%%"})).await, 422, "bad_base64").await;
    assert_eq!(field(&error), "image_base64");
    problem(app.post_json(path, &json!({"image_base64": ""})).await, 400, "missing_image").await;
    let text = app.post_json(path, &json!({"image_base64": base64(b"not an image")})).await;
    problem(text, 415, "not_an_image").await;
}

#[testing::test]
async fn content_types_without_image_are_rejected() {
    let app = App::spawn().await;
    for media in ["text/plain", "application/x-www-form-urlencoded", "video/mp4"] {
        let response = app.post_raw("/faces/detect", media, png(32, 32)).await;
        let problem = problem(response, 415, "unsupported_media_type").await;
        assert_eq!(problem["value"], media);
        assert_eq!(problem.list("allowed").len(), 4);
    }
}

#[testing::test]
async fn image_urls_are_checked_by_url_guard() {
    let app = App::spawn().await;
    let site = Site::new(&[]).await;
    for (url, status, code, reason) in [
        ("no url".to_owned(), 422, "bad_url", None),
        ("file:///etc/passwd".to_owned(), 422, "bad_url", None),
        ("ftp://127.0.0.1/a.jpg".to_owned(), 422, "bad_url", None),
        (
            "http://169.254.169.254/latest/meta-data".to_owned(),
            422,
            "forbidden_url",
            Some("forbidden_address"),
        ),
        ("http://[::ffff:10.0.0.1]/a.jpg".to_owned(), 422, "forbidden_url", Some("forbidden_address")),
        ("http://user:secret@127.0.0.1/a.jpg".to_owned(), 422, "forbidden_url", Some("forbidden_url")),
        (format!("{}/to-metadata", site.url), 422, "forbidden_url", Some("forbidden_address")),
        (format!("{}/nowhere.jpg", site.url), 422, "url_unreachable", Some("http_404")),
        (format!("{}/broken", site.url), 422, "url_unreachable", Some("http_500")),
        ("http://127.0.0.1:9/a.jpg".to_owned(), 422, "url_unreachable", Some("connection_refused")),
        (format!("{}/text", site.url), 415, "not_an_image", None),
    ] {
        eprintln!("{url}");
        let response = app.post_json("/faces/detect", &json!({"url": url})).await;
        let problem = problem(response, status, code).await;
        assert_eq!(problem.get("reason").and_then(Value::as_str), reason, "{problem}");
    }
}

#[testing::test]
async fn compressed_body_error_names_content_encoding_header() {
    let app = App::spawn_bare(Config::default()).await;
    for (path, media) in [
        ("/faces/detect", "image/jpeg"),
        ("/faces/detect", "application/json"),
        ("/faces/search", "multipart/form-data; boundary=x"),
        ("/crawls", "application/json"),
        ("/videos", "video/mp4"),
    ] {
        for encoding in ["gzip", "br", "identity, gzip"] {
            let request = app.client.post(format!("{}{path}", app.url)).header("content-type", media);
            let sent = request.header("content-encoding", encoding).body("compressed").send().await.unwrap();
            let error = problem(sent, 415, "unsupported_media_type").await;
            assert_eq!((&error["field"], &error["value"]), (&json!("content-encoding"), &json!(encoding)));
            assert_eq!(error["allowed"], json!(["identity"]));
        }
    }
    let request = app.client.post(format!("{}/crawls", app.url)).header("content-encoding", "Identity");
    problem(request.json(&json!({})).send().await.unwrap(), 422, "invalid_field").await;
}

#[testing::test]
async fn image_size_limit_applies_to_every_input_method() {
    let config = Config { image_limit: 80_000, batch_limit: 140_000, ..Config::default() };
    let app = App::spawn_with(Options { config, ..Options::default() }).await;
    let site = Site::new(&["group.jpg"]).await;
    let path = "/faces/detect";
    let (small, large, very_large) = (drawing("two_people.jpg"), drawing("group.jpg"), vec![b'x'; 8 << 20]);
    assert!(small.len() < 60_000 && large.len() > 80_000);
    for bytes in [large.clone(), very_large] {
        for response in [
            app.post_raw(path, "image/jpeg", bytes.clone()).await,
            app.post_parts(path, &[("image", bytes.clone())]).await,
            app.post_json(path, &json!({"image_base64": base64(&bytes)})).await,
        ] {
            let problem = problem(response, 413, "too_many_bytes").await;
            assert!(problem["allowed"][0].as_str().unwrap().starts_with("at most "), "{problem}");
        }
    }
    let fetched = app.post_json(path, &json!({"url": site.image("group.jpg")})).await;
    assert_eq!(field(&problem(fetched, 413, "too_many_bytes").await), "url");
    ok(app.post_raw(path, "image/jpeg", small.clone()).await).await;
    app.post_ok(path, &json!({"image_base64": base64(&small)})).await;

    // A batch reports one image that is too large in its own result. The whole batch is rejected if
    // its total size is too large.
    let mixed =
        ok(app.post_parts("/faces/detect/batch", &[("image", large), ("image", png(32, 32))]).await).await;
    assert_eq!(mixed["results"][0]["problem"]["code"], "too_many_bytes");
    assert_eq!(mixed["results"][1]["faces"], json!([]));
    let parts: Vec<(&str, Vec<u8>)> = (0..8).map(|_| ("image", small.clone())).collect();
    problem(app.post_parts("/faces/detect/batch", &parts).await, 413, "too_many_bytes").await;
}

const FILES: u64 = 2000;

#[testing::test]
async fn damaged_files_never_cause_server_errors() {
    let options = Options { models: Models::Fixture, worker: false, ..Options::default() };
    let app = App::spawn_with(options).await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vision/tests/fixtures");
    let mut seeds: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    seeds.retain(|path| path.extension().is_some_and(|extension| extension != "py"));
    seeds.sort();
    let seeds: Vec<Vec<u8>> = seeds.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(seeds.len() >= 20);

    let app = &app;
    let statuses: Vec<(u64, u16)> = stream::iter(0..FILES)
        .map(|number| {
            let file = damage(&seeds[number as usize % seeds.len()], &mut Random::new(number));
            async move {
                // Files are sent alternately as a part and as a raw body.
                let response = if number % 2 == 0 {
                    app.post_parts("/faces/detect?rotate=auto", &[("image", file)]).await
                } else {
                    app.post_raw("/faces/detect", "application/octet-stream", file).await
                };
                (number, response.status().as_u16())
            }
        })
        .buffer_unordered(8)
        .collect()
        .await;

    let mut counts = BTreeMap::<u16, usize>::new();
    for (number, status) in statuses {
        assert!(matches!(status, 200 | 413 | 415 | 422), "file {number} gives {status}");
        *counts.entry(status).or_default() += 1;
    }
    // The damage must cause all of these statuses. Otherwise the test covers too little.
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), [200, 413, 415, 422], "{counts:?}");
    println!("{counts:?}");
    assert_eq!(app.get("/health/ready").await.status(), 200);
}
