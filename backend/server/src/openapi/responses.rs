//! Declares the problems of each operation, by status and with an example of every code, and the
//! headers of all responses.
//!
//! Most problems follow from the operation's key, parameters and body. `Spec::problems` lists the
//! others. A handler lists the headers of its own responses in `#[utoipa::path]`.
use crate::operation::{Access, Operations, Spec};
use crate::{Code, Problem};
use axum::http::{Method, StatusCode};
use serde_json::Value;
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::header::{Header, HeaderBuilder};
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder};

const PROBLEM: &str = "application/problem+json";

/// Returns every code that the operation can return, without duplicates.
fn codes(method: &Method, spec: Spec, operation: &Operation) -> Vec<Code> {
    let mut codes = vec![Code::Internal, Code::Timeout];
    if !spec.allows_any_host {
        codes.push(Code::HostNotAllowed);
    }
    if *method != Method::GET {
        codes.push(Code::OriginNotAllowed);
    }
    if matches!(*method, Method::POST | Method::PUT | Method::PATCH) {
        // Even operations that read no body check the content type.
        codes.push(Code::UnsupportedMediaType);
    }
    if spec.access != Access::Open {
        // Each response needs memory (`middleware::limits`).
        codes.extend([Code::Unauthorized, Code::RateLimited, Code::Overloaded, Code::DatabaseUnavailable]);
    }
    if matches!(spec.access, Access::Needs(_)) {
        codes.push(Code::ScopeMissing);
    }
    for parameter in operation.parameters.iter().flatten() {
        let RefOr::T(parameter) = parameter else { continue };
        let is_id = serde_json::json!(parameter.schema)["format"] == "uuid";
        match parameter.parameter_in {
            ParameterIn::Path if is_id => codes.extend([Code::BadId, Code::NotFound]),
            ParameterIn::Path => codes.push(Code::NotFound),
            ParameterIn::Query if parameter.name == "collection" => {
                codes.extend([Code::BadQuery, Code::NotFound]);
            }
            ParameterIn::Query => codes.push(Code::BadQuery),
            _ => {}
        }
    }
    if let Some(RefOr::T(body)) = &operation.request_body {
        codes.extend([Code::BadBody, Code::TooManyBytes]);
        let accepts = |content_type: &str| body.content.contains_key(content_type);
        if accepts("application/json") {
            codes.extend([Code::BadJson, Code::InvalidField]);
        }
        if accepts("multipart/form-data") {
            codes.extend([Code::BadMultipart, Code::UnknownPart, Code::TooManyImages, Code::MissingImage]);
        }
    }
    codes.extend(spec.problems.iter().copied().flatten());
    codes.sort_by_key(|code| code.as_str());
    codes.dedup();
    codes
}

/// Returns the description of a status for which the operation defines none.
fn default_description(status: StatusCode, codes: &[Code]) -> &'static str {
    let has = |code| codes.contains(&code);
    match status {
        StatusCode::BAD_REQUEST => "A parameter, an id or the body is invalid",
        StatusCode::UNAUTHORIZED => "The key is missing or invalid; `reason` states why",
        StatusCode::FORBIDDEN => {
            "The key does not allow this operation, or a page of another site sent the request"
        }
        StatusCode::MISDIRECTED_REQUEST => "Without keys: the host name in the request is not allowed",
        StatusCode::PRECONDITION_REQUIRED => {
            "The call would delete so much that it requires the token of a dry run"
        }
        StatusCode::NOT_FOUND if has(Code::BadId) => {
            "The resource does not exist, or the key cannot access it"
        }
        StatusCode::NOT_FOUND => "The collection does not exist",
        StatusCode::CONFLICT => "The state of the resource does not allow this",
        StatusCode::PAYLOAD_TOO_LARGE if has(Code::VideoTooLarge) => "Too many bytes, or too long",
        StatusCode::PAYLOAD_TOO_LARGE if has(Code::ImageTooLarge) => "Too many bytes or pixels",
        StatusCode::PAYLOAD_TOO_LARGE => "Too many bytes",
        StatusCode::UNSUPPORTED_MEDIA_TYPE if has(Code::NotAnImage) => {
            "The content is not an image, or the content type is not supported"
        }
        StatusCode::UNSUPPORTED_MEDIA_TYPE if has(Code::NotAVideo) => {
            "The content is not a video that can be decoded, or the content type is not supported"
        }
        StatusCode::UNSUPPORTED_MEDIA_TYPE if has(Code::BadJson) => "The content type is not JSON",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "The operation does not accept the content type",
        StatusCode::UNPROCESSABLE_ENTITY if has(Code::NoFace) => {
            "The image has no face, or a field is invalid"
        }
        StatusCode::UNPROCESSABLE_ENTITY if has(Code::CorruptImage) => {
            "The image is corrupt, the base64 is invalid, or the URL cannot be fetched"
        }
        StatusCode::UNPROCESSABLE_ENTITY if has(Code::CorruptVideo) => "The video is corrupt",
        StatusCode::UNPROCESSABLE_ENTITY => "A field is invalid; `field` contains its name",
        StatusCode::TOO_MANY_REQUESTS => "Too many requests; retry after `Retry-After`",
        StatusCode::INTERNAL_SERVER_ERROR => {
            "The service failed; its log contains the cause with the id of the request"
        }
        StatusCode::INSUFFICIENT_STORAGE => "The disk is full; nothing was stored",
        StatusCode::SERVICE_UNAVAILABLE => "The request timed out, or the service is starting or stopping",
        _ => "A problem; `code` and `detail` describe it",
    }
}

/// Returns whether a response can be a problem with this code.
pub(super) fn declares(response: &Response, code: Code) -> bool {
    match response.content.get(PROBLEM) {
        Some(RefOr::T(content)) => content.examples.contains_key(code.as_str()),
        _ => false,
    }
}

pub(super) fn declare_problems(document: &mut OpenApi, operations: &Operations) {
    let examples = Code::ALL.iter().map(|code| {
        let example = ExampleBuilder::new()
            .summary(code.title())
            .value(Some(serde_json::json!(Problem::example(*code))));
        (code.as_str().to_owned(), RefOr::T(example.build()))
    });
    document.components.get_or_insert_default().examples.extend(examples);
    for (method, spec, operation) in operations.documented(document) {
        let codes = codes(&method, spec, operation);
        for code in &codes {
            let description = default_description(code.status(), &codes);
            let response = operation.responses.responses.entry(code.status().as_str().to_owned());
            let response =
                response.or_insert_with(|| ResponseBuilder::new().description(description).build().into());
            let RefOr::T(response) = response else { continue };
            let content = response.content.entry(PROBLEM.to_owned()).or_insert_with(|| {
                ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build().into()
            });
            let RefOr::T(content) = content else { continue };
            let name = code.as_str();
            let example = Ref::new(format!("#/components/examples/{name}"));
            content.examples.insert(name.to_owned(), RefOr::Ref(example));
        }
    }
}

/// Component for `Retry-After` if only some problems of the status have this header.
const OPTIONAL_RETRY_AFTER: &str = "retry-after-where-known";
/// Component for `WWW-Authenticate` if only some problems of the status concern a key.
const OPTIONAL_CHALLENGE: &str = "www-authenticate-where-keys";

/// Returns every header of the document under its name among the components.
fn shared_headers() -> Vec<(String, RefOr<Header>)> {
    let seconds = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1)).build();
    let id = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[A-Za-z0-9._:-]{1,128}$")).build();
    let scale = ObjectBuilder::new().schema_type(Type::Number).minimum(Some(1)).maximum(Some(4)).build();
    vec![
        header(
            "x-request-id",
            id,
            true,
            "The id of the request: the caller's id if it is valid, otherwise a new id. The service's log contains it too",
            "0198f1c2-3a55-7c30-9d35-6a2f5d0f6a11",
        ),
        header("retry-after", seconds.clone(), true, "Seconds to wait before the next attempt", 1),
        header(
            OPTIONAL_RETRY_AFTER,
            seconds,
            false,
            "Seconds to wait before the next attempt; only with `database_unavailable`, and not if the change may already have been made (`outcome_unknown`)",
            5,
        ),
        text(
            "www-authenticate",
            true,
            "The required kind of key, and what was wrong with the key in the request (RFC 6750)",
            "Bearer realm=\"facecrawl\"",
        ),
        text(
            OPTIONAL_CHALLENGE,
            false,
            "The scope that the key lacks (RFC 6750); only with `scope_missing`",
            "Bearer realm=\"facecrawl\", error=\"insufficient_scope\", scope=\"erase\"",
        ),
        text(
            "ratelimit",
            false,
            "Remaining requests of the key, and the seconds until its full limit is available again; only for a key with a limit",
            "\"key\";r=117;t=2",
        ),
        text(
            "ratelimit-policy",
            false,
            "The limit of the key and its window in seconds; only for a key with a limit",
            "\"key\";q=120;w=60",
        ),
        text("etag", true, "Entity tag of the file, for `If-None-Match`", "\"5f2c1a.jpg\""),
        text("vary", true, "The request header that determined the format of the response", "accept"),
        text(
            "content-disposition",
            true,
            "The suggested file name",
            "attachment; filename=\"crawl-0198f1c2-7d10-7000-8000-4a6f1f6e2b01.csv\"",
        ),
        header(
            "x-enhancement-scale",
            scale,
            true,
            "Scale of the enhanced image relative to the image in the request",
            2.5,
        ),
        text(
            "location",
            true,
            "The path of the created resource",
            "/crawls/0198f1c2-7d10-7000-8000-4a6f1f6e2b01",
        ),
    ]
}

/// Describes a header whose value is a text.
fn text(
    name: &str,
    is_required: bool,
    description: &str,
    example: impl Into<Value>,
) -> (String, RefOr<Header>) {
    header(name, Object::with_type(Type::String), is_required, description, example)
}

/// Describes a header. With `is_required`, every response that declares the header contains it.
fn header(
    name: &str,
    schema: Object,
    is_required: bool,
    description: &str,
    example: impl Into<Value>,
) -> (String, RefOr<Header>) {
    let header = HeaderBuilder::new()
        .schema(Some(schema))
        .description(Some(description))
        .example(Some(example.into()));
    // utoipa has no field for OpenAPI's `required`.
    let header = header.extensions(Some(Extensions::from_iter([("required", is_required)])));
    (name.to_owned(), header.build().into())
}

/// Adds the headers of every response, as references to the components.
pub(super) fn declare_headers(document: &mut OpenApi, operations: &Operations) {
    let components = document.components.get_or_insert_default();
    components.headers.extend(shared_headers());
    for (_, spec, operation) in operations.documented(document) {
        let requires_scope = matches!(spec.access, Access::Needs(_));
        for (status, response) in &mut operation.responses.responses {
            let RefOr::T(response) = response else { continue };
            let database_may_fail = declares(response, Code::DatabaseUnavailable);
            let reference = |shared: &str| RefOr::Ref(Ref::new(format!("#/components/headers/{shared}")));
            for (name, header) in &mut response.headers {
                *header = reference(name);
            }
            let mut refer = |name: &str, shared: &str| {
                response.headers.insert(name.to_owned(), reference(shared));
            };
            if database_may_fail {
                refer("retry-after", OPTIONAL_RETRY_AFTER);
            }
            if status == "403" {
                refer("www-authenticate", OPTIONAL_CHALLENGE);
            }
            let mut add = |name: &str| refer(name, name);
            add("x-request-id");
            match status.as_str() {
                "401" => add("www-authenticate"),
                "429" => add("retry-after"),
                _ => {}
            }
            // Rejected requests are not counted towards a limit.
            if requires_scope && !matches!(status.as_str(), "401" | "403") {
                add("ratelimit");
                add("ratelimit-policy");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_declared_error_status_has_code_example() {
        let (mut document, operations) = crate::router::describe_api();
        for (_, _, operation) in operations.documented(&mut document) {
            let operation_id = operation.operation_id.clone().unwrap();
            for (status, response) in &operation.responses.responses {
                let response = serde_json::json!(response);
                let problems = &response["content"][PROBLEM];
                if status.starts_with(['4', '5']) {
                    let examples = problems["examples"].as_object();
                    assert!(
                        examples.is_some_and(|examples| !examples.is_empty()),
                        "{operation_id} {status}: its `Spec` contains no code"
                    );
                } else {
                    assert!(problems.is_null(), "{operation_id} {status} must not declare a problem");
                }
            }
        }
    }

    #[test]
    fn every_code_is_declared_by_some_operation() {
        let (mut document, operations) = crate::router::describe_api();
        let declared: Vec<Code> = operations
            .documented(&mut document)
            .flat_map(|(method, spec, operation)| codes(&method, spec, operation))
            .collect();
        for code in Code::ALL {
            // These two codes apply to paths and methods without an operation.
            let is_general = matches!(code, Code::RouteNotFound | Code::MethodNotAllowed);
            assert_eq!(declared.contains(code), !is_general, "{}", code.as_str());
        }
    }
}
