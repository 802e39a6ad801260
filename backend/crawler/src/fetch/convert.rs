//! Converts errors of the HTTP client to [`FetchError`].
use super::FetchError;
use crate::dns::NoAddress;
use crate::guard::GuardError;
use std::error::Error;

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
    FetchError::Connect(why)
}
