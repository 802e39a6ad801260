//! Tests subjects without images: their fields and rejected requests.
use crate::support::keys::guarded;
use crate::support::{App, Models, Options, field, json_of, ok, problem};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use store::keys::Scope;

async fn app() -> App {
    App::spawn_with(Options { models: Models::Fixture, worker: false, ..Options::default() }).await
}

async fn create(app: &App, body: &Value) -> Value {
    json_of(app.post_json("/subjects", body).await, StatusCode::CREATED).await
}

async fn patch(app: &App, id: &Value, body: &Value) -> reqwest::Response {
    app.client
        .patch(format!("{}/subjects/{}", app.url, id.as_str().unwrap()))
        .json(body)
        .send()
        .await
        .unwrap()
}

#[testing::test]
async fn a_subject_is_made_changed_listed_and_deleted() {
    let app = app().await;
    let body = json!({"name": " Ada ", "external_id": "a-1", "metadata": {"team": "engines"}});
    let response = app.post_json("/subjects", &body).await;
    let location = response.headers()["location"].to_str().unwrap().to_owned();
    let ada = json_of(response, StatusCode::CREATED).await;
    assert_eq!(location, format!("/subjects/{}", ada["id"].as_str().unwrap()));
    assert_eq!(
        (&ada["name"], &ada["origin"], &ada["face_count"]),
        (&json!("Ada"), &json!("enrolled"), &json!(0))
    );
    assert_eq!(app.get_ok(&location).await, ada);
    let bob = create(&app, &json!({"name": "Bob"})).await;

    let names = async |query: &str| -> Vec<Value> {
        let list = app.get_ok(&format!("/subjects{query}")).await;
        list["subjects"].as_array().unwrap().iter().map(|subject| subject["name"].clone()).collect()
    };
    assert_eq!(names("").await, ["Bob", "Ada"]);
    assert_eq!(names("?name=ADA").await, ["Ada"]);
    assert_eq!(names("?name=%20ada%09").await, ["Ada"], "a name is stored without surrounding spaces");
    assert_eq!(names("?external_id=a-1").await, ["Ada"]);
    assert!(names("?origin=cluster").await.is_empty());
    let first = app.get_ok("/subjects?limit=1").await;
    let next = first["next_cursor"].as_str().unwrap();
    assert_eq!(names(&format!("?limit=1&cursor={next}")).await, ["Ada"]);

    let changed =
        ok(patch(&app, &ada["id"], &json!({"external_id": null, "metadata": {"x": 1}})).await).await;
    assert_eq!((&changed["name"], &changed["external_id"]), (&json!("Ada"), &Value::Null));
    assert_eq!(changed["metadata"], json!({"x": 1}));
    ok(patch(&app, &bob["id"], &json!({"external_id": "a-1"})).await).await;
    problem(patch(&app, &ada["id"], &json!({"external_id": "a-1"})).await, 409, "conflict").await;

    let path = format!("/subjects/{}/merge", ada["id"].as_str().unwrap());
    let merged = ok(app.post_json(&path, &json!({"subjects": [bob["id"]]})).await).await;
    assert_eq!((&merged["name"], &merged["external_id"]), (&json!("Ada"), &json!("a-1")));
    problem(app.post_json(&path, &json!({"subjects": [bob["id"]]})).await, 404, "not_found").await;
    assert_eq!(app.delete(&location).await.status(), StatusCode::NO_CONTENT);
    problem(app.get(&location).await, 404, "not_found").await;
}

#[testing::test]
async fn wrong_fields_are_named() {
    let app = app().await;
    let long = "x".repeat(201);
    for (body, named) in [
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
            named
        );
    }
    problem(app.post_json("/subjects", &json!({"collection": "nowhere"})).await, 404, "not_found").await;
    problem(app.get("/subjects?origin=invented").await, 400, "bad_query").await;
    let ada = create(&app, &json!({"name": "Ada"})).await;
    let id = ada["id"].as_str().unwrap();
    for body in [json!({"subjects": []}), json!({"subjects": [id]}), json!({"subjects": ["x"]})] {
        let answer = app.post_json(&format!("/subjects/{id}/merge"), &body).await;
        assert!(field(&problem(answer, 422, "invalid_field").await).starts_with("subjects"));
    }
    let none = "00000000-0000-7000-8000-000000000000";
    for body in [json!({}), json!({"face_ids": [none], "url": "http://127.0.0.1/"}), json!({"face_ids": []})]
    {
        problem(app.post_json(&format!("/subjects/{id}/faces"), &body).await, 422, "invalid_field").await;
    }
    let unknown = json!({"face_ids": [none]});
    problem(app.post_json(&format!("/subjects/{id}/faces"), &unknown).await, 404, "not_found").await;
    problem(app.post_json(&format!("/subjects/{none}/faces"), &unknown).await, 404, "not_found").await;
    problem(app.delete(&format!("/subjects/{id}/faces/12")).await, 400, "bad_id").await;
    problem(app.delete(&format!("/subjects/{id}/faces/{none}")).await, 404, "not_found").await;
    problem(app.get("/collections/nowhere/cluster").await, 404, "not_found").await;
    problem(app.get("/collections/default/cluster").await, 404, "not_found").await;
    let answer = app.post_json("/collections/default/cluster", &json!({"threshold": 2})).await;
    assert_eq!(field(&problem(answer, 422, "invalid_field").await), "threshold");
}

#[testing::test]
async fn a_merge_takes_as_much_metadata_as_one_subject_may_have_and_not_a_byte_more() {
    const LONGEST: usize = 16 << 10;
    let app = app().await;
    // `{"a":"…","b":"…"}` has 15 bytes in addition to the two strings.
    for (bytes, fits) in [(LONGEST, true), (LONGEST + 1, false)] {
        let text = |length: usize| "x".repeat(length);
        let one = create(&app, &json!({"name": "Ada", "metadata": {"a": text(9_000)}})).await;
        let other = create(&app, &json!({"metadata": {"a": 1, "b": text(bytes - 15 - 9_000)}})).await;
        let path = format!("/subjects/{}", one["id"].as_str().unwrap());
        let merge = json!({"subjects": [other["id"]]});
        let answer = app.post_json(&format!("{path}/merge"), &merge).await;
        if fits {
            assert_eq!(ok(answer).await["metadata"].to_string().len(), LONGEST);
            continue;
        }
        let refused = problem(answer, 422, "invalid_field").await;
        assert_eq!(field(&refused), "subjects", "{refused}");
        assert!(refused["detail"].as_str().unwrap().contains(&LONGEST.to_string()), "{refused}");
        // Nothing was merged.
        for subject in [one, other] {
            assert_eq!(app.get_ok(&format!("/subjects/{}", subject["id"].as_str().unwrap())).await, subject);
        }
    }
}

#[testing::test]
async fn who_may_not_erase_takes_a_face_away_and_keeps_its_image() {
    let app = App::spawn_with(Options { models: Models::Fixture, worker: false, ..guarded() }).await;
    let (_, writer) = app.key(Some("ours"), &[Scope::Write, Scope::Read]).await;
    let (_, eraser) = app.key(Some("ours"), &[Scope::Write, Scope::Erase]).await;
    let made = app.ask(&writer, Method::POST, "/subjects", Some(&json!({"name": "Ada"}))).await;
    let ada = json_of(made, StatusCode::CREATED).await;
    let none = "00000000-0000-7000-8000-000000000000";
    let path = format!("/subjects/{}/faces/{none}", ada["id"].as_str().unwrap());
    let ask =
        async |key: &str, query: &str| app.ask(key, Method::DELETE, &format!("{path}{query}"), None).await;
    for query in ["", "?enrolled_images=delete"] {
        let refused = problem(ask(&writer, query).await, 403, "scope_missing").await;
        assert!(refused["detail"].as_str().unwrap().contains("enrolled_images=keep"), "{refused}");
        // The scope is sufficient here, but the face does not exist.
        problem(ask(&eraser, query).await, 404, "not_found").await;
    }
    problem(ask(&writer, "?enrolled_images=keep").await, 404, "not_found").await;
}

#[testing::test]
async fn a_merge_is_recorded_with_the_subjects_that_are_gone() {
    let app = app().await;
    let ada = create(&app, &json!({"name": "Ada"})).await;
    let bob = create(&app, &json!({"name": "Bob"})).await;
    let path = format!("/subjects/{}/merge", ada["id"].as_str().unwrap());
    ok(app.post_json(&path, &json!({"subjects": [bob["id"]]})).await).await;
    let log = app.get_ok("/audit?action=subject.merge").await;
    let detail = json!({"subject_id": ada["id"], "merged": [bob["id"]]});
    assert_eq!(log["records"].as_array().unwrap().len(), 1);
    assert_eq!(log["records"][0]["detail"], detail);
}
