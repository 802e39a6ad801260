//! Runs one measurement and prints one JSON object on standard output; progress goes to standard
//! error. Measurements that need a database create one, and delete it at the end. They use the
//! server in `TEST_DATABASE_URL`, or else a private server that does not sync to disk.
//! `scripts/bench` uses a server that syncs.
//!
//!     cargo run --release -p facecrawl-bench --example measure -- MEASUREMENT --help
mod accuracy;
mod common;
mod control;
mod crawler;
mod footprint;
mod frontier;
mod load;
mod near;
mod queue;
mod search;
mod serve_folder;
mod serve_hosts;
mod watch;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Runs one measurement and prints one JSON object")]
struct Program {
    #[command(subcommand)]
    measurement: Measurement,
}

#[derive(Subcommand)]
enum Measurement {
    /// Claims and completes jobs, alone and next to a backlog
    Queue(queue::Arguments),
    /// Searches many faces: recall against the exact result, latency alone and while faces are
    /// stored, and the cost of the index
    Search(search::Arguments),
    /// Simulates crawls over very many hosts: politeness, fairness and the cost of claims
    Frontier(frontier::Arguments),
    /// Stores what a crawl stores: bytes per row, WAL, commits and written pages per image
    Footprint(footprint::Arguments),
    /// Pauses, resumes and cancels a crawl of a million rows; times in milliseconds
    Control,
    /// Crawls one host and writes its images to files, without database and models
    Crawler(crawler::Arguments),
    /// Compares faces of photographs: false matches and misses of embeddings and of sketches
    Accuracy(accuracy::Arguments),
    /// Counts the edited copies of images that are recognised as near duplicates
    Near(near::Arguments),
    /// Serves the images of a folder as a website until the process is stopped
    ServeFolder(serve_folder::Arguments),
    /// Serves pages of many host names over TLS until standard input ends, and reports the requests
    ServeHosts(serve_hosts::Arguments),
    /// Posts the images of a folder to a service on this machine
    Load(load::Arguments),
    /// Compares new faces with watched ones: the cost of a stored face with and without a watchlist
    Watch(watch::Arguments),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let report = match &Program::parse().measurement {
        Measurement::Queue(arguments) => queue::measure(arguments).await,
        Measurement::Search(arguments) => search::measure(arguments).await,
        Measurement::Frontier(arguments) => Ok(frontier::measure(arguments).await),
        Measurement::Footprint(arguments) => footprint::measure(arguments).await,
        Measurement::Control => control::measure().await,
        Measurement::Crawler(arguments) => crawler::measure(arguments).await,
        Measurement::Accuracy(arguments) => accuracy::measure(arguments).await,
        Measurement::Near(arguments) => near::measure(arguments),
        Measurement::ServeFolder(arguments) => serve_folder::serve(arguments).await,
        Measurement::ServeHosts(arguments) => serve_hosts::serve(arguments).await,
        Measurement::Load(arguments) => load::measure(arguments).await,
        Measurement::Watch(arguments) => watch::measure(arguments).await,
    };
    println!("{:#}", report?);
    Ok(())
}
