//! `GET /gpu`
use crate::support::App;
use crate::support::pictures::drawn;

#[tokio::test]
async fn every_operation_says_where_it_runs() {
    let Some(app) = App::spawn().await else { return };
    let report = app.get_ok("/gpu").await;
    let operations = report["operations"].as_array().unwrap();
    let names: Vec<&str> = operations.iter().map(|one| one["operation"].as_str().unwrap()).collect();
    assert_eq!(names, inference::Operation::ALL.map(inference::Operation::name));
    assert!(!report["runtime_version"].as_str().unwrap().is_empty());
    assert!(!report["backends"].as_array().unwrap().is_empty());

    // A detect answer says the same.
    let answer = app.post_raw("/faces/detect", "image/png", drawn(32, 32)).await;
    let answer = crate::support::ok(answer).await;
    for operation in operations {
        assert_eq!(answer["devices"][operation["operation"].as_str().unwrap()], operation["effective"]);
    }
}
