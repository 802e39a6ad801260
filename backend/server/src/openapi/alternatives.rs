//! Describes bodies that require exactly one of several fields (`Spec::one_of`). Each field has its
//! own schema, so that the document accepts only the bodies that the service accepts.
use super::{body_schema, operations};
use crate::operation::Operations;
use serde_json::{Value, json};
use utoipa::openapi::schema::{Object, OneOfBuilder, Schema};
use utoipa::openapi::{OpenApi, RefOr};

pub(super) fn declare(document: &mut OpenApi, known: &Operations) {
    let bodies: Vec<_> = operations(document, known)
        .filter(|(_, spec, _)| !spec.one_of.is_empty())
        .filter_map(|(_, spec, operation)| Some((body_schema(operation, "application/json")?, spec.one_of)))
        .collect();
    let schemas = &mut document.components.get_or_insert_default().schemas;
    for (name, fields) in bodies {
        let Some(RefOr::T(schema)) = schemas.get(&name) else { continue };
        let whole = json!(schema);
        let mut one_of = OneOfBuilder::new()
            .description(whole["description"].as_str())
            .examples(whole.get("example").cloned());
        for field in fields {
            one_of = one_of.item(alternative(&name, &whole, field, fields));
        }
        schemas.insert(name, Schema::OneOf(one_of.build()).into());
    }
}

/// Returns the schema in which `field` is required and the other fields are null.
fn alternative(name: &str, whole: &Value, field: &str, fields: &[&str]) -> Object {
    let mut schema = whole.clone();
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
    schema["title"] = format!("{name}By{}", pascal(field)).into();
    for shared_key in ["description", "example"] {
        schema.as_object_mut().map(|schema| schema.remove(shared_key));
    }
    serde_json::from_value(schema).expect("an object's schema with fewer values is one")
}

/// Returns `FaceId` for `face_id`.
fn pascal(field: &str) -> String {
    let word = |word: &str| word[..1].to_uppercase() + &word[1..];
    field.split('_').map(word).collect()
}
