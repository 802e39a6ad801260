//! What the API says about itself.
use crate::Problem;
use crate::auth::{Access, access, methods};
use utoipa::OpenApi;
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{ContentBuilder, Ref, Response, ResponseBuilder};

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
        (name = "audit", description = "Who did what"),
        (name = "subjects", description = "People: enrolled subjects and clusters of alike faces"),
        (name = "jobs", description = "Work in the queue"),
        (name = "system", description = "Devices, health, metrics")
    ),
    components(schemas(Problem)),
)]
pub(crate) struct Frame;

/// Every operation can also answer with a problem that it does not list: bad parameters, overload, a failure.
pub(crate) fn add_default_problem(document: &mut utoipa::openapi::OpenApi) {
    const SENTENCE: &str =
        "Any other problem: bad parameters (400), overload (429), a failure (500), not ready (503)";
    for item in document.paths.paths.values_mut() {
        for (_, operation) in methods(item) {
            let responses = &mut operation.responses.responses;
            responses.entry("default".to_owned()).or_insert_with(|| problem(SENTENCE).into());
        }
    }
}

/// How a key is sent, and the scope that each operation needs. The empty requirement stands for services with `AUTH=none`.
pub(crate) fn add_security(document: &mut utoipa::openapi::OpenApi) {
    const BEARER: &str = "bearer";
    const API_KEY: &str = "api_key";
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("fc_…");
    let bearer =
        bearer.description(Some("A key of `facecrawl keys create`, where the service runs with `AUTH=keys`"));
    let plain = ApiKeyValue::with_description("X-API-Key", "The same key in another header");
    let components = document.components.get_or_insert_default();
    components.add_security_scheme(BEARER, SecurityScheme::Http(bearer.build()));
    components.add_security_scheme(API_KEY, SecurityScheme::ApiKey(ApiKey::Header(plain)));
    for item in document.paths.paths.values_mut() {
        for (_, operation) in methods(item) {
            let Some(Access::Needs(scope)) = operation.operation_id.as_deref().and_then(access) else {
                continue;
            };
            let needs = |scheme: &str| SecurityRequirement::new(scheme, [scope.as_str()]);
            operation.security = Some(vec![needs(BEARER), needs(API_KEY), SecurityRequirement::default()]);
            let note = format!("Needs the scope `{scope}` where the service asks for keys.");
            operation.description = Some(match operation.description.take() {
                Some(text) => format!("{text}\n\n{note}"),
                None => note,
            });
            let responses = &mut operation.responses.responses;
            let mut add = |status: &str, text: &str| {
                responses.entry(status.to_owned()).or_insert_with(|| problem(text).into());
            };
            add("401", "No key, or one that does not work; `reason` says why");
            add("403", "The key does not allow this");
        }
    }
}

fn problem(sentence: &str) -> Response {
    ResponseBuilder::new()
        .description(sentence)
        .content(
            "application/problem+json",
            ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build(),
        )
        .build()
}
