//! Converts errors of the HTTP client to [`FetchError`].
use super::FetchError;
use crate::dns::NoAddress;
use crate::guard::GuardError;
use std::error::Error;

/// Converts an error. Errors of our resolver and of the guard are found among its causes.
pub(super) fn explain(error: reqwest::Error) -> FetchError {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    let mut deepest = None;
    while let Some(inner) = cause {
        if let Some(guard) = inner.downcast_ref::<GuardError>() {
            return FetchError::Guard(guard.clone());
        }
        if let Some(NoAddress(why)) = inner.downcast_ref::<NoAddress>() {
            return FetchError::Dns(why.clone());
        }
        deepest = Some(inner);
        cause = inner.source();
    }
    if error.is_timeout() {
        return FetchError::Timeout("no connection within the time limit");
    }
    // The deepest cause is the most specific ("connection refused"). The outer ones repeat the URL.
    FetchError::Connect(deepest.map_or_else(|| error.to_string(), ToString::to_string))
}
