//! Tests what an erasure deletes and suppresses, and that no trace remains.
mod addresses;
mod copies;
mod neighbours;
mod people;
mod traces;

use crate::support::{App, and, erase, json_of};
use reqwest::StatusCode;
use serde_json::{Value, json};
use std::process::Command;
use vision::{Frame, Limits};

/// Returns the whole database as text, with compressed columns decompressed.
pub(crate) fn dump(app: &App) -> String {
    let dump =
        Command::new(testing::server::programs().join("pg_dump")).arg(app.database.url()).output().unwrap();
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    String::from_utf8_lossy(&testing::unpacked(dump.stdout)).into_owned()
}

/// Crawls one seed with additional options and returns the crawl after it has ended.
async fn crawl_with(app: &App, seed: &str, options: Value) -> Value {
    let body = and(json!({"seeds": [seed], "delay_ms": 0}), options);
    let created = json_of(app.post_json("/crawls", &body).await, StatusCode::CREATED).await;
    app.crawl_end(created["id"].as_str().unwrap()).await
}

fn pixels(name: &str) -> Frame {
    decoded(&testing::picture(name))
}

fn decoded(file: &[u8]) -> Frame {
    vision::decode(file, &Limits::default()).unwrap().frame
}
