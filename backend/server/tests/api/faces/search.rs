use crate::support::pictures::{drawn, picture};
use crate::support::site::Site;
use crate::support::{App, and, field, ok, problem, time};
use serde_json::{Value, json};

const ADA: [&str; 4] = ["ada.jpg", "ada_4.jpg", "ada_3.jpg", "ada_wide.jpg"];
const OTHERS: [&str; 4] = ["ben.jpg", "dan.jpg", "cora.jpg", "view.jpg"];

/// Returns the file names of the images with matches, the best match first.
fn names(answer: &Value) -> Vec<String> {
    let name = |found: &Value| {
        let url = found["sources"][0]["image_url"].as_str().unwrap();
        url.rsplit('/').next().unwrap().to_owned()
    };
    answer["matches"].as_array().unwrap().iter().map(name).collect()
}

#[testing::test]
async fn a_crawled_person_is_found_by_another_picture() {
    let app = App::spawn().await;
    let photos = [ADA, OTHERS].concat();
    let site = Site::with(&photos).await;
    let crawl = app.crawl(&[site.page()]).await;
    assert_eq!(crawl["state"], "completed", "{crawl:#}");
    assert_eq!(crawl["counts"]["images"]["processed"], 8, "{crawl:#}");

    // Without a threshold, all images of the person are ranked before all other images.
    let probe = picture("ada_2.jpg");
    let all = app.post_parts("/faces/search?threshold=-1&limit=100", &[("image", probe.clone())]).await;
    let all = ok(all).await;
    let ranking = names(&all);
    assert_eq!(ranking.len(), crawl["counts"]["faces"].as_u64().unwrap() as usize);
    let mut first = ranking[..4].to_vec();
    first.sort();
    let mut wanted = ADA.map(str::to_owned).to_vec();
    wanted.sort();
    assert_eq!(first, wanted, "{ranking:?}");
    let scores: Vec<f64> = all["matches"]
        .as_array()
        .unwrap()
        .iter()
        .map(|found| found["similarity"].as_f64().unwrap())
        .collect();
    assert!(scores.is_sorted_by(|a, b| a >= b) && scores[3] > 0.5 && scores[4] < 0.3, "{scores:?}");
    assert_eq!((&all["exact"], &all["probe"]["kind"]), (&json!(true), &json!("image")));

    // The default threshold keeps only the images of the person.
    let close = ok(app.post_raw("/faces/search", "image/jpeg", probe).await).await;
    assert_eq!(names(&close), ranking[..4]);
    assert_eq!(close["matches"][0]["sources"][0]["page_url"], site.page());

    // A search with a stored face finds the other faces, but not itself.
    let best = &close["matches"][0]["face_id"];
    let by_face = ok(app.post_json("/faces/search", &json!({"face_id": best, "limit": 2})).await).await;
    assert_eq!(by_face["matches"].as_array().unwrap().len(), 2);
    assert!(by_face["matches"].as_array().unwrap().iter().all(|found| found["face_id"] != *best));
    assert_eq!(by_face["probe"]["face_id"], *best);

    // A search with an embedding returns the same matches as the image. The length of the vector is
    // irrelevant.
    let detected = ok(app.post_raw("/faces/detect", "image/jpeg", picture("ada_2.jpg")).await).await;
    let embedding: Vec<f64> = detected["faces"][0]["embedding"]
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap() * 7.5)
        .collect();
    let by_embedding = json!({"embedding": embedding, "exact": true, "threshold": -1, "limit": 100});
    let by_embedding = ok(app.post_json("/faces/search", &by_embedding).await).await;
    assert_eq!(names(&by_embedding), ranking);

    filters_narrow_the_search(&app, &crawl).await;
}

async fn filters_narrow_the_search(app: &App, crawl: &Value) {
    let ask = async |extra: Value| {
        let mut body = and(json!({"threshold": -1, "limit": 100}), extra);
        let first = app.get_ok("/faces?limit=1").await["faces"][0]["id"].clone();
        body["face_id"] = first;
        ok(app.post_json("/faces/search", &body).await).await["matches"].as_array().unwrap().len()
    };
    let others = crawl["counts"]["faces"].as_u64().unwrap() as usize - 1;
    assert_eq!(ask(json!({})).await, others);
    assert_eq!(ask(json!({"crawl_id": crawl["id"]})).await, others);
    assert_eq!(ask(json!({"crawl_id": "00000000-0000-7000-8000-000000000000"})).await, 0);
    assert_eq!(ask(json!({"min_quality": 1})).await, 0);
    assert_eq!(ask(json!({"min_quality": 0})).await, others);
    assert_eq!(ask(json!({"limit": 1})).await, 1);
    assert_eq!(ask(json!({"site": "127.0.0.1"})).await, others);
    assert_eq!(ask(json!({"site": "example.org"})).await, 0);
    // The probe is the newest face, which is not in the results.
    let listed = app.get_ok("/faces").await;
    let times: Vec<&Value> =
        listed["faces"].as_array().unwrap().iter().map(|face| &face["created_at"]).collect();
    let middle = times[times.len() / 2];
    let later = times[1..].iter().filter(|other| time(other) >= time(middle)).count();
    assert_eq!(ask(json!({"since": "2020-01-01T00:00:00Z", "until": "2020-01-02T00:00:00+01:00"})).await, 0);
    assert_eq!(ask(json!({"since": "2020-01-01T00:00:00Z"})).await, others);
    assert_eq!(ask(json!({"since": middle})).await, later);
    assert_eq!(ask(json!({"until": middle})).await, others - later);
    assert!(later > 0 && later < others);

    let audit = app.get_ok("/audit?action=face.search&limit=1").await;
    assert_eq!(audit["records"][0]["detail"]["until"], *middle, "{audit:#}");
}

#[testing::test]
async fn wrong_probes_are_named() {
    let app = App::spawn().await;
    let path = "/faces/search";
    let ask = async |body: Value| app.post_json(path, &body).await;
    let none = "00000000-0000-7000-8000-000000000000";
    assert_eq!(
        field(&problem(app.post_raw(path, "image/png", drawn(64, 64)).await, 422, "no_face").await),
        "image"
    );
    problem(ask(json!({"face_id": none})).await, 404, "not_found").await;
    problem(ask(json!({"limit": 3})).await, 422, "invalid_field").await;
    problem(ask(json!({"face_id": none, "url": "http://127.0.0.1/"})).await, 422, "invalid_field").await;
    for (body, named) in [
        (json!({"embedding": [1, 2, 3]}), "embedding"),
        (json!({"embedding": vec![0; 128]}), "embedding"),
        (json!({"embedding": "x"}), "embedding"),
        (json!({"face_id": "x"}), "face_id"),
        (json!({"face_id": none, "limit": 0}), "limit"),
        (json!({"face_id": none, "threshold": 2}), "threshold"),
        (json!({"face_id": none, "colour": 2}), "colour"),
        (json!({"face_id": none, "site": "https://example.org/"}), "site"),
        (json!({"face_id": none, "site": "example.org:8080"}), "site"),
        (json!({"face_id": none, "site": "*.example.org"}), "site"),
        (json!({"face_id": none, "site": "a".repeat(300)}), "site"),
        (json!({"face_id": none, "site": ""}), "site"),
        (json!({"face_id": none, "since": "yesterday"}), "since"),
        (json!({"face_id": none, "since": "2026-01-02T00:00:00Z", "until": "2026-01-02T00:00:00Z"}), "until"),
    ] {
        assert_eq!(field(&problem(ask(body).await, 422, "invalid_field").await), named);
    }
    let face = picture("ada_small.jpg");
    let elsewhere = app.post_raw("/faces/search?collection=nowhere", "image/jpeg", face.clone()).await;
    problem(elsewhere, 404, "not_found").await;
    let beyond = app.post_raw("/faces/search?face_index=7", "image/jpeg", face).await;
    assert_eq!(problem(beyond, 422, "no_such_face").await["allowed"], json!(["0 to 0"]));
}
