//! Tests the APIs of other servers with the requests that their clients send.
//! `scripts/test-compat` runs the clients themselves.
use crate::support::images::{drawing, png};
use crate::support::site::Site;
use crate::support::{App, FAKE_ID, Json, Options, key_options, ok, tenant_scopes, to_json};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::{Method, RequestBuilder, Response, StatusCode, multipart};
use serde_json::{Value, json};
use server::{Compat, Config};
use store::keys::Scope;

const SUBJECTS: &str = "/api/v1/recognition/subjects";
const FACES: &str = "/api/v1/recognition/faces";
const RECOGNIZE: &str = "/api/v1/recognition/recognize";
const VISION: &str = "/v1/vision/face";

fn config() -> Config {
    // A value that occurs twice is the same as once.
    let compat = vec![Compat::CompreFace, Compat::DeepStack, Compat::CompreFace];
    Config { compat, ..Config::default() }
}

/// Starts a service with the default models and both APIs.
async fn app() -> App {
    App::spawn_with(Options { config: config(), worker: false, ..Options::default() }).await
}

/// Starts a service that requires keys, with both APIs.
async fn app_with_keys() -> App {
    let options = key_options();
    let config = Config { compat: config().compat, ..options.config };
    App::spawn_with(Options { config, ..options }).await
}

impl App {
    /// Adds an example as CompreFace's clients do.
    async fn add_example(&self, subject: &str, file: &str) -> Value {
        let path = format!("{FACES}?subject={subject}");
        to_json(self.post_parts(&path, &[("file", drawing(file))]).await, StatusCode::CREATED).await
    }

    async fn recognize(&self, query: &str, file: &str) -> Value {
        ok(self.post_parts(&format!("{RECOGNIZE}{query}"), &[("file", drawing(file))]).await).await
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url))
    }
}

/// Checks that a response is an error of CompreFace.
async fn failure(response: Response, status: u16, code: u16) -> String {
    let found = response.status().as_u16();
    let body: Value = response.json().await.unwrap();
    assert_eq!((found, &body["code"]), (status, &json!(code)), "{body}");
    assert_eq!(body.as_object().unwrap().len(), 2, "{body}");
    body.text("message").to_owned()
}

#[testing::test]
async fn compreface_recognises_enrolled_people() {
    let app = app().await;
    let added = app.add_example("Ada%20Example", "ada.jpg").await;
    assert_eq!(added["subject"], "Ada Example");
    app.add_example("Ben", "ben.jpg").await;
    assert_eq!(app.get_ok(SUBJECTS).await, json!({"subjects": ["Ada Example", "Ben"]}));
    assert_eq!(app.get_ok(&format!("{SUBJECTS}/")).await, json!({"subjects": ["Ada Example", "Ben"]}));

    let query = "?&limit=0&det_prob_threshold=0.8&prediction_count=5&face_plugins=calculator,age,landmarks&status=True";
    let found = app.recognize(query, "ada_3.jpg").await;
    let face = &found["result"][0];
    let people = face.list("subjects");
    assert_eq!(
        people.iter().map(|person| person.text("subject")).collect::<Vec<_>>(),
        ["Ada Example", "Ben"]
    );
    let similarity = |person: &Value| person["similarity"].as_f64().unwrap();
    assert!(similarity(&people[0]) > 0.9 && similarity(&people[1]) < 0.5, "{people:?}");
    assert_eq!((face.list("embedding").len(), face.list("landmarks").len()), (128, 5));
    let bounds = |name: &str| face["box"][name].as_i64().unwrap();
    assert!(bounds("x_min") < bounds("x_max") && bounds("y_min") < bounds("y_max"), "{face}");
    assert!(face["execution_time"]["detector"].as_f64().unwrap() > 0.0);
    assert_eq!(found["plugins_versions"]["calculator"], "face_recognition_sface_2021dec_int8bq");
    // Without options, the response has the best person of each face, and no more.
    let found = app.recognize("", "ada_3.jpg").await;
    assert_eq!(found["result"][0].as_object().unwrap().keys().collect::<Vec<_>>(), ["box", "subjects"]);
    assert_eq!(found["result"][0].list("subjects").len(), 1);
    assert_eq!(found.as_object().unwrap().len(), 1);

    // The API of this service shows the same people and faces.
    let subjects = app.get_ok("/subjects?name=ada%20example").await;
    assert_eq!(subjects["subjects"][0]["face_count"], 1);
    assert_eq!(subjects["subjects"][0]["best_face_id"], added["image_id"]);
    let log = app.get_ok("/audit?action=face.search").await;
    assert_eq!(log.list("records").len(), 2, "each recognition is recorded");
}

#[testing::test]
async fn compreface_enrols_face_of_unnamed_cluster() {
    let app = App::spawn_with(Options { config: config(), ..Options::default() }).await;
    let site = Site::new(&["ada.jpg", "ada_2.jpg", "ben.jpg"]).await;
    app.crawl(&[site.page()]).await;
    to_json(app.post_json("/collections/default/cluster", &json!({})).await, StatusCode::ACCEPTED).await;
    app.poll("/collections/default/cluster", |run| run["state"] == "completed").await;
    let cluster = app.get_ok("/subjects?origin=cluster").await["subjects"][0].clone();
    assert_eq!(cluster["face_count"], 2);

    app.add_example("Ada", "ada.jpg").await;
    let ada = app.get_ok("/subjects?name=ada").await["subjects"][0].clone();
    assert_eq!(ada["face_count"], 1);
    let face = app.get_ok(&format!("/subjects/{}", cluster.text("id"))).await;
    assert_eq!(face["face_count"], 1, "the face has moved");
}

#[testing::test]
async fn file_registered_for_two_people_at_once_belongs_to_one() {
    let app = App::spawn_with(Options { config: config(), ..Options::default() }).await;
    let site = Site::new(&["ada.jpg"]).await;
    app.crawl(&[site.page()]).await;
    let mut lock = app.database.lock_assignments().await;
    let add = async |name: &str| {
        let path = format!("{FACES}?subject={name}");
        app.post_parts(&path, &[("file", drawing("ada.jpg"))]).await.status().as_u16()
    };
    let release_when_both_wait = async {
        while lock.count_waiting().await < 2 {
            tokio::task::yield_now().await;
        }
        lock.release().await;
    };
    let (ada, ben, ()) = tokio::join!(add("Ada"), add("Ben"), release_when_both_wait);
    assert_eq!((ada.min(ben), ada.max(ben)), (201, 409));
}

#[testing::test]
async fn comparisons_with_examples_are_recorded() {
    let app = app().await;
    let id = app.add_example("Ada", "ada.jpg").await.text("image_id").to_owned();
    let file = [("file", drawing("ada_3.jpg"))];
    let verified = ok(app.post_parts(&format!("{FACES}/{id}/verify"), &file).await).await;
    assert!(verified["result"][0]["similarity"].as_f64().unwrap() > 0.9, "{verified}");
    let found = app.recognize("?face_plugins=calculator", "ada.jpg").await;
    let embeddings = json!({"embeddings": [found["result"][0]["embedding"]]});
    app.post_ok(&format!("/api/v1/recognition/embeddings/faces/{id}/verify"), &embeddings).await;
    let log = app.get_ok("/audit?action=face.search").await;
    let compared: Vec<_> =
        log.list("records").iter().map(|record| record["detail"]["face_id"].clone()).collect();
    assert_eq!(compared, [json!(id), Value::Null, json!(id)]);
}

#[testing::test]
async fn deletion_of_many_examples_needs_confirmation() {
    let config = Config { confirm_above: 3, ..config() };
    let app = App::spawn_with(Options { config, worker: false, ..Options::default() }).await;
    let mut ids = Vec::new();
    for file in ["ada.jpg", "ada_3.jpg"] {
        ids.push(app.add_example("Ada", file).await.text("image_id").to_owned());
    }
    failure(app.post_json(&format!("{FACES}/delete"), &json!(ids)).await, 428, 0).await;
    assert_eq!(app.get_ok(FACES).await["total_elements"], 2);
    // Each of them is an image and a face.
    let first = app.post_ok(&format!("{FACES}/delete"), &json!([ids[0], ids[0]])).await;
    assert_eq!(first, json!([{"image_id": ids[0], "subject": "Ada"}]));
}

#[testing::test]
async fn compreface_base64_equals_form() {
    let app = app().await;
    let base64 = BASE64_STANDARD.encode(drawing("ada.jpg"));
    let path = format!("{FACES}?subject=Ada&det_prob_threshold=0.5");
    to_json(app.post_json(&path, &json!({"file": base64})).await, StatusCode::CREATED).await;
    let in_json = ok(app.post_json(RECOGNIZE, &json!({"file": base64})).await).await;
    assert_eq!(in_json, app.recognize("", "ada.jpg").await);
    assert!(in_json["result"][0]["subjects"][0]["similarity"].as_f64().unwrap() > 0.999);
    let pair = json!({"source_image": base64, "target_image": BASE64_STANDARD.encode(drawing("ben.jpg"))});
    let different = ok(app.post_json("/api/v1/verification/verify", &pair).await).await;
    assert!(different["result"][0]["face_matches"][0]["similarity"].as_f64().unwrap() < 0.5, "{different}");
    failure(app.post_json(RECOGNIZE, &json!({"file": "????"})).await, 400, 21).await;
    failure(app.post_json(RECOGNIZE, &json!({"image": base64})).await, 400, 34).await;
}

#[testing::test]
async fn compreface_lists_downloads_and_deletes_examples() {
    let app = app().await;
    let mut ids = Vec::new();
    for (subject, file) in [("Ada", "ada.jpg"), ("Ada", "ada_3.jpg"), ("Ben", "ben.jpg")] {
        ids.push(app.add_example(subject, file).await.text("image_id").to_owned());
    }
    let page = app.get_ok(&format!("{FACES}?page=1&size=2")).await;
    assert_eq!(page["faces"], json!([{"image_id": ids[2], "subject": "Ben"}]));
    assert_eq!(
        [&page["page_number"], &page["page_size"], &page["total_pages"], &page["total_elements"]],
        [&json!(1), &json!(2), &json!(2), &json!(3)]
    );
    assert_eq!(app.get_ok(&format!("{FACES}?subject=ADA")).await["total_elements"], 2);
    assert_eq!(app.get_ok(&format!("{FACES}?subject=nobody")).await["total_elements"], 0);

    let image = app.get(&format!("{FACES}/{}/img", ids[0])).await;
    assert_eq!(image.headers()["content-type"], "image/jpeg");
    assert!(!image.bytes().await.unwrap().is_empty());
    let unknown = app.get(&format!("{FACES}/{FAKE_ID}/img")).await;
    assert_eq!((unknown.status(), unknown.bytes().await.unwrap().len()), (StatusCode::OK, 0));

    let deleted = ok(app.delete(&format!("{FACES}/{}", ids[0])).await).await;
    assert_eq!(deleted, json!({"image_id": ids[0], "subject": "Ada"}));
    failure(app.delete(&format!("{FACES}/{}", ids[0])).await, 404, 44).await;
    let several = app.post_ok(&format!("{FACES}/delete"), &json!([ids[0], ids[1]])).await;
    assert_eq!(several, json!([{"image_id": ids[1], "subject": "Ada"}]));
    assert_eq!(
        app.get_ok(SUBJECTS).await,
        json!({"subjects": ["Ada", "Ben"]}),
        "a subject may have no example"
    );
    assert_eq!(ok(app.delete(&format!("{FACES}?subject=Ben")).await).await, json!({"deleted": 1}));
    assert_eq!(ok(app.delete(&format!("{FACES}?subject=Ben")).await).await, json!({"deleted": 0}));
    assert_eq!(app.get_ok(SUBJECTS).await, json!({"subjects": ["Ada"]}));
    assert_eq!(app.get_ok("/images").await.list("images").len(), 0, "the images were only sent to enrol");
}

#[testing::test]
async fn compreface_creates_renames_merges_and_deletes_subjects() {
    let app = app().await;
    let create = async |name: &str| app.post_json(SUBJECTS, &json!({"subject": name})).await;
    assert_eq!(to_json(create("Ada").await, StatusCode::CREATED).await, json!({"subject": "Ada"}));
    assert_eq!(failure(create("ada").await, 400, 43).await, "Subject already exists");
    failure(create("").await, 400, 26).await;
    app.add_example("Ada", "ada.jpg").await;
    app.add_example("Bea", "ada_3.jpg").await;

    // The Python client also sends the old name.
    let rename = async |old: &str, new: &str| {
        let body = json!({"subject": new, "api_endpoint": old});
        app.request(Method::PUT, &format!("{SUBJECTS}/{old}")).json(&body).send().await.unwrap()
    };
    assert_eq!(ok(rename("Ada", "Ada%20B").await).await, json!({"updated": true}));
    assert_eq!(ok(rename("Ada%2520B", "Ada").await).await, json!({"updated": true}));
    assert_eq!(ok(rename("Ada", "Ada").await).await, json!({"updated": false}));
    assert_eq!(failure(rename("Eve", "Ada").await, 404, 42).await, "Subject Eve not found");
    // If the new name is in use, the examples move.
    assert_eq!(ok(rename("Bea", "Ada").await).await, json!({"updated": true}));
    assert_eq!(app.get_ok(SUBJECTS).await, json!({"subjects": ["Ada"]}));
    assert_eq!(app.get_ok(&format!("{FACES}?subject=Ada")).await["total_elements"], 2);

    assert!(failure(app.delete(SUBJECTS).await, 400, 33).await.contains("name one"));
    failure(app.delete(FACES).await, 400, 33).await;
    assert_eq!(ok(app.delete(&format!("{SUBJECTS}/ADA")).await).await, json!({"subject": "Ada"}));
    failure(app.delete(&format!("{SUBJECTS}/Ada")).await, 404, 42).await;
}

#[testing::test]
async fn compreface_verifies_images_and_embeddings() {
    let app = app().await;
    let id = app.add_example("Ada", "ada.jpg").await.text("image_id").to_owned();
    let similarity = |value: &Value| value["similarity"].as_f64().unwrap();
    let path = format!("{FACES}/{id}/verify");
    let same = ok(app.post_parts(&path, &[("file", drawing("ada_3.jpg"))]).await).await;
    assert!(similarity(&same["result"][0]) > 0.9 && same["result"][0]["subject"] == "Ada", "{same}");
    let other = ok(app.post_parts(&path, &[("file", drawing("ben.jpg"))]).await).await;
    assert!(similarity(&other["result"][0]) < 0.5, "{other}");
    failure(
        app.post_parts(&format!("{FACES}/{FAKE_ID}/verify"), &[("file", drawing("ada.jpg"))]).await,
        404,
        44,
    )
    .await;

    let parts = [("source_image", drawing("ada.jpg")), ("target_image", drawing("ada_3.jpg"))];
    let pair = ok(app.post_parts("/api/v1/verification/verify?face_plugins=calculator", &parts).await).await;
    let pair = &pair["result"][0];
    assert!(
        similarity(&pair["face_matches"][0]) > 0.9 && pair["source_image_face"]["box"].is_object(),
        "{pair}"
    );
    let [ada, ada_3] = [&pair["source_image_face"]["embedding"], &pair["face_matches"][0]["embedding"]];
    let expected = similarity(&pair["face_matches"][0]);

    let body = json!({"embeddings": [ada, ada_3]});
    let found = app.post_ok("/api/v1/recognition/embeddings/recognize", &body).await;
    assert_eq!(found["result"][1]["similarities"][0]["subject"], "Ada");
    let verified = app.post_ok(&format!("/api/v1/recognition/embeddings/faces/{id}/verify"), &body).await;
    assert!(similarity(&verified["result"][0]) >= similarity(&verified["result"][1]), "best first");
    let verified = app
        .post_ok("/api/v1/verification/embeddings/verify", &json!({"source": ada, "targets": [ada_3]}))
        .await;
    assert!((similarity(&verified["result"][0]) - expected).abs() < 1e-3, "{verified}");
    failure(
        app.post_json("/api/v1/recognition/embeddings/recognize", &json!({"embeddings": [[1.0]]})).await,
        400,
        26,
    )
    .await;
    failure(
        app.post_json("/api/v1/recognition/embeddings/recognize", &json!({"embeddings": []})).await,
        400,
        37,
    )
    .await;
}

#[testing::test]
async fn compreface_errors_have_its_numbers() {
    let app = app().await;
    let send = async |path: &str, parts: &[(&str, Vec<u8>)]| app.post_parts(path, parts).await;
    let no_face = [("file", png(64, 64))];
    for path in [RECOGNIZE.to_owned(), "/api/v1/detection/detect".into(), format!("{FACES}?subject=Ada")] {
        let message = failure(send(&path, &no_face).await, 400, 28).await;
        assert_eq!(message, "No face is found in the given image");
    }
    failure(send(&format!("{FACES}?subject=Ada"), &[("file", drawing("crowd.jpg"))]).await, 400, 31).await;
    failure(send(FACES, &[("file", drawing("ada.jpg"))]).await, 400, 33).await;
    failure(send(RECOGNIZE, &[("file", b"text".to_vec())]).await, 400, 21).await;
    failure(send(RECOGNIZE, &[("picture", drawing("ada.jpg"))]).await, 400, 34).await;
    failure(app.post_raw(RECOGNIZE, "image/jpeg", drawing("ada.jpg")).await, 400, 21).await;
    for query in
        ["limit=-1", "det_prob_threshold=2", "prediction_count=0", "status=maybe", "detect_faces=false"]
    {
        failure(send(&format!("{RECOGNIZE}?{query}"), &[("file", drawing("ada.jpg"))]).await, 400, 26).await;
    }
    failure(app.get(&format!("{FACES}/12/img")).await, 400, 26).await;
    failure(app.get(&format!("{FACES}?size=1001")).await, 400, 26).await;
    let many = vec![FAKE_ID; 101];
    failure(app.post_json(&format!("{FACES}/delete"), &json!(many)).await, 400, 26).await;
    assert_eq!(app.get_ok(SUBJECTS).await, json!({"subjects": []}), "a rejected image creates nobody");
}

#[testing::test]
async fn compreface_key_limits_scope_and_collection() {
    let app = app_with_keys().await;
    let (_, press) = app.create_key(Some("press"), &tenant_scopes()).await;
    let (_, other) = app.create_key(Some("other"), &tenant_scopes()).await;
    let (_, reader) = app.create_key(Some("press"), &[Scope::Read]).await;
    let call = async |key: Option<&str>, method: Method, path: &str| {
        let request = app.request(method, path);
        let request = match key {
            Some(key) => request.header("x-api-key", key),
            None => request,
        };
        request.send().await.unwrap()
    };
    assert_eq!(failure(call(None, Method::GET, SUBJECTS).await, 400, 20).await, "Missing header: x-api-key");
    let response = call(Some("00000000-0000-0000-0000-000000000002"), Method::GET, SUBJECTS).await;
    assert!(response.headers().contains_key("www-authenticate"));
    failure(response, 401, 10).await;
    let body = json!({"subject": "Ada"});
    let create = async |key: &str| {
        app.request(Method::POST, SUBJECTS).header("x-api-key", key).json(&body).send().await.unwrap()
    };
    failure(create(&reader).await, 403, 0).await;
    to_json(create(&press).await, StatusCode::CREATED).await;
    let names = async |key: &str| ok(call(Some(key), Method::GET, SUBJECTS).await).await["subjects"].clone();
    assert_eq!(
        (names(&press).await, names(&reader).await, names(&other).await),
        (json!(["Ada"]), json!(["Ada"]), json!([]))
    );
    failure(call(Some(&reader), Method::DELETE, &format!("{SUBJECTS}/Ada")).await, 403, 0).await;
    failure(call(Some(&other), Method::DELETE, &format!("{SUBJECTS}/Ada")).await, 404, 42).await;
    // Keys in addresses are not offered: they end up in logs.
    let response = call(None, Method::GET, &format!("/api/v1/static/{press}/images/{FAKE_ID}")).await;
    failure(response, 404, 0).await;
}

#[testing::test]
async fn errors_of_all_layers_have_the_form_of_the_api() {
    let app = app().await;
    failure(app.get("/api/v1/nothing").await, 404, 0).await;
    failure(app.request(Method::PATCH, SUBJECTS).send().await.unwrap(), 405, 0).await;
    failure(app.request(Method::GET, SUBJECTS).header("host", "evil.example").send().await.unwrap(), 421, 0)
        .await;
    let other_site =
        app.request(Method::DELETE, &format!("{SUBJECTS}/Ada")).header("origin", "https://evil.example");
    failure(other_site.send().await.unwrap(), 403, 0).await;
    let response = app.get(VISION).await;
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    let body: Value = response.json().await.unwrap();
    assert_eq!((&body["success"], &body["code"]), (&json!(false), &json!(405)));
    // Other paths keep the form of this service.
    assert_eq!(app.get("/nothing").await.json::<Value>().await.unwrap()["code"], "route_not_found");
}

#[testing::test]
async fn other_apis_are_off_by_default() {
    let app = App::spawn_bare(Config::default()).await;
    assert_eq!(app.get(SUBJECTS).await.status(), StatusCode::NOT_FOUND);
    assert_eq!(app.post_parts(VISION, &[("image", png(8, 8))]).await.status(), StatusCode::NOT_FOUND);
}

#[testing::test]
async fn several_people_with_one_name_are_not_confused() {
    let app = app().await;
    for _ in 0..2 {
        app.create("/subjects", &json!({"name": "Ada"})).await;
    }
    failure(app.delete(&format!("{SUBJECTS}/Ada")).await, 409, 0).await;
    let response = app.post_parts(&format!("{FACES}?subject=Ada"), &[("file", drawing("ada.jpg"))]).await;
    failure(response, 409, 0).await;
    assert_eq!(app.get_ok("/subjects").await.list("subjects").len(), 2);
    assert_eq!(app.get_ok("/images").await.list("images").len(), 0);
}

/// Sends a form as the clients of DeepStack do.
async fn vision(app: &App, path: &str, images: &[Vec<u8>], fields: &[(&str, &str)]) -> Response {
    let mut form = multipart::Form::new();
    for (name, value) in fields {
        form = form.text((*name).to_owned(), (*value).to_owned());
    }
    for (number, image) in images.iter().enumerate() {
        let name = if images.len() == 1 { "image".to_owned() } else { format!("image{}", number + 1) };
        form = form.part(name, multipart::Part::bytes(image.clone()).file_name("image"));
    }
    app.request(Method::POST, &format!("{VISION}{path}")).multipart(form).send().await.unwrap()
}

#[testing::test]
async fn deepstack_registers_recognises_lists_and_deletes() {
    let app = app().await;
    let registered =
        ok(vision(&app, "/register", &[drawing("ada.jpg"), drawing("ada_3.jpg")], &[("userid", "Ada")])
            .await)
        .await;
    assert_eq!(registered, json!({"success": true, "message": "face added"}));
    assert_eq!(app.get_ok("/subjects").await["subjects"][0]["face_count"], 2);

    let found =
        ok(vision(&app, "/recognize", &[drawing("ada_3.jpg")], &[("min_confidence", "0.7")]).await).await;
    let face = &found["predictions"][0];
    assert_eq!((&found["success"], &face["userid"]), (&json!(true), &json!("Ada")));
    assert!(
        face["confidence"].as_f64().unwrap() > 0.99 && face["x_max"].as_i64() > face["x_min"].as_i64(),
        "{face}"
    );
    // Clients without a key send an empty one.
    let without_key = [("api_key", ""), ("min_confidence", "")];
    let unknown = ok(vision(&app, "/recognize", &[drawing("ben.jpg")], &without_key).await).await;
    assert_eq!(
        (&unknown["predictions"][0]["userid"], &unknown["predictions"][0]["confidence"]),
        (&json!("unknown"), &json!(0.0))
    );
    let detected = ok(vision(&app, "", &[drawing("crowd.jpg")], &[("min_confidence", "0.4")]).await).await;
    assert!(
        detected.list("predictions").len() > 1 && detected["predictions"][0].get("userid").is_none(),
        "{detected}"
    );
    let empty = ok(vision(&app, "/recognize", &[png(64, 64)], &[]).await).await;
    assert_eq!(empty, json!({"success": true, "predictions": []}));
    let same = ok(vision(&app, "/match", &[drawing("ada.jpg"), drawing("ada_3.jpg")], &[]).await).await;
    assert!(same["similarity"].as_f64().unwrap() > 0.9, "{same}");

    // `list` and `delete` have no image, so clients also send them URL-encoded.
    let listed = app
        .post_raw(&format!("{VISION}/list"), "application/x-www-form-urlencoded", b"api_key=".to_vec())
        .await;
    assert_eq!(ok(listed).await, json!({"success": true, "faces": ["Ada"]}));
    let without_body = app.request(Method::POST, &format!("{VISION}/list")).send().await.unwrap();
    assert_eq!(ok(without_body).await, json!({"success": true, "faces": ["Ada"]}));
    for _ in 0..2 {
        let deleted = app
            .post_raw(
                &format!("{VISION}/delete"),
                "application/x-www-form-urlencoded",
                b"userid=Ada".to_vec(),
            )
            .await;
        assert_eq!(ok(deleted).await, json!({"success": true}));
    }
    assert_eq!(app.get_ok("/images").await.list("images").len(), 0);
}

#[testing::test]
async fn deepstack_errors_name_the_cause() {
    let app = app().await;
    let error = async |response: Response, status: u16| {
        let found = response.status().as_u16();
        let body: Value = response.json().await.unwrap();
        assert_eq!(
            (found, &body["success"], &body["code"]),
            (status, &json!(false), &json!(status)),
            "{body}"
        );
        body.text("error").to_owned()
    };
    let no_face = vision(&app, "/register", &[png(64, 64)], &[("userid", "Ada")]).await;
    assert_eq!(error(no_face, 400).await, "No face detected");
    assert!(error(vision(&app, "/register", &[drawing("ada.jpg")], &[]).await, 400).await.contains("userid"));
    assert!(error(vision(&app, "/recognize", &[Vec::new()], &[]).await, 400).await.contains("`image`"));
    let one_of_two = [drawing("ada.jpg"), png(64, 64)];
    let incomplete = vision(&app, "/register", &one_of_two, &[("userid", "Ada")]).await;
    assert!(error(incomplete, 400).await.contains("image 2 has 0 faces"));
    assert!(error(vision(&app, "/recognize", &[], &[("userid", "x")]).await, 400).await.contains("image"));
    assert!(error(vision(&app, "/match", &[drawing("ada.jpg")], &[]).await, 400).await.contains("2 image"));
    let confidence = vision(&app, "/recognize", &[drawing("ada.jpg")], &[("min_confidence", "7")]).await;
    assert!(error(confidence, 400).await.contains("min_confidence"));
    error(vision(&app, "", &[b"text".to_vec()], &[]).await, 400).await;
    let many = vec![png(8, 8); 17];
    error(vision(&app, "/register", &many, &[]).await, 413).await;
    assert_eq!(app.get_ok("/subjects").await.list("subjects").len(), 0);
}

#[testing::test]
async fn deepstack_key_is_in_the_form_or_a_header() {
    let app = app_with_keys().await;
    let (_, press) = app.create_key(Some("press"), &tenant_scopes()).await;
    let (_, reader) = app.create_key(Some("press"), &[Scope::Read]).await;
    let status =
        async |path: &str, fields: &[(&str, &str)]| vision(&app, path, &[], fields).await.status().as_u16();
    let fields = |key: &'static str| [("userid", "Ada"), ("api_key", key)];
    assert_eq!(status("/list", &[("userid", "Ada")]).await, 401);
    assert_eq!(status("/list", &fields("fc_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")).await, 401);
    assert_eq!(status("/list", &[("userid", "Ada"), ("api_key", &press)]).await, 200);
    assert_eq!(status("/list", &[("userid", "Ada"), ("api_key", &reader)]).await, 200);
    assert_eq!(status("/delete", &[("userid", "Ada"), ("api_key", &reader)]).await, 403);
    let header = async |key: &str, path: &str| {
        let form = multipart::Form::new().text("userid", "Ada");
        let request = app.request(Method::POST, &format!("{VISION}{path}")).header("x-api-key", key);
        request.multipart(form).send().await.unwrap().status().as_u16()
    };
    assert_eq!((header(&press, "/list").await, header(&reader, "/delete").await), (200, 403));
}
