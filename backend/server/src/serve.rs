//! Contains the loop that accepts connections until a shutdown is requested.
//!
//! `axum::serve` limits neither the number nor the duration of connections, and when it stops, it
//! closes connections whose next request is already in transit. The loop of this module has both
//! limits. When this loop stops, it first sends `connection: close` with every response.
use crate::Config;
use crate::admission::KeyedLimit;
use crate::request::{Peer, RemoteAddress};
use crate::telemetry::GaugeGuard;
use axum::Router;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io::{self, ErrorKind, IoSlice};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

/// Maximum size of the request line and headers together, in bytes. A longer head is rejected with
/// status 431. The buffer grows in steps, so some heads of up to twice this size are accepted.
const MAX_HEAD: usize = 64 << 10;

/// How long a shutdown still accepts requests on open connections.
///
/// A client that sends its next request during the shutdown therefore receives a response, which
/// contains `connection: close`. The wait ends early when no connection is open. A connection that
/// is accepted during the wait has the same amount of time for its request.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// Delay before the next accept after the process or the machine ran out of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Rate at which written bytes restore waiting time, in bytes per second. A slower reader is
/// eventually disconnected.
const MIN_READ_RATE: u32 = 16 << 10;

/// Serves until `shutdown` fires. Then it finishes the accepted requests for at most
/// `config.drain`. Pass the same token to `AppState`, so that event streams end too.
///
/// At most `config.max_connections` are open at a time; further connections wait to be accepted.
/// One address may use at most three quarters of them, and a further connection from it is closed
/// immediately.
///
/// A connection is closed if it sends no request head for `config.connection_idle`. It is also
/// closed if its peer does not read a response for `config.write_stall`.
///
/// # Errors
/// Fails if the listener, or a connection that waits in its queue, cannot be set up at shutdown.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: CancellationToken,
    config: &Config,
) -> io::Result<()> {
    let max_connections = config.max_connections.clamp(1, Semaphore::MAX_PERMITS);
    let connections = Connections {
        router,
        shutdown: shutdown.clone(),
        idle: config.connection_idle,
        write_stall: config.write_stall,
        closing: CancellationToken::new(),
        permits: Arc::new(Semaphore::new(max_connections)),
        per_address: KeyedLimit::new((max_connections - max_connections / 4).max(1)),
        open: TaskTracker::new(),
    };
    let deadline = tokio::select! {
        never = connections.accept(&listener) => match never {},
        () = shutdown.cancelled() => Instant::now() + config.drain,
    };
    // After `close`, `wait` returns when no connection is open. New connections can still be
    // spawned.
    connections.open.close();
    tokio::select! {
        never = connections.accept(&listener) => match never {},
        () = connections.open.wait() => {}
        () = tokio::time::sleep_until(deadline.min(Instant::now() + SHUTDOWN_GRACE)) => {}
    }
    connections.accept_waiting(listener)?;
    connections.closing.cancel();
    if tokio::time::timeout_at(deadline, connections.open.wait()).await.is_err() {
        tracing::warn!(drain = ?config.drain, "shutdown deadline passed; closing unfinished connections");
    }
    Ok(())
}

struct Connections {
    router: Router,
    /// After this token fires, every response contains `connection: close`.
    shutdown: CancellationToken,
    idle: Duration,
    write_stall: Duration,
    /// After this token fires, connections without a request in progress are closed.
    closing: CancellationToken,
    permits: Arc<Semaphore>,
    per_address: KeyedLimit<Peer>,
    open: TaskTracker,
}

impl Connections {
    /// Accepts connections. Never returns.
    async fn accept(&self, listener: &TcpListener) -> Infallible {
        loop {
            // The permit is acquired before the accept. Connections above the limit stay in the
            // kernel's queue, where they use no resources of this process.
            let Ok(permit) = self.permits.clone().acquire_owned().await else {
                unreachable!("the semaphore is never closed")
            };
            match listener.accept().await {
                Ok((stream, address)) => self.open(stream, address.ip(), permit),
                Err(error) if is_connection_error(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection; retrying");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }

    /// Opens the connections that the kernel has already accepted. Otherwise closing the listener
    /// would reset them.
    fn accept_waiting(&self, listener: TcpListener) -> io::Result<()> {
        let listener = listener.into_std()?;
        while let (Ok(permit), Ok((stream, address))) =
            (self.permits.clone().try_acquire_owned(), listener.accept())
        {
            stream.set_nonblocking(true)?;
            self.open(TcpStream::from_std(stream)?, address.ip(), permit);
        }
        Ok(())
    }

    fn open(&self, stream: TcpStream, address: IpAddr, permit: OwnedSemaphorePermit) {
        let peer = Peer::from(address);
        // The connection already holds a global permit. Waiting here would keep that permit from
        // other addresses.
        let Some(per_address) = self.per_address.try_acquire(peer) else {
            metrics::counter!("facecrawl_http_connections_refused_total").increment(1);
            return;
        };
        // Responses are small and written in one call, so waiting for more data would only delay
        // them.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "failed to set TCP_NODELAY");
        }
        let (router, shutdown) = (self.router.clone(), self.shutdown.clone());
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(peer);
            request.extensions_mut().insert(RemoteAddress(address));
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
            .serve_connection(WriteStallGuard::new(TokioIo::new(stream), self.write_stall), service);
        let (closing, opened) = (self.closing.clone(), Instant::now());
        // `graceful_shutdown` would close a new connection before it reads anything. So a new
        // connection first gets `SHUTDOWN_GRACE`.
        let grace_period = async move {
            closing.cancelled().await;
            tokio::time::sleep_until(opened + SHUTDOWN_GRACE).await;
        };
        self.open.spawn(async move {
            let _held = (GaugeGuard::new(metrics::gauge!("facecrawl_http_connections")), permit, per_address);
            let mut connection = pin!(connection);
            let result = tokio::select! {
                result = connection.as_mut() => result,
                () = grace_period => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = result {
                tracing::debug!(%error, "connection failed");
            }
        });
    }
}

/// Returns whether the error concerns a single connection that failed before it was accepted.
fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Fails a write if the peer reads too slowly.
///
/// A connection has at most `max_wait` of waiting time. Every written byte restores waiting time,
/// at [`MIN_READ_RATE`] bytes per second. A reader that only occasionally reads one byte therefore
/// cannot keep the connection open.
pub(crate) struct WriteStallGuard<T> {
    inner: T,
    max_wait: Duration,
    remaining_wait: Duration,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl<T> WriteStallGuard<T> {
    pub(crate) fn new(inner: T, max_wait: Duration) -> Self {
        Self { inner, max_wait, remaining_wait: max_wait, waiting: None }
    }

    /// Accounts for the result of a write. A pending write fails when the waiting time is used up.
    fn record(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let Poll::Ready(result) = written else {
            let wait = self.remaining_wait;
            let (_, timer) =
                self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(wait))));
            ready!(timer.as_mut().poll(cx));
            return Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, "the other end reads too slowly")));
        };
        if let Some((since, _)) = self.waiting.take() {
            self.remaining_wait = self.remaining_wait.saturating_sub(since.elapsed());
        }
        if let Ok(bytes) = result {
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            let restored = Duration::from_secs_f64(f64::from(bytes) / f64::from(MIN_READ_RATE));
            self.remaining_wait = self.remaining_wait.saturating_add(restored).min(self.max_wait);
        }
        Poll::Ready(result)
    }
}

impl<T: Read + Unpin> Read for WriteStallGuard<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<T: Write + Unpin> Write for WriteStallGuard<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.record(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, slices);
        self.record(cx, written)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::future::poll_fn;
    use tokio::io::{AsyncReadExt, DuplexStream};

    const MAX_WAIT: Duration = Duration::from_secs(60);

    /// Returns a connection whose buffer holds 1 KiB.
    fn connection() -> (WriteStallGuard<TokioIo<DuplexStream>>, DuplexStream) {
        let (server_end, client_end) = tokio::io::duplex(1 << 10);
        (WriteStallGuard::new(TokioIo::new(server_end), MAX_WAIT), client_end)
    }

    async fn write(server_end: &mut WriteStallGuard<TokioIo<DuplexStream>>, bytes: usize) -> io::Result<()> {
        let mut remaining = bytes;
        while remaining > 0 {
            let chunk = vec![0; remaining];
            remaining -= poll_fn(|cx| Pin::new(&mut *server_end).poll_write(cx, &chunk)).await?;
        }
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn write_without_reader_times_out() {
        let (mut server_end, client_end) = connection();
        let error = write(&mut server_end, 2 << 10).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        drop(client_end);
    }

    /// Reads `bytes` every ten seconds. Returns whether a write of 4 MiB succeeds.
    async fn receives_everything(bytes: usize) -> bool {
        let (mut server_end, mut client_end) = connection();
        let reader = tokio::spawn(async move {
            let mut buffer = vec![0; bytes];
            while client_end.read_exact(&mut buffer).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
        });
        let succeeded = write(&mut server_end, 4 << 20).await.is_ok();
        reader.abort();
        succeeded
    }

    #[tokio::test(start_paused = true)]
    async fn only_reader_above_minimum_rate_receives_everything() {
        let ten_seconds = 10 * MIN_READ_RATE as usize;
        assert!(receives_everything(ten_seconds + (1 << 10)).await);
        assert!(!receives_everything(ten_seconds / 2).await);
        assert!(!receives_everything(1).await);
    }
}
