//! Authenticates callers, checks the scopes of their keys, and restricts the rows that they can
//! access. `middleware::access` does this for every operation of the API.
mod caller;
pub(crate) mod credentials;
mod keyring;
mod lookups;
mod peer;
mod rate;

pub(crate) use caller::Caller;
pub(crate) use keyring::Keyring;
pub(crate) use peer::{CallerId, Peer};
pub(crate) use rate::Rates;

use crate::{ApiError, Code};
use std::sync::Arc;
use store::keys::{ApiKey, Scope};

/// Checks that a key has the scope that an operation needs.
///
/// # Errors
/// Fails with 403 `scope_missing`.
pub(crate) fn check_scope(key: &Arc<ApiKey>, scope: Scope) -> Result<(), ApiError> {
    if key.allows(scope) {
        return Ok(());
    }
    let detail = if scope.is_service_wide() && key.collection_id.is_some() {
        format!("this operation requires a key for all collections with the scope {scope}")
    } else {
        format!("this operation requires the scope {scope}, which the key does not have")
    };
    Err(insufficient(scope, detail))
}

/// Returns a 403 error with the challenge of RFC 6750.
pub(crate) fn insufficient(scope: Scope, detail: impl Into<String>) -> ApiError {
    ApiError::new(Code::ScopeMissing, detail)
        .field("scope")
        .allowed([format!("a key with the scope {scope}")])
        .challenge(format!("Bearer realm=\"facecrawl\", error=\"insufficient_scope\", scope=\"{scope}\""))
}
