//! Describes what an HTTP operation requires of its caller and which problems it can return. Each
//! description is a constant next to the handler and is registered with it. The middleware checks
//! the requests.
mod routes;

pub(crate) use routes::{Operations, Routes, methods};

use crate::extract::is_json;
use crate::{Code, Scope};
use axum::http::HeaderMap;

/// Which key an operation requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// No key. This value is for the health checks and the description of the API.
    Open,
    AnyKey,
    Needs(Scope),
}

/// Describes what the signature and the `#[utoipa::path]` of a handler do not express. The router,
/// the access check, the OpenAPI document and the middleware use the same constant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub(crate) access: Access,
    /// Problems that do not follow from the method, the key, the parameters and the body.
    pub(crate) problems: &'static [&'static [Code]],
    /// Fields of the JSON body. A caller must send exactly one of them.
    pub(crate) one_of: &'static [&'static str],
    /// Whether a running request counts towards its caller's limit on database connections
    /// (`middleware::connection_shares`).
    pub(crate) uses_connection: bool,
    /// Whether the body may be larger than memory. The operation reads it piece by piece, and
    /// limits its time and size itself.
    pub(crate) uploads: bool,
    /// Whether a request may name any host. Load balancers send arbitrary host names, and these
    /// operations reveal and change nothing.
    pub(crate) any_host: bool,
}

impl Spec {
    pub(crate) const fn needs(scope: Scope) -> Self {
        Self::with(Access::Needs(scope))
    }

    pub(crate) const fn open() -> Self {
        Self { uses_connection: false, ..Self::with(Access::Open) }
    }

    pub(crate) const fn with(access: Access) -> Self {
        Self { access, problems: &[], one_of: &[], uses_connection: true, uploads: false, any_host: false }
    }

    pub(crate) const fn problems(self, problems: &'static [&'static [Code]]) -> Self {
        Self { problems, ..self }
    }

    pub(crate) const fn one_of(self, one_of: &'static [&'static str]) -> Self {
        Self { one_of, ..self }
    }

    /// Marks an operation that takes a long time but makes little use of the database. The limits
    /// on analyses and on event streams apply to it instead of the limit on database connections.
    pub(crate) const fn limited_elsewhere(self) -> Self {
        Self { uses_connection: false, ..self }
    }

    pub(crate) const fn uploads(self) -> Self {
        Self { uploads: true, ..self.limited_elsewhere() }
    }

    /// Returns whether a request with these headers counts towards its caller's limit on database
    /// connections. An upload does not: places limit it. The same operation may accept JSON, which
    /// has no place.
    pub(crate) fn counts_connection(self, headers: &HeaderMap) -> bool {
        self.uses_connection || (self.uploads && is_json(headers))
    }

    pub(crate) const fn any_host(self) -> Self {
        Self { any_host: true, ..self }
    }
}
