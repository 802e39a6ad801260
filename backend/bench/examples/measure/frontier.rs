//! Simulates crawls over very many hosts and checks politeness, fairness and the cost of claims.
//!
//! The simulation uses the schema of the product, its queue (claims, partition keys, snoozes,
//! retries) and its per-host permits. The clock is simulated: SQL statements read it from functions
//! that replace those of the system. The hosts are simulated too (responses and response times), as
//! is the loop of a worker. The numbers of pages per host follow a Zipf distribution. Some hosts
//! are slow, dead or busy. Four crawls of very different sizes run concurrently.
//! docs/measurements/QUEUE.md explains the figures and their limits.
//!
//! The test `backend/bench/tests/it/measurements.rs` runs the same files at a small size.
mod simulation;
mod world;

use serde_json::{Value, json};
use simulation::Simulation;
use testing::TestDatabase;
use world::Sizes;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Numbers of hosts, each at least 100 and simulated in its own database; HOSTS:REQUESTS ends
    /// after that number of requests
    #[arg(value_parser = parse_sizes, default_values = ["1000", "10000", "1000000:50000"])]
    hosts: Vec<Sizes>,
}

pub(crate) async fn measure(arguments: &Arguments) -> Value {
    let mut runs = Vec::new();
    for sizes in &arguments.hosts {
        let database = TestDatabase::create().await;
        let report = Simulation::prepare(&database, sizes.clone()).await.run().await;
        eprintln!("{} hosts: {report}", sizes.hosts);
        runs.push(report);
    }
    json!({"runs": runs})
}

fn parse_sizes(argument: &str) -> Result<Sizes, String> {
    let (hosts, requests) = argument.split_once(':').unwrap_or((argument, ""));
    let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is no number"));
    let sizes = Sizes::for_hosts(number(hosts)?);
    if sizes.hosts < 100 {
        return Err("100 hosts or more are allowed".into());
    }
    let requests = if requests.is_empty() { usize::MAX } else { number(requests)? };
    Ok(Sizes { requests, ..sizes })
}
