//! Tests the limits on the structure of JSON bodies.
use crate::support::{App, Models, Options, field, problem};
use serde_json::json;

/// Maximum number of values in a body, including arrays and objects (`extract::structure`).
const VALUES: usize = 20_000;

async fn spawn() -> App {
    App::spawn_with(Options { worker: false, models: Models::Fixture, ..Options::default() }).await
}

#[testing::test]
async fn a_body_of_more_values_than_any_call_needs_is_refused_before_it_is_built() {
    let app = spawn().await;
    // The object, the array and the string are also counted as values.
    let body = |zeros: usize| {
        let zeros = vec!["0"; zeros].join(",");
        format!(r#"{{"images":[{zeros}],"x":"\u0000"}}"#).into_bytes()
    };
    let path = "/faces/detect/batch";
    let under = app.post_raw(path, "application/json", body(VALUES - 3)).await;
    let under = problem(under, 422, "invalid_field").await;
    assert_eq!(field(&under), "x", "{under}");
    let over = app.post_raw(path, "application/json", body(VALUES - 2)).await;
    let over = problem(over, 422, "invalid_field").await;
    assert_eq!(over["allowed"], json!([format!("at most {VALUES} values")]), "{over}");
}

#[testing::test]
async fn a_batch_of_one_image_too_many_is_refused_as_such() {
    let app = spawn().await;
    let images = |count| json!({"images": vec![json!({"image_base64": "AA=="}); count]});
    let over = app.post_json("/faces/detect/batch", &images(65)).await;
    let over = problem(over, 413, "too_many_images").await;
    assert_eq!((field(&over), &over["allowed"]), ("images", &json!(["1 to 64 images"])));
}

#[testing::test]
async fn nesting_and_repetition_have_an_end() {
    let app = spawn().await;
    let nested = |depth: usize| {
        format!(r#"{{"metadata":{}{}}}"#, r#"{"a":"#.repeat(depth), "0".to_owned() + &"}".repeat(depth))
    };
    let send = async |text: String| app.post_raw("/subjects", "application/json", text.into_bytes()).await;
    // The body itself is counted as one level.
    assert_eq!(send(nested(31)).await.status(), 201);
    let deep = problem(send(nested(32)).await, 422, "invalid_field").await;
    assert_eq!(deep["allowed"], json!(["at most 32 levels"]), "{deep}");
    problem(send(nested(10_000)).await, 422, "invalid_field").await;
    for (text, name) in [
        (r#"{"metadata":{"a":1,"b":2,"a":3}}"#, "metadata.a"),
        (r#"{"metadata":[{"a":1},{"\u0061":1,"a":2}]}"#, "metadata[1].a"),
        (r#"{"name":"Ada","name":"Ada"}"#, "name"),
    ] {
        let twice = problem(send(text.to_owned()).await, 422, "invalid_field").await;
        assert_eq!((field(&twice), &twice["reason"]), (name, &json!("twice")), "{twice}");
    }
}
