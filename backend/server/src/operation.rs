//! Describes the requirements of an HTTP operation and the problems that it can return. Each
//! description is a constant next to the handler and is registered with it. The middleware looks it
//! up and checks the requests.
use crate::extract::is_json;
use crate::{AppState, Code, Scope};
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, Method};
use std::collections::HashMap;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::{OpenApi, RefOr};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

/// The key that an operation requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// No key. This value is for the health checks and the description of the API.
    Open,
    AnyKey,
    Needs(Scope),
    /// A key with the scope, in a header or in the form of the body. The handler checks a key in
    /// the form.
    NeedsInForm(Scope),
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
    /// (`middleware::limits`).
    pub(crate) uses_connection: bool,
    /// Whether the body may be larger than memory. The operation reads it piece by piece, and
    /// limits its time and size itself.
    pub(crate) is_upload: bool,
    /// Whether the `Host` header may contain any name. Load balancers send arbitrary host names,
    /// and these operations reveal and change nothing.
    pub(crate) allows_any_host: bool,
}

impl Spec {
    pub(crate) const fn needs(scope: Scope) -> Self {
        Self::new(Access::Needs(scope))
    }

    pub(crate) const fn open() -> Self {
        Self { uses_connection: false, ..Self::new(Access::Open) }
    }

    pub(crate) const fn new(access: Access) -> Self {
        Self {
            access,
            problems: &[],
            one_of: &[],
            uses_connection: true,
            is_upload: false,
            allows_any_host: false,
        }
    }

    pub(crate) const fn problems(self, problems: &'static [&'static [Code]]) -> Self {
        Self { problems, ..self }
    }

    pub(crate) const fn one_of(self, one_of: &'static [&'static str]) -> Self {
        Self { one_of, ..self }
    }

    /// Marks an operation that takes a long time but makes little use of the database. The limits
    /// on analyses and on event streams apply to it instead of the limit on database connections.
    pub(crate) const fn skip_connection_limit(self) -> Self {
        Self { uses_connection: false, ..self }
    }

    pub(crate) const fn uploads(self) -> Self {
        Self { is_upload: true, ..self.skip_connection_limit() }
    }

    /// Returns whether a request with these headers counts towards its caller's limit on database
    /// connections. An upload does not: its permit limits it. The same operation may accept JSON,
    /// which has no permit.
    pub(crate) fn counts_connection(self, headers: &HeaderMap) -> bool {
        self.uses_connection || (self.is_upload && is_json(headers))
    }

    pub(crate) const fn any_host(self) -> Self {
        Self { allows_any_host: true, ..self }
    }
}

/// Routes with their [`Spec`]. The API contains only such routes.
#[derive(Default)]
pub(crate) struct Routes {
    pub(crate) router: OpenApiRouter<AppState>,
    pub(crate) operations: Operations,
}

/// The operations of a router, by method and by template of the route.
#[derive(Default)]
pub(crate) struct Operations(HashMap<(Method, String), RegisteredOperation>);

pub(crate) struct RegisteredOperation {
    pub(crate) spec: Spec,
    /// Content types of the body; empty if the operation reads no body.
    pub(crate) media: Vec<String>,
}

impl Routes {
    pub(crate) fn add(mut self, spec: Spec, mut routes: UtoipaMethodRouter<AppState>) -> Self {
        for (path, item) in &mut routes.1.paths {
            for (method, operation) in methods(item) {
                let media = match &operation.request_body {
                    Some(RefOr::T(body)) => body.content.keys().cloned().collect(),
                    _ => Vec::new(),
                };
                self.operations.0.insert((method, path.clone()), RegisteredOperation { spec, media });
            }
        }
        Self { router: self.router.routes(routes), ..self }
    }

    pub(crate) fn merge(mut self, other: Self) -> Self {
        self.operations.0.extend(other.operations.0);
        Self { router: self.router.merge(other.router), ..self }
    }
}

impl Operations {
    /// Returns the operation of a route's template. axum handles `HEAD` like `GET`.
    pub(crate) fn find(&self, method: &Method, path: &str) -> Option<&RegisteredOperation> {
        let method = if method == Method::HEAD { &Method::GET } else { method };
        self.0.get(&(method.clone(), path.to_owned()))
    }

    /// Returns every operation of the document with its method and its `Spec`.
    pub(crate) fn documented<'a>(
        &'a self,
        document: &'a mut OpenApi,
    ) -> impl Iterator<Item = (Method, Spec, &'a mut Operation)> {
        document.paths.paths.iter_mut().flat_map(|(path, item)| {
            methods(item).filter_map(|(method, operation)| {
                self.find(&method, path).map(|registered| (method, registered.spec, operation))
            })
        })
    }

    pub(crate) fn lookup(&self, request: &Request) -> Option<&RegisteredOperation> {
        self.find(request.method(), request.extensions().get::<MatchedPath>()?.as_str())
    }
}

pub(crate) fn methods(item: &mut PathItem) -> impl Iterator<Item = (Method, &mut Operation)> {
    [
        (Method::GET, item.get.as_mut()),
        (Method::POST, item.post.as_mut()),
        (Method::PUT, item.put.as_mut()),
        (Method::PATCH, item.patch.as_mut()),
        (Method::DELETE, item.delete.as_mut()),
    ]
    .into_iter()
    .filter_map(|(method, operation)| operation.map(|operation| (method, operation)))
}
