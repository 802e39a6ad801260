//! Tests `GET /faces`, `GET` and `DELETE /faces/{id}`, and `GET /faces/{id}/crop`.
use crate::support::site::Site;
use crate::support::{App, field, ok, problem, time};
use reqwest::StatusCode;
use serde_json::{Value, json};

const NOBODY: &str = "00000000-0000-7000-8000-000000000000";

#[testing::test]
async fn stored_faces_are_listed_shown_and_deleted() {
    let app = App::spawn().await;
    assert_eq!(app.get_ok("/faces").await, json!({"faces": [], "next_cursor": null}));
    let site = Site::with(&["ada_small.jpg", "two_people.jpg"]).await;
    let crawl = app.crawl(&[site.page()]).await;
    assert_eq!(crawl["counts"]["faces"], 3, "{crawl:#}");

    let all = app.get_ok("/faces").await;
    let faces = all["faces"].as_array().unwrap();
    assert_eq!((faces.len(), &all["next_cursor"]), (3, &Value::Null));
    app.database
        .execute("update faces set quality_passed = id <> (select id from faces order by id limit 1)")
        .await;
    assert_eq!(app.get_ok("/faces?passed=true").await["faces"], json!(faces[..2]));
    assert_eq!(app.get_ok("/faces?passed=false").await["faces"], json!(faces[2..]));
    for face in faces {
        assert_eq!(face["collection"], "default");
        assert_eq!(face["landmarks"].as_array().unwrap().len(), 5);
        assert_eq!(face["sources"][0]["page_url"], site.page());
        assert_eq!(face["sources"][0]["crawl_id"], crawl["id"]);
        assert!(face["quality"]["overall"].as_f64().is_some());
        assert_eq!(app.get_ok(&format!("/faces/{}", face["id"].as_str().unwrap())).await, *face);
    }

    // All pages together give the same list.
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = app.get_ok(&format!("/faces?limit=2{cursor}")).await;
        paged.extend(page["faces"].as_array().unwrap().clone());
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(paged, *faces);

    let image = faces[0]["image_id"].as_str().unwrap();
    let count =
        async |query: String| app.get_ok(&format!("/faces?{query}")).await["faces"].as_array().unwrap().len();
    let of_image = faces.iter().filter(|face| face["image_id"] == image).count();
    assert_eq!(count(format!("image_id={image}")).await, of_image);
    assert_eq!(count(format!("crawl_id={}", crawl["id"].as_str().unwrap())).await, 3);
    assert_eq!(count(format!("crawl_id={NOBODY}")).await, 0);
    assert_eq!(count("min_quality=0".into()).await, 3);
    assert_eq!(count("min_quality=1".into()).await, 0);
    assert_eq!(count("site=127.0.0.1".into()).await, 3);
    assert_eq!(count("site=example.org".into()).await, 0);
    // Two workers store the two images, so the order of the times is not that of the ids.
    let times = || faces.iter().map(|face| &face["created_at"]);
    let latest = times().max_by_key(|value| time(value)).unwrap();
    let later = times().filter(|value| time(value) >= time(latest)).count();
    let text = latest.as_str().unwrap();
    assert!(later < 3);
    assert_eq!(count(format!("since={text}")).await, later);
    assert_eq!(count(format!("until={text}")).await, 3 - later);
    let empty = app.get("/faces?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z").await;
    assert_eq!(field(&problem(empty, 400, "bad_query").await), "until");

    pictures_of_a_face(&app, faces[0]["id"].as_str().unwrap()).await;

    // A deletion also removes the files.
    let id = faces[0]["id"].as_str().unwrap();
    let files = app.blobs();
    assert_eq!(app.delete(&format!("/faces/{id}")).await.status(), StatusCode::NO_CONTENT);
    problem(app.get(&format!("/faces/{id}")).await, 404, "not_found").await;
    problem(app.get(&format!("/faces/{id}/crop")).await, 404, "not_found").await;
    problem(app.delete(&format!("/faces/{id}")).await, 404, "not_found").await;
    assert_eq!(count(String::new()).await, 2);
    assert_eq!(app.blobs(), files - 2, "crop and chip must be deleted");
}

async fn pictures_of_a_face(app: &App, id: &str) {
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
        let picture = image::load_from_memory_with_format(&response.bytes().await.unwrap(), format).unwrap();
        if let Some(size) = size {
            assert_eq!((picture.width(), picture.height()), size);
        }
        let again =
            app.client.get(format!("{}/faces/{id}/crop{query}", app.url)).header("if-none-match", tag);
        assert_eq!(again.send().await.unwrap().status(), StatusCode::NOT_MODIFIED);
    }
    let wrong = problem(app.get(&format!("/faces/{id}/crop?kind=mask")).await, 400, "bad_query").await;
    assert_eq!((field(&wrong), &wrong["allowed"]), ("kind", &json!(["crop", "chip"])));
}

#[testing::test]
async fn unknown_ids_cursors_and_collections_are_told() {
    let app = App::spawn().await;
    problem(app.get(&format!("/faces/{NOBODY}")).await, 404, "not_found").await;
    problem(app.get(&format!("/faces/{NOBODY}/crop")).await, 404, "not_found").await;
    problem(app.delete(&format!("/faces/{NOBODY}")).await, 404, "not_found").await;
    let bad = problem(app.get("/faces/12").await, 400, "bad_id").await;
    assert_eq!((&bad["value"], &bad["allowed"]), (&json!("12"), &json!(["a UUID"])));
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
        let wrong = problem(app.get(&format!("/faces?{query}")).await, 400, "bad_query").await;
        assert_eq!(field(&wrong), query.split('=').next().unwrap(), "{wrong}");
    }
    ok(app.get("/faces?limit=1000").await).await;
}
