//! Tests subjects: their fields, enrolment from images, crops and stored faces, search by subject,
//! and clustering.
use crate::support::images::drawing;
use crate::support::site::Site;
use crate::support::{App, FAKE_ID, Json, Models, Options, erase, field, key_options, ok, problem, to_json};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use store::keys::Scope;

async fn fixture_app() -> App {
    App::spawn_with(Options { models: Models::Fixture, worker: false, ..Options::default() }).await
}

async fn create(app: &App, body: &Value) -> Value {
    app.create("/subjects", body).await
}

async fn patch(app: &App, id: &Value, body: &Value) -> reqwest::Response {
    app.patch(&format!("/subjects/{}", id.as_str().unwrap()), body).await
}

#[testing::test]
async fn subject_is_created_changed_listed_merged_and_deleted() {
    let app = fixture_app().await;
    let body = json!({"name": " Ada ", "external_id": "a-1", "metadata": {"team": "engines"}});
    let response = app.post_json("/subjects", &body).await;
    let location = response.headers()["location"].to_str().unwrap().to_owned();
    let ada = to_json(response, StatusCode::CREATED).await;
    assert_eq!(location, format!("/subjects/{}", ada.text("id")));
    assert_eq!(
        (&ada["name"], &ada["origin"], &ada["face_count"]),
        (&json!("Ada"), &json!("enrolled"), &json!(0))
    );
    assert_eq!(app.get_ok(&location).await, ada);
    let bob = create(&app, &json!({"name": "Bob"})).await;

    let names = async |query: &str| -> Vec<Value> {
        let list = app.get_ok(&format!("/subjects{query}")).await;
        list.list("subjects").iter().map(|subject| subject["name"].clone()).collect()
    };
    assert_eq!(names("").await, ["Bob", "Ada"]);
    assert_eq!(names("?name=ADA").await, ["Ada"]);
    assert_eq!(names("?name=%20ada%09").await, ["Ada"], "a name is stored without surrounding spaces");
    assert_eq!(names("?external_id=a-1").await, ["Ada"]);
    // The letter is sent as `O` with a combining diaeresis, and found as the composed small letter.
    let composed = create(&app, &json!({"name": "O\u{308}zil"})).await;
    assert_eq!(composed["name"], "\u{d6}zil");
    assert_eq!(names("?name=%C3%B6ZIL").await, ["\u{d6}zil"]);
    assert_eq!(
        app.delete(&format!("/subjects/{}", composed.text("id"))).await.status(),
        StatusCode::NO_CONTENT
    );
    assert!(names("?origin=cluster").await.is_empty());
    let first = app.get_ok("/subjects?limit=1").await;
    let next = first.text("next_cursor");
    assert_eq!(names(&format!("?limit=1&cursor={next}")).await, ["Ada"]);

    let changed =
        ok(patch(&app, &ada["id"], &json!({"external_id": null, "metadata": {"x": 1}})).await).await;
    assert_eq!((&changed["name"], &changed["external_id"]), (&json!("Ada"), &Value::Null));
    assert_eq!(changed["metadata"], json!({"x": 1}));
    ok(patch(&app, &bob["id"], &json!({"external_id": "a-1"})).await).await;
    problem(patch(&app, &ada["id"], &json!({"external_id": "a-1"})).await, 409, "conflict").await;

    let path = format!("/subjects/{}/merge", ada.text("id"));
    let merged = app.post_ok(&path, &json!({"subjects": [bob["id"]]})).await;
    assert_eq!((&merged["name"], &merged["external_id"]), (&json!("Ada"), &json!("a-1")));
    problem(app.post_json(&path, &json!({"subjects": [bob["id"]]})).await, 404, "not_found").await;
    assert_eq!(app.delete(&location).await.status(), StatusCode::NO_CONTENT);
    problem(app.get(&location).await, 404, "not_found").await;
}

#[testing::test]
async fn invalid_subject_error_names_field() {
    let app = fixture_app().await;
    let long = "x".repeat(201);
    for (body, field_name) in [
        (json!({"name": ""}), "name"),
        (json!({"name": long}), "name"),
        (json!({"name": "a\u{0}b"}), "name"),
        (json!({"external_id": " "}), "external_id"),
        (json!({"metadata": [1]}), "metadata"),
        (json!({"metadata": {"a": "\u{0}"}}), "metadata.a"),
        (json!({"metadata": {"a": "x".repeat(20_000)}}), "metadata"),
        (json!({"nickname": "a"}), "nickname"),
    ] {
        assert_eq!(
            field(&problem(app.post_json("/subjects", &body).await, 422, "invalid_field").await),
            field_name
        );
    }
    problem(app.post_json("/subjects", &json!({"collection": "nowhere"})).await, 404, "not_found").await;
    problem(app.get("/subjects?origin=invented").await, 400, "bad_query").await;
    let ada = create(&app, &json!({"name": "Ada"})).await;
    let id = ada.text("id");
    for body in [json!({"subjects": []}), json!({"subjects": [id]}), json!({"subjects": ["x"]})] {
        let response = app.post_json(&format!("/subjects/{id}/merge"), &body).await;
        assert!(field(&problem(response, 422, "invalid_field").await).starts_with("subjects"));
    }
    for body in
        [json!({}), json!({"face_ids": [FAKE_ID], "url": "http://127.0.0.1/"}), json!({"face_ids": []})]
    {
        problem(app.post_json(&format!("/subjects/{id}/faces"), &body).await, 422, "invalid_field").await;
    }
    let unknown = json!({"face_ids": [FAKE_ID]});
    problem(app.post_json(&format!("/subjects/{id}/faces"), &unknown).await, 404, "not_found").await;
    problem(app.post_json(&format!("/subjects/{FAKE_ID}/faces"), &unknown).await, 404, "not_found").await;
    problem(app.delete(&format!("/subjects/{id}/faces/12")).await, 400, "bad_id").await;
    problem(app.delete(&format!("/subjects/{id}/faces/{FAKE_ID}")).await, 404, "not_found").await;
    problem(app.get("/collections/nowhere/cluster").await, 404, "not_found").await;
    problem(app.get("/collections/default/cluster").await, 404, "not_found").await;
    let response = app.post_json("/collections/default/cluster", &json!({"threshold": 2})).await;
    assert_eq!(field(&problem(response, 422, "invalid_field").await), "threshold");
}

#[testing::test]
async fn merged_metadata_may_not_exceed_subject_limit() {
    const LONGEST: usize = 16 << 10;
    let app = fixture_app().await;
    // `{"a":"…","b":"…"}` has 15 bytes in addition to the two strings.
    for (bytes, is_allowed) in [(LONGEST, true), (LONGEST + 1, false)] {
        let text = |length: usize| "x".repeat(length);
        let first = create(&app, &json!({"name": "Ada", "metadata": {"a": text(9_000)}})).await;
        let second = create(&app, &json!({"metadata": {"a": 1, "b": text(bytes - 15 - 9_000)}})).await;
        let path = format!("/subjects/{}", first.text("id"));
        let merge = json!({"subjects": [second["id"]]});
        let response = app.post_json(&format!("{path}/merge"), &merge).await;
        if is_allowed {
            assert_eq!(ok(response).await["metadata"].to_string().len(), LONGEST);
            continue;
        }
        let error = problem(response, 422, "invalid_field").await;
        assert_eq!(field(&error), "subjects", "{error}");
        assert!(error.text("detail").contains(&LONGEST.to_string()), "{error}");
        // Nothing was merged.
        for subject in [first, second] {
            assert_eq!(app.get_ok(&format!("/subjects/{}", subject.text("id"))).await, subject);
        }
    }
}

#[testing::test]
async fn removing_face_without_erase_scope_requires_keeping_image() {
    let app = App::spawn_with(Options { models: Models::Fixture, worker: false, ..key_options() }).await;
    let (_, writer) = app.create_key(Some("ours"), &[Scope::Write, Scope::Read]).await;
    let (_, eraser) = app.create_key(Some("ours"), &[Scope::Write, Scope::Erase]).await;
    let ada = app.create_as(&writer, "/subjects", &json!({"name": "Ada"})).await;
    let path = format!("/subjects/{}/faces/{FAKE_ID}", ada.text("id"));
    let remove_face =
        async |key: &str, query: &str| app.call(key, Method::DELETE, &format!("{path}{query}"), None).await;
    for query in ["", "?enrolled_images=delete"] {
        let error = problem(remove_face(&writer, query).await, 403, "scope_missing").await;
        assert!(error.text("detail").contains("enrolled_images=keep"), "{error}");
        // The scope is sufficient here, but the face does not exist.
        problem(remove_face(&eraser, query).await, 404, "not_found").await;
    }
    problem(remove_face(&writer, "?enrolled_images=keep").await, 404, "not_found").await;
}

#[testing::test]
async fn subject_merge_is_audited_with_merged_ids() {
    let app = fixture_app().await;
    let ada = create(&app, &json!({"name": "Ada"})).await;
    let bob = create(&app, &json!({"name": "Bob"})).await;
    let path = format!("/subjects/{}/merge", ada.text("id"));
    app.post_ok(&path, &json!({"subjects": [bob["id"]]})).await;
    let log = app.get_ok("/audit?action=subject.merge").await;
    let detail = json!({"subject_id": ada["id"], "merged": [bob["id"]]});
    assert_eq!(log.list("records").len(), 1);
    assert_eq!(log["records"][0]["detail"], detail);
}

async fn create_named_subject(app: &App, name: &str) -> String {
    let created = app.create("/subjects", &json!({"name": name})).await;
    created.text("id").to_owned()
}

async fn enrol(app: &App, subject: &str, file: &str, query: &str) -> Value {
    let path = format!("/subjects/{subject}/faces{query}");
    ok(app.post_raw(&path, "image/jpeg", drawing(file)).await).await
}

fn subject_names(response: &Value) -> Vec<&str> {
    let matches = response.list("matches");
    matches.iter().map(|hit| hit["subject_name"].as_str().unwrap_or("nobody")).collect()
}

#[testing::test]
async fn enrolled_person_is_found_by_search() {
    let app = App::spawn().await;
    let (ada, ben) = (create_named_subject(&app, "Ada").await, create_named_subject(&app, "Ben").await);
    let first = enrol(&app, &ada, "ada.jpg", "").await;
    assert_eq!((&first["subject"]["face_count"], &first["faces"][0]["unmet"]), (&json!(1), &json!([])));
    enrol(&app, &ada, "ada_2.jpg", "?quality_profile=standard").await;
    enrol(&app, &ben, "ben.jpg", "?quality_profile=standard").await;
    let repeated = enrol(&app, &ada, "ada.jpg", "").await;
    assert_eq!(repeated["faces"][0]["face_id"], first["faces"][0]["face_id"], "a file is stored once");
    let faces = app.get_ok(&format!("/subjects/{ada}/faces")).await;
    assert_eq!(faces.list("faces").len(), 2);
    assert_eq!(faces["faces"][0]["sources"][0]["kind"], "enrolment");

    let probe = drawing("ada_3.jpg");
    let all_matches = ok(app.post_raw("/faces/search?threshold=-1", "image/jpeg", probe.clone()).await).await;
    assert_eq!(subject_names(&all_matches), ["Ada", "Ada", "Ben"]);
    let path = "/faces/search?threshold=-1&group_by=subject";
    let people = ok(app.post_raw(path, "image/jpeg", probe.clone()).await).await;
    assert_eq!(subject_names(&people), ["Ada", "Ben"]);
    assert_eq!(people["matches"][0]["similarity"], all_matches["matches"][0]["similarity"]);
    assert_eq!((&people["matches"][0]["subject_id"], &people["match_fmr"]), (&json!(ada), &Value::Null));
    let matches = ok(app.post_raw("/faces/search", "image/jpeg", probe).await).await;
    let expected_fmr = json!(app.state.services.analyzer.engine().embedder().match_fmr);
    assert_eq!(
        matches["match_fmr"], expected_fmr,
        "the rate is known at the model's own threshold: {matches}"
    );

    // An aligned crop of a stored face is stored as a separate file, but its embedding is almost
    // the same.
    let chip = format!("/faces/{}/crop?kind=chip", first["faces"][0].text("face_id"));
    let chip = app.get(&chip).await.bytes().await.unwrap().to_vec();
    let path = format!("/subjects/{ada}/faces?aligned=true");
    let aligned = ok(app.post_raw(&path, "image/png", chip).await).await;
    let by_chip = json!({"face_id": aligned["faces"][0]["face_id"], "limit": 1});
    let found = app.post_ok("/faces/search", &by_chip).await;
    assert_eq!(found["matches"][0]["face_id"], first["faces"][0]["face_id"]);
    assert!(found["matches"][0]["similarity"].as_f64().unwrap() > 0.99, "{found}");
    let response = app.post_raw(&path, "image/jpeg", drawing("ada.jpg")).await;
    assert!(problem(response, 400, "bad_query").await.text("detail").contains("112x112"));

    // A face moves to another subject only on request. A merge moves all faces.
    let face = json!({"face_ids": [first["faces"][0]["face_id"]]});
    let path = format!("/subjects/{ben}/faces");
    problem(app.post_json(&path, &face).await, 409, "conflict").await;
    let moved = app.post_ok(&format!("{path}?move=true"), &face).await;
    assert_eq!(moved["subject"]["face_count"], 2);
    let path = format!("/subjects/{ada}/merge");
    let merged = app.post_ok(&path, &json!({"subjects": [ben]})).await;
    assert_eq!(merged["face_count"], 4);

    // Images that were only stored for the enrolment are deleted with the person.
    assert_eq!(app.delete(&format!("/subjects/{ada}")).await.status(), StatusCode::NO_CONTENT);
    assert_eq!(app.get_ok("/faces").await["faces"], json!([]));
    assert_eq!(app.get_ok("/images").await["images"], json!([]));
    assert_eq!(app.blob_count(), 0, "all blobs must be deleted");
}

#[testing::test]
async fn repeated_enrolment_does_not_store_deleted_face_again() {
    let app = fixture_app().await;
    let ada = create_named_subject(&app, "Ada").await;
    let enrolled = enrol(&app, &ada, "ada_and_ben.jpg", "?face_index=0&force=true").await;
    let enrolled = enrolled["faces"][0].text("face_id");
    let faces = app.get_ok("/faces").await;
    let other = faces.list("faces").iter().map(|face| face.text("id")).find(|id| *id != enrolled).unwrap();
    let chip = async |face: &str| {
        let chip = app.get(&format!("/faces/{face}/crop?kind=chip")).await;
        chip.bytes().await.unwrap()
    };
    let (kept, deleted) = (chip(enrolled).await, chip(other).await);
    assert_eq!(app.delete(&format!("/faces/{other}")).await.status(), StatusCode::NO_CONTENT);

    let repeated = enrol(&app, &ada, "ada_and_ben.jpg", "?face_index=0&force=true").await;
    assert_eq!(repeated["faces"][0]["face_id"], enrolled);
    let blobs = testing::files_below(app.blob_folder.path());
    assert_eq!(blobs.len(), 1, "{blobs:?}");
    let blob = std::fs::read(&blobs[0]).unwrap();
    assert!(testing::contains_bytes(&blob, &kept) && !testing::contains_bytes(&blob, &deleted));
}

#[testing::test]
async fn image_is_enrolled_from_url_and_form() {
    let app = App::spawn().await;
    let site = Site::new(&["ada.jpg", "ben.jpg"]).await;
    let someone = create_named_subject(&app, "Someone").await;
    let path = format!("/subjects/{someone}/faces");
    let fetched = app.post_ok(&path, &json!({"url": site.image("ada.jpg")})).await;
    assert_eq!((&fetched["subject"]["face_count"], &fetched["faces"][0]["unmet"]), (&json!(1), &json!([])));
    let face = fetched["faces"][0].text("face_id");
    let face = app.get_ok(&format!("/faces/{face}")).await;
    assert_eq!(face["sources"][0]["image_url"], site.image("ada.jpg"), "the source must be stored");
    // The same file in a form, with the options in the query, enrols the same face.
    let form = [("image", drawing("ada.jpg"))];
    let sent = ok(app.post_parts(&format!("{path}?quality_profile=strict"), &form).await).await;
    assert_eq!(sent["faces"][0]["face_id"], fetched["faces"][0]["face_id"]);
    let form = [("image", drawing("ben.jpg"))];
    let sent = ok(app.post_parts(&format!("{path}?force=true"), &form).await).await;
    assert_eq!(sent["subject"]["face_count"], 2, "{sent}");

    for (url, status, code) in [
        (format!("{}/text", site.url), 415, "not_an_image"),
        (format!("{}/broken", site.url), 422, "url_unreachable"),
        (format!("{}/to-metadata", site.url), 422, "forbidden_url"),
    ] {
        let error = problem(app.post_json(&path, &json!({"url": url})).await, status, code).await;
        assert!(error.text("detail").len() > 10, "{error}");
    }
    let form = [("picture", drawing("ben.jpg"))];
    problem(app.post_parts(&path, &form).await, 400, "unknown_part").await;
    let body = json!({"url": site.image("ada.jpg"), "face_ids": [someone]});
    problem(app.post_json(&path, &body).await, 422, "invalid_field").await;

    // A suppressed URL cannot be enrolled either, even if its image was never stored.
    erase(&app, &json!({"url": site.image("ben.jpg")})).await;
    let suppressed = json!({"url": format!("{}#part", site.image("ben.jpg")), "force": true});
    let error = problem(app.post_json(&path, &suppressed).await, 409, "conflict").await;
    assert!(error.text("detail").contains("address"), "{error}");
}

#[testing::needs(shared)]
#[testing::test]
async fn upside_down_face_is_rejected_unless_rotated() {
    let app = App::spawn().await;
    let someone = create_named_subject(&app, "Someone").await;
    let path = format!("/subjects/{someone}/faces");
    let photograph = vision::decode(&testing::image("obama.jpg"), &vision::Limits::default()).unwrap().frame;
    let file = vision::encode::jpeg(&vision::crop::rotate(&photograph, 180), 92);
    for profile in ["standard", "strict"] {
        let path = format!("{path}?quality_profile={profile}");
        let error = problem(app.post_raw(&path, "image/jpeg", file.clone()).await, 422, "low_quality").await;
        assert_eq!(error["errors"], json!(["not_upright"]), "{error}");
    }
    let rotated = ok(app.post_raw(&format!("{path}?rotate=auto"), "image/jpeg", file).await).await;
    assert_eq!(rotated["faces"][0]["unmet"], json!([]));
    assert_eq!(app.get_ok("/images").await["images"][0]["rotation"], 180);
    let upright = testing::image("obama.jpg");
    let found = ok(app.post_raw("/faces/search", "image/jpeg", upright).await).await;
    assert_eq!(found.list("matches").len(), 1, "{found}");
}

#[testing::test]
async fn low_quality_face_is_rejected_with_reasons_unless_forced() {
    let app = App::spawn().await;
    let someone = create_named_subject(&app, "Someone").await;
    let path = format!("/subjects/{someone}/faces");
    let error =
        problem(app.post_raw(&path, "image/jpeg", drawing("blur.jpg")).await, 422, "low_quality").await;
    assert_eq!(field(&error), "image");
    assert!(error.list("errors").contains(&json!("too_blurry")), "{error}");
    assert_eq!(app.get_ok("/images").await["images"], json!([]), "nothing is stored");
    let forced = enrol(&app, &someone, "blur.jpg", "?force=true").await;
    assert_eq!(forced["faces"][0]["unmet"], error["errors"]);
    problem(app.post_raw(&path, "image/jpeg", drawing("view.jpg")).await, 422, "no_face").await;
    let response = app.post_raw(&format!("{path}?face_index=3"), "image/jpeg", drawing("ada.jpg")).await;
    assert_eq!(problem(response, 422, "no_such_face").await["allowed"], json!(["0 to 0"]));

    // The image was only stored for the enrolment. It is deleted with the removed face, unless the
    // caller keeps it.
    let face = forced["faces"][0].text("face_id");
    assert_eq!(
        app.delete(&format!("{path}/{face}?enrolled_images=keep")).await.status(),
        StatusCode::NO_CONTENT
    );
    app.get_ok(&format!("/faces/{face}")).await;
    problem(app.delete(&format!("{path}/{face}")).await, 404, "not_found").await;
    app.post_ok(&format!("{path}?force=true"), &json!({"face_ids": [face]})).await;
    let poor = app.post_json(&path, &json!({"face_ids": [face]})).await;
    assert_eq!(field(&problem(poor, 422, "low_quality").await), "face_ids");
    assert_eq!(app.delete(&format!("{path}/{face}")).await.status(), StatusCode::NO_CONTENT);
    problem(app.get(&format!("/faces/{face}")).await, 404, "not_found").await;
}

#[testing::test]
async fn named_cluster_receives_later_faces_of_person() {
    let app = App::spawn().await;
    let first = Site::new(&["ada.jpg", "ada_2.jpg", "ben.jpg", "ben_2.jpg", "dan.jpg"]).await;
    app.crawl(&[first.page()]).await;
    let cluster = async || {
        let run = app.post_json("/collections/default/cluster", &json!({})).await;
        to_json(run, StatusCode::ACCEPTED).await;
        app.poll("/collections/default/cluster", |run| run["state"] == "completed").await
    };
    let run = cluster().await;
    assert_eq!((&run["made"], &run["assigned"], &run["looked"]), (&json!(2), &json!(4), &run["faces"]));
    let clusters = app.get_ok("/subjects?origin=cluster").await.list("subjects").clone();
    assert!(
        clusters.iter().all(|c| c["face_count"] == 2 && c["name"].is_null() && c["best_face_id"].is_string())
    );

    // The cluster that `ada_3.jpg` finds gets a name. From then on, the cluster is an enrolled
    // subject.
    let probe = drawing("ada_3.jpg");
    let found = ok(app.post_raw("/faces/search?group_by=subject", "image/jpeg", probe).await).await;
    let id = found["matches"][0].text("subject_id");
    let renamed = app.client.patch(format!("{}/subjects/{id}", app.url)).json(&json!({"name": "Ada"}));
    assert_eq!(ok(renamed.send().await.unwrap()).await["origin"], "enrolled");

    let later = Site::new(&["ada_4.jpg", "ada_3.jpg"]).await;
    app.crawl(&[later.page()]).await;
    let run = cluster().await;
    assert_eq!((&run["faces"], &run["assigned"], &run["made"]), (&json!(2), &json!(2), &json!(0)));
    assert_eq!(app.get_ok(&format!("/subjects/{id}")).await["face_count"], 4);
    let run = cluster().await;
    assert_eq!((&run["faces"], &run["assigned"]), (&json!(0), &json!(0)), "only new faces are clustered");
}

#[testing::test]
async fn key_of_other_collection_cannot_access_subjects() {
    let app = App::spawn_with(key_options()).await;
    let scopes = [Scope::Read, Scope::Write, Scope::Search, Scope::Erase];
    let (_, our_key) = app.create_key(Some("ours"), &scopes).await;
    let (_, their_key) = app.create_key(Some("theirs"), &scopes).await;
    let body = json!({"name": "Ada", "external_id": "a"});
    let ada = app.create_as(&our_key, "/subjects", &body).await;
    assert_eq!(ada["collection"], "ours");
    let id = ada.text("id");
    let their_subject = app.create_as(&their_key, "/subjects", &body).await.text("id").to_owned();
    for (method, path, body) in [
        (Method::GET, format!("/subjects/{id}"), None),
        (Method::GET, format!("/subjects/{id}/faces"), None),
        (Method::PATCH, format!("/subjects/{id}"), Some(json!({"name": "x"}))),
        (Method::DELETE, format!("/subjects/{id}"), None),
        (Method::DELETE, format!("/subjects/{id}/faces/{FAKE_ID}"), None),
        (Method::POST, format!("/subjects/{id}/faces"), Some(json!({"face_ids": [FAKE_ID]}))),
        (Method::POST, format!("/subjects/{id}/merge"), Some(json!({"subjects": [their_subject]}))),
        (Method::POST, format!("/subjects/{their_subject}/merge"), Some(json!({"subjects": [id]}))),
        (Method::GET, "/subjects?collection=ours".into(), None),
        (Method::POST, "/collections/ours/cluster".into(), Some(json!({}))),
        (Method::GET, "/collections/ours/cluster".into(), None),
    ] {
        problem(app.call(&their_key, method, &path, body.as_ref()).await, 404, "not_found").await;
    }
    let listed = app.get_as(&their_key, "/subjects").await;
    assert_eq!(listed.list("subjects").len(), 1);
    assert_eq!(app.get_as(&our_key, &format!("/subjects/{id}")).await, ada);
}
