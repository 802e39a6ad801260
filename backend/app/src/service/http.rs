//! The API on a socket.
use super::Foundation;
use crate::config::Settings;
use anyhow::Context;
use metrics_exporter_prometheus::PrometheusHandle;
use server::{AppState, Services};
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Takes the address before anything slow starts, so that a port in use is said at once.
pub async fn bind(settings: &Settings) -> anyhow::Result<TcpListener> {
    settings.check_listen().map_err(crate::config::ConfigErrors::from)?;
    let address = SocketAddr::new(settings.service.host, settings.service.port);
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address} (set HOST and PORT to choose another address)"))
}

/// Answers until `shutdown` fires, then finishes what was accepted, for `DRAIN_SECONDS` at most.
pub async fn serve(
    listener: TcpListener,
    foundation: &Foundation,
    settings: &Settings,
    metrics: PrometheusHandle,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    if settings.server().auth == server::Auth::Keys && foundation.store().keys().await?.is_empty() {
        tracing::warn!("AUTH=keys, and there is no key yet: `facecrawl keys create` makes one");
    }
    let services = Services {
        analyzer: foundation.analyzer.clone(),
        store: foundation.store().clone(),
        blobs: foundation.blobs.clone(),
        queue: foundation.queue.clone(),
        crawls: foundation.crawls.clone(),
        ingest: foundation.ingest.clone(),
        fetcher: foundation.fetcher.clone(),
    };
    let state = AppState::new(services, settings.server(), metrics, shutdown.clone());
    server::serve(listener, server::router(state), shutdown, settings.drain()).await?;
    Ok(())
}
