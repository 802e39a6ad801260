//! Authenticates the caller of every operation of the API: looks up the key, checks the scope that
//! the operation's `Spec` requires, and adds a `Caller` to the request for the handler.
use super::Api;
use crate::auth::{Caller, CallerId, Peer, check_scope, credentials};
use crate::config::Auth;
use crate::operation::Access;
use crate::{ApiError, Code};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

pub(crate) async fn layer(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let caller = match api.state.config.auth {
        Auth::None => Caller::unrestricted(&api.state.services.store),
        Auth::Keys => match admit(&api, &mut request).await {
            Ok(caller) => caller,
            Err(error) => return error.into_response(),
        },
    };
    let remaining = match caller.key().map(|key| api.state.rates.take(key)).transpose() {
        Ok(remaining) => remaining.flatten(),
        Err((error, remaining)) => {
            let mut response = error.into_response();
            remaining.write(response.headers_mut());
            return response;
        }
    };
    let id = CallerId::of(&caller, Peer::of(request.extensions()));
    request.extensions_mut().insert(caller);
    let mut response = id.scope(next.run(request)).await;
    if let Some(remaining) = remaining {
        remaining.write(response.headers_mut());
    }
    response
}

async fn admit(api: &Api, request: &mut Request) -> Result<Caller, ApiError> {
    let store = &api.state.services.store;
    let operation = api.operations.of(request).ok_or_else(|| {
        let (method, path) = (request.method(), request.uri().path());
        ApiError::new(Code::MethodNotAllowed, format!("{method} is not allowed at {path}"))
    })?;
    let access = operation.spec.access;
    // No later layer or handler sees the key.
    let presented = credentials::take(request.headers_mut());
    if access == Access::Open {
        return Ok(Caller::without_access(store));
    }
    let hash = presented?;
    let peer = Peer::of(request.extensions());
    let key = api.state.keyring.find(store, &hash, Some(peer)).await?;
    tracing::Span::current().record("key_id", tracing::field::display(key.id));
    if let Access::Needs(scope) = access {
        check_scope(&key, scope)?;
    }
    Ok(Caller::of(store, key, hash))
}
