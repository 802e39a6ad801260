//! Tests that a tenant cannot find out the collection names of other tenants.
use crate::support::keys::guarded;
use crate::support::{App, Models, Options, ok, problem};
use reqwest::Method;
use serde_json::json;
use store::keys::Scope;

#[testing::test]
async fn only_a_key_to_all_collections_renames_one() {
    let app = App::spawn_with(Options { worker: false, models: Models::Fixture, ..guarded() }).await;
    let (_, tenant) = app.key(Some("ours"), &[Scope::Admin, Scope::Read]).await;
    let (_, operator) = app.key(None, &[Scope::Admin, Scope::Read]).await;
    app.key(Some("theirs"), &[Scope::Read]).await;
    let rename = async |key: &str, name: &str| {
        app.ask(key, Method::PATCH, "/collections/ours", Some(&json!({"name": name}))).await
    };
    // The response is the same for a name that exists and one that does not.
    let mut answers = Vec::new();
    for name in ["theirs", "nobodys", "default"] {
        let mut refused = problem(rename(&tenant, name).await, 403, "scope_missing").await;
        refused["request_id"].take();
        answers.push(refused);
    }
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{answers:?}");
    // A rename to the current name is allowed, and so are all other changes.
    ok(rename(&tenant, "ours").await).await;
    let settings = json!({"match_threshold": 0.6});
    ok(app.ask(&tenant, Method::PATCH, "/collections/ours", Some(&settings)).await).await;
    problem(rename(&operator, "theirs").await, 409, "conflict").await;
    assert_eq!(ok(rename(&operator, "nobodys").await).await["name"], "nobodys");
}
