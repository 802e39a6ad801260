//! The layers that decide whether a request is allowed: hosts and origins, keys and scopes.
use super::Api;
use crate::auth::{Caller, check_person_scope, check_scope, has_key, take_key};
use crate::config::{Auth, Config};
use crate::extract::discard_body;
use crate::hosts::{Authority, Origin};
use crate::operation::{Access, Operations};
use crate::request::Peer;
use crate::{ApiError, Code, Result};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Rejects a forbidden host or origin before any other code processes the request.
///
/// The `Host` header must contain a name of this service. A change must come from a page of this
/// service, or from a client that is not a browser. With `AUTH=keys`, nothing is checked: a page of
/// another site cannot know a key, and the service uses no cookies. With `AUTH=proxy`, requests
/// without a key are checked, because the proxy recognizes people by cookies.
pub(crate) async fn check_host(State(api): State<Api>, request: Request, next: Next) -> Response {
    match check_request(&api.state.config, &api.operations, &request) {
        Ok(()) => next.run(request).await,
        Err(error) => {
            // The body is read so that the sender receives the error response.
            discard_body(request).await;
            error.into_response()
        }
    }
}

fn check_request(config: &Config, operations: &Operations, request: &Request) -> Result<()> {
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    let uses_key = match config.auth {
        Auth::None => false,
        Auth::Keys => true,
        Auth::Proxy => has_key(headers),
    };
    if uses_key {
        return Ok(());
    }
    // This layer runs before routing. The lookup works because a path without parameters equals its
    // template.
    let allows_any_host =
        operations.find(&Method::GET, uri.path()).is_some_and(|operation| operation.spec.allows_any_host);
    let is_safe = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    if allows_any_host && is_safe {
        return Ok(());
    }
    let host = read_host(config, uri, headers)?;
    if is_safe { Ok(()) } else { check_origin(config, headers, &host) }
}

/// Returns the host of a request. The `Host` header must occur exactly once. If the request target
/// also contains a host, that host must be allowed as well.
fn read_host(config: &Config, uri: &Uri, headers: &HeaderMap) -> Result<Authority> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    let text = first.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let refuse = |text: &str| {
        let message =
            "the name in `Host` is not a name of this service; the operator can allow it with PUBLIC_HOSTS";
        ApiError::new(Code::HostNotAllowed, message).field("host").value(text).allowed([
            "localhost",
            "the address that the service listens on",
            "a name in PUBLIC_HOSTS",
        ])
    };
    let parse_allowed = |text: &str| {
        let authority = Authority::parse(text);
        authority.filter(|authority| authority.is_allowed(config.listen, &config.public_hosts))
    };
    if let Some(target) = uri.authority()
        && parse_allowed(target.as_str()).is_none()
    {
        return Err(refuse(target.as_str()));
    }
    match (second, parse_allowed(text)) {
        (None, Some(authority)) => Ok(authority),
        _ => Err(refuse(text)),
    }
}

/// Checks the origin of a change. Browsers send `Origin` with every request that may change
/// something, and most also send `Sec-Fetch-Site`. A page can set neither of these headers.
fn check_origin(config: &Config, headers: &HeaderMap, host: &Authority) -> Result<()> {
    let refuse = |name: &HeaderName, value: &str| {
        let message =
            "pages of other sites must not send changes; the operator can allow an origin with ALLOW_ORIGINS";
        ApiError::new(Code::OriginNotAllowed, message).field(name.as_str()).value(value).allowed([
            "a page of this service",
            "an origin in ALLOW_ORIGINS",
            "a client that is not a browser",
        ])
    };
    let mut origins = header_values(headers, &header::ORIGIN).into_iter();
    if let Some(text) = origins.next() {
        let origin = Origin::parse(text).filter(|_| origins.next().is_none());
        let origin = origin.ok_or_else(|| refuse(&header::ORIGIN, text))?;
        if config.allow_origins.contains(&origin.text) {
            return Ok(());
        }
        // A proxy may replace the `Host` header of its clients, so the configured public hosts are
        // checked too.
        let is_own_origin =
            host.is_origin(&origin) || config.public_hosts.iter().any(|rule| rule.is_origin(&origin));
        if !is_own_origin {
            return Err(refuse(&header::ORIGIN, text));
        }
    }
    let sites = header_values(headers, &SEC_FETCH_SITE);
    match sites.into_iter().find(|site| !matches!(*site, "same-origin" | "none")) {
        Some(site) => Err(refuse(&SEC_FETCH_SITE, site)),
        None => Ok(()),
    }
}

/// Returns the values of a header. A value that is not text becomes an empty string.
fn header_values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Vec<&'a str> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default()).collect()
}

/// Authenticates the caller of an operation: looks up the key, checks the scope that the
/// operation's `Spec` requires, and adds a `Caller` to the request for the handler.
pub(crate) async fn authenticate(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let caller = match api.state.config.auth {
        Auth::None => Caller::unrestricted(&api.state.services.store),
        Auth::Keys | Auth::Proxy => match admit(&api, &mut request).await {
            Ok(caller) => caller,
            Err(error) => return error.into_response(),
        },
    };
    let quota = match caller.key().map(|key| api.state.rates.acquire(key)).transpose() {
        Ok(quota) => quota.flatten(),
        Err((error, quota)) => {
            let mut response = error.into_response();
            quota.write(response.headers_mut());
            return response;
        }
    };
    let id = caller.id(Peer::from_extensions(request.extensions()));
    request.extensions_mut().insert(caller);
    let mut response = id.scope(next.run(request)).await;
    if let Some(quota) = quota {
        quota.write(response.headers_mut());
    }
    response
}

async fn admit(api: &Api, request: &mut Request) -> Result<Caller> {
    let store = &api.state.services.store;
    let operation = api.operations.lookup(request).ok_or_else(|| {
        let (method, path) = (request.method(), request.uri().path());
        ApiError::new(Code::MethodNotAllowed, format!("{method} is not allowed at {path}"))
    })?;
    let access = operation.spec.access;
    let person = match api.state.config.auth {
        Auth::Proxy if access != Access::Open => {
            let remote = request.extensions().get().copied();
            api.state.config.proxy.take_person(store, request.headers_mut(), remote).await?
        }
        Auth::Proxy | Auth::Keys | Auth::None => None,
    };
    if let Some(person) = person.filter(|_| !has_key(request.headers())) {
        if let Access::Needs(scope) | Access::NeedsInForm(scope) = access {
            check_person_scope(&person, scope)?;
        }
        return Ok(Caller::with_person(store, person));
    }
    if matches!(access, Access::NeedsInForm(_)) && !has_key(request.headers()) {
        return Ok(Caller::without_access(store));
    }
    // No later layer or handler sees the key.
    let key_hash = take_key(request.headers_mut());
    if access == Access::Open {
        return Ok(Caller::without_access(store));
    }
    let hash = key_hash?;
    let peer = Peer::from_extensions(request.extensions());
    let key = api.state.keyring.find(store, &hash, Some(peer)).await?;
    tracing::Span::current().record("key_id", tracing::field::display(key.id));
    if let Access::Needs(scope) | Access::NeedsInForm(scope) = access {
        check_scope(&key, scope)?;
    }
    Ok(Caller::with_key(store, key, hash))
}
