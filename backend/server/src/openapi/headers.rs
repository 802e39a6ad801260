//! The headers of answers.
use super::problems::announces;
use super::{id, operations};
use crate::Code;
use crate::auth::{Access, access};
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::header::{Header, HeaderBuilder};
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};
use utoipa::openapi::{OpenApi, Ref, RefOr};

/// `Retry-After` where not every problem of the status has it.
const SOMETIMES_RETRY_AFTER: &str = "retry-after-where-known";
/// `WWW-Authenticate` where not every problem of the status is about a key.
const SOMETIMES_CHALLENGE: &str = "www-authenticate-where-keys";

/// Headers that several operations share: name, schema, whether it is always there, description, example.
fn shared() -> Vec<(&'static str, Header)> {
    let text = || Object::with_type(Type::String);
    let seconds = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1)).build();
    let id = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[A-Za-z0-9._:-]{1,128}$")).build();
    let scale = ObjectBuilder::new().schema_type(Type::Number).minimum(Some(1)).maximum(Some(4)).build();
    let challenge = "Bearer realm=\"facecrawl\"";
    vec![
        (
            "x-request-id",
            header(
                id,
                true,
                "The request's id: the caller's own if it sent a sane one, else a new one. It stands in the service's log too",
                "0198f1c2-3a55-7c30-9d35-6a2f5d0f6a11",
            ),
        ),
        ("retry-after", header(seconds.clone(), true, "Seconds to wait before the next try", 1)),
        (
            SOMETIMES_RETRY_AFTER,
            header(
                seconds,
                false,
                "Seconds to wait before the next try; only with `database_unavailable`, and not where the change may have been made already (`outcome_unknown`)",
                5,
            ),
        ),
        (
            "www-authenticate",
            header(
                text(),
                true,
                "What kind of key is asked for, and what was wrong with the one that was sent (RFC 6750)",
                challenge,
            ),
        ),
        (
            SOMETIMES_CHALLENGE,
            header(
                text(),
                false,
                "The scope that the key lacks (RFC 6750); only with `scope_missing`",
                "Bearer realm=\"facecrawl\", error=\"insufficient_scope\", scope=\"erase\"",
            ),
        ),
        (
            "ratelimit",
            header(
                text(),
                false,
                "Requests left in the key's minute, and the seconds until all are back; only for a key with a limit",
                "\"key\";r=117;t=2",
            ),
        ),
        (
            "ratelimit-policy",
            header(
                text(),
                false,
                "The key's limit and its window in seconds; only for a key with a limit",
                "\"key\";q=120;w=60",
            ),
        ),
        ("etag", header(text(), true, "Send it back in `If-None-Match`", "\"5f2c1a.jpg\"")),
        ("vary", header(text(), true, "What of the request chose the answer's form", "accept")),
        (
            "content-disposition",
            header(
                text(),
                true,
                "A name for the file",
                "attachment; filename=\"crawl-0198f1c2-7d10-7000-8000-4a6f1f6e2b01.csv\"",
            ),
        ),
        (
            "x-enhancement-scale",
            header(scale, true, "Pixels of the answer per pixel of the picture that was sent", 2.5),
        ),
        (
            "location",
            header(text(), true, "The path of what was made", "/crawls/0198f1c2-7d10-7000-8000-4a6f1f6e2b01"),
        ),
    ]
}

fn header(schema: Object, always: bool, description: &str, example: impl Into<serde_json::Value>) -> Header {
    let header = HeaderBuilder::new()
        .schema(Some(schema))
        .description(Some(description))
        .example(Some(example.into()));
    // OpenAPI has the field, utoipa has none for it.
    header.extensions(Some(Extensions::from_iter([("required", always)]))).build()
}

/// Adds to every answer the headers that it has.
pub(super) fn declare(document: &mut OpenApi) {
    let components = document.components.get_or_insert_default();
    components.headers.extend(shared().into_iter().map(|(name, header)| (name.to_owned(), header.into())));
    for operation in operations(document) {
        let operation_id = id(operation).to_owned();
        let guarded = matches!(access(&operation_id), Some(Access::Needs(_)));
        for (status, response) in &mut operation.responses.responses {
            let RefOr::T(response) = response else { continue };
            let database_may_be_away = announces(response, Code::DatabaseUnavailable);
            let mut refer = |name: &str, shared: &str| {
                let reference = RefOr::Ref(Ref::new(format!("#/components/headers/{shared}")));
                response.headers.insert(name.to_owned(), reference);
            };
            if database_may_be_away {
                refer("retry-after", SOMETIMES_RETRY_AFTER);
            }
            if status == "403" {
                refer("www-authenticate", SOMETIMES_CHALLENGE);
            }
            let mut add = |name: &str| refer(name, name);
            add("x-request-id");
            match (status.as_str(), operation_id.as_str()) {
                ("201", "create_collection" | "create_crawl" | "create_subject") => add("location"),
                ("200" | "304", "get_face_crop" | "get_image_thumbnail") => add("etag"),
                ("200", "export_crawl") => add("content-disposition"),
                ("200", "enhance_image") => ["vary", "x-enhancement-scale"].into_iter().for_each(&mut add),
                ("401", _) => add("www-authenticate"),
                ("429", _) => add("retry-after"),
                _ => {}
            }
            // Whoever is not let in has no standing.
            if guarded && !matches!(status.as_str(), "401" | "403") {
                add("ratelimit");
                add("ratelimit-policy");
            }
        }
    }
}
