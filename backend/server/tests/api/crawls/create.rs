//! Tests the operations that create, list, pause, resume, cancel and delete crawls, recurring
//! crawls, and the list of images that a crawl did not process.
use crate::support::site::Site;
use crate::support::{App, Json, Options, erase, field, ok, parse_time, problem, to_json};
use axum::Router;
use axum::response::Html;
use axum::routing::get;
use reqwest::StatusCode;
use serde_json::{Value, json};
use time::OffsetDateTime;

#[testing::test]
async fn completed_crawl_accounts_for_every_page_and_image() {
    let app = App::spawn().await;
    let site = Site::new(&["ada_small.jpg", "small_pair.jpg"]).await;
    let body =
        json!({"seeds": [site.page(), format!("{}/nowhere.jpg", site.url)], "delay_ms": 0, "max_depth": 1});
    let response = app.post_json("/crawls", &body).await;
    let location = response.headers()["location"].to_str().unwrap().to_owned();
    let created = to_json(response, StatusCode::CREATED).await;
    assert_eq!(location, format!("/crawls/{}", created.text("id")));
    assert_eq!((&created["collection"], &created["kind"]), (&json!("default"), &json!("web")));
    assert_eq!(created["options"]["max_depth"], 1);

    let crawl = app.wait_for_crawl(created.text("id")).await;
    assert_eq!(crawl["state"], "completed");
    assert_eq!(crawl["counts"]["pages"], json!({"queued": 0, "fetched": 1, "skipped": 0, "failed": 0}));
    assert_eq!(
        crawl["counts"]["images"],
        json!({"queued": 0, "processed": 2, "duplicate": 0, "skipped": 0, "failed": 1, "suppressed": 0})
    );
    assert_eq!(crawl["reasons"], json!({"http_404": 1}));
    assert!(crawl["counts"]["faces"].as_u64().unwrap() >= 1);
    assert!(crawl.text("finished_at").ends_with('Z'), "{}", crawl["finished_at"]);
}

#[testing::test]
async fn crawls_are_listed_newest_first_with_filters() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let created = app.create("/crawls", &json!({"seeds": ["http://127.0.0.1:9/"]})).await;
        ids.insert(0, created["id"].clone());
    }
    let first_list = app.get_ok("/crawls").await;
    let listed: Vec<Value> = first_list.list("crawls").iter().map(|crawl| crawl["id"].clone()).collect();
    assert_eq!(listed, ids);
    let first = app.get_ok("/crawls?limit=2&collection=default&state=running").await;
    assert_eq!(first.list("crawls").len(), 2);
    let filters = "collection=default&state=running";
    let cursor = first.text("next_cursor");
    let last_page = app.get_ok(&format!("/crawls?limit=1&{filters}&cursor={cursor}")).await;
    assert_eq!((&last_page["crawls"][0]["id"], &last_page["next_cursor"]), (&ids[2], &Value::Null));
    assert_eq!(app.get_ok("/crawls?state=failed").await["crawls"], json!([]));

    let error = problem(app.get("/crawls?state=sleeping").await, 400, "bad_query").await;
    assert_eq!((field(&error), error.list("allowed").len()), ("state", 5));
    problem(app.get("/crawls?limit=101").await, 400, "bad_query").await;
    problem(app.get("/crawls?collection=nowhere").await, 404, "not_found").await;
    problem(app.get("/crawls/00000000-0000-7000-8000-000000000000").await, 404, "not_found").await;
}

#[testing::test]
async fn invalid_crawl_error_names_field() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let good = "http://127.0.0.1:9/";
    for (body, field_name) in [
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
        let error = problem(app.post_json("/crawls", &body).await, 422, "invalid_field").await;
        assert_eq!(field(&error), field_name, "{error}");
    }
    for seed in
        ["http://ada:secret@127.0.0.1:9/", "https://secret@127.0.0.1/a.jpg", "ftp://ada:secret@a.test/"]
    {
        let response = app.post_json("/crawls", &json!({"seeds": [good, seed]})).await;
        let error = problem(response, 422, "invalid_field").await;
        assert_eq!(field(&error), "seeds", "{error}");
        assert!(error.text("detail").contains("number 2"), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
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
async fn seed_bytes_are_counted_in_normal_form() {
    const SEEDS: usize = 1 << 10;
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let mut seeds: Vec<String> = (0..SEEDS).map(|number| seed(number, 1 << 10)).collect();
    assert!(
        seeds.iter().map(String::len).sum::<usize>() < 400 << 10,
        "a request must have about a third of the bytes"
    );
    app.create("/crawls", &json!({"seeds": seeds, "max_pages": SEEDS})).await;
    seeds[0].push('x');
    let response = app.post_json("/crawls", &json!({"seeds": seeds, "max_pages": SEEDS})).await;
    let error = problem(response, 422, "invalid_field").await;
    assert_eq!(field(&error), "seeds", "{error}");
    // A duplicate seed is stored and counted once.
    seeds[0] = seeds[1].clone();
    let body = json!({"seeds": seeds, "max_pages": SEEDS});
    app.create("/crawls", &body).await;
}

#[testing::test]
async fn lists_and_events_truncate_seeds_and_state_count() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    // A list shows at most 100 seeds, with a total size of at most 16 KiB. The limits apply to
    // short and long seeds.
    for (bytes, shown) in [(30, 100), (1 << 10, 16), (8_000, 2)] {
        let seeds: Vec<String> = (0..120).map(|number| seed(number, bytes)).collect();
        let created = to_json(app.post_json("/crawls", &json!({"seeds": seeds})).await, StatusCode::CREATED);
        let id = created.await.text("id").to_owned();
        let crawl = app.get_ok(&format!("/crawls/{id}")).await;
        let all_seeds = crawl.list("seeds");
        assert_eq!((all_seeds.len(), &crawl["seed_count"]), (120, &json!(120)));
        let list = app.get_ok("/crawls?limit=1").await;
        app.post_json(&format!("/crawls/{id}/cancel"), &json!({})).await;
        let events = app.get(&format!("/crawls/{id}/events")).await.text().await.unwrap();
        let event = events.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        for truncated in [&list["crawls"][0], &serde_json::from_str(event).unwrap()] {
            assert_eq!(
                (truncated["id"].as_str(), &truncated["seed_count"]),
                (Some(id.as_str()), &json!(120))
            );
            assert_eq!(truncated.list("seeds"), &all_seeds[..shown]);
        }
    }
}

#[testing::test]
async fn crawl_can_be_paused_resumed_cancelled_and_deleted() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let path = app.idle_crawl().await;
    let change = async |name: &str| app.post_json(&format!("{path}/{name}"), &json!({})).await;

    problem(change("resume").await, 409, "conflict").await;
    assert_eq!(ok(change("pause").await).await["state"], "paused");
    problem(change("pause").await, 409, "conflict").await;
    problem(app.delete(&path).await, 409, "conflict").await;
    assert_eq!(ok(change("resume").await).await["state"], "running");
    problem(app.delete(&path).await, 409, "conflict").await;
    let cancelled = ok(change("cancel").await).await;
    assert_eq!(cancelled["state"], "cancelled");
    assert_eq!(cancelled["counts"]["pages"], json!({"queued": 0, "fetched": 0, "skipped": 1, "failed": 0}));
    assert_eq!(cancelled["reasons"], json!({"cancelled": 1}));
    for name in ["pause", "resume", "cancel"] {
        problem(change(name).await, 409, "conflict").await;
        let nowhere = format!("/crawls/00000000-0000-7000-8000-000000000000/{name}");
        problem(app.post_json(&nowhere, &json!({})).await, 404, "not_found").await;
    }
    assert_eq!(app.delete(&path).await.status(), StatusCode::NO_CONTENT);
    problem(app.get(&path).await, 404, "not_found").await;
    problem(app.delete(&path).await, 404, "not_found").await;
}

#[testing::test]
async fn crawl_deletion_keeps_images_unless_requested() {
    let (app, _site, first) = App::with_crawl(&["ada_small.jpg"]).await;
    let path = format!("/crawls/{}", first.text("id"));
    problem(app.delete(&format!("{path}?with_images=perhaps")).await, 400, "bad_query").await;
    assert_eq!(app.delete(&path).await.status(), StatusCode::NO_CONTENT);
    let remaining_images = app.get_ok("/images").await;
    assert_eq!(remaining_images.list("images").len(), 1);
    assert_eq!(remaining_images["images"][0]["sources"][0]["crawl_id"], json!(null));

    let second_site = Site::new(&["ben_2.jpg"]).await;
    let second = app.crawl(&[second_site.page()]).await;
    assert_eq!(app.get_ok("/images").await.list("images").len(), 2);
    let path = format!("/crawls/{}?with_images=true", second.text("id"));
    assert_eq!(app.delete(&path).await.status(), StatusCode::NO_CONTENT);
    assert_eq!(app.get_ok("/images").await["images"], remaining_images["images"]);
}

async fn create_recurring(app: &App, seed: String) -> String {
    let created = app.create("/crawls", &json!({"seeds": [seed], "delay_ms": 0, "every": "60m"})).await;
    assert_eq!(
        (&created["options"]["every"], &created["series_id"], &created["next_run_at"]),
        (&json!("1h"), &created["id"], &Value::Null)
    );
    created.text("id").to_owned()
}

/// Makes the scheduled next run due now.
async fn make_next_run_due(app: &App) {
    app.database.execute("update jobs set scheduled_at = now() where kind = 'start_crawl'").await;
}

async fn wait_for_runs(app: &App, series: &str, count: usize) -> Vec<Value> {
    let are_finished = |response: &Value| {
        let runs = response.list("crawls");
        runs.len() == count && runs.iter().all(|run| run["finished_at"] != Value::Null)
    };
    let response = app.poll(&format!("/crawls?series_id={series}"), are_finished).await;
    response.list("crawls").clone()
}

#[testing::test]
async fn each_run_is_separate_crawl_and_schedules_next() {
    let app = App::spawn().await;
    let site = Site::new(&["ada_small.jpg"]).await;
    let id = create_recurring(&app, site.page()).await;
    let first = &wait_for_runs(&app, &id, 1).await[0];
    assert_eq!(parse_time(&first["next_run_at"]) - parse_time(&first["created_at"]), time::Duration::HOUR);
    let error = problem(app.delete(&format!("/crawls/{id}")).await, 409, "conflict").await;
    assert!(error.text("detail").contains("a further run is scheduled"), "{error}");

    make_next_run_due(&app).await;
    let all_runs = wait_for_runs(&app, &id, 2).await;
    let (second, first) = (&all_runs[0], &all_runs[1]);
    assert_eq!((&first["id"], &first["next_run_at"]), (&json!(id), &Value::Null));
    assert_eq!((&second["series_id"], &second["state"]), (&json!(id), &json!("completed")));
    assert_eq!((&second["seeds"], &second["options"]), (&first["seeds"], &first["options"]));
    assert_eq!(
        second["counts"]["images"]["duplicate"], 1,
        "each run has a separate ledger, and the image is already stored"
    );
    assert!(second["next_run_at"].is_string());
    assert_eq!(app.delete(&format!("/crawls/{id}")).await.status(), StatusCode::NO_CONTENT);
    make_next_run_due(&app).await;
    assert_eq!(wait_for_runs(&app, &id, 2).await.len(), 2, "the series continues without its first run");
}

#[testing::test]
async fn cancelled_schedule_starts_no_further_run() {
    let app = App::spawn().await;
    let site = Site::new(&["ada_small.jpg"]).await;
    let id = create_recurring(&app, site.page()).await;
    wait_for_runs(&app, &id, 1).await;
    let cancelled = app.post_ok(&format!("/crawls/{id}/cancel"), &json!({})).await;
    assert_eq!((&cancelled["state"], &cancelled["next_run_at"]), (&json!("completed"), &Value::Null));
    problem(app.post_json(&format!("/crawls/{id}/cancel"), &json!({})).await, 409, "conflict").await;
    make_next_run_due(&app).await;
    app.poll("/jobs?kind=start_crawl&state=any", |response| {
        response.list("jobs").iter().all(|job| job["state"] == "completed")
    })
    .await;
    assert_eq!(wait_for_runs(&app, &id, 1).await.len(), 1, "no run starts after the cancellation");

    // The caller cancels with the id of the first run, regardless of which run is active.
    let id = create_recurring(&app, format!("{}/held.jpg", site.url)).await;
    site.request_arrived.notified().await;
    site.release.notify_one();
    wait_for_runs(&app, &id, 1).await;
    make_next_run_due(&app).await;
    site.request_arrived.notified().await;
    app.post_ok(&format!("/crawls/{id}/cancel"), &json!({})).await;
    let all_runs = wait_for_runs(&app, &id, 2).await;
    assert_eq!((&all_runs[0]["state"], &all_runs[0]["next_run_at"]), (&json!("cancelled"), &Value::Null));
}

#[testing::test]
async fn run_longer_than_interval_is_followed_immediately() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let id = create_recurring(&app, "http://127.0.0.1:9/".into()).await;
    app.database.execute("update crawls set created_at = now() - interval '3 hours'").await;
    app.database.execute("update pages set state = 'failed', reason = 'connect_failure'").await;
    let ended = app.state.services.crawls.reconcile().await.unwrap();
    assert_eq!(ended.crawls, 1);
    let run = app.get_ok(&format!("/crawls/{id}")).await;
    assert_eq!(run["state"], "failed", "a failed run is also followed by the next run");
    assert!(parse_time(&run["next_run_at"]) <= OffsetDateTime::now_utc());
}

fn image_urls(page: &Value) -> Vec<&str> {
    page.list("images").iter().map(|image| image.text("url")).collect()
}

#[testing::test]
async fn unprocessed_images_are_listed_with_reasons() {
    let app = App::spawn().await;
    let site = Site::new(&["ada_small.jpg"]).await;
    let missing = ["first.jpg", "second.jpg", "third.jpg"].map(|name| site.image(name));
    let mut seeds = vec![site.image("ada_small.jpg")];
    seeds.extend(missing.clone());
    let crawl = app.crawl(&seeds).await;
    assert_eq!(crawl["reasons"], json!({"http_404": 3}), "{crawl}");
    let path = format!("/crawls/{}/unprocessed-images", crawl.text("id"));

    let images = app.get_ok(&path).await;
    assert_eq!(
        (image_urls(&images), &images["next_cursor"]),
        (missing.iter().map(String::as_str).collect(), &Value::Null)
    );
    let first = &images["images"][0];
    assert_eq!((&first["state"], &first["reason"]), (&json!("failed"), &json!("http_404")));
    assert_eq!(first["explanation"], "The server responded with HTTP 404");
    assert_eq!(first["page_url"], Value::Null);
    assert!(first["finished_at"].is_string());

    let page = app.get_ok(&format!("{path}?limit=2")).await;
    let last_page = app.get_ok(&format!("{path}?limit=2&cursor={}", page.text("next_cursor"))).await;
    assert_eq!([image_urls(&page), image_urls(&last_page)].concat(), image_urls(&images));
    assert_eq!(app.get_ok(&format!("{path}?reason=http_404")).await, images);
    assert_eq!(app.get_ok(&format!("{path}?reason=timeout")).await["images"], json!([]));
    let error = problem(app.get(&format!("{path}?state=failed")).await, 400, "bad_query").await;
    assert_eq!(field(&error), "state");
    let unknown = "/crawls/00000000-0000-7000-8000-000000000000/unprocessed-images";
    problem(app.get(unknown).await, 404, "not_found").await;

    // An erased address is not shown.
    erase(&app, &json!({"url": missing[1]})).await;
    assert_eq!(image_urls(&app.get_ok(&path).await), [&missing[0], &missing[2]]);
}

#[testing::test]
async fn unprocessed_image_is_listed_with_page() {
    let app = App::spawn().await;
    let page = Html("<!doctype html><title>Pictures</title><img src=/pictures/missing.jpg>");
    let site = Site::start(Router::new().route("/", get(move || async move { page }))).await;
    let crawl = app.crawl(&[site.page()]).await;
    let path = format!("/crawls/{}/unprocessed-images", crawl.text("id"));
    let images = app.get_ok(&path).await;
    assert_eq!(image_urls(&images), [site.image("missing.jpg")]);
    assert_eq!(images["images"][0]["page_url"], site.page());
}
