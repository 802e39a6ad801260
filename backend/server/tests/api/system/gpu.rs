//! `GET /gpu`
use crate::support::pictures::{drawn, picture};
use crate::support::{App, ok};

#[tokio::test]
async fn every_operation_says_where_it_runs() {
    let app = App::spawn().await;
    let report = app.get_ok("/gpu").await;
    let operations = report["operations"].as_array().unwrap();
    let names: Vec<&str> = operations.iter().map(|one| one["operation"].as_str().unwrap()).collect();
    assert_eq!(names, inference::Operation::ALL.map(inference::Operation::name));
    assert!(!report["runtime_version"].as_str().unwrap().is_empty());
    assert!(!report["backends"].as_array().unwrap().is_empty());
    for model in report["models"].as_array().unwrap() {
        assert_eq!(
            (&model["device"], &model["provider"], &model["precision"]),
            (&"cpu".into(), &"cpu".into(), &"fp32".into())
        );
    }
    // What a comparison says without a threshold of its own.
    let pair = [("image", picture("ada.jpg")), ("image", picture("ada_2.jpg"))];
    let compared = ok(app.post_parts("/faces/compare", &pair).await).await;
    assert_eq!(compared["match"], true, "{compared}");
    for (name, of_match) in [("threshold", "threshold"), ("fmr", "match_fmr")] {
        assert!(report["matching"][name].as_f64().unwrap() > 0.0);
        assert_eq!(report["matching"][name], compared[of_match]);
    }

    // A detect answer says the same.
    let answer = app.post_raw("/faces/detect", "image/png", drawn(32, 32)).await;
    let answer = ok(answer).await;
    for operation in operations {
        assert_eq!(answer["devices"][operation["operation"].as_str().unwrap()], operation["effective"]);
    }
}
