//! Authenticates callers, checks the scopes of their keys, and restricts the rows that they can
//! access.
//!
//! `layer` runs before every operation of the API. It looks up the key, checks the scope that the
//! operation's `Spec` requires, and adds a `Caller` to the request for the handler.
mod caller;
mod credentials;
mod keyring;
mod lookups;
mod peer;
mod rate;

pub(crate) use caller::Caller;
pub use keyring::CACHED;
pub(crate) use keyring::Keyring;
pub(crate) use peer::{CallerId, Peer};
pub(crate) use rate::Rates;

use crate::config::Auth;
use crate::operation::{self, Access};
use crate::{ApiError, AppState, Code};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use store::keys::{ApiKey, Scope};

/// Forwards a request to its operation, or responds with the reason for the rejection.
pub(crate) async fn layer(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let caller = match state.config.auth {
        Auth::None => Caller::anyone(&state),
        Auth::Keys => match admit(&state, &mut request).await {
            Ok(caller) => caller,
            Err(error) => return error.into_response(),
        },
    };
    let standing = match caller.key().map(|key| state.rates.take(key)).transpose() {
        Ok(standing) => standing.flatten(),
        Err((error, standing)) => {
            let mut response = error.into_response();
            standing.write(response.headers_mut());
            return response;
        }
    };
    let id = CallerId::of(&caller, Peer::of(request.extensions()));
    request.extensions_mut().insert(caller);
    let mut response = id.scope(next.run(request)).await;
    if let Some(standing) = standing {
        standing.write(response.headers_mut());
    }
    response
}

async fn admit(state: &AppState, request: &mut Request) -> Result<Caller, ApiError> {
    let operation = operation::of(request).ok_or_else(|| {
        let (method, path) = (request.method(), request.uri().path());
        ApiError::new(Code::MethodNotAllowed, format!("{method} is not allowed at {path}"))
    })?;
    let access = operation.spec.access;
    // No later layer or handler sees the key.
    let presented = credentials::take(request.headers_mut());
    if access == Access::Open {
        return Ok(Caller::nobody(state));
    }
    let hash = presented?;
    let peer = Peer::of(request.extensions());
    let key = state.keyring.find(&state.services.store, &hash, Some(peer)).await?;
    tracing::Span::current().record("key_id", tracing::field::display(key.id));
    if let Access::Needs(scope) = access {
        check_scope(&key, scope)?;
    }
    Ok(Caller::of(state, key, hash))
}

fn check_scope(key: &Arc<ApiKey>, scope: Scope) -> Result<(), ApiError> {
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

/// Returns a 403 with the challenge of RFC 6750.
pub(crate) fn insufficient(scope: Scope, detail: impl Into<String>) -> ApiError {
    ApiError::new(Code::ScopeMissing, detail)
        .field("scope")
        .allowed([format!("a key with the scope {scope}")])
        .challenge(format!("Bearer realm=\"facecrawl\", error=\"insufficient_scope\", scope=\"{scope}\""))
}
