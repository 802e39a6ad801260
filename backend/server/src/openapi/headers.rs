//! Describes each header of a response once for the whole document. A handler lists the headers of
//! its own responses in `#[utoipa::path]`. This module adds the headers that follow from a status
//! or a key.
use super::operations;
use super::problems::announces;
use crate::Code;
use crate::operation::{Access, Operations};
use serde_json::Value;
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::header::{Header, HeaderBuilder};
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};
use utoipa::openapi::{OpenApi, Ref, RefOr};

/// Component for `Retry-After` if only some problems of the status have this header.
const SOMETIMES_RETRY_AFTER: &str = "retry-after-where-known";
/// Component for `WWW-Authenticate` if only some problems of the status concern a key.
const SOMETIMES_CHALLENGE: &str = "www-authenticate-where-keys";

/// Returns every header of the document under its name among the components.
fn shared() -> Vec<(String, RefOr<Header>)> {
    let text = || Object::with_type(Type::String);
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
            SOMETIMES_RETRY_AFTER,
            seconds,
            false,
            "Seconds to wait before the next attempt; only with `database_unavailable`, and not if the change may already have been made (`outcome_unknown`)",
            5,
        ),
        header(
            "www-authenticate",
            text(),
            true,
            "The required kind of key, and what was wrong with the key in the request (RFC 6750)",
            "Bearer realm=\"facecrawl\"",
        ),
        header(
            SOMETIMES_CHALLENGE,
            text(),
            false,
            "The scope that the key lacks (RFC 6750); only with `scope_missing`",
            "Bearer realm=\"facecrawl\", error=\"insufficient_scope\", scope=\"erase\"",
        ),
        header(
            "ratelimit",
            text(),
            false,
            "Remaining requests of the key, and the seconds until its full limit is available again; only for a key with a limit",
            "\"key\";r=117;t=2",
        ),
        header(
            "ratelimit-policy",
            text(),
            false,
            "The limit of the key and its window in seconds; only for a key with a limit",
            "\"key\";q=120;w=60",
        ),
        header("etag", text(), true, "Entity tag of the file, for `If-None-Match`", "\"5f2c1a.jpg\""),
        header(
            "vary",
            text(),
            true,
            "The request header that determined the format of the response",
            "accept",
        ),
        header(
            "content-disposition",
            text(),
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
        header(
            "location",
            text(),
            true,
            "The path of the created resource",
            "/crawls/0198f1c2-7d10-7000-8000-4a6f1f6e2b01",
        ),
    ]
}

/// Describes a header. `always` states whether every response that declares the header contains it.
fn header(
    name: &str,
    schema: Object,
    always: bool,
    description: &str,
    example: impl Into<Value>,
) -> (String, RefOr<Header>) {
    let header = HeaderBuilder::new()
        .schema(Some(schema))
        .description(Some(description))
        .example(Some(example.into()));
    // utoipa has no field for OpenAPI's `required`.
    let header = header.extensions(Some(Extensions::from_iter([("required", always)])));
    (name.to_owned(), header.build().into())
}

/// Adds the headers of every response, as references to the components.
pub(super) fn declare(document: &mut OpenApi, known: &Operations) {
    let components = document.components.get_or_insert_default();
    components.headers.extend(shared());
    for (_, spec, operation) in operations(document, known) {
        let guarded = matches!(spec.access, Access::Needs(_));
        for (status, response) in &mut operation.responses.responses {
            let RefOr::T(response) = response else { continue };
            let database_may_be_away = announces(response, Code::DatabaseUnavailable);
            let reference = |shared: &str| RefOr::Ref(Ref::new(format!("#/components/headers/{shared}")));
            for (name, header) in &mut response.headers {
                *header = reference(name);
            }
            let mut refer = |name: &str, shared: &str| {
                response.headers.insert(name.to_owned(), reference(shared));
            };
            if database_may_be_away {
                refer("retry-after", SOMETIMES_RETRY_AFTER);
            }
            if status == "403" {
                refer("www-authenticate", SOMETIMES_CHALLENGE);
            }
            let mut add = |name: &str| refer(name, name);
            add("x-request-id");
            match status.as_str() {
                "401" => add("www-authenticate"),
                "429" => add("retry-after"),
                _ => {}
            }
            // Rejected requests are not counted towards a limit.
            if guarded && !matches!(status.as_str(), "401" | "403") {
                add("ratelimit");
                add("ratelimit-policy");
            }
        }
    }
}
