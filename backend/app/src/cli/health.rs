//! Implements `health`, for health checks in containers without another HTTP client.
use super::Exit;
use crate::config::Settings;
use crate::output;
use anyhow::Context;
use clap::Args;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// The arguments of `health`.
#[derive(Args, Debug)]
pub struct HealthArgs {
    /// Base URL of the service [default: the address of HOST and PORT]
    #[arg(long, value_name = "URL")]
    url: Option<url::Url>,
    /// Maximum time to wait for a response, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    timeout: u64,
}

pub(super) async fn run(settings: &Settings, args: HealthArgs) -> anyhow::Result<Exit> {
    let base = args.url.map_or_else(|| local(settings), |url| url.to_string());
    let url = format!("{}/health/ready", base.trim_end_matches('/'));
    // A health check connects to this machine. A proxy from the environment would connect to a
    // different one.
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(args.timeout)).build()?;
    let response = client.get(&url).send().await.with_context(|| format!("no response from {url}"))?;
    let status = response.status();
    let body = response.text().await?;
    output::line(body.trim_end())?;
    if status.is_success() {
        return Ok(Exit::Success);
    }
    eprintln!("error: {url} responded with {status}");
    Ok(Exit::Failure)
}

/// Returns the URL at which this machine reaches a service with these settings.
fn local(settings: &Settings) -> String {
    let host = match settings.service.host {
        IpAddr::V4(address) if address.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(address) if address.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        address => address,
    };
    format!("http://{}", SocketAddr::new(host, settings.service.port))
}
