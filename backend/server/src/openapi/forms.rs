//! Closes the schemas of multipart forms, because `extract::multipart` rejects unknown parts. No
//! attribute of a struct can declare that a schema is closed.
use super::{body_schema, operations};
use crate::operation::Operations;
use utoipa::openapi::schema::{AdditionalProperties, Schema};
use utoipa::openapi::{OpenApi, RefOr};

pub(super) fn declare(document: &mut OpenApi, known: &Operations) {
    let names: Vec<String> = operations(document, known)
        .filter_map(|(_, _, operation)| body_schema(operation, "multipart/form-data"))
        .collect();
    let schemas = &mut document.components.get_or_insert_default().schemas;
    for name in names {
        if let Some(RefOr::T(Schema::Object(form))) = schemas.get_mut(&name) {
            form.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
        }
    }
}
