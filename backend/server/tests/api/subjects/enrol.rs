//! Tests enrolment from images, crops and stored faces, search by subject, and clustering.
use crate::support::keys::guarded;
use crate::support::pictures::picture;
use crate::support::site::Site;
use crate::support::{App, erase, field, json_of, ok, problem};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use store::keys::Scope;

async fn subject(app: &App, name: &str) -> String {
    let made = json_of(app.post_json("/subjects", &json!({"name": name})).await, StatusCode::CREATED).await;
    made["id"].as_str().unwrap().to_owned()
}

async fn enrol(app: &App, subject: &str, file: &str, query: &str) -> Value {
    let path = format!("/subjects/{subject}/faces{query}");
    ok(app.post_raw(&path, "image/jpeg", picture(file)).await).await
}

fn subjects(answer: &Value) -> Vec<&str> {
    let matches = answer["matches"].as_array().unwrap();
    matches.iter().map(|found| found["subject_name"].as_str().unwrap_or("nobody")).collect()
}

#[testing::test]
async fn an_enrolled_person_is_found_by_name() {
    let app = App::spawn().await;
    let (ada, ben) = (subject(&app, "Ada").await, subject(&app, "Ben").await);
    let first = enrol(&app, &ada, "ada.jpg", "").await;
    assert_eq!((&first["subject"]["face_count"], &first["faces"][0]["unmet"]), (&json!(1), &json!([])));
    enrol(&app, &ada, "ada_2.jpg", "?quality_profile=standard").await;
    enrol(&app, &ben, "ben.jpg", "?quality_profile=standard").await;
    let again = enrol(&app, &ada, "ada.jpg", "").await;
    assert_eq!(again["faces"][0]["face_id"], first["faces"][0]["face_id"], "a file is stored once");
    let faces = app.get_ok(&format!("/subjects/{ada}/faces")).await;
    assert_eq!(faces["faces"].as_array().unwrap().len(), 2);
    assert_eq!(faces["faces"][0]["sources"][0]["kind"], "enrolment");

    let probe = picture("ada_3.jpg");
    let all = ok(app.post_raw("/faces/search?threshold=-1", "image/jpeg", probe.clone()).await).await;
    assert_eq!(subjects(&all), ["Ada", "Ada", "Ben"]);
    let path = "/faces/search?threshold=-1&group_by=subject";
    let people = ok(app.post_raw(path, "image/jpeg", probe.clone()).await).await;
    assert_eq!(subjects(&people), ["Ada", "Ben"]);
    assert_eq!(people["matches"][0]["similarity"], all["matches"][0]["similarity"]);
    assert_eq!((&people["matches"][0]["subject_id"], &people["match_fmr"]), (&json!(ada), &Value::Null));
    let own = ok(app.post_raw("/faces/search", "image/jpeg", probe).await).await;
    let measured = json!(app.state.services.analyzer.engine().embedder().match_fmr);
    assert_eq!(own["match_fmr"], measured, "the rate is known at the model's own threshold: {own}");

    // An aligned crop of a stored face is stored as a separate file, but its embedding is almost
    // the same.
    let chip = format!("/faces/{}/crop?kind=chip", first["faces"][0]["face_id"].as_str().unwrap());
    let chip = app.get(&chip).await.bytes().await.unwrap().to_vec();
    let path = format!("/subjects/{ada}/faces?aligned=true");
    let aligned = ok(app.post_raw(&path, "image/png", chip).await).await;
    let by_chip = json!({"face_id": aligned["faces"][0]["face_id"], "limit": 1});
    let found = ok(app.post_json("/faces/search", &by_chip).await).await;
    assert_eq!(found["matches"][0]["face_id"], first["faces"][0]["face_id"]);
    assert!(found["matches"][0]["similarity"].as_f64().unwrap() > 0.99, "{found}");
    let wrong = app.post_raw(&path, "image/jpeg", picture("ada.jpg")).await;
    assert!(problem(wrong, 400, "bad_query").await["detail"].as_str().unwrap().contains("112x112"));

    // A face moves to another subject only on request. A merge moves all faces.
    let face = json!({"face_ids": [first["faces"][0]["face_id"]]});
    let path = format!("/subjects/{ben}/faces");
    problem(app.post_json(&path, &face).await, 409, "conflict").await;
    let moved = ok(app.post_json(&format!("{path}?move=true"), &face).await).await;
    assert_eq!(moved["subject"]["face_count"], 2);
    let path = format!("/subjects/{ada}/merge");
    let merged = ok(app.post_json(&path, &json!({"subjects": [ben]})).await).await;
    assert_eq!(merged["face_count"], 4);

    // Images that were only stored for the enrolment are deleted with the person.
    assert_eq!(app.delete(&format!("/subjects/{ada}")).await.status(), StatusCode::NO_CONTENT);
    assert_eq!(app.get_ok("/faces").await["faces"], json!([]));
    assert_eq!(app.get_ok("/images").await["images"], json!([]));
    assert_eq!(app.blobs(), 0, "all blobs must be deleted");
}

#[testing::test]
async fn a_picture_is_enrolled_from_its_address_and_from_a_form() {
    let app = App::spawn().await;
    let site = Site::with(&["ada.jpg", "ben.jpg"]).await;
    let someone = subject(&app, "Someone").await;
    let path = format!("/subjects/{someone}/faces");
    let fetched = ok(app.post_json(&path, &json!({"url": site.picture("ada.jpg")})).await).await;
    assert_eq!((&fetched["subject"]["face_count"], &fetched["faces"][0]["unmet"]), (&json!(1), &json!([])));
    let face = fetched["faces"][0]["face_id"].as_str().unwrap();
    let face = app.get_ok(&format!("/faces/{face}")).await;
    assert_eq!(face["sources"][0]["image_url"], site.picture("ada.jpg"), "the source must be stored");
    // The same file in a form, with the options in the query, enrols the same face.
    let form = [("image", picture("ada.jpg"))];
    let sent = ok(app.post_parts(&format!("{path}?quality_profile=strict"), &form).await).await;
    assert_eq!(sent["faces"][0]["face_id"], fetched["faces"][0]["face_id"]);
    let form = [("image", picture("ben.jpg"))];
    let sent = ok(app.post_parts(&format!("{path}?force=true"), &form).await).await;
    assert_eq!(sent["subject"]["face_count"], 2, "{sent}");

    for (url, status, code) in [
        (format!("{}/text", site.url), 415, "not_an_image"),
        (format!("{}/broken", site.url), 422, "url_unreachable"),
        (format!("{}/to-metadata", site.url), 422, "forbidden_url"),
    ] {
        let refused = problem(app.post_json(&path, &json!({"url": url})).await, status, code).await;
        assert!(refused["detail"].as_str().unwrap().len() > 10, "{refused}");
    }
    let form = [("picture", picture("ben.jpg"))];
    problem(app.post_parts(&path, &form).await, 400, "unknown_part").await;
    let both = json!({"url": site.picture("ada.jpg"), "face_ids": [someone]});
    problem(app.post_json(&path, &both).await, 422, "invalid_field").await;

    // A suppressed URL cannot be enrolled either, even if its image was never stored.
    let erased = json!({"url": site.picture("ben.jpg")});
    erase(&app, &erased).await;
    let again = json!({"url": format!("{}#part", site.picture("ben.jpg")), "force": true});
    let refused = problem(app.post_json(&path, &again).await, 409, "conflict").await;
    assert!(refused["detail"].as_str().unwrap().contains("address"), "{refused}");
}

#[testing::needs(shared)]
#[testing::test]
async fn a_face_that_is_upside_down_is_refused_unless_the_image_is_rotated() {
    let app = App::spawn().await;
    let someone = subject(&app, "Someone").await;
    let path = format!("/subjects/{someone}/faces");
    let photograph = vision::decode(&testing::image("obama.jpg"), &vision::Limits::default()).unwrap().frame;
    let file = vision::encode::jpeg(&vision::crop::rotate(&photograph, 180), 92);
    for profile in ["standard", "strict"] {
        let path = format!("{path}?quality_profile={profile}");
        let refused =
            problem(app.post_raw(&path, "image/jpeg", file.clone()).await, 422, "low_quality").await;
        assert_eq!(refused["errors"], json!(["not_upright"]), "{refused}");
    }
    let rotated = ok(app.post_raw(&format!("{path}?rotate=auto"), "image/jpeg", file).await).await;
    assert_eq!(rotated["faces"][0]["unmet"], json!([]));
    assert_eq!(app.get_ok("/images").await["images"][0]["rotation"], 180);
    let upright = testing::image("obama.jpg");
    let found = ok(app.post_raw("/faces/search", "image/jpeg", upright).await).await;
    assert_eq!(found["matches"].as_array().unwrap().len(), 1, "{found}");
}

#[testing::test]
async fn a_poor_face_is_refused_with_the_reasons_unless_it_is_forced() {
    let app = App::spawn().await;
    let someone = subject(&app, "Someone").await;
    let path = format!("/subjects/{someone}/faces");
    let refused =
        problem(app.post_raw(&path, "image/jpeg", picture("blur.jpg")).await, 422, "low_quality").await;
    assert_eq!(field(&refused), "image");
    assert!(refused["errors"].as_array().unwrap().contains(&json!("too_blurry")), "{refused}");
    assert_eq!(app.get_ok("/images").await["images"], json!([]), "nothing is stored");
    let forced = enrol(&app, &someone, "blur.jpg", "?force=true").await;
    assert_eq!(forced["faces"][0]["unmet"], refused["errors"]);
    problem(app.post_raw(&path, "image/jpeg", picture("view.jpg")).await, 422, "no_face").await;
    let beyond = app.post_raw(&format!("{path}?face_index=3"), "image/jpeg", picture("ada.jpg")).await;
    assert_eq!(problem(beyond, 422, "no_such_face").await["allowed"], json!(["0 to 0"]));

    // The image was only stored for the enrolment. It is deleted with the removed face, unless the
    // caller keeps it.
    let face = forced["faces"][0]["face_id"].as_str().unwrap();
    assert_eq!(
        app.delete(&format!("{path}/{face}?enrolled_images=keep")).await.status(),
        StatusCode::NO_CONTENT
    );
    app.get_ok(&format!("/faces/{face}")).await;
    problem(app.delete(&format!("{path}/{face}")).await, 404, "not_found").await;
    ok(app.post_json(&format!("{path}?force=true"), &json!({"face_ids": [face]})).await).await;
    let poor = app.post_json(&path, &json!({"face_ids": [face]})).await;
    assert_eq!(field(&problem(poor, 422, "low_quality").await), "face_ids");
    assert_eq!(app.delete(&format!("{path}/{face}")).await.status(), StatusCode::NO_CONTENT);
    problem(app.get(&format!("/faces/{face}")).await, 404, "not_found").await;
}

#[testing::test]
async fn a_collection_is_clustered_and_a_named_cluster_attracts_what_comes_later() {
    let app = App::spawn().await;
    let first = Site::with(&["ada.jpg", "ada_2.jpg", "ben.jpg", "ben_2.jpg", "dan.jpg"]).await;
    app.crawl(&[first.page()]).await;
    let cluster = async || {
        let run = app.post_json("/collections/default/cluster", &json!({})).await;
        json_of(run, StatusCode::ACCEPTED).await;
        app.until("/collections/default/cluster", |run| run["state"] == "completed").await
    };
    let run = cluster().await;
    assert_eq!((&run["made"], &run["assigned"], &run["looked"]), (&json!(2), &json!(4), &run["faces"]));
    let clusters = app.get_ok("/subjects?origin=cluster").await["subjects"].as_array().unwrap().clone();
    assert!(
        clusters.iter().all(|c| c["face_count"] == 2 && c["name"].is_null() && c["best_face_id"].is_string())
    );

    // The cluster that `ada_3.jpg` finds gets a name. From then on, the cluster is an enrolled
    // subject.
    let probe = picture("ada_3.jpg");
    let found = ok(app.post_raw("/faces/search?group_by=subject", "image/jpeg", probe).await).await;
    let id = found["matches"][0]["subject_id"].as_str().unwrap();
    let named = app.client.patch(format!("{}/subjects/{id}", app.url)).json(&json!({"name": "Ada"}));
    assert_eq!(ok(named.send().await.unwrap()).await["origin"], "enrolled");

    let later = Site::with(&["ada_4.jpg", "ada_3.jpg"]).await;
    app.crawl(&[later.page()]).await;
    let run = cluster().await;
    assert_eq!((&run["faces"], &run["assigned"], &run["made"]), (&json!(2), &json!(2), &json!(0)));
    assert_eq!(app.get_ok(&format!("/subjects/{id}")).await["face_count"], 4);
    let again = cluster().await;
    assert_eq!((&again["faces"], &again["assigned"]), (&json!(0), &json!(0)), "only new faces are clustered");
}

#[testing::test]
async fn another_collections_key_sees_no_subject() {
    let app = App::spawn_with(guarded()).await;
    let scopes = [Scope::Read, Scope::Write, Scope::Search, Scope::Erase];
    let (_, ours) = app.key(Some("ours"), &scopes).await;
    let (_, theirs) = app.key(Some("theirs"), &scopes).await;
    let body = json!({"name": "Ada", "external_id": "a"});
    let made = app.ask(&ours, Method::POST, "/subjects", Some(&body)).await;
    let ada = json_of(made, StatusCode::CREATED).await;
    assert_eq!(ada["collection"], "ours");
    let id = ada["id"].as_str().unwrap();
    let made = app.ask(&theirs, Method::POST, "/subjects", Some(&body)).await;
    let other = json_of(made, StatusCode::CREATED).await["id"].as_str().unwrap().to_owned();
    let none = "00000000-0000-7000-8000-000000000000";
    for (method, path, body) in [
        (Method::GET, format!("/subjects/{id}"), None),
        (Method::GET, format!("/subjects/{id}/faces"), None),
        (Method::PATCH, format!("/subjects/{id}"), Some(json!({"name": "x"}))),
        (Method::DELETE, format!("/subjects/{id}"), None),
        (Method::DELETE, format!("/subjects/{id}/faces/{none}"), None),
        (Method::POST, format!("/subjects/{id}/faces"), Some(json!({"face_ids": [none]}))),
        (Method::POST, format!("/subjects/{id}/merge"), Some(json!({"subjects": [other]}))),
        (Method::POST, format!("/subjects/{other}/merge"), Some(json!({"subjects": [id]}))),
        (Method::GET, "/subjects?collection=ours".into(), None),
        (Method::POST, "/collections/ours/cluster".into(), Some(json!({}))),
        (Method::GET, "/collections/ours/cluster".into(), None),
    ] {
        problem(app.ask(&theirs, method, &path, body.as_ref()).await, 404, "not_found").await;
    }
    let listed = ok(app.ask(&theirs, Method::GET, "/subjects", None).await).await;
    assert_eq!(listed["subjects"].as_array().unwrap().len(), 1);
    assert_eq!(ok(app.ask(&ours, Method::GET, &format!("/subjects/{id}"), None).await).await, ada);
}
