//! Implements `up`, `serve` and `worker`, which run the service in its different roles, and
//! `health`, with which containers check it without another HTTP client.
use super::Exit;
use crate::config::{LogFormat, Settings};
use crate::service::search_index::Role;
use crate::service::{Components, Routes, Sharing, Worker, bind, listen_for_signals, search_index, serve};
use crate::{output, telemetry};
use anyhow::{Context, bail};
use clap::Args;
use listenfd::ListenFd;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

#[derive(Clone, Copy, Debug)]
pub(super) struct Roles {
    /// Whether the process serves the API over HTTP.
    pub(super) serves_api: bool,
    pub(super) runs_worker: bool,
}

impl Roles {
    /// Returns the routes that this process serves over HTTP, and its port. A worker serves them
    /// only if `WORKER_PORT` is set.
    fn routes_and_port(self, settings: &Settings) -> Option<(Routes, u16)> {
        if self.serves_api {
            return Some((Routes::Api, settings.service.port));
        }
        settings.service.worker_port.map(|port| (Routes::Status, port))
    }
}

pub(super) async fn run(settings: &Settings, roles: Roles, sockets: ListenFd) -> anyhow::Result<Exit> {
    let started = Instant::now();
    let metrics = telemetry::init_metrics()?;
    let signal = listen_for_signals()?;
    let listener = match roles.routes_and_port(settings) {
        Some((routes, port)) => Some((bind(settings, port, sockets).await?, routes)),
        None => None,
    };
    telemetry::watch_process();

    // The process that serves searches opens the index.
    let role = if roles.serves_api { Role::Searches } else { Role::StoresFaces };
    let components = tokio::select! {
        components = Components::start(settings, Sharing::Exclusive, role) => components?,
        () = signal.cancelled() => return Ok(Exit::Success),
    };
    // This token is cancelled after a signal and after a failure.
    let shutdown = signal.child_token();
    let worker = roles.runs_worker.then(|| Worker::start(&components, settings, shutdown.clone()));
    let mut tasks = JoinSet::new();
    if let Some(index) = &components.index {
        search_index::start_updates(&mut tasks, index.clone(), shutdown.clone());
    }
    if roles.runs_worker {
        search_index::start_builds(&mut tasks, settings, &components.services.store, shutdown.clone());
    }
    let address = listener.as_ref().and_then(|(listener, _)| listener.local_addr().ok());
    tracing::info!(
        seconds = started.elapsed().as_secs_f64(),
        address = address.map(tracing::field::display),
        "ready"
    );
    // A message for users. Programs that read JSON lines use the log line above.
    if settings.log.format == LogFormat::Text {
        match address {
            Some(address) if roles.serves_api => {
                eprintln!("facecrawl is ready on http://{address} (API pages: http://{address}/docs)");
            }
            Some(address) => eprintln!("facecrawl worker is ready; health and metrics on http://{address}"),
            None => eprintln!("facecrawl worker is ready"),
        }
    }
    // Counting faces is slow, so the service becomes ready before the count is complete.
    let warn_about_outdated_faces = async {
        if let Err(error) = components.warn_about_outdated_faces(settings).await {
            tracing::warn!(%error, "failed to count faces of other embedding models");
        }
    };

    let serving = async {
        match listener {
            Some((listener, routes)) => {
                serve(listener, routes, &components, settings, metrics, shutdown.clone()).await
            }
            None => {
                shutdown.cancelled().await;
                Ok(())
            }
        }
    };
    let server = serve_until_failure(serving, components.database.wait_until_unusable(), &shutdown);
    let worker_stopped = async {
        match worker {
            Some(worker) => worker.until_stopped().await,
            None => shutdown.cancelled().await,
        }
    };
    // Requests and jobs drain concurrently. The database is closed after both.
    let (result, (), _) =
        tokio::join!(server, worker_stopped, shutdown.run_until_cancelled(warn_about_outdated_faces));
    tasks.shutdown().await;
    components.database.close().await;
    result?;
    tracing::info!(uptime_seconds = started.elapsed().as_secs_f64(), "stopped");
    Ok(Exit::Success)
}

/// Runs `serving` until it ends. If `serving` fails or the database becomes unusable, cancels
/// `shutdown`, so that all other tasks stop too. Accepted requests still receive a response.
async fn serve_until_failure(
    serving: impl Future<Output = anyhow::Result<()>>,
    unusable: impl Future<Output = anyhow::Error>,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let mut serving = std::pin::pin!(serving);
    let result = tokio::select! {
        result = &mut serving => result,
        error = unusable => {
            shutdown.cancel();
            serving.await?;
            Err(error)
        }
    };
    if !shutdown.is_cancelled() {
        shutdown.cancel();
        if result.is_ok() {
            bail!("the HTTP server stopped unexpectedly");
        }
    }
    result
}

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

pub(super) async fn health(settings: &Settings, args: HealthArgs) -> anyhow::Result<Exit> {
    let base = args.url.map_or_else(|| local_url(settings), |url| url.to_string());
    let url = format!("{}/health/ready", base.trim_end_matches('/'));
    // A health check connects to this machine. A proxy from the environment would connect to a
    // different one.
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(args.timeout)).build()?;
    let response = client.get(&url).send().await.with_context(|| format!("no response from {url}"))?;
    let status = response.status();
    let body = response.text().await?;
    output::print_line(body.trim_end())?;
    if status.is_success() {
        return Ok(Exit::Success);
    }
    eprintln!("error: {url} responded with {status}");
    Ok(Exit::Failure)
}

/// Returns the URL at which this machine reaches a service with these settings.
fn local_url(settings: &Settings) -> String {
    let host = match settings.service.host {
        IpAddr::V4(address) if address.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(address) if address.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        address => address,
    };
    format!("http://{}", SocketAddr::new(host, settings.service.port))
}
