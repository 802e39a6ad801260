//! Tests `POST` and `GET /crawls`, and `GET /crawls/{id}`.
use crate::support::site::Site;
use crate::support::{App, Options, field, json_of, problem};
use reqwest::StatusCode;
use serde_json::{Value, json};

#[testing::test]
async fn a_crawl_ends_with_every_page_and_image_accounted_for() {
    let app = App::spawn().await;
    let site = Site::with(&["ada_small.jpg", "small_pair.jpg"]).await;
    let body =
        json!({"seeds": [site.page(), format!("{}/nowhere.jpg", site.url)], "delay_ms": 0, "max_depth": 1});
    let response = app.post_json("/crawls", &body).await;
    let location = response.headers()["location"].to_str().unwrap().to_owned();
    let created = json_of(response, StatusCode::CREATED).await;
    assert_eq!(location, format!("/crawls/{}", created["id"].as_str().unwrap()));
    assert_eq!((&created["collection"], &created["kind"]), (&json!("default"), &json!("web")));
    assert_eq!(created["options"]["max_depth"], 1);

    let crawl = app.crawl_end(created["id"].as_str().unwrap()).await;
    assert_eq!(crawl["state"], "completed");
    assert_eq!(crawl["counts"]["pages"], json!({"queued": 0, "fetched": 1, "skipped": 0, "failed": 0}));
    assert_eq!(
        crawl["counts"]["images"],
        json!({"queued": 0, "processed": 2, "duplicate": 0, "skipped": 0, "failed": 1, "suppressed": 0})
    );
    assert_eq!(crawl["reasons"], json!({"http_404": 1}));
    assert!(crawl["counts"]["faces"].as_u64().unwrap() >= 1);
    assert!(crawl["finished_at"].as_str().unwrap().ends_with('Z'), "{}", crawl["finished_at"]);
}

#[testing::test]
async fn crawls_are_listed_newest_first_by_page_and_state() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let body = json!({"seeds": ["http://127.0.0.1:9/"]});
        let created = json_of(app.post_json("/crawls", &body).await, StatusCode::CREATED).await;
        ids.insert(0, created["id"].clone());
    }
    let all = app.get_ok("/crawls").await;
    let listed: Vec<Value> =
        all["crawls"].as_array().unwrap().iter().map(|crawl| crawl["id"].clone()).collect();
    assert_eq!(listed, ids);
    let first = app.get_ok("/crawls?limit=2&collection=default&state=running").await;
    assert_eq!(first["crawls"].as_array().unwrap().len(), 2);
    let filters = "collection=default&state=running";
    let cursor = first["next_cursor"].as_str().unwrap();
    let rest = app.get_ok(&format!("/crawls?limit=1&{filters}&cursor={cursor}")).await;
    assert_eq!((&rest["crawls"][0]["id"], &rest["next_cursor"]), (&ids[2], &Value::Null));
    assert_eq!(app.get_ok("/crawls?state=failed").await["crawls"], json!([]));

    let wrong = problem(app.get("/crawls?state=sleeping").await, 400, "bad_query").await;
    assert_eq!((field(&wrong), wrong["allowed"].as_array().unwrap().len()), ("state", 5));
    problem(app.get("/crawls?limit=101").await, 400, "bad_query").await;
    problem(app.get("/crawls?collection=nowhere").await, 404, "not_found").await;
    problem(app.get("/crawls/00000000-0000-7000-8000-000000000000").await, 404, "not_found").await;
}

#[testing::test]
async fn wrong_crawls_are_refused_with_the_field() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let good = "http://127.0.0.1:9/";
    for (body, named) in [
        (json!({}), "seeds"),
        (json!({"seeds": []}), "seeds"),
        (json!({"seeds": ["nonsense"]}), "seeds"),
        (json!({"seeds": ["file:///etc/passwd"]}), "seeds"),
        (json!({"seeds": [format!("http://{}test/a.jpg", "a.".repeat(300))]}), "seeds"),
        (json!({"seeds": [format!("http://{}test/", "a.".repeat(300))]}), "seeds"),
        (json!({"seeds": [format!("http://a.test/{}", "\u{fc}".repeat(2_000))]}), "seeds"),
        (json!({"seeds": [1]}), "seeds[0]"),
        (json!({"seeds": [good], "max_depth": -1}), "max_depth"),
        (json!({"seeds": [good], "max_pages": 0}), "max_pages"),
        (json!({"seeds": [good], "scope": "world"}), "scope"),
        (json!({"seeds": [good], "dedupe": "some"}), "dedupe"),
        (json!({"seeds": [good], "depth": 2}), "depth"),
        (json!({"seeds": [good], "every": "1m"}), "every"),
        (json!({"seeds": [good], "every": 3600}), "every"),
        (json!({"seeds": [good], "collection": "No Such"}), "collection"),
        (json!({"seeds": [good], "collection": "unmade"}), "collection"),
    ] {
        let wrong = problem(app.post_json("/crawls", &body).await, 422, "invalid_field").await;
        assert_eq!(field(&wrong), named, "{wrong}");
    }
    for seed in
        ["http://ada:secret@127.0.0.1:9/", "https://secret@127.0.0.1/a.jpg", "ftp://ada:secret@a.test/"]
    {
        let wrong = app.post_json("/crawls", &json!({"seeds": [good, seed]})).await;
        let wrong = problem(wrong, 422, "invalid_field").await;
        assert_eq!(field(&wrong), "seeds", "{wrong}");
        assert!(wrong["detail"].as_str().unwrap().contains("number 2"), "{wrong}");
        assert!(!wrong.to_string().contains("secret"), "{wrong}");
    }
    problem(app.post_raw("/crawls", "application/json", b"{".to_vec()).await, 400, "bad_json").await;
    problem(app.post_raw("/crawls", "text/plain", b"{}".to_vec()).await, 415, "unsupported_media_type").await;
    assert_eq!(app.get_ok("/crawls").await["crawls"], json!([]), "no crawl may be created");
}

/// Returns a seed with `bytes` bytes in normal form, and about a third of that in the request. In
/// normal form, each 3-byte character is percent-encoded with 9 bytes.
fn seed(number: usize, bytes: usize) -> String {
    let start = format!("http://127.0.0.1:9/{number}/");
    let (escaped, plain) = ((bytes - start.len()) / 9, (bytes - start.len()) % 9);
    format!("{start}{}{}", "\u{5b57}".repeat(escaped), "x".repeat(plain))
}

#[testing::test]
async fn the_bytes_of_seeds_are_counted_in_their_normal_form() {
    const SEEDS: usize = 1 << 10;
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let mut seeds: Vec<String> = (0..SEEDS).map(|number| seed(number, 1 << 10)).collect();
    assert!(
        seeds.iter().map(String::len).sum::<usize>() < 400 << 10,
        "a request must have about a third of the bytes"
    );
    let whole = json!({"seeds": seeds, "max_pages": SEEDS});
    json_of(app.post_json("/crawls", &whole).await, StatusCode::CREATED).await;
    seeds[0].push('x');
    let refused = app.post_json("/crawls", &json!({"seeds": seeds, "max_pages": SEEDS})).await;
    let refused = problem(refused, 422, "invalid_field").await;
    assert_eq!(field(&refused), "seeds", "{refused}");
    // A duplicate seed is stored and counted once.
    seeds[0] = seeds[1].clone();
    let body = json!({"seeds": seeds, "max_pages": SEEDS});
    json_of(app.post_json("/crawls", &body).await, StatusCode::CREATED).await;
}

#[testing::test]
async fn lists_and_events_show_the_first_seeds_and_how_many_there_are() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    // A list shows at most 100 seeds, with a total size of at most 16 KiB. The limits apply to
    // short and long seeds.
    for (bytes, shown) in [(30, 100), (1 << 10, 16), (8_000, 2)] {
        let seeds: Vec<String> = (0..120).map(|number| seed(number, bytes)).collect();
        let created = json_of(app.post_json("/crawls", &json!({"seeds": seeds})).await, StatusCode::CREATED);
        let id = created.await["id"].as_str().unwrap().to_owned();
        let whole = app.get_ok(&format!("/crawls/{id}")).await;
        let all = whole["seeds"].as_array().unwrap();
        assert_eq!((all.len(), &whole["seed_count"]), (120, &json!(120)));
        let list = app.get_ok("/crawls?limit=1").await;
        app.post_json(&format!("/crawls/{id}/cancel"), &json!({})).await;
        let events = app.get(&format!("/crawls/{id}/events")).await.text().await.unwrap();
        let event = events.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        for brief in [&list["crawls"][0], &serde_json::from_str(event).unwrap()] {
            assert_eq!((brief["id"].as_str(), &brief["seed_count"]), (Some(id.as_str()), &json!(120)));
            assert_eq!(brief["seeds"].as_array().unwrap(), &all[..shown]);
        }
    }
}
