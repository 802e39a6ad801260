//! Forms take no part whose name they do not know (`extract::multipart`), which no attribute of a struct can say.
use super::operations;
use serde_json::json;
use utoipa::openapi::schema::{AdditionalProperties, Schema};
use utoipa::openapi::{OpenApi, RefOr};

/// Closes the schema of every form.
pub(super) fn declare(document: &mut OpenApi) {
    let mut names = Vec::new();
    for operation in operations(document) {
        let body = json!(operation.request_body);
        let form = body["content"]["multipart/form-data"]["schema"]["$ref"].as_str();
        names.extend(form.and_then(|reference| reference.rsplit('/').next()).map(str::to_owned));
    }
    let schemas = &mut document.components.get_or_insert_default().schemas;
    for name in names {
        if let Some(RefOr::T(Schema::Object(form))) = schemas.get_mut(&name) {
            form.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
        }
    }
}
