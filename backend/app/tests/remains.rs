//! What is left of an erased person in the files of the database and of the blobs: nothing, in no form in which an embedding or a chip is ever written.
#![cfg(unix)]
#![allow(clippy::unwrap_used, missing_docs)]
mod common;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use common::process::{Finished, Workplace, postgres_programs};
use common::service::{Caller, Service};
use embedded_postgres::Cluster;
use reqwest::Method;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use testing::files_below;

/// Components of an embedding that are looked for: no other face has the same in a row.
const RUN: usize = 12;
/// Bytes of a picture that are looked for, from its middle.
const PIECE: usize = 64;

fn program(name: &str, args: &[&str]) -> Finished {
    Finished::of(Command::new(postgres_programs().join(name)).args(args)).expect(0)
}

fn psql(url: &str, statement: &str) -> String {
    program("psql", &["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--command", statement, url])
        .stdout
}

/// The forms that a run of components can have in a file.
struct Forms(Vec<(&'static str, Vec<u8>)>);

impl Forms {
    /// Of a stored face.
    fn of(url: &str, face: &str) -> Self {
        let ask = |what: &str| {
            psql(url, &format!("select {what} from faces where id = '{face}'")).trim().to_owned()
        };
        let text = ask("embedding");
        let text = text.trim_matches(['[', ']']);
        let parts: Vec<&str> = text.split(',').take(RUN).collect();
        let floats: Vec<f32> = parts.iter().map(|part| part.parse().unwrap()).collect();
        let doubles = || floats.iter().map(|value| f64::from(*value));
        // As the wire has it: dimensions and flags, then halves with the high byte first.
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

fn holds(content: &[u8], wanted: &[u8]) -> bool {
    content.windows(wanted.len()).any(|window| window == wanted)
}

/// What a file holds; `None` when the database deleted it after it was listed.
fn content(path: &Path) -> Option<Vec<u8>> {
    match std::fs::read(path) {
        Ok(content) => Some(content),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// Files that hold it, by name; the write-ahead log is left out.
fn holding(folder: &Path, wanted: &[u8]) -> Vec<String> {
    files_below(folder)
        .into_iter()
        .filter(|path| !path.components().any(|part| part.as_os_str() == "pg_wal"))
        .filter(|path| content(path).is_some_and(|content| holds(&content, wanted)))
        .map(|path| path.display().to_string())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_file_holds_a_byte_of_an_erased_persons_chip_or_embedding() {
    let place = Workplace::new();
    let data = place.path().join("postgres");
    let cluster = Cluster::start(&embedded_postgres::Config::new(postgres_programs(), &data)).await.unwrap();
    let url = cluster.default_url();
    for file in ["cora.jpg", "cora_2.jpg", "ada.jpg", "ben.jpg", "two_people.jpg"] {
        place.put(&format!("album/{}", file.replace("cora", "Quaxphoto")), testing::picture(file));
    }
    let facecrawl = |args: &[&str]| {
        let mut command = place.facecrawl(args);
        command.env("DATABASE_URL", &url).env("SUPPRESSION_SECRET", "thirty-two characters, kept apart.");
        command
    };
    Finished::of(&mut facecrawl(&["scan", "album"])).expect(0);
    let service = Service::start(&mut facecrawl(&["up", "--port", "0"]));
    let caller = Caller { base: service.base.clone(), key: "none".into() };
    let probe = json!({"image_base64": BASE64_STANDARD.encode(testing::picture("cora.jpg"))});
    let found = caller.ask(200, Method::POST, "/faces/search", Some(&probe)).await;
    let faces: Vec<&str> =
        found["matches"].as_array().unwrap().iter().map(|hit| hit["face_id"].as_str().unwrap()).collect();
    assert_eq!(faces.len(), 2, "{found}");
    let person = json!({"name": "Zebulon Quaxthorpe", "external_id": "quaxthorpe-17", "metadata": {"born": "quaxville"}});
    let subject = caller.ask(201, Method::POST, "/subjects", Some(&person)).await;
    let subject = subject["id"].as_str().unwrap();
    let enrol = json!({"face_ids": faces, "force": true});
    caller.ask(200, Method::POST, &format!("/subjects/{subject}/faces"), Some(&enrol)).await;

    let mut wanted: Vec<(String, Vec<u8>)> = Vec::new();
    let mut pictures = Vec::new();
    for face in &faces {
        let forms = Forms::of(&url, face);
        wanted.extend(forms.0.into_iter().map(|(form, bytes)| (format!("{face} as {form}"), bytes)));
        for kind in ["chip", "crop"] {
            let picture = caller.bytes(&format!("/faces/{face}/crop?kind={kind}")).await;
            pictures.push((format!("{kind} of {face}"), picture));
        }
    }
    let words = ["Quaxthorpe", "quaxthorpe-17", "quaxville", "Quaxphoto"];
    wanted.extend(words.map(|word| (word.to_owned(), word.as_bytes().to_vec())));
    for (name, picture) in &pictures {
        let middle = picture.len() / 2;
        wanted.push((name.clone(), picture[middle..middle + PIECE].to_vec()));
    }
    // What the planner keeps samples in is looked at, too, and everything reaches the files.
    psql(&url, "vacuum analyze");
    psql(&url, "checkpoint");
    let blobs = place.path().join("data/blobs");
    let disk = |form: &str| wanted.iter().find(|(name, _)| name.ends_with(form)).unwrap().1.clone();
    assert!(holding(&data, &disk("halfvec on disk")).len() >= 2, "the table, and the index");
    assert!(!holding(&data, b"Quaxthorpe").is_empty());
    assert_eq!(holding(&blobs, &pictures[0].1).len(), 1, "the search finds what is there");

    let erase = json!({"subject_id": subject, "suppress_person": true});
    let done: Value = caller.ask(201, Method::POST, "/erasures", Some(&erase)).await;
    assert_eq!((&done["faces"], &done["images"]), (&json!(2), &json!(2)), "{done}");
    let dump = program("pg_dump", &[&url]).stdout;
    assert!(dump.contains("create") || dump.contains("CREATE"));
    for (name, bytes) in &wanted {
        assert!(!holds(dump.as_bytes(), bytes), "{name} is in the dump");
        assert_eq!(holding(&blobs, bytes), [] as [String; 0], "{name}");
    }
    // `vacuum` frees the place of dead rows and does not overwrite it; `vacuum full` writes the table anew. What the index has, plain `vacuum` overwrites.
    drop(service);
    psql(&url, "vacuum");
    for table in ["faces", "images", "image_sources", "image_urls", "subjects", "subject_faces"] {
        psql(&url, &format!("vacuum full {table}"));
    }
    psql(&url, "checkpoint");
    for (name, bytes) in &wanted {
        assert_eq!(holding(&data, bytes), [] as [String; 0], "{name}");
    }
    cluster.stop().await;
}
