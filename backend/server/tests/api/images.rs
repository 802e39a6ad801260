//! Tests the operations on stored images, the quality report and the enhancement of images.
use crate::support::images::{drawing, enormous_gif, png};
use crate::support::{App, FAKE_ID, Json, Models, Options, field, ok, problem};
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};

#[testing::test]
async fn stored_images_are_listed_shown_and_deleted() {
    let (app, site, crawl) = App::with_crawl(&["ada_small.jpg", "view.jpg"]).await;
    assert_eq!(crawl["counts"]["images"]["processed"], 2, "{crawl:#}");

    let list = app.get_ok("/images").await;
    assert_eq!((list.list("images").len(), &list["next_cursor"]), (2, &Value::Null));
    let with_faces = app.get_ok("/images?has_faces=true").await.list("images").clone();
    let without = app.get_ok("/images?has_faces=false").await.list("images").clone();
    assert_eq!((with_faces.len(), without.len()), (1, 1));
    assert_eq!(without[0]["sources"][0]["alt"], "view.jpg");

    let id = with_faces[0].text("id");
    let image = app.get_ok(&format!("/images/{id}")).await;
    assert_eq!((&image["face_count"], &image["format"]), (&json!(1), &json!("jpeg")));
    assert_eq!(image["faces"][0]["image_id"], id);
    assert_eq!(image["sources"][0]["image_url"], site.image("ada_small.jpg"));
    assert_eq!(image.text("sha256").len(), 64);
    assert_eq!(image.text("phash").len(), 16);

    let first = app.get_ok("/images?limit=1").await;
    let cursor = first.text("next_cursor");
    let second = app.get_ok(&format!("/images?limit=1&cursor={cursor}")).await;
    assert_eq!(json!([first["images"][0], second["images"][0]]), list["images"]);
    assert_eq!(second["next_cursor"], Value::Null);
    // The cursor is valid for this list and these filters only.
    for path in ["/faces?", "/crawls?", "/images?has_faces=true&", &format!("/images/{id}/sources?")] {
        let error = problem(app.get(&format!("{path}cursor={cursor}")).await, 400, "bad_query").await;
        assert_eq!(field(&error), "cursor", "{path} {error}");
    }

    let thumbnail = app.get(&format!("/images/{id}/thumbnail")).await;
    assert_eq!(thumbnail.headers()["content-type"], "image/jpeg");
    image::load_from_memory_with_format(&thumbnail.bytes().await.unwrap(), image::ImageFormat::Jpeg).unwrap();

    assert_eq!(app.delete(&format!("/images/{id}")).await.status(), StatusCode::NO_CONTENT);
    problem(app.get(&format!("/images/{id}")).await, 404, "not_found").await;
    problem(app.get(&format!("/images/{id}/thumbnail")).await, 404, "not_found").await;
    assert_eq!(app.get_ok("/faces").await["faces"], json!([]), "the faces of the image must be deleted");
}

#[testing::test]
async fn unknown_images_and_invalid_parameters_are_rejected() {
    let app = App::spawn().await;
    problem(app.get(&format!("/images/{FAKE_ID}")).await, 404, "not_found").await;
    problem(app.get(&format!("/images/{FAKE_ID}/thumbnail")).await, 404, "not_found").await;
    problem(app.delete(&format!("/images/{FAKE_ID}")).await, 404, "not_found").await;
    problem(app.get("/images/x").await, 400, "bad_id").await;
    problem(app.get("/images?collection=nowhere").await, 404, "not_found").await;
    for query in ["has_faces=1", "limit=-1", "cursor=", "page=2"] {
        let error = problem(app.get(&format!("/images?{query}")).await, 400, "bad_query").await;
        assert_eq!(field(&error), query.split('=').next().unwrap(), "{error}");
    }
}

/// Adds `$count` sources with URLs of `$bytes` bytes to every stored image.
macro_rules! add_sources {
    ($app:expr, $count:literal, $bytes:literal) => {
        let sql = concat!(
            "insert into image_sources (image_id, page_url, page_hash, image_url)
             select i.id, rpad('http://a.test/' || n || '/', ",
            $bytes,
            ", 'p'), gen_random_uuid(),
                    rpad('http://a.test/' || n || '/', ",
            $bytes,
            ", 'i')
             from images i, generate_series(1, ",
            $count,
            ") as n order by n"
        );
        $app.database.execute(sql).await;
    };
}

#[testing::test]
async fn sources_are_counted_and_paginated_beyond_limit() {
    let (app, _site, _) = App::with_crawl(&["ada_small.jpg"]).await;
    let shown = app.get_ok("/images").await["images"][0].clone();
    assert_eq!((&shown["sources_total"], &shown["sources_cut"]), (&json!(1), &json!(false)));
    add_sources!(app, 99, 40);
    let shown = app.get_ok("/images").await["images"][0].clone();
    assert_eq!(shown.list("sources").len(), 100);
    assert_eq!((&shown["sources_total"], &shown["sources_cut"]), (&json!(100), &json!(false)));
    add_sources!(app, 1, 41);
    let id = shown.text("id");
    let image = app.get_ok(&format!("/images/{id}")).await;
    let face = app.get_ok("/faces").await["faces"][0].clone();
    for shown in [&image, &image["faces"][0], &face] {
        assert_eq!(shown.list("sources").len(), 100);
        assert_eq!((&shown["sources_total"], &shown["sources_cut"]), (&json!(101), &json!(true)));
    }

    let mut sources = Vec::new();
    let mut path = format!("/images/{id}/sources?limit=40");
    loop {
        let page = app.get_ok(&path).await;
        sources.extend(page.list("sources").clone());
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/images/{id}/sources?limit=40&cursor={cursor}");
    }
    assert_eq!((sources.len(), &json!(sources[..100])), (101, &image["sources"]));
    problem(app.get(&format!("/images/{FAKE_ID}/sources")).await, 404, "not_found").await;
    problem(app.get(&format!("/images/{id}/sources?limit=201")).await, 400, "bad_query").await;
    problem(app.get(&format!("/images/{id}/sources?cursor=x")).await, 400, "bad_query").await;
}

#[testing::test]
async fn response_size_is_bounded_for_many_faces_and_sources() {
    const FACES: i64 = 100;
    let (app, _site, crawl) = App::with_crawl(&["ada_small.jpg"]).await;
    app.database
        .execute(
            "insert into faces select (jsonb_populate_record(f, jsonb_build_object('id', gen_random_uuid()))).*
             from faces f, generate_series(2, 100)",
        )
        .await;
    add_sources!(app, 100, 8000);
    let image = app.get_ok("/faces?limit=1").await["faces"][0].text("image_id").to_owned();
    // All sources of all faces would take 160 MB.
    for path in ["/faces?limit=1000".to_owned(), format!("/images/{image}")] {
        let response = app.get(&path).await.bytes().await.unwrap();
        assert!(response.len() < 18 << 20, "{path}: {} bytes", response.len());
        let response: Value = serde_json::from_slice(&response).unwrap();
        let faces = response.list("faces");
        assert_eq!(faces.len() as i64, FACES);
        for face in faces {
            let count = face.list("sources").len();
            assert!((1..100).contains(&count), "{count}");
            assert_eq!((&face["sources_total"], &face["sources_cut"]), (&json!(101), &json!(true)));
        }
    }
    let crawl = crawl.text("id");
    let table = app.get(&format!("/crawls/{crawl}/export?format=csv")).await.text().await.unwrap();
    assert_eq!(table.split_terminator("\r\n").count() as i64, 1 + FACES);
}

#[testing::needs(shared)]
#[testing::test]
async fn image_statistics_match_reference() {
    let app = App::spawn().await;
    let oracle = testing::oracle();
    for name in ["obama.jpg", "blur.jpg", "view.jpg"] {
        let photograph = testing::image(name);
        let response = ok(app.post_raw("/images/quality", "image/jpeg", photograph).await).await;
        for measure in ["laplacian_variance", "tenengrad", "mean", "std"] {
            let expected = oracle[name]["image_quality"][measure].as_f64().unwrap();
            let actual = response["statistics"][measure].as_f64().unwrap();
            assert!(
                (actual - expected).abs() <= expected * 0.01,
                "{name}, {measure}: {actual}, the reference has {expected}"
            );
        }
        let clipped = response["statistics"]["clipped"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&clipped));
        for face in response.list("faces") {
            assert!(
                face["quality"]["overall"].as_f64().is_some() && face.get("embedding").is_none(),
                "{face}"
            );
        }
    }
}

#[testing::test]
async fn quality_profile_determines_passed_faces() {
    let app = App::spawn().await;
    let quality_with = async |profile: &str| {
        let path = format!("/images/quality?quality_profile={profile}");
        ok(app.post_parts(&path, &[("image", drawing("blur.jpg"))]).await).await["faces"][0]["quality"]
            .clone()
    };
    let (off, strict) = (quality_with("off").await, quality_with("strict").await);
    assert_eq!((&off["passed"], &off["reasons"]), (&json!(true), &json!([])));
    assert_eq!(strict["passed"], false);
    assert!(!strict.list("reasons").is_empty());
    assert_eq!(off["blur"], strict["blur"]);
}

#[testing::test]
async fn image_without_faces_has_statistics() {
    let app = App::spawn().await;
    let response = ok(app.post_raw("/images/quality", "image/png", png(100, 80)).await).await;
    assert_eq!((&response["faces"], &response["image"]["width"]), (&json!([]), &json!(100)));
    problem(app.post_raw("/images/quality", "image/png", b"text".to_vec()).await, 415, "not_an_image").await;
    let response = app.post_raw("/images/quality?embeddings=true", "image/png", png(8, 8)).await;
    assert_eq!(field(&problem(response, 400, "bad_query").await), "embeddings");
}

#[testing::test]
async fn installed_quality_model_adds_score_and_name() {
    let mut files = Vec::new();
    let mut canvas = testing::fixture_models::Canvas::from_raw(640, 480, vec![90; 640 * 480 * 3]).unwrap();
    testing::draw_face(&mut canvas, 5, 5, 3);
    canvas.write_to(&mut std::io::Cursor::new(&mut files), image::ImageFormat::Png).unwrap();
    let face = image::imageops::crop_imm(&canvas, 5 * 32 - 16, 5 * 32 - 16, 64, 64).to_image();
    let mean =
        |channel: usize| face.pixels().map(|pixel| f32::from(pixel[channel])).sum::<f32>() / (64.0 * 64.0);
    let expected = f64::from(testing::fixture_score([mean(0), mean(1), mean(2)]));

    for (models, is_installed) in [(Models::Scored, true), (Models::Fixture, false)] {
        let options = Options { models, worker: false, ..Options::default() };
        let app = App::spawn_with(options).await;
        for path in ["/images/quality", "/faces/detect"] {
            let response = ok(app.post_raw(path, "image/png", files.clone()).await).await;
            let quality = &response["faces"][0]["quality"];
            let learned = quality.get("learned");
            assert_eq!(learned.is_some(), is_installed, "{path}: {quality}");
            if let Some(learned) = learned {
                let (value, raw) = (learned["value"].as_f64().unwrap(), learned["raw"].as_f64().unwrap());
                assert!((raw - expected).abs() < 0.01 && value == raw, "{path}: {learned}, not {expected}");
            }
        }
        let response = ok(app.post_raw("/faces/detect", "image/png", files.clone()).await).await;
        let name = is_installed.then_some("fixture_quality");
        assert_eq!(response["models"].get("quality").and_then(|name| name.as_str()), name);
    }
}

/// Returns the scale, the content type and the pixels of an enhanced image.
async fn read_enhanced(response: Response) -> (f32, String, image::RgbImage) {
    let headers = response.headers().clone();
    assert_eq!(response.status(), StatusCode::OK, "{:?}", response.text().await);
    let text = |name: &str| headers[name].to_str().unwrap().to_owned();
    let image = image::load_from_memory(&response.bytes().await.unwrap()).unwrap().to_rgb8();
    (text("x-enhancement-scale").parse().unwrap(), text("content-type"), image)
}

#[testing::test]
async fn small_image_is_enlarged_with_reported_scale() {
    let app = App::spawn().await;
    let response = app.post_raw("/images/enhance", "image/png", png(100, 80)).await;
    let (scale, media, image) = read_enhanced(response).await;
    assert_eq!((scale, media.as_str(), image.dimensions()), (4.0, "image/png", (400, 320)));

    // The other ways to pass an image give the same result.
    let parts = read_enhanced(app.post_parts("/images/enhance", &[("image", png(100, 80))]).await).await;
    assert_eq!(parts.2, image);
    use base64::Engine as _;
    let body = json!({"image_base64": base64::engine::general_purpose::STANDARD.encode(png(100, 80))});
    assert_eq!(read_enhanced(app.post_json("/images/enhance", &body).await).await.2, image);

    let request = app.client.post(format!("{}/images/enhance", app.url)).header("accept", "image/jpeg");
    let response = request.header("content-type", "image/png").body(png(100, 80)).send().await.unwrap();
    let (scale, media, jpeg) = read_enhanced(response).await;
    assert_eq!((scale, media.as_str(), jpeg.dimensions()), (4.0, "image/jpeg", (400, 320)));
}

#[testing::test]
async fn large_image_keeps_size_when_enhanced() {
    let app = App::spawn().await;
    let (scale, _, image) =
        read_enhanced(app.post_raw("/images/enhance", "image/jpeg", drawing("ada.jpg")).await).await;
    assert_eq!((scale, image.dimensions()), (1.0, (720, 900)));
}

#[testing::test]
async fn enhance_rejects_invalid_image() {
    let app = App::spawn().await;
    problem(app.post_raw("/images/enhance", "image/png", b"text".to_vec()).await, 415, "not_an_image").await;
    problem(app.post_raw("/images/enhance", "image/png", Vec::new()).await, 400, "missing_image").await;
    problem(app.post_raw("/images/enhance", "image/gif", enormous_gif()).await, 413, "image_too_large").await;
}
