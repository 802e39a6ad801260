//! Tests the operations on stored faces, and the search for faces.
use crate::support::images::{drawing, png};
use crate::support::site::Site;
use crate::support::{App, FAKE_ID, Json, field, merge, ok, parse_time, problem};
use reqwest::StatusCode;
use serde_json::{Value, json};

#[testing::test]
async fn stored_faces_are_listed_shown_and_deleted() {
    let app = App::spawn().await;
    assert_eq!(app.get_ok("/faces").await, json!({"faces": [], "next_cursor": null}));
    let site = Site::new(&["ada_small.jpg", "two_people.jpg"]).await;
    let crawl = app.crawl(&[site.page()]).await;
    assert_eq!(crawl["counts"]["faces"], 3, "{crawl:#}");

    // One transaction may store both images. Their times then are equal.
    app.database
        .execute(
            "update faces set created_at = created_at - interval '1 second'
             where image_id = (select image_id from faces order by id limit 1)",
        )
        .await;
    let list = app.get_ok("/faces").await;
    let faces = list.list("faces");
    assert_eq!((faces.len(), &list["next_cursor"]), (3, &Value::Null));
    app.database
        .execute("update faces set quality_passed = id <> (select id from faces order by id limit 1)")
        .await;
    assert_eq!(app.get_ok("/faces?passed=true").await["faces"], json!(faces[..2]));
    assert_eq!(app.get_ok("/faces?passed=false").await["faces"], json!(faces[2..]));
    for face in faces {
        assert_eq!(face["collection"], "default");
        assert_eq!(face.list("landmarks").len(), 5);
        assert_eq!(face["sources"][0]["page_url"], site.page());
        assert_eq!(face["sources"][0]["crawl_id"], crawl["id"]);
        assert!(face["quality"]["overall"].as_f64().is_some());
        assert_eq!(app.get_ok(&format!("/faces/{}", face.text("id"))).await, *face);
    }

    // All pages together give the same list.
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = app.get_ok(&format!("/faces?limit=2{cursor}")).await;
        paged.extend(page.list("faces").clone());
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(paged, *faces);

    let image = faces[0].text("image_id");
    let count = async |query: String| app.get_ok(&format!("/faces?{query}")).await.list("faces").len();
    let faces_of_image = faces.iter().filter(|face| face["image_id"] == image).count();
    assert_eq!(count(format!("image_id={image}")).await, faces_of_image);
    assert_eq!(count(format!("crawl_id={}", crawl.text("id"))).await, 3);
    assert_eq!(count(format!("crawl_id={FAKE_ID}")).await, 0);
    assert_eq!(count("min_quality=0".into()).await, 3);
    assert_eq!(count("min_quality=1".into()).await, 0);
    assert_eq!(count("site=127.0.0.1".into()).await, 3);
    assert_eq!(count("site=example.org".into()).await, 0);
    let times = || faces.iter().map(|face| &face["created_at"]);
    let latest = times().max_by_key(|value| parse_time(value)).unwrap();
    let later = times().filter(|value| parse_time(value) >= parse_time(latest)).count();
    let text = latest.as_str().unwrap();
    assert!(later < 3);
    assert_eq!(count(format!("since={text}")).await, later);
    assert_eq!(count(format!("until={text}")).await, 3 - later);
    let empty = app.get("/faces?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z").await;
    assert_eq!(field(&problem(empty, 400, "bad_query").await), "until");

    check_face_images(&app, faces[0].text("id")).await;

    // A deletion also removes the files.
    let id = faces[0].text("id");
    let mut files = Vec::new();
    for kind in ["crop", "chip"] {
        files.push(app.get(&format!("/faces/{id}/crop?kind={kind}")).await.bytes().await.unwrap());
    }
    assert_eq!(app.delete(&format!("/faces/{id}")).await.status(), StatusCode::NO_CONTENT);
    problem(app.get(&format!("/faces/{id}")).await, 404, "not_found").await;
    problem(app.get(&format!("/faces/{id}/crop")).await, 404, "not_found").await;
    problem(app.delete(&format!("/faces/{id}")).await, 404, "not_found").await;
    assert_eq!(count(String::new()).await, 2);
    for blob in testing::files_below(app.blob_folder.path()) {
        let blob = std::fs::read(blob).unwrap();
        assert!(
            !files.iter().any(|file| testing::contains_bytes(&blob, file)),
            "crop and chip must be deleted"
        );
    }
    check_face_images(&app, faces[1].text("id")).await;
}

async fn check_face_images(app: &App, id: &str) {
    for (query, format, size) in [
        ("", image::ImageFormat::Jpeg, None),
        ("?kind=crop", image::ImageFormat::Jpeg, None),
        ("?kind=chip", image::ImageFormat::Png, Some((112, 112))),
    ] {
        let response = app.get(&format!("/faces/{id}/crop{query}")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], format.to_mime_type());
        assert_eq!(response.headers()["cache-control"], "private, no-cache");
        let tag = response.headers()["etag"].clone();
        let image = image::load_from_memory_with_format(&response.bytes().await.unwrap(), format).unwrap();
        if let Some(size) = size {
            assert_eq!((image.width(), image.height()), size);
        }
        let request =
            app.client.get(format!("{}/faces/{id}/crop{query}", app.url)).header("if-none-match", tag);
        assert_eq!(request.send().await.unwrap().status(), StatusCode::NOT_MODIFIED);
    }
    let error = problem(app.get(&format!("/faces/{id}/crop?kind=mask")).await, 400, "bad_query").await;
    assert_eq!((field(&error), &error["allowed"]), ("kind", &json!(["crop", "chip"])));
}

#[testing::test]
async fn unknown_face_ids_and_invalid_queries_are_rejected() {
    let app = App::spawn().await;
    problem(app.get(&format!("/faces/{FAKE_ID}")).await, 404, "not_found").await;
    problem(app.get(&format!("/faces/{FAKE_ID}/crop")).await, 404, "not_found").await;
    problem(app.delete(&format!("/faces/{FAKE_ID}")).await, 404, "not_found").await;
    let error = problem(app.get("/faces/12").await, 400, "bad_id").await;
    assert_eq!((&error["value"], &error["allowed"]), (&json!("12"), &json!(["a UUID"])));
    problem(app.get("/faces/%ff").await, 400, "bad_id").await;
    problem(app.get("/faces?collection=nowhere").await, 404, "not_found").await;
    for query in [
        "cursor=xyz",
        "limit=0",
        "limit=1001",
        "crawl_id=x",
        "min_quality=2",
        "colour=red",
        "limit=1&limit=2",
    ] {
        let error = problem(app.get(&format!("/faces?{query}")).await, 400, "bad_query").await;
        assert_eq!(field(&error), query.split('=').next().unwrap(), "{error}");
    }
    app.get_ok("/faces?limit=1000").await;
}

const ADA: [&str; 4] = ["ada.jpg", "ada_4.jpg", "ada_3.jpg", "ada_wide.jpg"];
const OTHERS: [&str; 4] = ["ben.jpg", "dan.jpg", "cora.jpg", "view.jpg"];

/// Returns the file names of the images with matches, the best match first.
fn names(response: &Value) -> Vec<String> {
    let name = |hit: &Value| {
        let url = hit["sources"][0].text("image_url");
        url.rsplit('/').next().unwrap().to_owned()
    };
    response.list("matches").iter().map(name).collect()
}

#[testing::test]
async fn search_finds_crawled_person_by_other_image() {
    let app = App::spawn().await;
    let photos = [ADA, OTHERS].concat();
    let site = Site::new(&photos).await;
    let crawl = app.crawl(&[site.page()]).await;
    assert_eq!(crawl["state"], "completed", "{crawl:#}");
    assert_eq!(crawl["counts"]["images"]["processed"], 8, "{crawl:#}");

    // Without a threshold, all images of the person are ranked before all other images.
    let probe = drawing("ada_2.jpg");
    let all_matches =
        ok(app.post_parts("/faces/search?threshold=-1&limit=100", &[("image", probe.clone())]).await).await;
    let ranking = names(&all_matches);
    assert_eq!(ranking.len(), crawl["counts"]["faces"].as_u64().unwrap() as usize);
    let mut first = ranking[..4].to_vec();
    first.sort();
    let mut expected = ADA.map(str::to_owned).to_vec();
    expected.sort();
    assert_eq!(first, expected, "{ranking:?}");
    let scores: Vec<f64> =
        all_matches.list("matches").iter().map(|hit| hit["similarity"].as_f64().unwrap()).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b) && scores[3] > 0.5 && scores[4] < 0.3, "{scores:?}");
    assert_eq!((&all_matches["exact"], &all_matches["probe"]["kind"]), (&json!(true), &json!("image")));

    // The default threshold keeps only the images of the person.
    let close = ok(app.post_raw("/faces/search", "image/jpeg", probe).await).await;
    assert_eq!(names(&close), ranking[..4]);
    assert_eq!(close["matches"][0]["sources"][0]["page_url"], site.page());

    // A search with a stored face finds the other faces, but not itself.
    let best = &close["matches"][0]["face_id"];
    let by_face = app.post_ok("/faces/search", &json!({"face_id": best, "limit": 2})).await;
    assert_eq!(by_face.list("matches").len(), 2);
    assert!(by_face.list("matches").iter().all(|hit| hit["face_id"] != *best));
    assert_eq!(by_face["probe"]["face_id"], *best);

    // A search with an embedding returns the same matches as the image. The length of the vector is
    // irrelevant.
    let detected = ok(app.post_raw("/faces/detect", "image/jpeg", drawing("ada_2.jpg")).await).await;
    let embedding: Vec<f64> =
        detected["faces"][0].list("embedding").iter().map(|x| x.as_f64().unwrap() * 7.5).collect();
    let by_embedding = json!({"embedding": embedding, "exact": true, "threshold": -1, "limit": 100});
    let by_embedding = app.post_ok("/faces/search", &by_embedding).await;
    assert_eq!(names(&by_embedding), ranking);

    check_search_filters(&app, &crawl).await;
}

async fn check_search_filters(app: &App, crawl: &Value) {
    let find = async |extra: Value| {
        let mut body = merge(json!({"threshold": -1, "limit": 100}), extra);
        let first = app.get_ok("/faces?limit=1").await["faces"][0]["id"].clone();
        body["face_id"] = first;
        app.post_ok("/faces/search", &body).await.list("matches").len()
    };
    let other_faces = crawl["counts"]["faces"].as_u64().unwrap() as usize - 1;
    assert_eq!(find(json!({})).await, other_faces);
    assert_eq!(find(json!({"crawl_id": crawl["id"]})).await, other_faces);
    assert_eq!(find(json!({"crawl_id": "00000000-0000-7000-8000-000000000000"})).await, 0);
    assert_eq!(find(json!({"min_quality": 1})).await, 0);
    assert_eq!(find(json!({"min_quality": 0})).await, other_faces);
    assert_eq!(find(json!({"limit": 1})).await, 1);
    assert_eq!(find(json!({"site": "127.0.0.1"})).await, other_faces);
    assert_eq!(find(json!({"site": "example.org"})).await, 0);
    // The probe is the newest face, which is not in the results.
    let listed = app.get_ok("/faces").await;
    let times: Vec<&Value> = listed.list("faces").iter().map(|face| &face["created_at"]).collect();
    let middle = times[times.len() / 2];
    let later = times[1..].iter().filter(|other| parse_time(other) >= parse_time(middle)).count();
    assert_eq!(find(json!({"since": "2020-01-01T00:00:00Z", "until": "2020-01-02T00:00:00+01:00"})).await, 0);
    assert_eq!(find(json!({"since": "2020-01-01T00:00:00Z"})).await, other_faces);
    assert_eq!(find(json!({"since": middle})).await, later);
    assert_eq!(find(json!({"until": middle})).await, other_faces - later);
    assert!(later > 0 && later < other_faces);

    let audit = app.get_ok("/audit?action=face.search&limit=1").await;
    assert_eq!(audit["records"][0]["detail"]["until"], *middle, "{audit:#}");
}

#[testing::test]
async fn invalid_search_probe_error_names_field() {
    let app = App::spawn().await;
    let path = "/faces/search";
    let post = async |body: Value| app.post_json(path, &body).await;
    assert_eq!(
        field(&problem(app.post_raw(path, "image/png", png(64, 64)).await, 422, "no_face").await),
        "image"
    );
    problem(post(json!({"face_id": FAKE_ID})).await, 404, "not_found").await;
    problem(post(json!({"limit": 3})).await, 422, "invalid_field").await;
    problem(post(json!({"face_id": FAKE_ID, "url": "http://127.0.0.1/"})).await, 422, "invalid_field").await;
    for (body, field_name) in [
        (json!({"embedding": [1, 2, 3]}), "embedding"),
        (json!({"embedding": vec![0; 128]}), "embedding"),
        (json!({"embedding": "x"}), "embedding"),
        (json!({"face_id": "x"}), "face_id"),
        (json!({"face_id": FAKE_ID, "limit": 0}), "limit"),
        (json!({"face_id": FAKE_ID, "threshold": 2}), "threshold"),
        (json!({"face_id": FAKE_ID, "colour": 2}), "colour"),
        (json!({"face_id": FAKE_ID, "site": "https://example.org/"}), "site"),
        (json!({"face_id": FAKE_ID, "site": "example.org:8080"}), "site"),
        (json!({"face_id": FAKE_ID, "site": "*.example.org"}), "site"),
        (json!({"face_id": FAKE_ID, "site": "a".repeat(300)}), "site"),
        (json!({"face_id": FAKE_ID, "site": ""}), "site"),
        (json!({"face_id": FAKE_ID, "since": "yesterday"}), "since"),
        (
            json!({"face_id": FAKE_ID, "since": "2026-01-02T00:00:00Z", "until": "2026-01-02T00:00:00Z"}),
            "until",
        ),
    ] {
        assert_eq!(field(&problem(post(body).await, 422, "invalid_field").await), field_name);
    }
    let face = drawing("ada_small.jpg");
    let response = app.post_raw("/faces/search?collection=nowhere", "image/jpeg", face.clone()).await;
    problem(response, 404, "not_found").await;
    let response = app.post_raw("/faces/search?face_index=7", "image/jpeg", face).await;
    assert_eq!(problem(response, 422, "no_such_face").await["allowed"], json!(["0 to 0"]));
}
