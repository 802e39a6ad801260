//! Tests that no data of an erased person remains in the files of the database and of the blobs.
//! The test searches for every format in which an embedding or a chip is written. Compressed
//! columns are decompressed, and stored images are decoded.
use crate::common::service::{Output, Service, TestFolder, image_json, postgres, psql};
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
/// same components.
const COMPONENTS: usize = 12;
/// Number of bytes from the middle of an image that are searched for.
const PIECE_BYTES: usize = 64;
/// Tables that contained data of the person or the sources of the images.
const TABLES: &str = "faces images image_sources image_urls image_visits subjects \
    subject_faces pages page_visits jobs finished_jobs";

/// The formats in which consecutive components can be stored in a file.
struct StoredForms(Vec<(&'static str, Vec<u8>)>);

impl StoredForms {
    fn of(url: &str, face: &str) -> Self {
        let select = |column: &str| {
            psql(url, &format!("select {column} from faces where id = '{face}'")).trim().to_owned()
        };
        let text = select("embedding");
        let text = text.trim_matches(['[', ']']);
        let parts: Vec<&str> = text.split(',').take(COMPONENTS).collect();
        let floats: Vec<f32> = parts.iter().map(|part| part.parse().unwrap()).collect();
        let doubles = || floats.iter().map(|value| f64::from(*value));
        // The wire format consists of dimensions and flags, followed by half-precision values with
        // the high byte first.
        let halves = hex::decode(select("encode(halfvec_send(embedding), 'hex')")).unwrap();
        let halves = halves[4..4 + 2 * COMPONENTS].to_vec();
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
struct FileContents(Vec<(String, Vec<u8>)>);

impl FileContents {
    fn read_folder(folder: &Path) -> Self {
        let files_to_read = files_below(folder)
            .into_iter()
            .filter(|path| !path.components().any(|part| part.as_os_str() == "pg_wal"));
        let read = files_to_read.filter_map(|path| match std::fs::read(&path) {
            Ok(content) => Some((path.display().to_string(), testing::with_decompressed_gzip(content))),
            // The database deleted the file after it was listed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => panic!("{}: {error}", path.display()),
        });
        Self(read.collect())
    }

    fn files_with(&self, searched_bytes: &[u8]) -> Vec<&str> {
        self.0
            .iter()
            .filter(|(_, content)| testing::contains_bytes(content, searched_bytes))
            .map(|(name, _)| name.as_str())
            .collect()
    }

    /// Returns the files that are images, decoded.
    fn decoded(&self) -> Self {
        const SIGNATURES: [&[u8]; 2] = [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"];
        // A file may contain several images.
        let images = self.0.iter().flat_map(|(name, content)| {
            let begins =
                |at: &usize| SIGNATURES.iter().any(|signature| content[*at..].starts_with(signature));
            let decoded = (0..content.len()).filter(begins).filter_map(|at| {
                let pixels = image::load_from_memory(&content[at..]).ok()?;
                Some((name.clone(), pixels.into_rgb8().into_raw()))
            });
            decoded.collect::<Vec<_>>()
        });
        Self(images.collect())
    }
}

/// Returns the pixels of an image that are searched for, from its middle.
fn middle_pixels(image_bytes: &[u8]) -> Vec<u8> {
    let pixels = image::load_from_memory(image_bytes).unwrap().into_rgb8();
    let start = (pixels.height() / 2 * pixels.width() + pixels.width() / 3) as usize * 3;
    pixels.into_raw()[start..start + PIECE_BYTES].to_vec()
}

/// Starts a local site with two images of one person and one image of another.
async fn start_site() -> String {
    const NAMES: [(&str, &str); 3] =
        [("Quaxphoto.jpg", "cora.jpg"), ("Quaxphoto_2.jpg", "cora_2.jpg"), ("ben.jpg", "ben.jpg")];
    let image = |name: &str| {
        let alt = if name.starts_with("Quax") { "Quaxsmile" } else { "somebody else" };
        format!("<img src=/i/{name} alt='{alt}'>")
    };
    let images: String = NAMES.iter().map(|(name, _)| image(name)).collect();
    let html = format!("<title>Quaxtitle</title><body>{images}</body>");
    let page = move || std::future::ready(([("etag", "\"page\"")], Html(html.clone())));
    let image_bytes = |UrlPath(name): UrlPath<String>| async move {
        let (_, file) = NAMES.iter().find(|(image_name, _)| *image_name == name).unwrap();
        ([("etag", format!("\"{name}\""))], testing::drawing(file)).into_response()
    };
    let router = Router::new().route("/", get(page)).route("/i/{name}", get(image_bytes));
    serve(router).await
}

#[testing::needs(slow)]
#[testing::test(flavor = "multi_thread")]
async fn erasure_removes_all_personal_data_from_files() {
    let folder = TestFolder::new();
    let data = folder.path().join("postgres");
    let cluster = Cluster::start(&embedded_postgres::Config::new(programs(), &data)).await.unwrap();
    let url = cluster.default_url();
    for file in ["cora.jpg", "cora_2.jpg", "ada.jpg", "ben.jpg", "two_people.jpg"] {
        folder.put(&format!("album/{}", file.replace("cora", "Quaxphoto")), testing::drawing(file));
    }
    let facecrawl = |args: &[&str]| {
        let mut command = folder.facecrawl(args);
        command.env("DATABASE_URL", &url).env("SUPPRESSION_SECRET", "thirty-two characters, kept apart.");
        command.env("CRAWL_ALLOW_PRIVATE", "127.0.0.0/8").env("CRAWL_DELAY_MS", "0");
        command
    };
    Output::run(&mut facecrawl(&["scan", "album"])).success();
    let service = Service::start(&mut facecrawl(&["up", "--port", "0"]));
    let caller = service.caller();
    let path = caller.crawl(&json!({"seeds": [start_site().await]})).await;
    caller.until(&path, |crawl| crawl["state"] == "completed").await;
    // The service builds no index for so few faces.
    Output::run(&mut facecrawl(&["index", "rebuild"])).success();
    let found = caller.request(200, Method::POST, "/faces/search", Some(&image_json("cora.jpg"))).await;
    let faces: Vec<&str> =
        found["matches"].as_array().unwrap().iter().map(|hit| hit["face_id"].as_str().unwrap()).collect();
    assert_eq!(faces.len(), 2, "{found}");
    let person = json!({"name": "Zebulon Quaxthorpe", "external_id": "quaxthorpe-17", "metadata": {"born": "quaxville"}});
    let subject = caller.request(201, Method::POST, "/subjects", Some(&person)).await;
    let subject = subject["id"].as_str().unwrap();
    let enrol = json!({"face_ids": faces, "force": true});
    caller.request(200, Method::POST, &format!("/subjects/{subject}/faces"), Some(&enrol)).await;
    // The only face of another person is in one image. Erasing that image therefore deletes the
    // person.
    let ben =
        caller.request(200, Method::POST, "/faces/search", Some(&image_json("ben.jpg"))).await["matches"][0]
            .clone();
    let person = json!({"name": "Ottokar Vexborough", "external_id": "vexborough-4", "metadata": {"born": "vexville"}});
    let other_subject = caller.request(201, Method::POST, "/subjects", Some(&person)).await;
    let path = format!("/subjects/{}/faces", other_subject["id"].as_str().unwrap());
    let enrol = json!({"face_ids": [ben["face_id"]], "force": true});
    caller.request(200, Method::POST, &path, Some(&enrol)).await;

    let mut searched_bytes: Vec<(String, Vec<u8>)> = Vec::new();
    let mut images = Vec::new();
    let mut pixel_runs = Vec::new();
    for face in &faces {
        let forms = StoredForms::of(&url, face);
        searched_bytes.extend(forms.0.into_iter().map(|(form, bytes)| (format!("{face} as {form}"), bytes)));
        for kind in ["chip", "crop"] {
            let image = caller.bytes(&format!("/faces/{face}/crop?kind={kind}")).await;
            pixel_runs.push((format!("pixels of the {kind} of {face}"), middle_pixels(&image)));
            images.push((format!("{kind} of {face}"), image));
        }
    }
    let personal_words = ["Quaxthorpe", "quaxthorpe-17", "quaxville", "Quaxphoto", "Quaxsmile", "Quaxtitle"];
    let personal_words = personal_words.into_iter().chain(["Vexborough", "vexborough-4", "vexville"]);
    searched_bytes.extend(personal_words.map(|word| (word.to_owned(), word.as_bytes().to_vec())));
    for (name, image) in &images {
        let middle = image.len() / 2;
        searched_bytes.push((name.clone(), image[middle..middle + PIECE_BYTES].to_vec()));
    }
    // The statistics of the planner are searched too. The checkpoint writes all data to the files.
    psql(&url, "vacuum analyze");
    psql(&url, "checkpoint");
    let blobs = folder.path().join("data/blobs");
    let bytes_of =
        |form: &str| searched_bytes.iter().find(|(name, _)| name.ends_with(form)).unwrap().1.clone();
    let files = FileContents::read_folder(&data);
    assert!(files.files_with(&bytes_of("halfvec on disk")).len() >= 2, "the table and the index contain it");
    for word in ["Quaxthorpe", "Quaxsmile", "Quaxtitle", "Vexborough"] {
        assert!(!files.files_with(word.as_bytes()).is_empty(), "{word}");
    }
    let stored = FileContents::read_folder(&blobs);
    assert_eq!(stored.files_with(&images[0].1).len(), 1, "the search finds an existing image");
    assert_eq!(stored.decoded().files_with(&pixel_runs[0].1).len(), 1, "the search finds existing pixels");

    let erase = json!({"subject_id": subject, "suppress_person": true});
    let erasure: Value = caller.request(201, Method::POST, "/erasures", Some(&erase)).await;
    assert_eq!((&erasure["faces"], &erasure["images"]), (&json!(2), &json!(2)), "{erasure}");
    let erase = json!({"image_id": ben["image_id"]});
    let erasure: Value = caller.request(201, Method::POST, "/erasures", Some(&erase)).await;
    assert_eq!((&erasure["images"], &erasure["subjects"]), (&json!(1), &json!(1)), "{erasure}");
    let dump = testing::with_decompressed_gzip(postgres("pg_dump", &[&url]));
    assert!(testing::contains_bytes(&dump, b"create") || testing::contains_bytes(&dump, b"CREATE"));
    let stored = FileContents::read_folder(&blobs);
    for (name, bytes) in &searched_bytes {
        assert!(!testing::contains_bytes(&dump, bytes), "{name} is in the dump");
        assert_eq!(stored.files_with(bytes), [] as [&str; 0], "{name}");
    }
    let decoded_files = stored.decoded();
    for (name, bytes) in &pixel_runs {
        assert_eq!(decoded_files.files_with(bytes), [] as [&str; 0], "{name}");
    }
    // `vacuum` frees the space of dead rows without overwriting it; `vacuum full` rewrites the
    // table. Plain `vacuum` overwrites the data of the index.
    drop(service);
    psql(&url, "vacuum");
    for table in TABLES.split(' ') {
        psql(&url, &format!("vacuum full {table}"));
    }
    psql(&url, "checkpoint");
    let files = FileContents::read_folder(&data);
    for (name, bytes) in &searched_bytes {
        assert_eq!(files.files_with(bytes), [] as [&str; 0], "{name}");
    }
    cluster.stop().await;
}
