//! Serves many host names over TLS on loopback, with pages that link to each other, and checks that
//! no host receives requests faster than its delay.
//!
//! The names end in `.test`; the caller makes them resolve to 127.0.0.1. Every host has its own
//! certificate of one authority that exists only during the run.
//!
//! The test `backend/bench/tests/it/measurements.rs` uses the same server.
mod server;
mod site;

use anyhow::Context;
use serde_json::{Value, json};
use server::Server;
use site::{Sites, name};
use std::io::Read;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of host names
    #[arg(long)]
    hosts: NonZeroUsize,
    /// Number of pages of each host
    #[arg(long)]
    pages: NonZeroUsize,
    /// The crawler's delay between two requests to a host, in milliseconds
    #[arg(long)]
    delay_ms: u32,
    /// Time before each response, in milliseconds
    #[arg(long, default_value = "0")]
    latency_ms: u32,
    /// File to which the certificate of the authority is written
    #[arg(long)]
    authority: PathBuf,
}

/// Serves the hosts until standard input ends. Prints the names of the hosts and the URLs of their
/// first pages when they can be reached. Returns what was requested.
pub(crate) async fn serve(arguments: &Arguments) -> anyhow::Result<Value> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (hosts, port) = (arguments.hosts.get(), listener.local_addr()?.port());
    let delay = Duration::from_millis(arguments.delay_ms.into());
    let sites = Sites::new(hosts, arguments.pages.get(), port, delay);
    let urls: Vec<String> = (0..hosts).map(|host| sites.url(host, 0)).collect();
    let (server, authority) = Server::new(sites, Duration::from_millis(arguments.latency_ms.into()))?;
    std::fs::write(&arguments.authority, authority)
        .with_context(|| format!("cannot write {}", arguments.authority.display()))?;
    let server = Arc::new(server);
    tokio::spawn(server.clone().serve(listener));
    println!("{:#}", json!({"urls": urls, "names": (0..hosts).map(name).collect::<Vec<_>>()}));
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    Ok(server.report())
}
