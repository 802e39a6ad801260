//! Tests that responses do not reveal the addresses of names in the internal network.
use crate::support::site::Site;
use crate::support::{App, json_of, problem};
use reqwest::StatusCode;
use serde_json::json;

#[testing::test]
async fn a_forbidden_address_is_not_in_the_answer() {
    let app = App::spawn().await;
    // These addresses are outside of the range that the tests allow. Address literals are not
    // resolved.
    for url in ["http://10.11.12.13/", "http://[fd00::12]/", "http://169.254.169.254/latest/"] {
        let host = url.split('/').nth(2).unwrap().trim_matches(['[', ']']);
        let refused = app.post_json("/faces/detect", &json!({"url": url})).await;
        let refused = problem(refused, 422, "forbidden_url").await;
        assert_eq!(refused["reason"], "forbidden_address", "{refused}");
        let detail = refused["detail"].as_str().unwrap();
        assert!(!detail.contains(host), "{refused}");
        for range in ["private", "link-local", "unique-local", "loopback"] {
            assert!(!detail.contains(range), "{refused}");
        }
    }
}

#[testing::test]
async fn neither_is_it_in_what_a_crawl_or_a_job_says() {
    let app = App::spawn().await;
    let site = Site::with(&[]).await;
    let body = json!({"seeds": [format!("{}/to-metadata", site.url)], "delay_ms": 0, "scope": "list", "allow": ["169.254.169.254"]});
    let created = json_of(app.post_json("/crawls", &body).await, StatusCode::CREATED).await;
    let crawl = app.crawl_end(created["id"].as_str().unwrap()).await;
    assert_eq!(crawl["reasons"]["forbidden_address"], 1, "{crawl}");
    let id = crawl["id"].as_str().unwrap();
    let export = app.get(&format!("/crawls/{id}/export")).await.text().await.unwrap();
    let jobs = app.get("/jobs?limit=100").await.text().await.unwrap();
    // The options of the crawl contain the address too, but they come from the caller.
    for text in [crawl["error"].to_string(), export, jobs] {
        assert!(!text.contains("link-local") && !text.contains("169.254"), "{text}");
    }
}
