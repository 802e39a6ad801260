//! Tests imports of many people: both layouts of an archive, hostile archives, limits, and callers
//! who leave.
use crate::support::images::{drawing, noise};
use crate::support::{App, Json, Models, Options, erase_confirmed, field, key_options, parse_lines, problem};
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};
use server::Config;
use std::io::{Cursor, Write};
use store::keys::Scope;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

const PATH: &str = "/subjects/import";
/// With the profile `standard`, all portraits of the gallery pass except the blurred one.
const STANDARD: &str = "/subjects/import?quality_profile=standard";

fn archive<N: AsRef<str>>(files: &[(N, Vec<u8>)]) -> Vec<u8> {
    writer(files).finish().unwrap().into_inner()
}

/// Returns an archive to which entries can be added.
fn writer<N: AsRef<str>>(files: &[(N, Vec<u8>)]) -> ZipWriter<Cursor<Vec<u8>>> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content) in files {
        zip.start_file(name.as_ref(), SimpleFileOptions::default()).unwrap();
        zip.write_all(content).unwrap();
    }
    zip
}

/// Returns the archive with the bytes of a name replaced by others of the same length, in both
/// headers of the entry.
fn with_name(mut archive: Vec<u8>, old: &str, new: &[u8]) -> Vec<u8> {
    assert_eq!(old.len(), new.len());
    let places: Vec<usize> =
        (0..archive.len() - old.len()).filter(|at| archive[*at..].starts_with(old.as_bytes())).collect();
    assert_eq!(places.len(), 2, "{old}");
    for at in places {
        archive[at..at + new.len()].copy_from_slice(new);
    }
    archive
}

/// Returns the archive with the flag of encryption set for an entry, in both headers.
fn with_encryption_flag(mut archive: Vec<u8>, name: &str) -> Vec<u8> {
    for (signature, flags, header) in [(b"PK\x03\x04", 6, 30), (b"PK\x01\x02", 8, 46)] {
        let is_entry = |at: &usize| {
            archive[*at..].starts_with(signature)
                && archive.get(at + header..).is_some_and(|rest| rest.starts_with(name.as_bytes()))
        };
        let at = (0..archive.len() - header).find(is_entry).unwrap();
        archive[at + flags] |= 1;
    }
    archive
}

async fn send(app: &App, path: &str, archive: Vec<u8>) -> Response {
    app.post_raw(path, "application/zip", archive).await
}

/// Returns the lines of a complete import, and the last line.
async fn lines(response: Response) -> (Vec<Value>, Value) {
    let (status, headers) = (response.status(), response.headers().clone());
    let text = response.text().await.unwrap();
    assert_eq!(status, StatusCode::OK, "{text}");
    assert_eq!(headers["content-type"], "application/x-ndjson");
    let mut lines = parse_lines(&text);
    let summary = lines.pop().unwrap();
    assert_eq!(summary["kind"], "summary", "{text}");
    assert_eq!(summary["files"], lines.len(), "{text}");
    assert!(lines.iter().all(|line| line["kind"] == "file"), "{text}");
    (lines, summary)
}

async fn import(app: &App, path: &str, archive: Vec<u8>) -> (Vec<Value>, Value) {
    lines(send(app, path, archive).await).await
}

/// Returns the path and the result of each file.
fn outcomes(lines: &[Value]) -> Vec<(&str, &str)> {
    lines.iter().map(|line| (line.text("file"), line.text("outcome"))).collect()
}

/// Returns the names of the subjects with their numbers of faces, by name.
async fn people(app: &App) -> Vec<(String, i64)> {
    let list = app.get_ok("/subjects").await;
    let person = |subject: &Value| (subject.text("name").to_owned(), subject["face_count"].as_i64().unwrap());
    let mut people: Vec<_> = list.list("subjects").iter().map(person).collect();
    people.sort();
    people
}

fn person(name: &str, faces: i64) -> (String, i64) {
    (name.to_owned(), faces)
}

#[testing::test]
async fn archive_of_folders_is_imported_and_repeated_without_doubles() {
    let app = App::spawn().await;
    let files = [
        ("people/Ada/ada.jpg", drawing("ada.jpg")),
        ("people/Ada/2020/ada_2.jpg", drawing("ada_2.jpg")),
        ("people/Ada/z.jpg", drawing("ada.jpg")),
        ("people/Ben/ben", drawing("ben.jpg")),
        ("people/Ben/notes.txt", b"text".to_vec()),
        ("people/Ben/more.zip", archive(&[("a.jpg", drawing("ada.jpg"))])),
        ("people/Ben/.DS_Store", b"x".to_vec()),
        ("__MACOSX/people/Ben/._ben", b"x".to_vec()),
        ("people/Cora/ada_3.jpg", drawing("ada_3.jpg")),
        ("people/Dan/blur.jpg", drawing("blur.jpg")),
        ("people/Dan/broken.jpg", b"no image".to_vec()),
        ("people/Eve/two.jpg", drawing("two_people.jpg")),
        ("people/Eve/view.jpg", drawing("view.jpg")),
    ];
    let zip = archive(&files);
    let expected = [
        ("Ada/2020/ada_2.jpg", "enrolled"),
        ("Ada/ada.jpg", "enrolled"),
        ("Ada/z.jpg", "already_enrolled"),
        ("Ben/ben", "enrolled"),
        ("Cora/ada_3.jpg", "looks_like"),
        ("Dan/blur.jpg", "low_quality"),
        ("Dan/broken.jpg", "unreadable"),
        ("Eve/two.jpg", "several_faces"),
        ("Eve/view.jpg", "no_face"),
    ];

    let (dry_run, summary) = import(&app, &format!("{STANDARD}&dry_run=true"), zip.clone()).await;
    assert_eq!(outcomes(&dry_run), expected);
    assert_eq!((&summary["dry_run"], &summary["subjects_created"]), (&json!(true), &json!(2)));
    assert_eq!(dry_run[4]["similar"]["name"], "Ada", "{}", dry_run[4]);
    assert_eq!(people(&app).await, []);
    assert_eq!(app.get_ok("/images").await["images"], json!([]));
    assert_eq!(app.blob_count(), 0);
    let log = app.get_ok("/audit?action=subject.import").await;
    assert_eq!(log["records"][0]["detail"]["dry_run"], true, "a dry run is recorded: {log}");

    let (report, summary) = import(&app, STANDARD, zip.clone()).await;
    assert_eq!(outcomes(&report), expected);
    assert_eq!((&summary["outcomes"]["enrolled"], &summary["subjects_created"]), (&json!(3), &json!(2)));
    assert_eq!(people(&app).await, [person("Ada", 2), person("Ben", 1)]);
    let face = app.get_ok(&format!("/faces/{}", report[1].text("face_id"))).await;
    assert_eq!(face["image_id"], report[1]["image_id"]);
    assert_eq!(report[4]["similar"]["subject_id"], report[0]["subject_id"]);
    assert!(report[5].list("unmet").contains(&json!("too_blurry")), "{}", report[5]);
    assert_eq!(report[6]["reason"], "not_an_image");

    let blobs = app.blob_count();
    let repeated = lines(app.post_parts(STANDARD, &[("archive", zip)]).await).await;
    assert_eq!(repeated.1["outcomes"]["already_enrolled"], 4, "{}", repeated.1);
    assert_eq!((&repeated.1["outcomes"]["enrolled"], app.blob_count()), (&Value::Null, blobs));
    assert_eq!(people(&app).await, [person("Ada", 2), person("Ben", 1)]);

    let log = app.get_ok("/audit?action=subject.import").await;
    assert_eq!(log.list("records").len(), 3, "{log}");
    assert_eq!(log["records"][1]["detail"]["outcomes"]["enrolled"], 3);
    assert!(!log.to_string().contains("Ada"), "the log contains no personal data: {log}");

    let cora = archive(&[files[8].clone()]);
    let (allowed, _) = import(&app, &format!("{STANDARD}&allow_similar=true"), cora).await;
    assert_eq!((&allowed[0]["outcome"], &allowed[0]["similar"]["name"]), (&json!("enrolled"), &json!("Ada")));
}

#[testing::test]
async fn import_without_scope_search_names_no_similar_person() {
    let app = App::spawn_with(key_options()).await;
    let (_, writer) = app.create_key(Some("press"), &[Scope::Write]).await;
    let (_, searcher) = app.create_key(Some("press"), &[Scope::Write, Scope::Search]).await;
    let import = async |key: &str, query: &str, files: &[(&str, Vec<u8>)]| {
        let path = format!("{}{STANDARD}{query}", app.url);
        let request =
            app.client.post(path).header("x-api-key", key).header("content-type", "application/zip");
        lines(request.body(archive(files)).send().await.unwrap()).await.0
    };
    import(&writer, "", &[("Ada/ada.jpg", drawing("ada.jpg"))]).await;
    let probes = [("X/ada.jpg", drawing("ada.jpg")), ("X/ada_3.jpg", drawing("ada_3.jpg"))];
    for (key, names_person) in [(&writer, false), (&searcher, true)] {
        for report in import(key, "&dry_run=true", &probes).await {
            assert_eq!(report["outcome"], "looks_like", "{report}");
            assert_eq!(report.to_string().contains("Ada"), names_person, "{report}");
            assert_eq!(report["similar"].is_object(), names_person, "{report}");
            assert!(names_person || report["face_id"].is_null(), "{report}");
        }
    }
}

#[testing::test]
async fn archive_with_list_is_imported_in_its_order() {
    let app = App::spawn().await;
    let list =
        "name,file\nBen,b.jpg\n\"Lovelace, Ada\",./photos/a.jpg\nCora,missing.jpg\nDan,../b.jpg\n,b.jpg\n";
    let files = [
        ("subjects.csv", list.into()),
        ("photos/a.jpg", drawing("ada.jpg")),
        ("b.jpg", drawing("ben.jpg")),
        ("unlisted.jpg", drawing("eve.jpg")),
    ];
    let (report, _) = import(&app, STANDARD, archive(&files)).await;
    let expected = [
        ("b.jpg", "enrolled"),
        ("./photos/a.jpg", "enrolled"),
        ("missing.jpg", "unreadable"),
        ("../b.jpg", "unreadable"),
        ("b.jpg", "bad_name"),
    ];
    assert_eq!(outcomes(&report), expected);
    assert_eq!(people(&app).await, [person("Ben", 1), person("Lovelace, Ada", 1)]);
}

#[testing::test]
async fn hostile_entries_are_reported_and_never_read() {
    let config = Config { image_limit: 1 << 20, ..Config::default() };
    let app = App::spawn_bare(config).await;
    let files: [(&str, Vec<u8>); 8] = [
        ("Ada/bomb.png", vec![0; 64 << 20]),
        ("Ada/secret.jpg", drawing("ada.jpg")),
        ("Ada/backslash.jpg", b"x".to_vec()),
        ("Ada/latin.jpg", b"x".to_vec()),
        ("../escape.jpg", b"x".to_vec()),
        ("/etc/passwd.jpg", b"x".to_vec()),
        ("Ada/../Ben/a.jpg", b"x".to_vec()),
        ("loose.jpg", b"x".to_vec()),
    ];
    let mut zip = writer(&files);
    zip.add_symlink("Ada/link.jpg", "/etc/passwd", SimpleFileOptions::default()).unwrap();
    let zip = zip.finish().unwrap().into_inner();
    let zip = with_encryption_flag(zip, "Ada/secret.jpg");
    let zip = with_name(zip, "Ada/backslash.jpg", b"Ada\\backslash.jpg");
    let zip = with_name(zip, "Ada/latin.jpg", b"Ada/l\xe4tin.jpg");
    let (report, _) = import(&app, PATH, zip).await;
    let expected = [
        ("../escape.jpg", "bad_name", "`..`"),
        ("/etc/passwd.jpg", "bad_name", "absolute"),
        ("Ada/../Ben/a.jpg", "bad_name", "`..`"),
        ("Ada/bomb.png", "too_large", "1048576 bytes"),
        ("Ada/link.jpg", "unreadable", "symbolic link"),
        ("Ada/l\u{fffd}tin.jpg", "bad_name", "UTF-8"),
        ("Ada/secret.jpg", "unreadable", "encrypted"),
        ("Ada\\backslash.jpg", "bad_name", "backslash"),
        ("loose.jpg", "bad_name", "folder of a person"),
    ];
    assert_eq!(report.len(), expected.len(), "{report:?}");
    for (line, (file, outcome, detail)) in report.iter().zip(expected) {
        assert_eq!((line.text("file"), line.text("outcome")), (file, outcome), "{line}");
        assert!(line.text("detail").contains(detail), "{line}");
    }
    assert_eq!(people(&app).await, []);
}

#[testing::test]
async fn understated_size_does_not_exceed_limit_of_image() {
    let app = App::spawn_bare(Config { image_limit: 1 << 20, ..Config::default() }).await;
    let mut zip = archive(&[("Ada/bomb.png", vec![0; 64 << 20])]);
    let size = (64_u32 << 20).to_le_bytes();
    for at in 0..zip.len() - 4 {
        if zip[at..at + 4] == size {
            zip[at..at + 4].copy_from_slice(&100_u32.to_le_bytes());
        }
    }
    let (report, _) = import(&app, PATH, zip).await;
    let outcome = report[0].text("outcome");
    assert!(["too_large", "unreadable"].contains(&outcome), "{}", report[0]);
}

#[testing::test]
async fn unusable_archive_is_rejected() {
    let app = App::spawn_bare(Config::default()).await;
    let good = archive(&[("Ada/a.jpg", drawing("ada.jpg"))]);
    let list = |text: &str| archive(&[("subjects.csv", text.into())]);
    let twice = archive(&[("Ada/a.jpg", b"1".to_vec()), ("Ada/b.jpg", b"2".to_vec())]);
    let twice = with_name(twice, "Ada/b.jpg", b"Ada/a.jpg");
    let (bad, unprocessable) = ("bad_archive", 422);
    for (zip, status, code, part) in [
        (Vec::new(), unprocessable, bad, "archive"),
        (b"not an archive".to_vec(), unprocessable, bad, "archive"),
        (good[..good.len() - 40].to_vec(), unprocessable, bad, "archive"),
        (twice, unprocessable, bad, "same name"),
        (list("name;file\n"), unprocessable, bad, "subjects.csv: line 1"),
        (list("name,file\nAda,\"a.jpg\n"), unprocessable, bad, "no end"),
        (
            archive(&(0..=10_000).map(|number| (number.to_string(), Vec::new())).collect::<Vec<_>>()),
            413,
            "too_many_images",
            "10000 entries",
        ),
        (
            list(&format!("name,file\n{}", "Ada,a.jpg\n".repeat(10_001))),
            413,
            "too_many_images",
            "10000 entries",
        ),
    ] {
        let error = problem(send(&app, PATH, zip).await, status, code).await;
        assert!(error.text("detail").contains(part), "{error}");
    }
    // The list of entries takes more than 4 MiB.
    let names = |number: usize| (format!("{number:0>30000}"), Vec::new());
    let long = archive(&(0..300).map(names).collect::<Vec<_>>());
    let error = problem(send(&app, PATH, long).await, unprocessable, bad).await;
    assert!(error.text("detail").contains("list of entries is too long"), "{error}");

    let response = app.post_raw(PATH, "application/gzip", good.clone()).await;
    problem(response, 415, "unsupported_media_type").await;
    problem(app.post_parts(PATH, &[("file", good.clone())]).await, 400, "unknown_part").await;
    let both = [("archive", good.clone()), ("archive", good.clone())];
    problem(app.post_parts(PATH, &both).await, 400, "unknown_part").await;
    problem(send(&app, &format!("{PATH}?collection=nowhere"), good.clone()).await, 404, "not_found").await;
    let error = problem(send(&app, &format!("{PATH}?profile=off"), good).await, 400, "bad_query").await;
    assert_eq!(field(&error), "profile");
}

#[testing::test]
async fn truncated_entry_is_reported() {
    let app = App::spawn_bare(Config::default()).await;
    let mut zip = archive(&[("Ada/a.png", noise(64, 64)), ("Ben/b.png", noise(32, 32))]);
    // Damages the data of the first entry; its checksum no longer matches.
    zip[200] ^= 0xff;
    let (report, _) = import(&app, PATH, zip).await;
    assert_eq!(report[0]["outcome"], "unreadable", "{}", report[0]);
    assert_ne!(report[1]["outcome"], "unreadable", "{}", report[1]);
}

#[testing::test]
async fn import_needs_scope_and_own_collection() {
    let app = App::spawn_with(Options { models: Models::Fixture, worker: false, ..key_options() }).await;
    let (_, writer) = app.create_key(Some("ours"), &[Scope::Write, Scope::Read]).await;
    let (_, reader) = app.create_key(Some("ours"), &[Scope::Read]).await;
    app.state.services.store.collections().ensure("theirs").await.unwrap();
    let zip = archive(&[("Ada/a.png", noise(64, 64))]);
    let send = async |key: &str, query: &str| {
        let request = app.client.post(format!("{}{PATH}{query}", app.url)).bearer_auth(key);
        request.header("content-type", "application/zip").body(zip.clone()).send().await.unwrap()
    };
    problem(send(&reader, "").await, 403, "scope_missing").await;
    problem(send(&writer, "?collection=theirs").await, 404, "not_found").await;
    let (report, _) = lines(send(&writer, "?collection=ours").await).await;
    assert_eq!(report[0]["outcome"], "no_face", "{}", report[0]);
}

#[testing::test]
async fn erased_person_is_not_stored_again() {
    let app = App::spawn().await;
    let zip = archive(&[("Ada/a.jpg", drawing("ada.jpg"))]);
    let (first, _) = import(&app, STANDARD, zip.clone()).await;
    let body = json!({"subject_id": first[0]["subject_id"], "suppress_person": true});
    erase_confirmed(&app, &body).await;
    assert_eq!(people(&app).await, []);
    let other = archive(&[("Ada/a.jpg", drawing("ada.jpg")), ("Somebody/b.jpg", drawing("ada_2.jpg"))]);
    for path in [format!("{STANDARD}&dry_run=true"), STANDARD.to_owned()] {
        let (report, _) = import(&app, &path, other.clone()).await;
        assert_eq!(outcomes(&report), [("Ada/a.jpg", "suppressed"), ("Somebody/b.jpg", "suppressed")]);
        assert!(report.iter().all(|line| line["reason"].is_string()), "{report:?}");
    }
    assert_eq!((people(&app).await, app.blob_count()), (Vec::new(), 0));
}

#[testing::test]
async fn concurrent_imports_create_each_person_once() {
    let app = App::spawn().await;
    let zip = archive(&[("Ada/a.jpg", drawing("ada.jpg")), ("Ben/b.jpg", drawing("ben.jpg"))]);
    let imports = [zip.clone(), zip.clone(), zip].map(|zip| import(&app, STANDARD, zip));
    let created: Vec<i64> = futures::future::join_all(imports)
        .await
        .iter()
        .map(|(_, summary)| summary["subjects_created"].as_i64().unwrap())
        .collect();
    assert_eq!(created.iter().sum::<i64>(), 2, "{created:?}");
    assert_eq!(people(&app).await, [person("Ada", 1), person("Ben", 1)]);
}

#[testing::test]
async fn import_ends_when_caller_leaves() {
    const FILES: usize = 400;
    let app = App::spawn().await;
    let ada = drawing("ada.jpg");
    // Trailing bytes make each file different without changing its image.
    let file = |number: usize| {
        let content = [ada.as_slice(), number.to_le_bytes().as_slice()].concat();
        (format!("Ada/{number:03}.jpg"), content)
    };
    let zip = archive(&(0..FILES).map(file).collect::<Vec<_>>());
    let mut response = send(&app, STANDARD, zip).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(response.chunk().await.unwrap().is_some());
    drop(response);
    let path = "/audit?action=subject.import";
    let log = app.poll(path, |log| !log.list("records").is_empty()).await;
    let files = log["records"][0]["detail"]["files"].as_u64().unwrap();
    assert!((1..FILES as u64).contains(&files), "{log}");
    // The next import continues.
    let (_, summary) = import(&app, STANDARD, archive(&[file(0)])).await;
    assert_eq!(summary["outcomes"]["already_enrolled"], 1, "{summary}");
}

#[testing::test]
async fn import_fails_on_full_disk() {
    let options = Options { disk_reserve: u64::MAX, ..Options::bare(Config::default()) };
    let app = App::spawn_with(options).await;
    let zip = archive(&[("Ada/a.png", noise(64, 64))]);
    problem(send(&app, PATH, zip.clone()).await, 507, "disk_full").await;
    problem(app.post_parts(PATH, &[("archive", zip)]).await, 507, "disk_full").await;
}
