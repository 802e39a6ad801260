//! Builds the OpenAPI document. The routes define the operations, the schemas and everything that
//! concerns a single operation.
//!
//! This module adds what applies to many operations: security requirements, problems, headers,
//! examples, and schema properties that the attributes of a struct cannot express.

mod examples;
pub(crate) mod responses;

pub(crate) use examples::example_of;

use crate::Problem;
use crate::operation::{Access, Operations, methods};
use serde_json::{Value, json};
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{AdditionalProperties, Object, OneOfBuilder, Schema};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{OpenApi, RefOr};

const BEARER: &str = "bearer";
const API_KEY: &str = "api_key";

/// The document without operations.
#[derive(utoipa::OpenApi)]
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
        (name = "watchlists", description = "Watchlists: alerts about new faces of people who are looked for"),
        (name = "streams", description = "Cameras that the configuration lists"),
        (name = "jobs", description = "Jobs in the queue"),
        (name = "system", description = "Devices, health and metrics")
    ),
    components(schemas(Problem)),
)]
pub(crate) struct BaseDocument;

/// Applies the rules of this module to the operations.
pub(crate) fn complete(document: &mut OpenApi, operations: &Operations) {
    declare_alternatives(document, operations);
    close_forms(document, operations);
    declare_security(document, operations);
    responses::declare_problems(document, operations);
    responses::declare_headers(document, operations);
    examples::add_examples(document, operations);
}

/// Describes bodies that require exactly one of several fields (`Spec::one_of`). Each field has its
/// own schema, so that the document accepts only the bodies that the service accepts.
fn declare_alternatives(document: &mut OpenApi, operations: &Operations) {
    let bodies: Vec<_> = operations
        .documented(document)
        .filter(|(_, spec, _)| !spec.one_of.is_empty())
        .filter_map(|(_, spec, operation)| Some((body_schema(operation, "application/json")?, spec.one_of)))
        .collect();
    let schemas = &mut document.components.get_or_insert_default().schemas;
    for (name, fields) in bodies {
        let Some(RefOr::T(schema)) = schemas.get(&name) else { continue };
        let original = json!(schema);
        let mut one_of = OneOfBuilder::new()
            .description(original["description"].as_str())
            .examples(original.get("example").cloned());
        for field in fields {
            one_of = one_of.item(alternative(&name, &original, field, fields));
        }
        schemas.insert(name, Schema::OneOf(one_of.build()).into());
    }
}

/// Returns the schema in which `field` is required and the other fields are null.
fn alternative(name: &str, original: &Value, field: &str, fields: &[&str]) -> Object {
    let mut schema = original.clone();
    for other in fields {
        let property = &mut schema["properties"][other];
        if *other == field {
            // The type is `["string", "null"]`. The first entry is the type of the field.
            property["type"] = property["type"][0].take();
        } else {
            *property = json!({"type": "null"});
        }
    }
    schema["required"] = json!([field]);
    schema["title"] = format!("{name}By{}", pascal_case(field)).into();
    for shared_key in ["description", "example"] {
        schema.as_object_mut().map(|schema| schema.remove(shared_key));
    }
    serde_json::from_value(schema).expect("an object's schema with fewer values is one")
}

/// Returns `FaceId` for `face_id`.
fn pascal_case(field: &str) -> String {
    let word = |word: &str| word[..1].to_uppercase() + &word[1..];
    field.split('_').map(word).collect()
}

/// Closes the schemas of multipart forms, because `extract` rejects unknown parts. No attribute of
/// a struct can declare that a schema is closed.
fn close_forms(document: &mut OpenApi, operations: &Operations) {
    let names: Vec<String> = operations
        .documented(document)
        .filter_map(|(_, _, operation)| body_schema(operation, "multipart/form-data"))
        .collect();
    let schemas = &mut document.components.get_or_insert_default().schemas;
    for name in names {
        if let Some(RefOr::T(Schema::Object(form))) = schemas.get_mut(&name) {
            form.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
        }
    }
}

/// Returns the name of the schema of an operation's body with a content type.
fn body_schema(operation: &Operation, content_type: &str) -> Option<String> {
    let body = json!(operation.request_body);
    let reference = body["content"][content_type]["schema"]["$ref"].as_str()?;
    reference.rsplit('/').next().map(str::to_owned)
}

/// Declares both ways to send a key. The empty requirement is for services with `AUTH=none`.
/// `require_keys` removes it.
fn declare_security(document: &mut OpenApi, operations: &Operations) {
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("fc_…");
    let bearer = bearer.description(Some(
        "A key that `facecrawl keys create` or `POST /keys` created; required if the service runs with `AUTH=keys`, or with `AUTH=proxy` and the proxy names nobody",
    ));
    let header = ApiKeyValue::with_description("X-API-Key", "The same key in another header");
    let components = document.components.get_or_insert_default();
    components.add_security_scheme(BEARER, SecurityScheme::Http(bearer.build()));
    components.add_security_scheme(API_KEY, SecurityScheme::ApiKey(ApiKey::Header(header)));
    for (_, spec, operation) in operations.documented(document) {
        let (scope, note) = match spec.access {
            Access::Open => continue,
            Access::AnyKey => (
                None,
                "Requires a key or a person if the service runs with `AUTH=keys` or `AUTH=proxy`.".to_owned(),
            ),
            Access::Needs(scope) | Access::NeedsInForm(scope) => (
                Some(scope.as_str()),
                format!("Requires the scope `{scope}` if the service runs with `AUTH=keys` or `AUTH=proxy`."),
            ),
        };
        let require = |scheme: &str| SecurityRequirement::new(scheme, scope);
        operation.security = Some(vec![require(BEARER), require(API_KEY), SecurityRequirement::default()]);
        operation.description = Some(match operation.description.take() {
            Some(text) => format!("{text}\n\n{note}"),
            None => note,
        });
    }
}

/// Removes the empty requirement, for a service that requires keys.
pub(crate) fn require_keys(document: &mut OpenApi) {
    for (_, operation) in document.paths.paths.values_mut().flat_map(methods) {
        if let Some(requirements) = &mut operation.security {
            requirements.retain(|requirement| *requirement != SecurityRequirement::default());
        }
    }
}
