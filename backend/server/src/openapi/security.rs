//! How a key is sent, and the scope that each operation needs.
use super::{id, operations};
use crate::auth::{Access, access};
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};

const BEARER: &str = "bearer";
const API_KEY: &str = "api_key";

/// The empty requirement stands for services with `AUTH=none`; `require_keys` takes it away for the others.
pub(super) fn declare(document: &mut OpenApi) {
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("fc_…");
    let bearer = bearer.description(Some(
        "A key of `facecrawl keys create` or `POST /keys`, where the service runs with `AUTH=keys`",
    ));
    let plain = ApiKeyValue::with_description("X-API-Key", "The same key in another header");
    let components = document.components.get_or_insert_default();
    components.add_security_scheme(BEARER, SecurityScheme::Http(bearer.build()));
    components.add_security_scheme(API_KEY, SecurityScheme::ApiKey(ApiKey::Header(plain)));
    for operation in operations(document) {
        let (scope, note) = match access(id(operation)) {
            None | Some(Access::Open) => continue,
            Some(Access::AnyKey) => (None, "Needs a key where the service asks for keys.".to_owned()),
            Some(Access::Needs(scope)) => {
                (Some(scope.as_str()), format!("Needs the scope `{scope}` where the service asks for keys."))
            }
        };
        let needs = |scheme: &str| SecurityRequirement::new(scheme, scope);
        operation.security = Some(vec![needs(BEARER), needs(API_KEY), SecurityRequirement::default()]);
        operation.description = Some(match operation.description.take() {
            Some(text) => format!("{text}\n\n{note}"),
            None => note,
        });
    }
}

/// Of a service that asks for keys: no operation that needs one goes without.
pub(crate) fn require_keys(document: &mut OpenApi) {
    for operation in operations(document) {
        if let Some(requirements) = &mut operation.security {
            requirements.retain(|one| *one != SecurityRequirement::default());
        }
    }
}
