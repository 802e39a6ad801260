//! Tests `GET /images`, `GET` and `DELETE /images/{id}`, and `GET /images/{id}/thumbnail`.
use crate::support::site::Site;
use crate::support::{App, field, problem};
use reqwest::StatusCode;
use serde_json::{Value, json};

const NOTHING: &str = "00000000-0000-7000-8000-000000000000";

#[testing::test]
async fn stored_images_are_listed_shown_and_deleted() {
    let app = App::spawn().await;
    let site = Site::with(&["ada_small.jpg", "view.jpg"]).await;
    let crawl = app.crawl(&[site.page()]).await;
    assert_eq!(crawl["counts"]["images"]["processed"], 2, "{crawl:#}");

    let all = app.get_ok("/images").await;
    assert_eq!((all["images"].as_array().unwrap().len(), &all["next_cursor"]), (2, &Value::Null));
    let with_faces = app.get_ok("/images?has_faces=true").await["images"].as_array().unwrap().clone();
    let without = app.get_ok("/images?has_faces=false").await["images"].as_array().unwrap().clone();
    assert_eq!((with_faces.len(), without.len()), (1, 1));
    assert_eq!(without[0]["sources"][0]["alt"], "view.jpg");

    let id = with_faces[0]["id"].as_str().unwrap();
    let shown = app.get_ok(&format!("/images/{id}")).await;
    assert_eq!((&shown["face_count"], &shown["format"]), (&json!(1), &json!("jpeg")));
    assert_eq!(shown["faces"][0]["image_id"], id);
    assert_eq!(shown["sources"][0]["image_url"], site.picture("ada_small.jpg"));
    assert_eq!(shown["sha256"].as_str().unwrap().len(), 64);
    assert_eq!(shown["phash"].as_str().unwrap().len(), 16);

    let first = app.get_ok("/images?limit=1").await;
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = app.get_ok(&format!("/images?limit=1&cursor={cursor}")).await;
    assert_eq!(json!([first["images"][0], second["images"][0]]), all["images"]);
    assert_eq!(second["next_cursor"], Value::Null);
    // The cursor is valid for this list and these filters only.
    for path in ["/faces?", "/crawls?", "/images?has_faces=true&", &format!("/images/{id}/sources?")] {
        let refused = problem(app.get(&format!("{path}cursor={cursor}")).await, 400, "bad_query").await;
        assert_eq!(field(&refused), "cursor", "{path} {refused}");
    }

    let thumbnail = app.get(&format!("/images/{id}/thumbnail")).await;
    assert_eq!(thumbnail.headers()["content-type"], "image/jpeg");
    image::load_from_memory_with_format(&thumbnail.bytes().await.unwrap(), image::ImageFormat::Jpeg).unwrap();

    assert_eq!(app.delete(&format!("/images/{id}")).await.status(), StatusCode::NO_CONTENT);
    problem(app.get(&format!("/images/{id}")).await, 404, "not_found").await;
    problem(app.get(&format!("/images/{id}/thumbnail")).await, 404, "not_found").await;
    assert_eq!(app.get_ok("/faces").await["faces"], json!([]), "its faces must be deleted");
}

#[testing::test]
async fn unknown_images_and_wrong_parameters_are_told() {
    let app = App::spawn().await;
    problem(app.get(&format!("/images/{NOTHING}")).await, 404, "not_found").await;
    problem(app.get(&format!("/images/{NOTHING}/thumbnail")).await, 404, "not_found").await;
    problem(app.delete(&format!("/images/{NOTHING}")).await, 404, "not_found").await;
    problem(app.get("/images/x").await, 400, "bad_id").await;
    problem(app.get("/images?collection=nowhere").await, 404, "not_found").await;
    for query in ["has_faces=1", "limit=-1", "cursor=", "page=2"] {
        let wrong = problem(app.get(&format!("/images?{query}")).await, 400, "bad_query").await;
        assert_eq!(field(&wrong), query.split('=').next().unwrap(), "{wrong}");
    }
}

/// Adds `$count` sources with URLs of `$bytes` bytes to every stored image.
macro_rules! add_sources {
    ($app:expr, $count:literal, $bytes:literal) => {
        let sql = concat!(
            "insert into image_sources (image_id, page_url, page_hash, image_url)
             select i.id, rpad('http://a.test/' || n || '/', ",
            $bytes,
            ", 'p'), gen_random_uuid(),
                    rpad('http://a.test/' || n || '/', ",
            $bytes,
            ", 'i')
             from images i, generate_series(1, ",
            $count,
            ") as n order by n"
        );
        $app.database.execute(sql).await;
    };
}

#[testing::test]
async fn places_are_counted_and_those_that_are_left_out_can_be_paged_through() {
    let app = App::spawn().await;
    let site = Site::with(&["ada_small.jpg"]).await;
    app.crawl(&[site.page()]).await;
    let shown = app.get_ok("/images").await["images"][0].clone();
    assert_eq!((&shown["sources_total"], &shown["sources_cut"]), (&json!(1), &json!(false)));
    add_sources!(app, 99, 40);
    let shown = app.get_ok("/images").await["images"][0].clone();
    assert_eq!(shown["sources"].as_array().unwrap().len(), 100);
    assert_eq!((&shown["sources_total"], &shown["sources_cut"]), (&json!(100), &json!(false)));
    add_sources!(app, 1, 41);
    let id = shown["id"].as_str().unwrap();
    let image = app.get_ok(&format!("/images/{id}")).await;
    let face = app.get_ok("/faces").await["faces"][0].clone();
    for shown in [&image, &image["faces"][0], &face] {
        assert_eq!(shown["sources"].as_array().unwrap().len(), 100);
        assert_eq!((&shown["sources_total"], &shown["sources_cut"]), (&json!(101), &json!(true)));
    }

    let mut all = Vec::new();
    let mut path = format!("/images/{id}/sources?limit=40");
    loop {
        let page = app.get_ok(&path).await;
        all.extend(page["sources"].as_array().unwrap().clone());
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/images/{id}/sources?limit=40&cursor={cursor}");
    }
    assert_eq!((all.len(), &json!(all[..100])), (101, &image["sources"]));
    problem(app.get(&format!("/images/{NOTHING}/sources")).await, 404, "not_found").await;
    problem(app.get(&format!("/images/{id}/sources?limit=201")).await, 400, "bad_query").await;
    problem(app.get(&format!("/images/{id}/sources?cursor=x")).await, 400, "bad_query").await;
}

#[testing::test]
async fn a_crowd_that_many_long_addresses_show_is_answered_in_a_bounded_number_of_bytes() {
    const FACES: i64 = 100;
    let app = App::spawn().await;
    let site = Site::with(&["ada_small.jpg"]).await;
    let crawl = app.crawl(&[site.page()]).await;
    app.database
        .execute(
            "insert into faces select (jsonb_populate_record(f, jsonb_build_object('id', gen_random_uuid()))).*
             from faces f, generate_series(2, 100)",
        )
        .await;
    add_sources!(app, 100, 8000);
    let image = app.get_ok("/faces?limit=1").await["faces"][0]["image_id"].as_str().unwrap().to_owned();
    // All sources of all faces would take 160 MB.
    for path in ["/faces?limit=1000".to_owned(), format!("/images/{image}")] {
        let answer = app.get(&path).await.bytes().await.unwrap();
        assert!(answer.len() < 18 << 20, "{path}: {} bytes", answer.len());
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        let faces = answer["faces"].as_array().unwrap();
        assert_eq!(faces.len() as i64, FACES);
        for face in faces {
            let shown = face["sources"].as_array().unwrap().len();
            assert!((1..100).contains(&shown), "{shown}");
            assert_eq!((&face["sources_total"], &face["sources_cut"]), (&json!(101), &json!(true)));
        }
    }
    let crawl = crawl["id"].as_str().unwrap();
    let table = app.get(&format!("/crawls/{crawl}/export?format=csv")).await.text().await.unwrap();
    assert_eq!(table.split_terminator("\r\n").count() as i64, 1 + FACES);
}
