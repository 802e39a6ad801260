//! Converts errors of the HTTP client to [`FetchError`].
use super::{ConnectError, FetchError, connection};
use crate::dns::NoAddress;
use crate::guard::GuardError;
use std::error::Error;
use std::io::{self, ErrorKind};

/// Converts an error. Errors of our resolver and of the guard are found among its causes.
pub(super) fn explain(error: reqwest::Error) -> FetchError {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    let (mut deepest, mut is_invalid) = (None, false);
    while let Some(inner) = cause {
        if let Some(guard) = inner.downcast_ref::<GuardError>() {
            return FetchError::Guard(guard.clone());
        }
        if let Some(NoAddress(why)) = inner.downcast_ref::<NoAddress>() {
            return FetchError::Dns(why.clone());
        }
        is_invalid |= inner.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse);
        deepest = Some(inner);
        cause = inner.source();
    }
    // The deepest cause is the most specific ("connection refused"). The outer ones repeat the URL.
    let why = deepest.map_or_else(|| error.to_string(), ToString::to_string);
    if is_invalid {
        return FetchError::Invalid(why);
    }
    if error.is_timeout() {
        return FetchError::Timeout("no connection within the time limit");
    }
    FetchError::Connect { cause: connect_error(&error), why }
}

/// Returns why there is no connection.
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
        cause = contained(inner).or_else(|| inner.source());
    }
    if connection::is_lost(error) { ConnectError::Closed } else { ConnectError::Other }
}

/// Returns the error that an I/O error contains. `source` skips it and returns its source.
fn contained<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    let inner = error.downcast_ref::<io::Error>()?.get_ref()?;
    Some(inner)
}

/// Converts the error of a body. Any error after a valid head counts as an incomplete transfer.
pub(super) fn broken_off(error: &reqwest::Error) -> FetchError {
    let mut deepest: &dyn Error = error;
    while let Some(inner) = deepest.source() {
        deepest = inner;
    }
    FetchError::Incomplete { why: deepest.to_string(), received: None }
}

/// Returns the error of an encoded body that ends too early although its transfer was complete.
pub(super) fn cut_off() -> FetchError {
    FetchError::Incomplete { why: "the encoded body ends too early".into(), received: None }
}

pub(super) fn undecodable(error: io::Error) -> FetchError {
    FetchError::Undecodable(error.to_string())
}
