//! What the API says about itself.
//!
//! Operations and schemas come from the routes. What holds for many operations at once is added here: keys and scopes, the problems that an
//! operation can answer, the headers of answers, examples, and what attributes of a struct cannot say of its schema.
mod alternatives;
mod examples;
mod forms;
mod headers;
mod problems;
mod security;

pub(crate) use security::require_keys;

use crate::Problem;
use crate::auth::methods;
use utoipa::OpenApi;
use utoipa::openapi::path::Operation;

/// The frame of the document; the operations come from the routes.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "facecrawl",
        description = "Finds, compares and searches faces in pictures, and crawls the web for them. Errors are `application/problem+json` \
            with a stable `code` and the `request_id` that is also in the header `x-request-id`. Process only pictures that you may \
            lawfully process.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    tags(
        (name = "faces", description = "Find, compare and search faces; stored faces"),
        (name = "images", description = "Stored images and where they were found; quality reports and enhancement"),
        (name = "crawls", description = "Crawls of the web"),
        (name = "collections", description = "The unit of isolation"),
        (name = "erasures", description = "What must go, and not come back"),
        (name = "keys", description = "Who may do what"),
        (name = "audit", description = "Who did what"),
        (name = "subjects", description = "People: enrolled subjects and clusters of alike faces"),
        (name = "jobs", description = "Work in the queue"),
        (name = "system", description = "Devices, health, metrics")
    ),
    components(schemas(Problem)),
)]
pub(crate) struct Frame;

/// Adds to the operations what they have in common.
pub(crate) fn complete(document: &mut utoipa::openapi::OpenApi) {
    alternatives::declare(document);
    forms::declare(document);
    security::declare(document);
    problems::declare(document);
    headers::declare(document);
    examples::declare(document);
}

/// Every operation of the document.
fn operations(document: &mut utoipa::openapi::OpenApi) -> impl Iterator<Item = &mut Operation> {
    with_methods(document).map(|(_, operation)| operation)
}

/// Every operation of the document with its method.
fn with_methods(
    document: &mut utoipa::openapi::OpenApi,
) -> impl Iterator<Item = (axum::http::Method, &mut Operation)> {
    document.paths.paths.values_mut().flat_map(methods)
}

/// The operation's id; every operation has one.
fn id(operation: &Operation) -> &str {
    operation.operation_id.as_deref().unwrap_or_default()
}
