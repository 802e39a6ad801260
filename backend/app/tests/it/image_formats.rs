//! Tests that images in the formats that ffmpeg decodes are stored by scans, crawls and enrolments
//! like JPEG files.
#![cfg(unix)]

use crate::common::files::FileServer;
use crate::common::process::{Finished, TestFolder};
use crate::common::service::{Service, client};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use testing::TestDatabase;

/// The portrait as JPEG, and in the other formats.
const FILES: [&str; 6] = ["ada.jpg", "ada.avif", "ada.heic", "ada.jxl", "ada.tiff", "ada.jp2"];

fn files() -> Vec<(String, Vec<u8>)> {
    let jpeg = testing::picture("ada.jpg");
    let frame = vision::decode(&jpeg, &vision::Limits::default()).unwrap().frame;
    let others = testing::still::of_each_format(&frame);
    let others = others.into_iter().map(|(format, file)| (format!("ada.{format}"), file));
    std::iter::once(("ada.jpg".to_owned(), jpeg)).chain(others).collect()
}

#[testing::needs(video)]
#[testing::test(flavor = "multi_thread")]
async fn scans_crawls_and_enrolments_find_the_face_of_the_jpeg_in_every_format() {
    let (database, place) = (TestDatabase::create().await, TestFolder::new());
    let files = files();
    assert_eq!(files.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), FILES);
    for (name, file) in &files {
        place.put(&format!("photos/{name}"), file);
    }
    let page: String = FILES.map(|name| format!("<img src=/{name}>")).concat();
    let served = files.iter().map(|(name, file)| (format!("/{name}"), file.clone()));
    let site = FileServer::with(served.chain([("/".to_owned(), page.into_bytes())]).collect()).await;
    let program = |args: &[&str]| {
        let mut command = place.facecrawl(args);
        command.env("DATABASE_URL", database.url()).env("FFMPEG", testing::ffmpeg());
        command.env("CRAWL_ALLOW_PRIVATE", "127.0.0.0/8").env("CRAWL_DELAY_MS", "0");
        command
    };
    for (source, collection) in [("photos", "scanned"), (&site.url("/"), "crawled")] {
        let args = ["scan", "--json", "--dedupe", "exact", "--collection", collection, source];
        let summary = Finished::of(&mut program(&args)).expect(0).json();
        let counts = (&summary["images"]["processed"], &summary["faces"]);
        assert_eq!(counts, (&json!(FILES.len()), &json!(FILES.len())), "{summary}");
    }
    let mut service = Service::start(&mut program(&["up", "--port", "0"]));
    let caller = service.caller();
    let send = async |path: String, file: &[u8]| -> Value {
        let request = client().request(Method::POST, format!("{}{path}", service.base));
        let answer = request.header("content-type", "image/*").body(file.to_vec()).send().await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert!(status.is_success(), "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    };
    for collection in ["scanned", "crawled"] {
        let path = format!("/faces/search?collection={collection}&threshold=0.98&limit=20");
        let found = send(path, &files[0].1).await;
        assert_eq!(found["matches"].as_array().unwrap().len(), FILES.len(), "{found}");
    }
    let person = json!({"name": "Ada", "collection": "enrolled"});
    caller.ask(201, Method::POST, "/collections", Some(&json!({"name": "enrolled"}))).await;
    let id = caller.ask(201, Method::POST, "/subjects", Some(&person)).await["id"].clone();
    for (_, file) in &files {
        send(format!("/subjects/{}/faces", id.as_str().unwrap()), file).await;
    }
    let enrolled = caller.get(&format!("/subjects/{}", id.as_str().unwrap())).await;
    assert_eq!(enrolled["face_count"], FILES.len(), "{enrolled}");
    service.signal(Signal::TERM);
    assert_eq!(service.ended().0, Some(0));
}
