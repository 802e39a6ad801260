//! Simulates crawls over very many hosts and checks politeness, fairness and the cost of claims.
//!
//!     TEST_DATABASE_URL=postgres://… cargo run --release -p facecrawl-pipeline --example frontier -- 1000 1000000
//!
//! The arguments are numbers of hosts, each of which is simulated by itself in a database of its own (`1000000:50000` ends after 50,000 requests), in the product's schema, through the product's
//! queue (claims, lanes, snoozes, retries) and host turns. The clock is simulated: statements read it from functions that stand before the system's. Hosts
//! are heavy-tailed (Zipf), some are slow, dead or busy, and four crawls of very different size run side by side. What is simulated beside the clock are the
//! hosts themselves (how long they take, what they answer) and the loop of a worker. Prints one JSON document; `docs/measurements/FRONTIER.md` says what the
//! figures mean and what they do not prove.
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
