//! Accepting connections until the process is asked to stop.
//!
//! `axum::serve` gives a connection no time limit and no number, and a stop closes connections whose next request is already on its
//! way. This loop does the same work with a limit on both, and a stop that first says so on every answer.
use crate::Config;
use crate::auth::Peer;
use crate::limit::{KeyedLimit, KeyedPermit};
use crate::stall::Progressing;
use axum::Router;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

/// Longest request line and headers together, in bytes; a longer head is answered with 431. The
/// buffer grows in steps, so that some heads of up to twice this length pass.
const MAX_HEAD: usize = 64 << 10;

/// How long a stop still takes what comes on open connections, answered with `connection: close`: a client that sends its next
/// request at the moment of the stop is answered instead of cut off. Shorter when no connection is open. A connection that was
/// accepted meanwhile has as long for its request.
const LINGER: Duration = Duration::from_secs(1);

/// Before accepting is tried again when the process or the machine has no more file descriptors.
const OUT_OF_FILES: Duration = Duration::from_secs(1);

/// Serves until `shutdown` fires, then answers what was accepted, for at most `config.drain`. Give the same token to `AppState`, so
/// that event streams end too.
///
/// At most `config.max_connections` are open at a time; others wait to be accepted. One address has
/// at most three quarters of them, and a further connection from it is closed at once. A connection
/// that sends no head of a request for `config.connection_idle` is closed. So is a connection whose
/// caller does not read an answer for `config.write_stall`.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: CancellationToken,
    config: &Config,
) -> io::Result<()> {
    let most = config.max_connections.clamp(1, Semaphore::MAX_PERMITS);
    let connections = Connections {
        router,
        shutdown: shutdown.clone(),
        idle: config.connection_idle,
        write_stall: config.write_stall,
        closing: CancellationToken::new(),
        permits: Arc::new(Semaphore::new(most)),
        of_address: KeyedLimit::new((most - most / 4).max(1)),
        open: TaskTracker::new(),
    };
    let deadline = tokio::select! {
        never = connections.accept(&listener) => match never {},
        () = shutdown.cancelled() => Instant::now() + config.drain,
    };
    // Says no more than that `wait` may return; connections are still opened.
    connections.open.close();
    tokio::select! {
        never = connections.accept(&listener) => match never {},
        () = connections.open.wait() => {}
        () = tokio::time::sleep_until(deadline.min(Instant::now() + LINGER)) => {}
    }
    connections.accept_waiting(listener)?;
    connections.closing.cancel();
    if tokio::time::timeout_at(deadline, connections.open.wait()).await.is_err() {
        tracing::warn!(drain = ?config.drain, "some requests were not answered in time and are cut off");
    }
    Ok(())
}

/// What all connections share.
struct Connections {
    router: Router,
    /// From here on, answers say that they are the last of their connection.
    shutdown: CancellationToken,
    idle: Duration,
    write_stall: Duration,
    /// From here on, a connection without a request ends.
    closing: CancellationToken,
    permits: Arc<Semaphore>,
    of_address: KeyedLimit<Peer>,
    open: TaskTracker,
}

/// What `Connections::accept` returns: it never does.
enum Never {}

impl Connections {
    async fn accept(&self, listener: &TcpListener) -> Never {
        loop {
            // Before accepting: who is one too many waits in the kernel's queue, and costs nothing here.
            let Ok(permit) = self.permits.clone().acquire_owned().await else {
                unreachable!("nobody closes this semaphore")
            };
            match listener.accept().await {
                Ok((stream, address)) => self.open(stream, address.ip().into(), permit),
                Err(error) if is_of_the_connection(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections; trying again");
                    tokio::time::sleep(OUT_OF_FILES).await;
                }
            }
        }
    }

    /// Takes what the kernel has accepted for this process already, so that closing the listener resets nobody.
    fn accept_waiting(&self, listener: TcpListener) -> io::Result<()> {
        let listener = listener.into_std()?;
        while let (Ok(permit), Ok((stream, address))) =
            (self.permits.clone().try_acquire_owned(), listener.accept())
        {
            stream.set_nonblocking(true)?;
            self.open(TcpStream::from_std(stream)?, address.ip().into(), permit);
        }
        Ok(())
    }

    fn open(&self, stream: TcpStream, peer: Peer, permit: OwnedSemaphorePermit) {
        // The connection holds one of all permits, so waiting here would take one from other
        // addresses.
        let Some(of_address) = self.of_address.try_acquire(peer) else {
            metrics::counter!("facecrawl_http_connections_refused_total").increment(1);
            return;
        };
        // Answers are small and whole: waiting for more to send only delays them.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let (router, shutdown) = (self.router.clone(), self.shutdown.clone());
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(peer);
            let (router, shutdown) = (router.clone(), shutdown.clone());
            async move {
                let mut response: Response = router.oneshot(request).await?;
                if shutdown.is_cancelled() {
                    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(response)
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.idle)
            .max_buf_size(MAX_HEAD)
            .serve_connection(Progressing::new(TokioIo::new(stream), self.write_stall), service);
        let (closing, opened) = (self.closing.clone(), Instant::now());
        // A new connection that is told to close does so before it has read anything.
        let time_is_over = async move {
            closing.cancelled().await;
            tokio::time::sleep_until(opened + LINGER).await;
        };
        self.open.spawn(async move {
            let _open = Open::enter(permit, of_address);
            let mut connection = pin!(connection);
            let result = tokio::select! {
                result = connection.as_mut() => result,
                () = time_is_over => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = result {
                tracing::debug!(%error, "a connection ended early");
            }
        });
    }
}

/// Errors of one connection that was gone before it was accepted.
fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Counts an open connection. Holds its permit of `max_connections` and its permit of its address.
struct Open {
    _permit: OwnedSemaphorePermit,
    _of_address: KeyedPermit<Peer>,
}

impl Open {
    fn enter(permit: OwnedSemaphorePermit, of_address: KeyedPermit<Peer>) -> Self {
        metrics::gauge!("facecrawl_http_connections").increment(1.0);
        Self { _permit: permit, _of_address: of_address }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        metrics::gauge!("facecrawl_http_connections").decrement(1.0);
    }
}
