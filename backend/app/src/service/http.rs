//! Serves the API, or a worker's health and metrics, on a socket.
use super::Components;
use crate::config::Settings;
use anyhow::{Context, bail};
use listenfd::ListenFd;
use metrics_exporter_prometheus::PrometheusHandle;
use server::AppState;
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The routes that a process serves on its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routes {
    Api,
    /// Only health and metrics.
    Status,
}

/// Binds the socket. The caller does this before slow steps, so that a port in use is reported
/// immediately. A socket that a service manager has opened for this process (systemd's
/// `LISTEN_FDS`) takes precedence over `HOST` and the port.
pub async fn bind(settings: &Settings, port: u16, mut sockets: ListenFd) -> anyhow::Result<TcpListener> {
    if let Some(listener) =
        sockets.take_tcp_listener(0).context("cannot use the socket of the service manager")?
    {
        if sockets.len() > 1 {
            bail!("the service manager passes {} sockets; allowed: one", sockets.len());
        }
        listener.set_nonblocking(true)?;
        check_address(settings, listener.local_addr()?)?;
        return Ok(TcpListener::from_std(listener)?);
    }
    let address = SocketAddr::new(settings.service.host, port);
    check_address(settings, address)?;
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address} (set HOST and PORT to choose another address)"))
}

/// Checks that `AUTH` is set if the address can be reached from other machines, regardless of the
/// source of the address.
fn check_address(settings: &Settings, address: SocketAddr) -> anyhow::Result<()> {
    let mut settings = settings.clone();
    settings.service.host = address.ip();
    Ok(settings.check_listen_address().map_err(crate::config::ConfigErrors::from)?)
}

/// Serves requests until `shutdown` is cancelled. Then finishes accepted requests, for at most
/// `DRAIN_SECONDS`.
pub async fn serve(
    listener: TcpListener,
    routes: Routes,
    components: &Components,
    settings: &Settings,
    metrics: PrometheusHandle,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    if settings.server().auth == server::Auth::Keys
        && components.store().keys().list(None, 1).await?.is_empty()
    {
        tracing::warn!("AUTH=keys, but there is no key yet; create one with `facecrawl keys create`");
    }
    // The socket of a service manager may have an address other than `HOST`.
    let listen = listener.local_addr().map_or(settings.service.host, |address| address.ip());
    let config = server::Config { listen, ..settings.server() };
    let state = AppState::new(components.services.clone(), config.clone(), metrics, shutdown.clone());
    let router = match routes {
        Routes::Api => server::router(state),
        Routes::Status => server::status_router(state),
    };
    server::serve(listener, router, shutdown, &config).await?;
    Ok(())
}
