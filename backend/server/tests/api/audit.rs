use crate::support::keys::{guarded, tenant_scopes};
use crate::support::site::Site;
use crate::support::{App, field, ok, problem};
use reqwest::Method;
use serde_json::{Value, json};
use store::keys::Scope;

#[testing::test]
async fn searches_and_deletions_are_recorded_with_their_key_and_without_what_was_seen() {
    let app = App::spawn_with(guarded()).await;
    let site = Site::with(&["ada_small.jpg", "two_people.jpg"]).await;
    let (key, ours) = app.key(Some("ours"), &tenant_scopes()).await;
    let (_, theirs) = app.key(Some("theirs"), &tenant_scopes()).await;
    let (_, operator) = app.key(None, &[Scope::Admin]).await;
    app.crawl_as(&ours, None, &site.page()).await;
    let faces = ok(app.ask(&ours, Method::GET, "/faces", None).await).await;
    let face = faces["faces"][0].clone();
    let id = face["id"].as_str().unwrap();
    let found = ok(app.ask(&ours, Method::POST, "/faces/search", Some(&json!({"face_id": id}))).await).await;
    app.ask(&ours, Method::DELETE, &format!("/faces/{id}"), None).await.error_for_status().unwrap();

    let log = ok(app.ask(&ours, Method::GET, "/audit", None).await).await;
    let records = log["records"].as_array().unwrap();
    let actions: Vec<&str> = records.iter().map(|record| record["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["face.delete", "face.search"]);
    for record in records {
        assert_eq!((&record["collection"], &record["key_id"]), (&json!("ours"), &json!(key.id)));
        assert!(!record["request_id"].as_str().unwrap().is_empty());
        assert_eq!(record["detail"]["face_id"], id);
    }
    assert_eq!(records[1]["detail"]["matches"], found["matches"].as_array().unwrap().len());
    let text = log.to_string();
    assert!(!text.contains("http") && !text.contains("embedding"), "{text}");

    // No request of the other tenant returns a record. The operator sees all records.
    for query in ["".to_owned(), format!("?key_id={}", key.id)] {
        let log = ok(app.ask(&theirs, Method::GET, &format!("/audit{query}"), None).await).await;
        assert_eq!(log["records"], json!([]));
    }
    problem(app.ask(&theirs, Method::GET, "/audit?collection=ours", None).await, 404, "not_found").await;
    let all = ok(app.ask(&operator, Method::GET, "/audit?collection=ours", None).await).await;
    assert_eq!(all["records"], log["records"]);
}

#[testing::test]
async fn the_log_is_filtered_and_paged() {
    let app = App::spawn().await;
    for name in ["a", "b", "c"] {
        app.post_json("/collections", &json!({"name": name})).await;
    }
    let names = |log: &Value| -> Vec<String> {
        let records = log["records"].as_array().unwrap();
        records.iter().map(|record| record["detail"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let first = app.get_ok("/audit?limit=2").await;
    assert_eq!(names(&first), ["c", "b"]);
    let cursor = first["next_cursor"].as_str().unwrap();
    let last = app.get_ok(&format!("/audit?limit=2&cursor={cursor}")).await;
    assert_eq!((names(&last), &last["next_cursor"]), (vec!["a".to_owned()], &Value::Null));
    assert_eq!(names(&app.get_ok("/audit?collection=b").await), ["b"]);
    assert_eq!(names(&app.get_ok("/audit?action=face.search").await), [""; 0]);
    let middle = first["records"][1]["at"].as_str().unwrap().replace('+', "%2B");
    assert_eq!(names(&app.get_ok(&format!("/audit?since={middle}")).await), ["c", "b"]);
    assert_eq!(names(&app.get_ok(&format!("/audit?until={middle}")).await), ["a"]);
    for (query, name) in
        [("action=look", "action"), ("since=today", "since"), ("key_id=1", "key_id"), ("cursor=x", "cursor")]
    {
        let refused = problem(app.get(&format!("/audit?{query}")).await, 400, "bad_query").await;
        assert_eq!(field(&refused), name);
        assert!(!refused["allowed"].as_array().unwrap().is_empty());
    }
}
