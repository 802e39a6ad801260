//! Builds the examples of bodies and of ids in paths from the examples of schemas and of their
//! fields (`#[schema(example = …)]`). An example in a handler's `#[utoipa::path]` takes precedence.
use crate::operation::Operations;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use utoipa::ToSchema;
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::path::{ParameterBuilder, ParameterIn};
use utoipa::openapi::{Content, OpenApi, RefOr};

/// Example for ids that define none.
const ID: &str = "0198f1c2-7d10-7000-8000-4a6f1f6e2b01";
/// Example for times that define none.
const TIME: &str = "2026-01-31T12:00:00Z";
/// Images that this server serves as examples of files. They show people who do not exist.
const JPEG: &str = "/assets/examples/portrait.jpg";
const PNG: &str = "/assets/examples/chip.png";

/// Adds an example to every body that has none.
pub(super) fn add_examples(document: &mut OpenApi, operations: &Operations) {
    let schemas = Schemas(json!(document)["components"]["schemas"].take());
    for (_, _, operation) in operations.documented(document) {
        for parameter in operation.parameters.iter_mut().flatten() {
            let RefOr::T(inline) = parameter else { continue };
            let has_example = json!(inline)["example"].is_string();
            if inline.parameter_in == ParameterIn::Path && !has_example {
                let example = schemas.example(&json!(inline.schema), "").ok();
                *parameter = RefOr::T(ParameterBuilder::from(inline.clone()).example(example).build());
            }
        }
        if let Some(RefOr::T(body)) = &mut operation.request_body {
            let accepts_video = body.content.keys().any(|content_type| content_type.starts_with("video/"));
            if accepts_video {
                // There is no example file of a video.
                for (kind, content) in &mut body.content {
                    if kind != "application/json"
                        && let RefOr::T(content) = content
                    {
                        content.example = Some(json!("the bytes of film.mp4"));
                    }
                }
            }
            fill_content(body.content.iter_mut(), &schemas);
        }
        for response in operation.responses.responses.values_mut() {
            let RefOr::T(response) = response else { continue };
            fill_content(response.content.iter_mut(), &schemas);
        }
    }
}

/// Returns an example of a type, built from the examples of its fields.
pub(crate) fn example_of<T: ToSchema>() -> Value {
    let mut parts = Vec::new();
    T::schemas(&mut parts);
    let parts: Map<String, Value> = parts.into_iter().map(|(name, part)| (name, json!(part))).collect();
    Schemas(parts.into()).example(&json!(T::schema()), "").unwrap_or_default()
}

fn fill_content<'a>(content: impl Iterator<Item = (&'a String, &'a mut RefOr<Content>)>, schemas: &Schemas) {
    for (content_type, content) in content {
        let RefOr::T(content) = content else { continue };
        if content.example.is_some() || !content.examples.is_empty() {
            continue;
        }
        let (kind, _) = content_type.split_once('/').unwrap_or_default();
        if content_type == "application/zip" {
            // There is no example file of an archive.
            content.example = Some(json!("the bytes of people.zip"));
            continue;
        }
        if kind == "image" || content_type == "application/octet-stream" {
            let file = if content_type == "image/png" { PNG } else { JPEG };
            let example = ExampleBuilder::new().summary("A file").external_value(file).build();
            content.examples.insert("file".to_owned(), RefOr::T(example));
            continue;
        }
        content.example = schemas.example(&json!(content.schema), "").ok();
    }
}

/// The schemas of the document's components.
struct Schemas(Value);

impl Schemas {
    /// Returns an example of a value that fits a schema.
    ///
    /// # Errors
    /// Returns the path of the field that has a type but no example.
    fn example(&self, schema: &Value, path: &str) -> Result<Value, String> {
        let pointers = ["/example", "/examples/0", "/const", "/default"];
        if let Some(example) = pointers.iter().find_map(|pointer| schema.pointer(pointer)) {
            return Ok(example.clone());
        }
        if let Some(name) = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next()) {
            return self.example(&self.0[name], path);
        }
        if let Some(first) = schema["enum"].get(0) {
            return Ok(first.clone());
        }
        if let Some(variants) = ["oneOf", "anyOf"].iter().find_map(|key| schema[key].as_array()) {
            let variant = variants.iter().find(|variant| variant["type"] != "null");
            return self.example(variant.unwrap_or(&Value::Null), path);
        }
        if let Some(parts) = schema["allOf"].as_array() {
            let parts = parts.iter().map(|part| self.example(part, path)).collect::<Result<Vec<_>, _>>()?;
            let fields = parts.into_iter().filter_map(|part| part.as_object().cloned()).flatten();
            return Ok(Value::Object(fields.collect()));
        }
        let types =
            schema["type"].as_array().map_or_else(|| vec![&schema["type"]], |list| list.iter().collect());
        match types.first().and_then(|name| name.as_str()) {
            Some("object") => self.object(schema, path),
            Some("array") => Ok(json!([self.example(&schema["items"], &format!("{path}[]"))?])),
            Some("string") if schema["format"] == "uuid" => Ok(ID.into()),
            Some("string") if schema["format"] == "date-time" => Ok(TIME.into()),
            _ => Err(format!("{path} has no example: {schema}")),
        }
    }

    fn object(&self, schema: &Value, path: &str) -> Result<Value, String> {
        let properties: BTreeMap<String, Value> =
            serde_json::from_value(schema["properties"].clone()).unwrap_or_default();
        let mut fields = Map::new();
        for (name, property) in properties {
            let value = self.example(&property, &format!("{path}.{name}"))?;
            fields.insert(name, value);
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_body_field_has_example() {
        let (mut document, operations) = crate::router::describe_api();
        let schemas = Schemas(json!(document)["components"]["schemas"].take());
        let mut missing = Vec::new();
        for (_, _, operation) in operations.documented(&mut document) {
            let operation = json!(operation);
            let responses = operation["responses"].as_object().unwrap().values();
            let bodies =
                responses.chain([&operation["requestBody"]]).filter_map(|body| body["content"].as_object());
            for content in bodies.flat_map(|content| content.values()) {
                if content.get("example").is_none() && content.get("examples").is_none() {
                    let operation_id = operation["operationId"].as_str().unwrap();
                    missing.extend(schemas.example(&content["schema"], operation_id).err());
                }
            }
        }
        missing.sort();
        missing.dedup();
        assert!(missing.is_empty(), "{missing:#?}");
    }
}
