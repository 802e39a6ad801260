//! `GET /openapi.json`
use crate::support::App;
use serde_json::Value;
use std::collections::HashSet;
use std::fmt::Write as _;

fn document() -> Value {
    serde_json::from_str(&server::openapi().to_json().unwrap()).unwrap()
}

/// Every operation of the document with its method and path.
fn operations(document: &Value) -> Vec<(String, String, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    paths
        .iter()
        .flat_map(|(path, item)| {
            item.as_object()
                .unwrap()
                .iter()
                .map(move |(method, operation)| (method.to_uppercase(), path.clone(), operation))
        })
        .collect()
}

/// One line per operation: what a caller would notice if it changed.
#[test]
fn the_contract_is_as_it_was() {
    let document = document();
    let mut text = String::new();
    for (method, path, operation) in operations(&document) {
        let names = |list: &Value, key: &str| -> Vec<String> {
            list.as_array().into_iter().flatten().map(|one| one[key].as_str().unwrap().to_owned()).collect()
        };
        let keys = |object: &Value| -> Vec<String> {
            object.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect()
        };
        writeln!(
            text,
            "{method} {path} {} [{}] <{}> {}",
            operation["operationId"].as_str().unwrap(),
            names(&operation["parameters"], "name").join(" "),
            keys(&operation["requestBody"]["content"]).join(" "),
            keys(&operation["responses"]).join(" "),
        )
        .unwrap();
    }
    insta::assert_snapshot!("operations", text);
}

#[test]
fn every_operation_is_described() {
    let document = document();
    let mut ids = HashSet::new();
    for (method, path, operation) in operations(&document) {
        let place = format!("{method} {path}");
        assert!(
            ids.insert(operation["operationId"].as_str().unwrap().to_owned()),
            "{place}: the id is taken"
        );
        assert!(operation["summary"].as_str().is_some_and(|text| text.len() > 10), "{place}: no summary");
        assert_eq!(operation["tags"].as_array().map(Vec::len), Some(1), "{place}: no tag");
        let responses = operation["responses"].as_object().unwrap();
        assert!(responses.keys().any(|status| status.starts_with('2')), "{place}: no good answer");
        assert!(!responses.contains_key("default"), "{place}: every status is named");
        for (status, response) in responses {
            assert!(response["headers"]["x-request-id"].is_object(), "{place} {status}");
            if status.starts_with(['4', '5']) {
                let schema = &response["content"]["application/problem+json"]["schema"]["$ref"];
                assert_eq!(schema, "#/components/schemas/Problem", "{place} {status}");
            }
        }
        for (name, body) in responses.iter().chain([(&"request".to_owned(), &operation["requestBody"])]) {
            for (content_type, content) in body["content"].as_object().into_iter().flatten() {
                let shown = content.get("example").or(content.get("examples"));
                assert!(shown.is_some(), "{place} {name} {content_type}: no example");
            }
        }
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            assert!(
                parameter["description"].as_str().is_some_and(|text| !text.is_empty()),
                "{place}: {parameter}"
            );
            let is_shown = parameter["in"] != "path" || parameter["example"].is_string();
            assert!(is_shown, "{place}: no example of {parameter}");
        }
    }
}

/// A wrong mixture of attributes makes schemas that nothing fits: `allOf` of a string and an object, or bytes as an array of numbers.
#[test]
fn no_schema_contradicts_itself() {
    fn walk(value: &Value, place: &str) {
        match value {
            Value::Object(fields) => {
                let parts = fields.get("allOf").and_then(Value::as_array).into_iter().flatten();
                let types: HashSet<&Value> = parts.filter_map(|part| part.get("type")).collect();
                assert!(types.len() <= 1, "{place}: {value}");
                for (name, field) in fields {
                    assert!(
                        name != "schema" || field["items"]["format"] != "int32",
                        "{place}: bytes as numbers"
                    );
                    walk(field, &format!("{place}/{name}"));
                }
            }
            Value::Array(items) => items.iter().for_each(|item| walk(item, place)),
            _ => {}
        }
    }
    walk(&document(), "");
}

/// References that lead nowhere make every client generator fail.
#[test]
fn every_reference_leads_somewhere() {
    fn walk(value: &Value, document: &Value) {
        match value {
            Value::Object(fields) => {
                if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                    let target = document.pointer(reference.trim_start_matches('#'));
                    assert!(target.is_some(), "{reference} leads nowhere");
                }
                fields.values().for_each(|field| walk(field, document));
            }
            Value::Array(items) => items.iter().for_each(|item| walk(item, document)),
            _ => {}
        }
    }
    let document = document();
    walk(&document, &document);
}

#[tokio::test]
async fn the_document_and_the_service_agree() {
    let Some(app) = App::spawn().await else { return };
    assert_eq!(app.get_ok("/openapi.json").await, document());
    let document = document();
    for (method, path, operation) in operations(&document) {
        let path = path.replace("{id}", "00000000-0000-7000-8000-000000000000");
        let request = app.client.request(method.parse().unwrap(), format!("{}{path}", app.url));
        let response = request.send().await.unwrap();
        let status = response.status().as_u16().to_string();
        let text = response.text().await.unwrap();
        let code = serde_json::from_str::<Value>(&text).map_or(Value::Null, |answer| answer["code"].clone());
        assert!(code != "route_not_found" && code != "method_not_allowed", "{method} {path} is not served");
        let listed = operation["responses"].as_object().unwrap();
        assert!(listed.contains_key(&status), "{method} {path} answers {status}, {code}");
        if let Some(code) = code.as_str() {
            let codes = &listed[&status]["content"]["application/problem+json"]["examples"];
            assert!(codes[code].is_object(), "{method} {path} answers {status}, {code}");
        }
    }
}
