//! Serves the API, or a worker's health and metrics, on a socket.
use super::Foundation;
use crate::config::Settings;
use anyhow::{Context, bail};
use listenfd::ListenFd;
use metrics_exporter_prometheus::PrometheusHandle;
use server::AppState;
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// What a process serves on its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surface {
    Api,
    /// Only health and metrics.
    Status,
}

/// Binds the socket. The caller does this before slow steps, so that a port in use is reported
/// immediately. A socket that a service manager has opened for this process (systemd's
/// `LISTEN_FDS`) takes precedence over `HOST` and the port.
pub async fn bind(settings: &Settings, port: u16, mut inherited: ListenFd) -> anyhow::Result<TcpListener> {
    if let Some(listener) =
        inherited.take_tcp_listener(0).context("cannot use the socket of the service manager")?
    {
        if inherited.len() > 1 {
            bail!("the service manager passes {} sockets; allowed: one", inherited.len());
        }
        listener.set_nonblocking(true)?;
        check(settings, listener.local_addr()?)?;
        return Ok(TcpListener::from_std(listener)?);
    }
    let address = SocketAddr::new(settings.service.host, port);
    check(settings, address)?;
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address} (set HOST and PORT to choose another address)"))
}

/// Checks that `AUTH` is set if the address can be reached from other machines, regardless of the
/// source of the address.
fn check(settings: &Settings, address: SocketAddr) -> anyhow::Result<()> {
    let mut settings = settings.clone();
    settings.service.host = address.ip();
    Ok(settings.check_listen().map_err(crate::config::ConfigErrors::from)?)
}

/// Serves requests until `shutdown` fires. Then finishes accepted requests, for at most
/// `DRAIN_SECONDS`.
pub async fn serve(
    listener: TcpListener,
    surface: Surface,
    foundation: &Foundation,
    settings: &Settings,
    metrics: PrometheusHandle,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    if settings.server().auth == server::Auth::Keys
        && foundation.store().keys().list(None, 1).await?.is_empty()
    {
        tracing::warn!("AUTH=keys, but there is no key yet; create one with `facecrawl keys create`");
    }
    // The socket of a service manager may have an address other than `HOST`.
    let listen = listener.local_addr().map_or(settings.service.host, |address| address.ip());
    let config = server::Config { listen, ..settings.server() };
    let state = AppState::new(foundation.services.clone(), config.clone(), metrics, shutdown.clone());
    let router = match surface {
        Surface::Api => server::router(state),
        Surface::Status => server::status_router(state),
    };
    server::serve(listener, router, shutdown, &config).await?;
    Ok(())
}
