//! Who asks, where no key says so: a request names this service, and a change comes from a page of
//! its own or from no page at all.
//!
//! With keys nothing is checked here. A page of another site cannot send a key that it does not
//! know, and no cookie is sent in its place.
use crate::config::{Auth, Config};
use crate::hosts::{Authority, Origin};
use crate::{ApiError, AppState, Code, operation};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Lets a request through, or refuses it before anything else looks at it.
pub(crate) async fn layer(State(state): State<AppState>, request: Request, next: Next) -> Response {
    match check(&state.config, request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => {
            // So that the sender sees the refusal.
            crate::extract::drop_unread(request).await;
            error.into_response()
        }
    }
}

fn check(config: &Config, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    if config.auth != Auth::None {
        return Ok(());
    }
    // This runs before routing. A path without parameters is its own template.
    let any_host = operation::find(&Method::GET, uri.path()).is_some_and(|found| found.spec.any_host);
    let is_safe = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    if any_host && is_safe {
        return Ok(());
    }
    let host = host(config, uri, headers)?;
    if is_safe { Ok(()) } else { check_origin(config, headers, &host) }
}

/// The host that a request names: exactly one, in its header and, where it has one, in its target.
fn host(config: &Config, uri: &Uri, headers: &HeaderMap) -> Result<Authority, ApiError> {
    let mut named = headers.get_all(header::HOST).iter();
    let (first, second) = (named.next(), named.next());
    let text = first.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let refuse = |text: &str| {
        let sentence = "the request does not name this service in `Host`; the operator allows further names with PUBLIC_HOSTS";
        ApiError::new(Code::HostNotAllowed, sentence).field("host").value(text).allowed([
            "localhost",
            "the address that the service listens on",
            "a name of PUBLIC_HOSTS",
        ])
    };
    let allowed = |text: &str| {
        let authority = Authority::parse(text);
        authority.filter(|authority| authority.is_allowed(config.listen, &config.public_hosts))
    };
    if let Some(target) = uri.authority()
        && allowed(target.as_str()).is_none()
    {
        return Err(refuse(target.as_str()));
    }
    match (second, allowed(text)) {
        (None, Some(authority)) => Ok(authority),
        _ => Err(refuse(text)),
    }
}

/// Browsers send `Origin` with every request that may change something, and most send
/// `Sec-Fetch-Site`. No page can set either.
fn check_origin(config: &Config, headers: &HeaderMap, host: &Authority) -> Result<(), ApiError> {
    let refuse = |name: &HeaderName, value: &str| {
        let sentence =
            "a page of another site may change nothing here; the operator allows origins with ALLOW_ORIGINS";
        ApiError::new(Code::OriginNotAllowed, sentence).field(name.as_str()).value(value).allowed([
            "a page of this service",
            "an origin of ALLOW_ORIGINS",
            "a caller that is no browser",
        ])
    };
    let mut origins = texts(headers, &header::ORIGIN).into_iter();
    if let Some(text) = origins.next() {
        let origin = Origin::parse(text).filter(|_| origins.next().is_none());
        let origin = origin.ok_or_else(|| refuse(&header::ORIGIN, text))?;
        if config.allow_origins.contains(&origin.text) {
            return Ok(());
        }
        // A proxy in front may put another name into `Host` than the one that its users see.
        let ours = host.is_origin(&origin) || config.public_hosts.iter().any(|rule| rule.is_origin(&origin));
        if !ours {
            return Err(refuse(&header::ORIGIN, text));
        }
    }
    let sites = texts(headers, &SEC_FETCH_SITE);
    match sites.into_iter().find(|site| !matches!(*site, "same-origin" | "none")) {
        Some(site) => Err(refuse(&SEC_FETCH_SITE, site)),
        None => Ok(()),
    }
}

/// The values of a header; one that is no text counts as empty.
fn texts<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Vec<&'a str> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default()).collect()
}
