//! Declares how a caller sends a key, and which scope each operation needs.
use super::operations;
use crate::operation::{Access, Operations, methods};
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};

const BEARER: &str = "bearer";
const API_KEY: &str = "api_key";

/// Declares both ways to send a key. The empty requirement is for services with `AUTH=none`.
/// `require_keys` removes it.
pub(super) fn declare(document: &mut OpenApi, known: &Operations) {
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("fc_…");
    let bearer = bearer.description(Some(
        "A key that `facecrawl keys create` or `POST /keys` created; required if the service runs with `AUTH=keys`",
    ));
    let plain = ApiKeyValue::with_description("X-API-Key", "The same key in another header");
    let components = document.components.get_or_insert_default();
    components.add_security_scheme(BEARER, SecurityScheme::Http(bearer.build()));
    components.add_security_scheme(API_KEY, SecurityScheme::ApiKey(ApiKey::Header(plain)));
    for (_, spec, operation) in operations(document, known) {
        let (scope, note) = match spec.access {
            Access::Open => continue,
            Access::AnyKey => (None, "Requires a key if the service runs with `AUTH=keys`.".to_owned()),
            Access::Needs(scope) => (
                Some(scope.as_str()),
                format!("Requires the scope `{scope}` if the service runs with `AUTH=keys`."),
            ),
        };
        let needs = |scheme: &str| SecurityRequirement::new(scheme, scope);
        operation.security = Some(vec![needs(BEARER), needs(API_KEY), SecurityRequirement::default()]);
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
            requirements.retain(|one| *one != SecurityRequirement::default());
        }
    }
}
