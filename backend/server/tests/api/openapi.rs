use crate::support::{App, Json, Models, Options, document, field, operations, problem};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt::Write as _;

/// The snapshot contains one line per operation, with every property whose change would affect
/// callers.
#[test]
fn operations_match_contract_snapshot() {
    let document = document();
    let mut text = String::new();
    for (method, path, operation) in operations(&document) {
        let names = |list: &Value, key: &str| -> Vec<String> {
            list.as_array().into_iter().flatten().map(|item| item[key].as_str().unwrap().to_owned()).collect()
        };
        let keys = |object: &Value| -> Vec<String> {
            object.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect()
        };
        writeln!(
            text,
            "{method} {path} {} [{}] <{}> {}",
            operation.text("operationId"),
            names(&operation["parameters"], "name").join(" "),
            keys(&operation["requestBody"]["content"]).join(" "),
            keys(&operation["responses"]).join(" "),
        )
        .unwrap();
    }
    insta::assert_snapshot!("operations", text);
}

#[test]
fn every_operation_has_description_and_examples() {
    let document = document();
    let mut ids = HashSet::new();
    for (method, path, operation) in operations(&document) {
        let location = format!("{method} {path}");
        assert!(ids.insert(operation.text("operationId").to_owned()), "{location}: the id occurs twice");
        assert!(operation["summary"].as_str().is_some_and(|text| text.len() > 10), "{location}: no summary");
        assert_eq!(operation["tags"].as_array().map(Vec::len), Some(1), "{location}: no tag");
        let responses = operation["responses"].as_object().unwrap();
        assert!(responses.keys().any(|status| status.starts_with('2')), "{location}: no success response");
        assert!(!responses.contains_key("default"), "{location}: every status must be listed");
        for (status, response) in responses {
            assert!(response["headers"]["x-request-id"].is_object(), "{location} {status}");
            if status.starts_with(['4', '5']) {
                let schema = &response["content"]["application/problem+json"]["schema"]["$ref"];
                assert_eq!(schema, "#/components/schemas/Problem", "{location} {status}");
            }
        }
        for (name, body) in responses.iter().chain([(&"request".to_owned(), &operation["requestBody"])]) {
            for (content_type, content) in body["content"].as_object().into_iter().flatten() {
                let example = content.get("example").or(content.get("examples"));
                assert!(example.is_some(), "{location} {name} {content_type}: no example");
            }
        }
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            assert!(
                parameter["description"].as_str().is_some_and(|text| !text.is_empty()),
                "{location}: {parameter}"
            );
            let has_example = parameter["in"] != "path" || parameter["example"].is_string();
            assert!(has_example, "{location}: no example of {parameter}");
        }
    }
}

/// A wrong combination of attributes creates schemas that no value satisfies. Examples are `allOf`
/// of a string and an object, or bytes as an array of numbers.
#[test]
fn no_schema_contradicts_itself() {
    fn walk(value: &Value, location: &str) {
        match value {
            Value::Object(fields) => {
                let parts = fields.get("allOf").and_then(Value::as_array).into_iter().flatten();
                let types: HashSet<&Value> = parts.filter_map(|part| part.get("type")).collect();
                assert!(types.len() <= 1, "{location}: {value}");
                for (name, field) in fields {
                    assert!(
                        name != "schema" || field["items"]["format"] != "int32",
                        "{location}: bytes as numbers"
                    );
                    walk(field, &format!("{location}/{name}"));
                }
            }
            Value::Array(items) => items.iter().for_each(|item| walk(item, location)),
            _ => {}
        }
    }
    walk(&document(), "");
}

/// Client generators fail on references without a target.
#[test]
fn every_reference_has_target() {
    fn walk(value: &Value, document: &Value) {
        match value {
            Value::Object(fields) => {
                if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                    let target = document.pointer(reference.trim_start_matches('#'));
                    assert!(target.is_some(), "{reference} has no target");
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

/// Responses with a known retry time declare the header `retry-after`.
#[test]
fn retry_after_header_is_declared_where_sent() {
    let document = document();
    for (method, path, operation) in operations(&document) {
        for (status, response) in operation["responses"].as_object().unwrap() {
            let codes = response["content"]["application/problem+json"]["examples"].as_object();
            let has_code = |code: &str| codes.is_some_and(|codes| codes.contains_key(code));
            let reference = response["headers"]["retry-after"]["$ref"].as_str();
            let header = reference.map(|reference| &document.pointer(&reference[1..]).unwrap()["required"]);
            let is_required = has_code("rate_limited") || has_code("overloaded");
            let expected =
                (is_required || has_code("database_unavailable")).then_some(Value::Bool(is_required));
            assert_eq!(header, expected.as_ref(), "{method} {path} {status}");
        }
    }
}

/// An unknown field is an error. The document declares this for every body, and the service
/// enforces it.
#[testing::test]
async fn bodies_reject_undeclared_fields() {
    fn assert_closed(schema: &Value, document: &Value, location: &str) {
        if let Some(reference) = schema["$ref"].as_str() {
            assert_closed(document.pointer(&reference[1..]).unwrap(), document, reference);
        } else if let Some(variants) = schema["oneOf"].as_array() {
            variants.iter().for_each(|variant| assert_closed(variant, document, location));
        } else {
            assert_eq!(schema["additionalProperties"], false, "{location}: {schema}");
        }
    }
    let options = Options { models: Models::Fixture, ..Options::default() };
    let app = App::spawn_with(options).await;
    let subject = app.post_json("/subjects", &json!({})).await.json::<Value>().await.unwrap();
    let document = document();
    let mut requests = 0;
    for (method, path, operation) in operations(&document) {
        let url = format!("{}{path}", app.url).replace("{id}", subject.text("id"));
        let request = || app.client.request(method.clone(), &url);
        let contents = &operation["requestBody"]["content"];
        for (kind, code) in [("application/json", "invalid_field"), ("multipart/form-data", "unknown_part")] {
            let content = &contents[kind];
            if content.is_null() {
                continue;
            }
            assert_closed(&content["schema"], &document, path);
            let response = if code == "invalid_field" {
                let mut body = content["example"].clone();
                body["unheard_of"] = json!(1);
                request().json(&body).send().await.unwrap()
            } else {
                let form = reqwest::multipart::Form::new().text("unheard_of", "1");
                request().multipart(form).send().await.unwrap()
            };
            let status = if code == "invalid_field" { 422 } else { 400 };
            let error = problem(response, status, code).await;
            assert_eq!(field(&error), "unheard_of", "{method} {path}: {error}");
            requests += 1;
        }
    }
    assert!(requests > 15, "{requests}");
}

/// Callers and the form of the web page read the limits from the document.
#[testing::test]
async fn crawl_limits_match_openapi_document() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let document = document();
    let fields = document["components"]["schemas"]["CreateCrawl"]["properties"].as_object().unwrap();
    let mut checked = 0;
    for (name, schema) in fields {
        let (Some(minimum), Some(maximum)) = (schema["minimum"].as_i64(), schema["maximum"].as_i64()) else {
            continue;
        };
        for (value, status) in [(minimum, 201), (maximum, 201), (minimum - 1, 422), (maximum + 1, 422)] {
            let body = json!({"seeds": ["http://127.0.0.1:9/"], name: value});
            let response = app.post_json("/crawls", &body).await;
            assert_eq!(response.status(), status, "{body}: {}", response.text().await.unwrap());
        }
        checked += 1;
    }
    assert!(checked >= 6, "{checked}");
}

#[testing::test]
async fn service_responses_match_openapi_document() {
    let app = App::spawn().await;
    assert_eq!(app.get_ok("/openapi.json").await, document());
    let document = document();
    for (method, path, operation) in operations(&document) {
        let path = path.replace("{id}", "00000000-0000-7000-8000-000000000000");
        let request = app.client.request(method.clone(), format!("{}{path}", app.url));
        let response = request.send().await.unwrap();
        let status = response.status().as_u16().to_string();
        let is_stream =
            response.headers().get("content-type").is_some_and(|kind| kind == "text/event-stream");
        // The stream of alerts does not end.
        let text = if is_stream { String::new() } else { response.text().await.unwrap() };
        let code = serde_json::from_str::<Value>(&text).map_or(Value::Null, |body| body["code"].clone());
        assert!(code != "route_not_found" && code != "method_not_allowed", "{method} {path} must be served");
        let listed = operation["responses"].as_object().unwrap();
        assert!(listed.contains_key(&status), "{method} {path} responds with {status}, {code}");
        if let Some(code) = code.as_str() {
            let codes = &listed[&status]["content"]["application/problem+json"]["examples"];
            assert!(codes[code].is_object(), "{method} {path} responds with {status}, {code}");
        }
    }
}
