//! Classifies failures of the HTTP client: whether a request was sent on a reused connection,
//! whether its connection was lost before a response, and which [`FetchError`] the caller gets. The
//! module `client` decides whether to repeat the request.
use super::{ConnectError, FetchError};
use crate::config::deepest_cause;
use crate::guard::{GuardError, NoAddress};
use std::error::Error;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

tokio::task_local! {
    /// Whether a connection was established for the request that this task sends.
    static IS_NEW: Arc<AtomicBool>;
}

/// Sends a request of a client that has the layer [`NewConnections`]. Also returns whether a new
/// connection was established for it.
pub(super) async fn send<T>(request: impl Future<Output = T>) -> (T, bool) {
    let is_new = Arc::new(AtomicBool::new(false));
    let output = IS_NEW.scope(is_new.clone(), request).await;
    (output, is_new.load(Ordering::Relaxed))
}

/// Records each new connection in the task that waits for it. If another connection becomes idle
/// first, the client uses that one and establishes the new one in another task, which records
/// nothing.
#[derive(Clone)]
pub(super) struct NewConnections;

impl<S> Layer<S> for NewConnections {
    type Service = RecordingConnector<S>;

    fn layer(&self, connector: S) -> Self::Service {
        RecordingConnector(connector)
    }
}

#[derive(Clone)]
pub(super) struct RecordingConnector<S>(S);

impl<S, R> Service<R> for RecordingConnector<S>
where
    S: Service<R>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, target: R) -> Self::Future {
        let connecting = self.0.call(target);
        Box::pin(async move {
            let connection = connecting.await?;
            let _ = IS_NEW.try_with(|is_new| is_new.store(true, Ordering::Relaxed));
            Ok(connection)
        })
    }
}

/// Returns whether an established connection was closed or reset before the head of the response
/// was complete.
pub(super) fn is_lost(error: &reqwest::Error) -> bool {
    if error.is_connect() || error.is_timeout() {
        return false;
    }
    for cause in causes(error) {
        if let Some(error) = cause.downcast_ref::<hyper::Error>() {
            if error.is_parse() {
                return false;
            }
            if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
                return true;
            }
        }
        if let Some(error) = cause.downcast_ref::<h2::Error>() {
            // A GET is safe to repeat. REFUSED_STREAM and GOAWAY mean that the server expects a new
            // connection.
            return error.is_io() || error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM);
        }
        if let Some(error) = cause.downcast_ref::<io::Error>()
            && matches!(
                error.kind(),
                ErrorKind::ConnectionReset
                    | ErrorKind::ConnectionAborted
                    | ErrorKind::BrokenPipe
                    | ErrorKind::NotConnected
                    | ErrorKind::UnexpectedEof
            )
        {
            return true;
        }
    }
    false
}

/// Returns the causes of an error, the outermost first.
fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}

/// Converts an error of a client of this crate. Errors of the resolver and of the guard are found
/// among its causes.
pub fn to_fetch_error(error: reqwest::Error) -> FetchError {
    let mut is_invalid = false;
    for cause in causes(&error) {
        if let Some(guard) = cause.downcast_ref::<GuardError>() {
            return FetchError::Guard(guard.clone());
        }
        if let Some(NoAddress(why)) = cause.downcast_ref::<NoAddress>() {
            return FetchError::Dns(why.clone());
        }
        is_invalid |= cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse);
    }
    // The outer causes repeat the URL. The deepest one is short ("connection refused").
    let why = deepest_cause(&error);
    if is_invalid {
        return FetchError::Invalid(why);
    }
    if error.is_timeout() {
        return FetchError::Timeout("no connection within the time limit");
    }
    FetchError::Connect { cause: connect_error(&error), why }
}

fn connect_error(error: &reqwest::Error) -> ConnectError {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(inner) = cause {
        if inner.is::<rustls::Error>() {
            return ConnectError::Tls;
        }
        match inner.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(ErrorKind::ConnectionRefused) => return ConnectError::Refused,
            // While connecting, these errors come from the TLS handshake.
            Some(ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
                if error.is_connect() && error.url().is_some_and(|url| url.scheme() == "https") =>
            {
                return ConnectError::Tls;
            }
            _ => {}
        }
        cause = inner_error(inner).or_else(|| inner.source());
    }
    if is_lost(error) { ConnectError::Closed } else { ConnectError::Other }
}

/// Returns the error that an I/O error contains. `source` skips it and returns its source.
fn inner_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    let inner = error.downcast_ref::<io::Error>()?.get_ref()?;
    Some(inner)
}
