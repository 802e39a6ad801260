//! Tests that no data of an erased person remains in the files of the database and of the blobs.
//! The test searches for every format in which an embedding or a chip is written. Compressed
//! columns are decompressed, and stored images are decoded.
use crate::common::service::{Finished, Service, TestFolder, postgres, psql, showing};
use crate::common::sites::serve;
use axum::Router;
use axum::extract::Path as UrlPath;
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use embedded_postgres::Cluster;
use reqwest::Method;
use serde_json::{Value, json};
use std::path::Path;
use testing::database::programs;
use testing::files_below;

/// Number of consecutive components of an embedding that are searched for. No other face has the
/// same run of components.
const RUN: usize = 12;
/// Number of bytes from the middle of an image that are searched for.
const PIECE: usize = 64;
/// Tables that contained data of the person or the sources of the images.
const TABLES: &str = "faces images image_sources image_urls image_visits subjects \
    subject_faces pages page_visits jobs finished_jobs";

/// The formats in which consecutive components can be stored in a file.
struct Forms(Vec<(&'static str, Vec<u8>)>);

impl Forms {
    fn of(url: &str, face: &str) -> Self {
        let ask = |what: &str| {
            psql(url, &format!("select {what} from faces where id = '{face}'")).trim().to_owned()
        };
        let text = ask("embedding");
        let text = text.trim_matches(['[', ']']);
        let parts: Vec<&str> = text.split(',').take(RUN).collect();
        let floats: Vec<f32> = parts.iter().map(|part| part.parse().unwrap()).collect();
        let doubles = || floats.iter().map(|value| f64::from(*value));
        // The wire format consists of dimensions and flags, followed by half-precision values with
        // the high byte first.
        let halves =
            hex::decode(ask("encode(halfvec_send(embedding), 'hex')")).unwrap()[4..4 + 2 * RUN].to_vec();
        let swapped: Vec<u8> = halves.chunks(2).flat_map(|half| [half[1], half[0]]).collect();
        let json: Vec<String> = floats.iter().map(f32::to_string).collect();
        Self(vec![
            ("halfvec on disk", swapped),
            ("halfvec on the wire", halves),
            ("float32, low byte first", floats.iter().flat_map(|value| value.to_le_bytes()).collect()),
            ("float32, high byte first", floats.iter().flat_map(|value| value.to_be_bytes()).collect()),
            ("float64, low byte first", doubles().flat_map(f64::to_le_bytes).collect()),
            ("text", parts.join(",").into_bytes()),
            ("JSON", json.join(",").into_bytes()),
            ("JSON with spaces", json.join(", ").into_bytes()),
        ])
    }
}

/// Files with their content, in which compressed parts are decompressed. The write-ahead log is
/// excluded.
struct Files(Vec<(String, Vec<u8>)>);

impl Files {
    fn below(folder: &Path) -> Self {
        let kept = files_below(folder)
            .into_iter()
            .filter(|path| !path.components().any(|part| part.as_os_str() == "pg_wal"));
        let read = kept.filter_map(|path| match std::fs::read(&path) {
            Ok(content) => Some((path.display().to_string(), testing::unpacked(content))),
            // The database deleted the file after it was listed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => panic!("{}: {error}", path.display()),
        });
        Self(read.collect())
    }

    fn holding(&self, wanted: &[u8]) -> Vec<&str> {
        self.0
            .iter()
            .filter(|(_, content)| testing::holds(content, wanted))
            .map(|(name, _)| name.as_str())
            .collect()
    }

    /// Returns the files that are images, decoded.
    fn decoded(&self) -> Self {
        let pixels = |content: &[u8]| Some(image::load_from_memory(content).ok()?.into_rgb8().into_raw());
        Self(self.0.iter().filter_map(|(name, content)| Some((name.clone(), pixels(content)?))).collect())
    }
}

/// Returns the pixels of an image that are searched for, from its middle.
fn run_of_pixels(picture: &[u8]) -> Vec<u8> {
    let pixels = image::load_from_memory(picture).unwrap().into_rgb8();
    let start = (pixels.height() / 2 * pixels.width() + pixels.width() / 3) as usize * 3;
    pixels.into_raw()[start..start + PIECE].to_vec()
}

/// Starts a local site with images of two people, one of whom has two.
async fn site() -> String {
    const NAMES: [(&str, &str); 3] =
        [("Quaxphoto.jpg", "cora.jpg"), ("Quaxphoto_2.jpg", "cora_2.jpg"), ("ben.jpg", "ben.jpg")];
    let image = |name: &str| {
        let alt = if name.starts_with("Quax") { "Quaxsmile" } else { "somebody else" };
        format!("<img src=/i/{name} alt='{alt}'>")
    };
    let shown: String = NAMES.iter().map(|(name, _)| image(name)).collect();
    let html = format!("<title>Quaxtitle</title><body>{shown}</body>");
    let page = move || std::future::ready(([("etag", "\"page\"")], Html(html.clone())));
    let picture = |UrlPath(name): UrlPath<String>| async move {
        let (_, file) = NAMES.iter().find(|(known, _)| *known == name).unwrap();
        ([("etag", format!("\"{name}\""))], testing::drawing(file)).into_response()
    };
    let router = Router::new().route("/", get(page)).route("/i/{name}", get(picture));
    serve(router).await
}

#[testing::needs(slow)]
#[testing::test(flavor = "multi_thread")]
async fn erasure_removes_all_personal_data_from_files() {
    let place = TestFolder::new();
    let data = place.path().join("postgres");
    let cluster = Cluster::start(&embedded_postgres::Config::new(programs(), &data)).await.unwrap();
    let url = cluster.default_url();
    for file in ["cora.jpg", "cora_2.jpg", "ada.jpg", "ben.jpg", "two_people.jpg"] {
        place.put(&format!("album/{}", file.replace("cora", "Quaxphoto")), testing::drawing(file));
    }
    let facecrawl = |args: &[&str]| {
        let mut command = place.facecrawl(args);
        command.env("DATABASE_URL", &url).env("SUPPRESSION_SECRET", "thirty-two characters, kept apart.");
        command.env("CRAWL_ALLOW_PRIVATE", "127.0.0.0/8").env("CRAWL_DELAY_MS", "0");
        command
    };
    Finished::of(&mut facecrawl(&["scan", "album"])).expect(0);
    let service = Service::start(&mut facecrawl(&["up", "--port", "0"]));
    let caller = service.caller();
    let path = caller.crawl(&json!({"seeds": [site().await]})).await;
    caller.until(&path, |crawl| crawl["state"] == "completed").await;
    let found = caller.ask(200, Method::POST, "/faces/search", Some(&showing("cora.jpg"))).await;
    let faces: Vec<&str> =
        found["matches"].as_array().unwrap().iter().map(|hit| hit["face_id"].as_str().unwrap()).collect();
    assert_eq!(faces.len(), 2, "{found}");
    let person = json!({"name": "Zebulon Quaxthorpe", "external_id": "quaxthorpe-17", "metadata": {"born": "quaxville"}});
    let subject = caller.ask(201, Method::POST, "/subjects", Some(&person)).await;
    let subject = subject["id"].as_str().unwrap();
    let enrol = json!({"face_ids": faces, "force": true});
    caller.ask(200, Method::POST, &format!("/subjects/{subject}/faces"), Some(&enrol)).await;
    // The only face of another person is in one image. Erasing that image therefore deletes the
    // person.
    let other =
        caller.ask(200, Method::POST, "/faces/search", Some(&showing("ben.jpg"))).await["matches"][0].clone();
    let person = json!({"name": "Ottokar Vexborough", "external_id": "vexborough-4", "metadata": {"born": "vexville"}});
    let named = caller.ask(201, Method::POST, "/subjects", Some(&person)).await;
    let path = format!("/subjects/{}/faces", named["id"].as_str().unwrap());
    let enrol = json!({"face_ids": [other["face_id"]], "force": true});
    caller.ask(200, Method::POST, &path, Some(&enrol)).await;

    let mut wanted: Vec<(String, Vec<u8>)> = Vec::new();
    let mut images = Vec::new();
    let mut runs = Vec::new();
    for face in &faces {
        let forms = Forms::of(&url, face);
        wanted.extend(forms.0.into_iter().map(|(form, bytes)| (format!("{face} as {form}"), bytes)));
        for kind in ["chip", "crop"] {
            let image = caller.bytes(&format!("/faces/{face}/crop?kind={kind}")).await;
            runs.push((format!("pixels of the {kind} of {face}"), run_of_pixels(&image)));
            images.push((format!("{kind} of {face}"), image));
        }
    }
    let words = ["Quaxthorpe", "quaxthorpe-17", "quaxville", "Quaxphoto", "Quaxsmile", "Quaxtitle"];
    let words = words.into_iter().chain(["Vexborough", "vexborough-4", "vexville"]);
    wanted.extend(words.map(|word| (word.to_owned(), word.as_bytes().to_vec())));
    for (name, image) in &images {
        let middle = image.len() / 2;
        wanted.push((name.clone(), image[middle..middle + PIECE].to_vec()));
    }
    // The planner's samples are searched too, and the checkpoint writes everything to the files.
    psql(&url, "vacuum analyze");
    psql(&url, "checkpoint");
    let blobs = place.path().join("data/blobs");
    let disk = |form: &str| wanted.iter().find(|(name, _)| name.ends_with(form)).unwrap().1.clone();
    let files = Files::below(&data);
    assert!(files.holding(&disk("halfvec on disk")).len() >= 2, "the table and the index contain it");
    for word in ["Quaxthorpe", "Quaxsmile", "Quaxtitle", "Vexborough"] {
        assert!(!files.holding(word.as_bytes()).is_empty(), "{word}");
    }
    let stored = Files::below(&blobs);
    assert_eq!(stored.holding(&images[0].1).len(), 1, "the search finds an existing image");
    assert_eq!(stored.decoded().holding(&runs[0].1).len(), 1, "the search finds existing pixels");

    let erase = json!({"subject_id": subject, "suppress_person": true});
    let done: Value = caller.ask(201, Method::POST, "/erasures", Some(&erase)).await;
    assert_eq!((&done["faces"], &done["images"]), (&json!(2), &json!(2)), "{done}");
    let erase = json!({"image_id": other["image_id"]});
    let done: Value = caller.ask(201, Method::POST, "/erasures", Some(&erase)).await;
    assert_eq!((&done["images"], &done["subjects"]), (&json!(1), &json!(1)), "{done}");
    let dump = testing::unpacked(postgres("pg_dump", &[&url]));
    assert!(testing::holds(&dump, b"create") || testing::holds(&dump, b"CREATE"));
    let stored = Files::below(&blobs);
    for (name, bytes) in &wanted {
        assert!(!testing::holds(&dump, bytes), "{name} is in the dump");
        assert_eq!(stored.holding(bytes), [] as [&str; 0], "{name}");
    }
    let shown = stored.decoded();
    for (name, bytes) in &runs {
        assert_eq!(shown.holding(bytes), [] as [&str; 0], "{name}");
    }
    // `vacuum` frees the space of dead rows without overwriting it; `vacuum full` rewrites the
    // table. Plain `vacuum` overwrites the data of the index.
    drop(service);
    psql(&url, "vacuum");
    for table in TABLES.split(' ') {
        psql(&url, &format!("vacuum full {table}"));
    }
    psql(&url, "checkpoint");
    let files = Files::below(&data);
    for (name, bytes) in &wanted {
        assert_eq!(files.holding(bytes), [] as [&str; 0], "{name}");
    }
    cluster.stop().await;
}
