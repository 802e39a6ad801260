use crate::support::site::Site;
use crate::support::{App, Options, field, json_of, problem};
use domain::ImageState;
use reqwest::StatusCode;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use store::crawls::pages::{ImageUrlResult, NewImageUrl};
use store::images::NewImage;
use uuid::Uuid;

async fn text(app: &App, path: &str, content_type: &str) -> String {
    let response = app.get(path).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with(content_type));
    let file = response.headers()["content-disposition"].to_str().unwrap().to_owned();
    assert!(file.starts_with("attachment; filename=\"crawl-"), "{file}");
    response.text().await.unwrap()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[testing::test]
async fn a_crawl_is_exported_with_its_faces_and_its_own_sources() {
    let app = App::spawn().await;
    let site = Site::with(&["ada_small.jpg", "small_pair.jpg"]).await;
    // Another crawl found one of the images before. Its source must not appear in this export.
    app.crawl(&[site.picture("ada_small.jpg")]).await;
    let crawl = app.crawl(&[site.page()]).await;
    let path = format!("/crawls/{}/export", crawl["id"].as_str().unwrap());

    let exported = lines(&text(&app, &path, "application/x-ndjson").await);
    assert_eq!(exported.len(), 2);
    let faces = app.get_ok("/faces?limit=1000").await;
    let known = |face: &Value| {
        let mut faces = faces["faces"].as_array().unwrap().iter();
        faces.find(|known| known["id"] == face["face_id"]).cloned().expect("every exported face is stored")
    };
    let mut seen = 0;
    for image in &exported {
        let stored = app.get_ok(&format!("/images/{}", image["image_id"].as_str().unwrap())).await;
        for key in ["sha256", "phash", "width", "height", "format", "bytes", "rotation", "created_at"] {
            assert_eq!(image[key], stored[key], "{key}");
        }
        let sources = image["sources"].as_array().unwrap();
        assert_eq!((sources.len(), &sources[0]["page_url"]), (1, &json!(site.page())));
        assert!(image["faces"].as_array().unwrap().len() as u64 == stored["face_count"].as_u64().unwrap());
        for face in image["faces"].as_array().unwrap() {
            let stored = known(face);
            for key in ["bbox", "det_score", "landmarks", "quality", "embedding_model"] {
                assert_eq!(face[key], stored[key], "{key}");
            }
            assert_eq!(face.get("embedding"), None, "embeddings are exported only on request");
            seen += 1;
        }
    }
    assert_eq!(seen as u64, crawl["counts"]["faces"].as_u64().unwrap());

    let exported = lines(&text(&app, &format!("{path}?embeddings=true"), "application/x-ndjson").await);
    for face in exported.iter().flat_map(|image| image["faces"].as_array().unwrap()) {
        let embedding = face["embedding"].as_array().unwrap();
        let length: f64 = embedding.iter().map(|v| v.as_f64().unwrap().powi(2)).sum();
        assert!(embedding.len() == 128 && (length - 1.0).abs() < 0.01, "{length}");
    }

    let table = text(&app, &format!("{path}?format=csv&embeddings=true"), "text/csv").await;
    let rows: Vec<Vec<&str>> = table.split_terminator("\r\n").map(|row| row.split(',').collect()).collect();
    assert_eq!(rows.len(), 1 + seen);
    assert!(rows.iter().all(|row| row.len() == rows[0].len()));
    let column = |name: &str| rows[0].iter().position(|column| *column == name).unwrap();
    for row in &rows[1..] {
        assert_eq!(row[column("page_url")], site.page());
        assert_eq!(row[column("embedding")].split(' ').count(), 128);
        assert!(row[column("quality")].parse::<f32>().is_ok(), "{row:?}");
    }
}

#[testing::test]
async fn a_long_export_comes_in_pages_and_misses_nothing() {
    const IMAGES: usize = 250;
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let body = json!({"seeds": ["http://127.0.0.1:9/"]});
    let created = json_of(app.post_json("/crawls", &body).await, StatusCode::CREATED).await;
    let crawl: Uuid = created["id"].as_str().unwrap().parse().unwrap();
    let store = &app.state.services.store;
    let collection = store.collection("default").await.unwrap().id;
    // An image with two URLs still has one line.
    let urls: Vec<NewImageUrl> = (0..2 * IMAGES)
        .map(|n| NewImageUrl {
            url: format!("http://127.0.0.1:9/{n}.jpg"),
            page_url: None,
            asked_url: None,
            alt: None,
        })
        .collect();
    let mut tx = store.begin().await.unwrap();
    let rows = store.admit_images(tx.conn(), crawl, 10_000, &urls).await.unwrap();
    let mut expected = BTreeSet::new();
    for (number, rows) in rows.chunks(2).enumerate() {
        let mut sha256 = [0; 32];
        sha256[..8].copy_from_slice(&(number as u64).to_be_bytes());
        let image = NewImage {
            id: Uuid::now_v7(),
            sha256,
            phash: number as i64,
            dhash: 0,
            ahash: 0,
            width: 64,
            height: 48,
            format: "png".into(),
            bytes: 100,
            rotation: 0,
            thumbnail_key: None,
        };
        store.insert_image(tx.conn(), collection, &image).await.unwrap().unwrap();
        expected.insert(image.id.to_string());
        for row in rows {
            let (state, image) = (ImageState::Processed, Some(image.id));
            let result = ImageUrlResult { state, reason: None, detail: None, image };
            store.settle_image_url(tx.conn(), row.id, result).await.unwrap();
        }
    }
    tx.commit().await.unwrap();
    let path = format!("/crawls/{crawl}/export");
    let exported = lines(&text(&app, &path, "application/x-ndjson").await);
    let ids: Vec<&str> = exported.iter().map(|image| image["image_id"].as_str().unwrap()).collect();
    assert!(ids.iter().copied().eq(expected.iter().map(String::as_str)), "each image once, the oldest first");
    assert_eq!(exported[0]["sources"].as_array().unwrap().len(), 2);
    let table = text(&app, &format!("{path}?format=csv"), "text/csv").await;
    assert_eq!(table.split_terminator("\r\n").count(), 1 + IMAGES);
}

#[testing::test]
async fn what_cannot_be_exported_is_said() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let body = json!({"seeds": ["http://127.0.0.1:9/"]});
    let created = json_of(app.post_json("/crawls", &body).await, StatusCode::CREATED).await;
    let path = format!("/crawls/{}/export", created["id"].as_str().unwrap());
    let wrong = problem(app.get(&format!("{path}?format=xml")).await, 400, "bad_query").await;
    assert_eq!((field(&wrong), &wrong["allowed"]), ("format", &json!(["jsonl", "csv"])));
    problem(app.get("/crawls/00000000-0000-7000-8000-000000000000/export").await, 404, "not_found").await;
    assert_eq!(text(&app, &path, "application/x-ndjson").await, "");
    assert!(text(&app, &format!("{path}?format=csv"), "text/csv").await.starts_with("image_id,"));
}
