//! Bodies that take exactly one of several fields: one schema for each field, so that clients know it and no body is valid that is refused.
use serde_json::{Value, json};
use utoipa::openapi::schema::{Object, OneOfBuilder, Schema};
use utoipa::openapi::{OpenApi, RefOr};

/// Schemas and their fields of which one is needed.
const ALTERNATIVES: &[(&str, &[&str])] = &[
    ("SearchBody", &["url", "image_base64", "face_id", "embedding"]),
    ("EnrolBody", &["url", "image_base64", "face_ids"]),
    ("ErasureBody", &["image_base64", "face_id", "image_id", "subject_id", "url"]),
];

/// Puts the alternatives into the place of each schema.
pub(super) fn declare(document: &mut OpenApi) {
    let schemas = &mut document.components.get_or_insert_default().schemas;
    for (name, fields) in ALTERNATIVES {
        let Some(RefOr::T(schema)) = schemas.get(*name) else { continue };
        let whole = json!(schema);
        let mut one_of = OneOfBuilder::new()
            .description(whole["description"].as_str())
            .examples(whole.get("example").cloned());
        for field in *fields {
            one_of = one_of.item(alternative(name, &whole, field, fields));
        }
        schemas.insert((*name).to_owned(), Schema::OneOf(one_of.build()).into());
    }
}

/// The schema with `field` required, and of the others nothing but null.
fn alternative(name: &str, whole: &Value, field: &str, fields: &[&str]) -> Object {
    let mut schema = whole.clone();
    for other in fields {
        let property = &mut schema["properties"][other];
        if *other == field {
            // `["string", "null"]`: the first is its type.
            property["type"] = property["type"][0].take();
        } else {
            *property = json!({"type": "null"});
        }
    }
    schema["required"] = json!([field]);
    schema["title"] = format!("{name}By{}", pascal(field)).into();
    for said_once in ["description", "example"] {
        schema.as_object_mut().map(|schema| schema.remove(said_once));
    }
    serde_json::from_value(schema).expect("an object's schema with fewer values is one")
}

/// `face_id` as a part of a type's name.
fn pascal(field: &str) -> String {
    let word = |word: &str| word[..1].to_uppercase() + &word[1..];
    field.split('_').map(word).collect()
}
