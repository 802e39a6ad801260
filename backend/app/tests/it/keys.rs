//! Tests `facecrawl keys` while a service runs.
#![cfg(unix)]

use crate::common::process::{Finished, TestFolder};
use crate::common::service::{Service, get};
use testing::TestDatabase;

#[testing::test(flavor = "multi_thread")]
async fn a_key_that_was_made_at_the_command_line_opens_the_service() {
    let place = TestFolder::new();
    // The commands connect to the private database of the service.
    let bin = testing::server::programs();
    let facecrawl = |args: &[&str]| {
        let mut command = place.facecrawl(args);
        command.env("POSTGRES_BIN_DIR", &bin).env("AUTH", "keys");
        command
    };
    let keys = |args: &[&str]| Finished::of(facecrawl(&["keys"]).args(args)).expect(0);
    let mut service = Service::start(&mut facecrawl(&["--port", "0"]));
    // At start, the service logs that there is no key yet. It answers only after that, so the key
    // is created after the first answer.
    let url = format!("{}/faces", service.base);
    assert_eq!(get(&url).await.0, 401);
    let made = keys(&["create", "--collection", "default", "--scope", "read,search", "--expires", "90d"]);
    let key = made.stdout.trim();
    assert!(key.starts_with("fc_") && made.stderr.contains("only time"), "{made:?}");
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    assert_eq!(client.get(&url).bearer_auth(key).send().await.unwrap().status(), 200);

    let listed = keys(&["list", "--json"]);
    assert!(!listed.stdout.contains(key), "{}", listed.stdout);
    let listed = listed.json();
    let id = listed["keys"][0]["id"].as_str().unwrap();
    assert_eq!(listed["keys"][0]["collection"], "default");
    assert_eq!(listed["keys"][0]["scopes"], serde_json::json!(["read", "search"]));
    assert!(keys(&["revoke", id]).stdout.contains("revoked"));
    assert!(keys(&["list"]).stdout.contains("revoked"));
    while client.get(&url).bearer_auth(key).send().await.unwrap().status() == 200 {
        tokio::task::yield_now().await;
    }

    // When a key is revoked, the keys that were created with it over HTTP are counted, and are
    // revoked on request.
    let maker = keys(&["create", "--all", "--scope", "read,keys", "--json"]).json();
    let body = serde_json::json!({"name": "a", "collection": null, "scopes": ["read"]});
    let make = client.post(format!("{}/keys", service.base)).bearer_auth(maker["key"].as_str().unwrap());
    assert_eq!(make.json(&body).send().await.unwrap().status(), 201);
    let id = maker["id"].as_str().unwrap();
    let alone = keys(&["revoke", id]);
    assert!(alone.stderr.contains("still work: 1") && alone.stderr.contains("--descendants"), "{alone:?}");
    let both = keys(&["revoke", id, "--descendants", "--json"]).json();
    assert_eq!([&both["descendants_revoked"], &both["descendants_working"]], [1, 0]);
    assert_eq!(keys(&["list", "--json"]).json()["keys"][0]["made_by"], id);
    service.signal(rustix::process::Signal::TERM);
    let (status, log) = service.ended();
    assert_eq!(status, Some(0), "{log}");
    assert!(log.contains("there is no key yet") && !log.contains(key), "{log}");
}

#[testing::test(flavor = "multi_thread")]
async fn what_cannot_be_is_said_with_what_can() {
    let database = TestDatabase::create().await;
    let place = TestFolder::new();
    let refused = |args: &[&str], words: &[&str]| {
        let mut command = place.facecrawl(&["keys"]);
        let refused = Finished::of(command.args(args).env("DATABASE_URL", database.url())).expect(2);
        for word in words {
            assert!(refused.stderr.contains(word), "{args:?}: {}", refused.stderr);
        }
    };
    refused(&["create", "--scope", "read"], &["--collection", "--all"]);
    refused(&["create", "--all"], &["--scope"]);
    refused(&["create", "--all", "--scope", "root"], &["root", "analyze", "admin"]);
    refused(&["create", "--all", "--collection", "default", "--scope", "read"], &["--all"]);
    refused(&["create", "--collection", "nobodys", "--scope", "read"], &["nobodys", "default"]);
    refused(&["create", "--collection", "default", "--scope", "system"], &["system", "all collections"]);
    refused(&["create", "--all", "--scope", "read", "--expires", "soon"], &["soon", "90d"]);
    refused(&["create", "--all", "--scope", "read", "--requests-per-minute", "0"], &["0"]);
    refused(&["create", "--all", "--scope", "read", "--name", ""], &["1 to 200"]);
    refused(&["revoke", "7"], &["7"]);
    refused(&["revoke", "00000000-0000-7000-8000-000000000000"], &["keys list"]);
}
