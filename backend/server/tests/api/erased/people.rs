//! Tests the erasure of all faces of a person. The person's name, external id and metadata are
//! deleted too.
use super::{dump, erase};
use crate::support::pages::Pages;
use crate::support::{App, ok, problem};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

const WORDS: [&str; 3] = ["Quaxthorpe", "quax-17", "quaxville"];

fn found(text: &str) -> Vec<&'static str> {
    WORDS.into_iter().filter(|word| text.contains(word)).collect()
}

async fn crawled(pictures: &[&str]) -> (App, Pages) {
    let (app, site) = (App::spawn().await, Pages::start().await);
    let shown: String = pictures.iter().map(|name| format!("<img src=/{name}>")).collect();
    site.page("/", "pictures", &shown);
    for name in pictures {
        site.picture(&format!("/{name}"), testing::picture(name));
    }
    app.crawl(&[site.url("/")]).await;
    (app, site)
}

async fn face(app: &App, site: &Pages, name: &str) -> Value {
    let images = app.get_ok("/images").await["images"].as_array().unwrap().clone();
    let url = site.url(&format!("/{name}"));
    let image = images.iter().find(|image| image["sources"][0]["image_url"] == url).unwrap();
    let faces = app.get_ok("/faces").await["faces"].as_array().unwrap().clone();
    faces.into_iter().find(|face| face["image_id"] == image["id"]).unwrap()
}

async fn enrolled(app: &App, faces: &[&Value]) -> String {
    let person =
        json!({"name": "Zebulon Quaxthorpe", "external_id": "quax-17", "metadata": {"born": "quaxville"}});
    let made = app.post_json("/subjects", &person).await.json::<Value>().await.unwrap();
    let id = made["id"].as_str().unwrap().to_owned();
    let ids: Vec<&Value> = faces.iter().map(|face| &face["id"]).collect();
    let faces = json!({"face_ids": ids, "force": true});
    ok(app.post_json(&format!("/subjects/{id}/faces"), &faces).await).await;
    id
}

#[testing::test]
async fn whoever_is_left_without_a_face_goes_by_whatever_the_erasure_was_asked_for() {
    for kind in ["image", "url", "page", "face", "likeness"] {
        let (app, site) = crawled(&["ada.jpg", "cora.jpg"]).await;
        let ada = face(&app, &site, "ada.jpg").await;
        let subject = enrolled(&app, &[&ada]).await;
        assert_eq!(found(&dump(&app)), WORDS, "the search must find the words before the erasure");
        let target = match kind {
            "image" => json!({"image_id": ada["image_id"]}),
            "url" => json!({"url": site.url("/ada.jpg")}),
            "page" => json!({"url": site.url("/")}),
            "face" => json!({"face_id": ada["id"]}),
            _ => json!({"image_base64": STANDARD.encode(testing::picture("ada.jpg"))}),
        };
        let mut look = target.clone();
        look["dry_run"] = json!(true);
        let look = ok(app.post_json("/erasures", &look).await).await;
        assert_eq!(
            (&look["subjects"], &look["affected_subjects"]),
            (&json!(1), &json!([subject])),
            "{kind}: {look}"
        );
        app.get_ok(&format!("/subjects/{subject}")).await;

        let done = erase(&app, &target).await;
        assert_eq!((&done["subjects"], &done["affected_subjects"]), (&json!(1), &Value::Null), "{kind}");
        problem(app.get(&format!("/subjects/{subject}")).await, 404, "not_found").await;
        assert_eq!(found(&dump(&app)), [] as [&str; 0], "{kind}");
        for action in ["erasure.preview", "erasure.create"] {
            let log = app.get_ok(&format!("/audit?action={action}")).await;
            assert_eq!(log["records"][0]["detail"]["subjects"], 1, "{log}");
        }
    }
}

#[testing::test]
async fn whoever_has_another_face_or_never_had_one_stays() {
    let (app, site) = crawled(&["ada.jpg", "ben.jpg", "cora.jpg"]).await;
    let (ada, ben) = (face(&app, &site, "ada.jpg").await, face(&app, &site, "ben.jpg").await);
    let subject = enrolled(&app, &[&ada, &ben]).await;
    let nobody = app.post_json("/subjects", &json!({"name": "Nobody"})).await;
    let nobody = nobody.json::<Value>().await.unwrap();
    let done = erase(&app, &json!({"image_id": ada["image_id"]})).await;
    assert_eq!((&done["images"], &done["subjects"]), (&json!(1), &json!(0)), "{done}");
    assert_eq!(app.get_ok(&format!("/subjects/{subject}")).await["face_count"], 1);
    // Deleting a face, unlike an erasure, keeps the person.
    let path = format!("/faces/{}", ben["id"].as_str().unwrap());
    assert_eq!(app.delete(&path).await.status(), 204);
    assert_eq!(app.get_ok(&format!("/subjects/{subject}")).await["face_count"], 0);
    let cora = face(&app, &site, "cora.jpg").await;
    assert_eq!(erase(&app, &json!({"face_id": cora["id"]})).await["subjects"], 0);
    app.get_ok(&format!("/subjects/{subject}")).await;
    app.get_ok(&format!("/subjects/{}", nobody["id"].as_str().unwrap())).await;
}
