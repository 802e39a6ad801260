//! Builds the OpenAPI document. The routes define the operations, the schemas and everything that
//! concerns a single operation.
//!
//! This module adds what applies to many operations: security requirements, problems, headers,
//! examples, and schema properties that the attributes of a struct cannot express.
mod alternatives;
mod examples;
mod forms;
mod headers;
mod problems;
mod security;

pub(crate) use examples::example_of;
pub(crate) use security::require_keys;

use crate::Problem;
use crate::operation::{Operations, Spec, methods};
use axum::http::Method;
use serde_json::json;
use utoipa::OpenApi;
use utoipa::openapi::path::Operation;

/// The document without operations.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "facecrawl",
        description = "Finds, compares and searches faces in images, and crawls the web for them. Errors are `application/problem+json` \
            with a stable `code` and the `request_id` that is also in the header `x-request-id`. Process only images that you may \
            lawfully process.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    tags(
        (name = "faces", description = "Find, compare and search faces; manage stored faces"),
        (name = "images", description = "Stored images and where they were found; quality reports and enhancement"),
        (name = "videos", description = "Videos: who appears when"),
        (name = "crawls", description = "Crawls of the web"),
        (name = "collections", description = "Isolated sets of images, faces and people"),
        (name = "erasures", description = "Erase images and faces, and prevent them from being stored again"),
        (name = "keys", description = "API keys and what they allow"),
        (name = "audit", description = "The audit log: which key did what and when"),
        (name = "subjects", description = "People: enrolled subjects and clusters of similar faces"),
        (name = "jobs", description = "Jobs in the queue"),
        (name = "system", description = "Devices, health and metrics")
    ),
    components(schemas(Problem)),
)]
pub(crate) struct BaseDocument;

/// Applies the rules of this module to the operations.
pub(crate) fn complete(document: &mut utoipa::openapi::OpenApi, known: &Operations) {
    alternatives::declare(document, known);
    forms::declare(document, known);
    security::declare(document, known);
    problems::declare(document, known);
    headers::declare(document, known);
    examples::declare(document, known);
}

/// Returns every operation of the document with its method and its `Spec`.
fn operations<'a>(
    document: &'a mut utoipa::openapi::OpenApi,
    known: &'a Operations,
) -> impl Iterator<Item = (Method, Spec, &'a mut Operation)> {
    document.paths.paths.iter_mut().flat_map(|(path, item)| {
        methods(item).filter_map(|(method, operation)| {
            known.find(&method, path).map(|found| (method, found.spec, operation))
        })
    })
}

/// Returns the name of the schema of an operation's body with a content type.
fn body_schema(operation: &Operation, content_type: &str) -> Option<String> {
    let body = json!(operation.request_body);
    let reference = body["content"][content_type]["schema"]["$ref"].as_str()?;
    reference.rsplit('/').next().map(str::to_owned)
}
