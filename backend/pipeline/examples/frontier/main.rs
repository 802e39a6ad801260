//! Simulates crawls over very many hosts and checks politeness, fairness and the cost of claims.
//!
//!     TEST_DATABASE_URL=postgres://… \
//!       cargo run --release -p facecrawl-pipeline --example frontier -- 1000 1000000
//!
//! Each argument is a number of hosts, and each is simulated separately in its own database.
//! `1000000:50000` ends after 50,000 requests. The simulation uses the schema of the product, its
//! queue (claims, partition keys, snoozes, retries) and its per-host permits.
//!
//! The clock is simulated: SQL statements read it from functions that replace those of the system.
//! The hosts are simulated too (responses and response times), as is the loop of a worker. The
//! numbers of pages per host follow a Zipf distribution. Some hosts are slow, dead or busy. Four
//! crawls of very different sizes run concurrently.
//!
//! Prints one JSON document. `docs/explanation/SCALING.md` explains the figures and their limits.
#![allow(missing_docs)]

mod ledger;
mod simulation;
mod world;

use serde_json::json;
use simulation::Simulation;
use testing::TestDatabase;
use world::Sizes;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut runs = Vec::new();
    for argument in std::env::args().skip(1) {
        let sizes = sizes(&argument)?;
        let database = TestDatabase::create().await;
        let report = Simulation::prepare(&database, sizes).await.run().await;
        eprintln!("{argument}: {report}");
        runs.push(report);
    }
    if runs.is_empty() {
        return Err("name one or more numbers of hosts".into());
    }
    println!("{}", serde_json::to_string_pretty(&json!({"runs": runs}))?);
    Ok(())
}

fn sizes(argument: &str) -> Result<Sizes, String> {
    let (hosts, requests) =
        argument.split_once(':').map_or((argument, None), |(hosts, requests)| (hosts, Some(requests)));
    let number =
        |text: &str| text.parse().map_err(|error| format!("{text:?} in {argument:?} is no number: {error}"));
    let sizes = Sizes::of(number(hosts)?);
    if sizes.hosts < 100 {
        return Err(format!("{argument:?}: 100 hosts or more are allowed"));
    }
    Ok(Sizes { requests: requests.map_or(Ok(usize::MAX), number)?, ..sizes })
}
