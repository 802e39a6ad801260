//! Tests what an erasure (`/erasures`) deletes and suppresses.
mod addresses;
mod confirmations;
mod images;
mod people;

use crate::support::site::Site;
use crate::support::{App, Json, erase, field, merge, ok, problem};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::process::Command;
use store::keys::Scope;
use vision::{Frame, Limits};

fn image_body(name: &str) -> Value {
    json!({"image_base64": STANDARD.encode(testing::drawing(name))})
}

#[testing::test]
async fn probe_image_with_several_faces_requires_face_index() {
    let app = App::spawn().await;
    let request = merge(image_body("ada_and_ben.jpg"), json!({"dry_run": true}));
    let error = problem(app.post_json("/erasures", &request).await, 422, "no_such_face").await;
    assert_eq!(field(&error), "face_index", "{error}");
    app.post_ok("/erasures", &merge(request, json!({"face_index": 1}))).await;
}

fn list_len(response: &Value, field: &str) -> usize {
    response.list(field).len()
}

#[testing::test]
async fn person_erased_by_image_stays_suppressed() {
    let (app, site, _) = App::with_crawl(&["ada.jpg", "cora.jpg", "ada_and_ben.jpg"]).await;
    let face_count = list_len(&app.get_ok("/faces").await, "faces");
    let blobs = app.blob_count();
    let probe = merge(image_body("ada_2.jpg"), json!({"suppress_person": true}));

    let preview = app.post_ok("/erasures", &merge(probe.clone(), json!({"dry_run": true}))).await;
    assert_eq!(
        (&preview["faces"], &preview["images"], &preview["erasure"]),
        (&json!(2), &json!(1), &Value::Null),
        "{preview}"
    );
    assert_eq!(list_len(&preview, "affected"), 2);
    assert_eq!(list_len(&app.get_ok("/faces").await, "faces"), face_count, "a dry run changes nothing");

    let result = erase(&app, &probe).await;
    assert_eq!((&result["faces"], &result["images"]), (&json!(2), &json!(1)), "{result}");
    // The portrait is deleted. The image of two people is kept, without the erased face and without
    // its thumbnail, which contained that face.
    assert_eq!(list_len(&app.get_ok("/faces").await, "faces"), face_count - 2);
    let images = app.get_ok("/images").await;
    assert_eq!(list_len(&images, "images"), 2);
    let pair = images.list("images").iter().find(|image| {
        image["sources"][0]["image_url"].as_str().is_some_and(|url| url.ends_with("ada_and_ben.jpg"))
    });
    let pair = pair.unwrap().text("id").to_owned();
    problem(app.get(&format!("/images/{pair}/thumbnail")).await, 404, "not_found").await;
    assert_eq!(app.blob_count(), blobs - 1, "the blob of the portrait is deleted");

    // The list and the audit log contain counts, but not the person.
    let list = app.get_ok("/erasures").await;
    assert_eq!(list["erasures"][0], result["erasure"]);
    assert_eq!(list["erasures"][0]["kind"], "likeness");
    // The suppressions are the hashes of the portrait, the region in the other image, and the
    // sketch of the face.
    assert_eq!(list["erasures"][0]["suppressions"], 3);
    let log = app.get_ok("/audit?action=erasure.create").await;
    assert_eq!(log["records"][0]["detail"]["erasure_id"], result["erasure"]["id"]);
    assert_eq!(list_len(&app.get_ok("/audit?action=erasure.preview").await, "records"), 1);

    // The site is crawled again, first with the image of two people stored and then after its
    // deletion. Then new images of the person are crawled.
    let recrawl = app.crawl(&[site.page()]).await;
    assert_eq!(recrawl["reasons"]["suppressed_image"], 1, "{recrawl}");
    assert_eq!(app.delete(&format!("/images/{pair}")).await.status(), StatusCode::NO_CONTENT);
    let recrawl = app.crawl(&[site.page()]).await;
    assert_eq!(recrawl["counts"]["images"]["suppressed"], 1, "{recrawl}");
    assert_eq!(recrawl["reasons"]["faces_suppressed"], 1, "{recrawl}");
    let new_site = Site::new(&["ada_3.jpg", "ben_2.jpg"]).await;
    let new_crawl = app.crawl(&[new_site.page()]).await;
    assert_eq!(new_crawl["reasons"]["suppressed_person"], 1, "{new_crawl}");
    assert_eq!(new_crawl["counts"]["images"]["processed"], 1, "{new_crawl}");
    let remaining = app.post_ok("/faces/search", &image_body("ada_2.jpg")).await;
    assert_eq!(remaining["matches"], json!([]));

    // The person cannot be enrolled, and the attempt leaves no crop.
    let blobs = app.blob_count();
    let subject = app.post_json("/subjects", &json!({})).await.json::<Value>().await.unwrap();
    let faces = format!("/subjects/{}/faces", subject.text("id"));
    problem(app.post_json(&faces, &image_body("ada_3.jpg")).await, 409, "conflict").await;
    assert_eq!(app.blob_count(), blobs);
}

#[testing::test]
async fn erased_face_in_shared_image_stays_suppressed_without_sketch() {
    let (app, site, _) = App::with_crawl(&["two_people.jpg"]).await;
    let faces = app.get_ok("/faces").await;
    let face = &faces["faces"][0];
    let result = erase(&app, &json!({"face_id": face["id"]})).await;
    assert_eq!((&result["faces"], &result["images"]), (&json!(1), &json!(0)), "{result}");
    problem(app.post_json("/erasures", &json!({"face_id": face["id"]})).await, 404, "not_found").await;
    assert_eq!(app.delete(&format!("/images/{}", face.text("image_id"))).await.status(), 204);
    let recrawl = app.crawl(&[site.page()]).await;
    assert_eq!(
        (&recrawl["counts"]["faces"], &recrawl["reasons"]["faces_suppressed"]),
        (&json!(1), &json!(1)),
        "{recrawl}"
    );
    let remaining = app.get_ok("/faces").await;
    assert_eq!(remaining["faces"][0]["bbox"], faces["faces"][1]["bbox"]);
    // The erasure of the last face deletes the image too.
    let last = erase(&app, &json!({"face_id": remaining["faces"][0]["id"], "suppress": false})).await;
    assert_eq!((&last["images"], &last["erasure"]["suppressions"]), (&json!(1), &json!(0)), "{last}");
    assert_eq!(app.blob_count(), 0);
}

#[testing::test]
async fn erasure_by_url_deletes_and_suppresses_images() {
    let (app, site, _) = App::with_crawl(&["ben.jpg", "cora.jpg"]).await;
    let image = site.image("ben.jpg");
    let result = erase(&app, &json!({"url": format!("{image}#part")})).await;
    assert_eq!((&result["faces"], &result["images"]), (&json!(1), &json!(1)), "{result}");
    let recrawl = app.crawl(&[site.page()]).await;
    assert_eq!(recrawl["reasons"]["suppressed_url"], 1, "{recrawl}");
    // An erasure of the page deletes everything that was found on it.
    let result = erase(&app, &json!({"url": site.page()})).await;
    assert_eq!(result["images"], 1, "{result}");
    let recrawl = app.crawl(&[site.page()]).await;
    assert_eq!(recrawl["counts"]["images"]["suppressed"], 2, "{recrawl}");
    assert_eq!(app.get_ok("/images").await["images"], json!([]));
    // The URL is also deleted from the ledgers of the crawls.
    let crawls = app.get_ok("/crawls").await;
    let first = crawls.list("crawls").last().unwrap().text("id").to_owned();
    let export = app.get(&format!("/crawls/{first}/export")).await.text().await.unwrap();
    assert!(!export.contains("ben.jpg"), "{export}");
    // A URL at which nothing was found is also suppressed.
    let result = erase(&app, &json!({"url": "https://example.org/never.jpg"})).await;
    assert_eq!((&result["images"], &result["erasure"]["suppressions"]), (&json!(0), &json!(1)), "{result}");
}

#[testing::test]
async fn erasure_rejects_invalid_targets_and_requires_scope() {
    let (app, _, key) = App::with_key(Some("ours"), &[Scope::Erase]).await;
    let (_, reader) = app.create_key(Some("ours"), &[Scope::Read]).await;
    let erase_as = async |key: &str, body: Value| app.call(key, Method::POST, "/erasures", Some(&body)).await;
    problem(erase_as(&reader, json!({"url": "https://example.org/"})).await, 403, "scope_missing").await;
    for (body, name) in [
        (json!({}), ""),
        (json!({"url": "https://example.org/", "face_id": "0198f1c2-3a55-7c30-9d35-6a2f5d0f6a11"}), ""),
        (json!({"url": "ftp://example.org/"}), "url"),
        (json!({"url": "https://example.org/", "suppress_person": true}), "suppress_person"),
        (json!({"url": "https://example.org/", "threshold": 2}), "threshold"),
        (json!({"face_id": "x"}), "face_id"),
    ] {
        let error = problem(erase_as(&key, body.clone()).await, 422, "invalid_field").await;
        assert_eq!(field(&error), name, "{body}: {error}");
    }
    for body in ["face_id", "image_id", "subject_id"]
        .map(|name| json!({name: "0198f1c2-3a55-7c30-9d35-6a2f5d0f6a11"}))
    {
        problem(erase_as(&key, body).await, 404, "not_found").await;
    }
    problem(erase_as(&key, image_body("view.jpg")).await, 422, "no_face").await;
    let list = app.get_as(&key, "/erasures").await;
    assert_eq!(list["erasures"], json!([]));
}

#[testing::test]
async fn lifting_suppressions_affects_only_one_erasure() {
    let (app, site, _) = App::with_crawl(&["ada.jpg", "cora.jpg"]).await;
    let person = erase(&app, &merge(image_body("ada_2.jpg"), json!({"suppress_person": true}))).await;
    let address = erase(&app, &json!({"url": site.image("ada.jpg")})).await;
    let second_address = erase(&app, &json!({"url": site.image("ada.jpg")})).await;
    assert_eq!(
        second_address["erasure"]["suppressions"], 1,
        "each erasure has its own suppression: {second_address}"
    );
    let lift = async |result: &Value| {
        let path = format!("/erasures/{}/suppressions", result["erasure"].text("id"));
        ok(app.delete(&path).await).await
    };
    let suppressed_count = async || app.crawl(&[site.page()]).await["counts"]["images"]["suppressed"].clone();
    assert_eq!(suppressed_count().await, 1);

    let lifted = lift(&person).await;
    assert_eq!((&lifted["lifted"], &lifted["erasure"]["suppressions"]), (&json!(2), &json!(2)), "{lifted}");
    assert!(lifted["erasure"]["lifted_at"].is_string());
    assert_eq!(lift(&person).await["lifted"], 0, "lifting it again changes nothing");
    assert_eq!(lift(&person).await["erasure"]["lifted_at"], lifted["erasure"]["lifted_at"]);
    assert_eq!(suppressed_count().await, 1, "the URL is still suppressed");
    lift(&address).await;
    assert_eq!(suppressed_count().await, 1, "the other erasure still suppresses the URL");
    assert_eq!(lift(&second_address).await["lifted"], 1);
    assert_eq!(suppressed_count().await, 0);
    let found = app.post_ok("/faces/search", &image_body("ada_2.jpg")).await;
    assert_eq!(list_len(&found, "matches"), 1, "stored by the next crawl: {found}");

    let log = app.get_ok("/audit?action=erasure.lifted").await;
    assert_eq!(list_len(&log, "records"), 5);
    let detail = &log["records"][4]["detail"];
    assert_eq!((&detail["erasure_id"], &detail["suppressions"]), (&person["erasure"]["id"], &json!(2)));
    let nobodys = "/erasures/0198f1c2-3a55-7c30-9d35-6a2f5d0f6a11/suppressions";
    problem(app.delete(nobodys).await, 404, "not_found").await;
}

#[testing::test]
async fn erase_scope_cannot_lift_suppressions() {
    let (app, _, eraser) = App::with_key(Some("ours"), &[Scope::Erase]).await;
    let (_, admin) = app.create_key(Some("ours"), &[Scope::Admin]).await;
    let result = app.create_as(&eraser, "/erasures", &json!({"url": "https://example.org/never.jpg"})).await;
    let path = format!("/erasures/{}/suppressions", result["erasure"].text("id"));
    problem(app.call(&eraser, Method::DELETE, &path, None).await, 403, "scope_missing").await;
    assert_eq!(ok(app.call(&admin, Method::DELETE, &path, None).await).await["lifted"], 1);
}

/// Returns the whole database as text, and the content of every file in the blob folder.
fn stored_data(app: &App) -> (String, Vec<Vec<u8>>) {
    let files = testing::files_below(app.blob_folder.path());
    (dump(app), files.iter().map(|path| std::fs::read(path).unwrap()).collect())
}

#[testing::test]
async fn erased_person_leaves_no_data_in_dump_or_blobs() {
    let (app, _site, _) = App::with_crawl(&["cora.jpg", "cora_2.jpg", "two_people.jpg"]).await;
    let found = app.post_ok("/faces/search", &image_body("cora.jpg")).await;
    let face_ids: Vec<&str> = found.list("matches").iter().map(|hit| hit.text("face_id")).collect();
    assert_eq!(face_ids.len(), 2, "{found}");
    let mut pieces = Vec::new();
    for face in &face_ids {
        for kind in ["chip", "crop"] {
            let image = app.get(&format!("/faces/{face}/crop?kind={kind}")).await.bytes().await.unwrap();
            pieces.push(image.to_vec());
        }
    }
    // The dump contains each row with the id of the face. The first components of its embedding are
    // unique to this face.
    let (dump, files) = stored_data(&app);
    let embeddings: Vec<String> = face_ids
        .iter()
        .map(|face| {
            let row = dump.lines().find(|line| line.starts_with(face)).unwrap();
            row[row.find('[').unwrap()..].chars().take(60).collect()
        })
        .collect();
    for embedding in &embeddings {
        assert_eq!(dump.matches(embedding.as_str()).count(), 1);
    }
    for piece in &pieces {
        let contains_piece = |file: &Vec<u8>| testing::contains_bytes(file, piece);
        assert!(files.iter().any(contains_piece), "the search must find the pieces before the erasure");
    }
    let subject = "0198f1c2-3a55-7c30-9d35-6a2f5d0f6a11";
    app.database
        .execute(
            "insert into subjects (id, collection_id, name)
             select '0198f1c2-3a55-7c30-9d35-6a2f5d0f6a11', id, 'Somebody' from collections where name = 'default'",
        )
        .await;
    app.database
        .execute(
            "insert into subject_faces (collection_id, subject_id, face_id)
             select f.collection_id, '0198f1c2-3a55-7c30-9d35-6a2f5d0f6a11', f.id from faces f
             order by f.embedding <=> (select p.embedding from faces p join image_sources s on s.image_id = p.image_id
                                       where s.image_url like '%/cora.jpg') limit 2",
        )
        .await;

    let result = erase(&app, &json!({"subject_id": subject, "suppress_person": true})).await;
    assert_eq!((&result["faces"], &result["images"]), (&json!(2), &json!(2)), "{result}");
    let (dump, files) = stored_data(&app);
    for embedding in &embeddings {
        assert!(!dump.contains(embedding.as_str()));
    }
    assert!(!dump.contains("Somebody"));
    assert!(face_ids.iter().all(|face| !dump.contains(face)));
    for piece in &pieces {
        let contains_piece = |file: &Vec<u8>| testing::contains_bytes(file, piece);
        assert!(!files.iter().any(contains_piece));
    }
    // The faces of the two other people remain.
    assert_eq!(list_len(&app.get_ok("/faces").await, "faces"), 2);
}

/// Returns the whole database as text, with compressed columns decompressed.
pub(crate) fn dump(app: &App) -> String {
    let dump =
        Command::new(testing::database::programs().join("pg_dump")).arg(app.database.url()).output().unwrap();
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    String::from_utf8_lossy(&testing::with_decompressed_gzip(dump.stdout)).into_owned()
}

fn pixels(name: &str) -> Frame {
    decoded(&testing::drawing(name))
}

fn decoded(file: &[u8]) -> Frame {
    vision::decode(file, &Limits::default()).unwrap().frame
}
