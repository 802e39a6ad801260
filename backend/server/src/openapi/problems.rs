//! The problems that each operation can answer: declared under their statuses, with an example of every code.
//!
//! What follows from an operation's shape (an id in its path, a body, a scope) is told from that shape; `own` has the rest.
use super::{id, with_methods};
use crate::auth::{Access, access};
use crate::{Code, Problem};
use axum::http::{Method, StatusCode};
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder};

/// The content type of problem documents.
const PROBLEM: &str = "application/problem+json";

/// The picture itself is refused.
const PICTURE: &[Code] = &[
    Code::NotAnImage,
    Code::UnsupportedFormat,
    Code::CorruptImage,
    Code::ImageTooLarge,
    Code::BadBase64,
    Code::NotReady,
];
/// The picture is fetched by the service.
const FETCHED: &[Code] = &[Code::BadUrl, Code::ForbiddenUrl, Code::UrlUnreachable];
/// One face of the picture is taken.
const FACE: &[Code] = &[Code::NoFace, Code::NoSuchFace];

/// What an operation's shape does not tell.
fn own(operation_id: &str) -> &'static [&'static [Code]] {
    match operation_id {
        "detect_faces" | "report_quality" | "enhance_image" => &[PICTURE, FETCHED],
        // What is wrong with a single picture stands in its place in the answer.
        "detect_faces_batch" => &[],
        "compare_faces" => &[PICTURE, FETCHED, FACE],
        "search_faces" => &[PICTURE, FETCHED, FACE, &[Code::ModelMismatch]],
        "create_erasure" => &[PICTURE, FACE, &[Code::Conflict, Code::ConfirmationNeeded]],
        "enrol_subject_faces" => &[PICTURE, FETCHED, FACE, &[Code::LowQuality, Code::Conflict]],
        "delete_collection" => &[&[Code::BadQuery, Code::ConfirmationNeeded]],
        "delete_crawl" => &[&[Code::Conflict, Code::ConfirmationNeeded]],
        "follow_crawl" => &[&[Code::Overloaded]],
        "create_crawl" => &[&[Code::ForbiddenUrl, Code::NotFound]],
        "create_subject" | "create_key" => &[&[Code::Conflict, Code::NotFound]],
        "update_collection" => &[&[Code::Conflict, Code::ConfirmationNeeded]],
        "create_collection"
        | "pause_crawl"
        | "resume_crawl"
        | "cancel_crawl"
        | "revoke_key"
        | "update_subject"
        | "merge_subject"
        | "rotate_webhook_secret"
        | "retry_job" => &[&[Code::Conflict]],
        // It takes no parameters, and says so.
        "list_collections" => &[&[Code::BadQuery]],
        "health_ready" => &[&[Code::NotReady]],
        _ => &[],
    }
}

/// All that the operation can answer, each once.
fn codes(method: &Method, operation: &Operation) -> Vec<Code> {
    let mut codes = vec![Code::Internal, Code::Timeout];
    if !id(operation).starts_with("health_") {
        codes.push(Code::HostNotAllowed);
    }
    if *method != Method::GET {
        codes.push(Code::OriginNotAllowed);
    }
    if matches!(*method, Method::POST | Method::PUT | Method::PATCH) {
        // Also where no body is read.
        codes.push(Code::UnsupportedMediaType);
    }
    match access(id(operation)) {
        None | Some(Access::Open) => {}
        Some(Access::AnyKey) => {
            codes.extend([Code::Unauthorized, Code::RateLimited, Code::DatabaseUnavailable]);
        }
        Some(Access::Needs(_)) => codes.extend([
            Code::Unauthorized,
            Code::ScopeMissing,
            Code::RateLimited,
            Code::DatabaseUnavailable,
        ]),
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
        codes.extend([Code::BadBody, Code::TooManyBytes, Code::Overloaded]);
        let takes = |content_type: &str| body.content.contains_key(content_type);
        if takes("application/json") {
            codes.extend([Code::BadJson, Code::InvalidField]);
        }
        if takes("multipart/form-data") {
            codes.extend([Code::BadMultipart, Code::UnknownPart, Code::TooManyImages, Code::MissingImage]);
        }
    }
    codes.extend(own(id(operation)).iter().copied().flatten());
    codes.sort_by_key(|code| code.as_str());
    codes.dedup();
    codes
}

/// Said of a status where the operation itself says nothing.
fn sentence(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST => "A parameter, an id or a body that cannot be read",
        StatusCode::UNAUTHORIZED => "No key, or one that does not work; `reason` says why",
        StatusCode::FORBIDDEN => "The key does not allow this, or a page of another site asks",
        StatusCode::MISDIRECTED_REQUEST => {
            "Without keys: the request names a host that is not this service's"
        }
        StatusCode::PRECONDITION_REQUIRED => "So much would be deleted that the token of a dry run is needed",
        StatusCode::NOT_FOUND => "No such thing, or one that is out of the key's reach",
        StatusCode::PAYLOAD_TOO_LARGE => "Too many bytes",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "A content type that this operation does not take",
        StatusCode::TOO_MANY_REQUESTS => "Too much at once; come back after `Retry-After`",
        StatusCode::INTERNAL_SERVER_ERROR => {
            "The service failed; its log has the cause under the request's id"
        }
        StatusCode::SERVICE_UNAVAILABLE => "No answer in time, or the service is starting or stopping",
        _ => "A problem; `code` and `detail` say which",
    }
}

/// Whether an answer can be a problem with this code.
pub(super) fn announces(response: &Response, code: Code) -> bool {
    match response.content.get(PROBLEM) {
        Some(RefOr::T(content)) => content.examples.contains_key(code.as_str()),
        _ => false,
    }
}

/// Adds every problem of every operation.
pub(super) fn declare(document: &mut OpenApi) {
    let shown = Code::ALL.iter().map(|code| {
        let example = ExampleBuilder::new()
            .summary(code.title())
            .value(Some(serde_json::json!(Problem::example(*code))));
        (code.as_str().to_owned(), RefOr::T(example.build()))
    });
    document.components.get_or_insert_default().examples.extend(shown);
    for (method, operation) in with_methods(document) {
        for code in codes(&method, operation) {
            let response = operation.responses.responses.entry(code.status().as_str().to_owned());
            let response = response.or_insert_with(|| {
                ResponseBuilder::new().description(sentence(code.status())).build().into()
            });
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::operations;
    use super::*;

    #[test]
    fn every_problem_that_an_operation_declares_has_a_code() {
        let mut document = crate::openapi();
        for operation in operations(&mut document) {
            let place = id(operation).to_owned();
            for (status, response) in &operation.responses.responses {
                let response = serde_json::json!(response);
                let problems = &response["content"][PROBLEM];
                if status.starts_with(['4', '5']) {
                    let examples = problems["examples"].as_object();
                    assert!(
                        examples.is_some_and(|examples| !examples.is_empty()),
                        "{place} {status}: say in `own` with which code"
                    );
                } else {
                    assert!(problems.is_null(), "{place} {status} is no problem");
                }
            }
        }
    }

    #[test]
    fn every_code_of_an_operation_is_declared_somewhere() {
        let mut document = crate::openapi();
        let declared: Vec<Code> =
            with_methods(&mut document).flat_map(|(method, operation)| codes(&method, operation)).collect();
        for code in Code::ALL {
            // These two belong to paths and methods that are no operation.
            let of_none = matches!(code, Code::RouteNotFound | Code::MethodNotAllowed);
            assert_eq!(declared.contains(code), !of_none, "{}", code.as_str());
        }
    }
}
