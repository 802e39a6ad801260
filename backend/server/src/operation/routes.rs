//! Registers handlers together with the `Spec` of their operations, and looks up the `Spec` for a
//! request. The middleware decides whether a request is allowed.
use super::Spec;
use crate::AppState;
use axum::extract::{MatchedPath, Request};
use axum::http::Method;
use std::collections::HashMap;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::{OpenApi, RefOr};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

/// Routes with their [`Spec`]. The API contains only such routes.
#[derive(Default)]
pub(crate) struct Routes {
    pub(crate) router: OpenApiRouter<AppState>,
    pub(crate) operations: Operations,
}

/// The operations of a router, by method and by template of the route.
#[derive(Default)]
pub(crate) struct Operations(HashMap<(Method, String), Registered>);

pub(crate) struct Registered {
    pub(crate) spec: Spec,
    /// Content types of the body; empty if the operation reads no body.
    pub(crate) media: Vec<String>,
}

impl Routes {
    pub(crate) fn with_openapi(document: OpenApi) -> Self {
        Self { router: OpenApiRouter::with_openapi(document), ..Self::default() }
    }

    pub(crate) fn add(mut self, spec: Spec, mut routes: UtoipaMethodRouter<AppState>) -> Self {
        for (path, item) in &mut routes.1.paths {
            for (method, operation) in methods(item) {
                let media = match &operation.request_body {
                    Some(RefOr::T(body)) => body.content.keys().cloned().collect(),
                    _ => Vec::new(),
                };
                self.operations.0.insert((method, path.clone()), Registered { spec, media });
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
    pub(crate) fn find(&self, method: &Method, path: &str) -> Option<&Registered> {
        let method = if method == Method::HEAD { &Method::GET } else { method };
        self.0.get(&(method.clone(), path.to_owned()))
    }

    pub(crate) fn of(&self, request: &Request) -> Option<&Registered> {
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
