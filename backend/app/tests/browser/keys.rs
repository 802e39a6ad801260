//! Tests the web page with a service that requires keys.
use crate::site;
use crate::stage::Stage;
use store::keys::{NewKey, Scope};

/// Creates a key for `default` or for every collection. Returns its secret.
async fn key(stage: &Stage, name: &str, scopes: &[Scope], bound: bool) -> String {
    let store = stage.database.store();
    let default = store.collection("default").await.unwrap();
    let new = NewKey {
        collection_id: bound.then_some(default.id),
        name: name.into(),
        scopes: scopes.to_vec(),
        requests_per_minute: None,
        expires_at: None,
        made_by: None,
    };
    let mut tx = store.begin().await.unwrap();
    let (_, secret) = store.create_key(tx.conn(), &new).await.unwrap();
    tx.commit().await.unwrap();
    secret
}

/// Opens a view that asks for a key, and enters the key.
async fn enter(stage: &Stage, view: &str, secret: &str) {
    stage.browser.load(&format!("{}/#{view}", stage.service.base)).await;
    stage.browser.type_into("dialog input", secret).await;
    stage.browser.click_text("Use key").await;
    stage.browser.until("!document.querySelector('dialog')").await;
    stage.expect_only_status(401).await;
}

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn a_key_is_asked_for_and_opens_what_it_opens() {
    let stage = Stage::with(&[("AUTH", "keys")]).await;
    let browser = &stage.browser;
    let secret =
        key(&stage, "a reader", &[Scope::Analyze, Scope::Read, Scope::Search, Scope::Crawl], true).await;

    browser.load(&format!("{}/#/faces", stage.service.base)).await;
    browser.until_text("dialog", "requires an API key").await;
    stage.expect_only_status(401).await;
    stage.check_view("key").await;
    // After a wrong key, the web page asks again.
    browser.type_into("dialog input", "fc_wrong").await;
    browser.click_text("Use key").await;
    browser.until("document.querySelector('dialog input')?.value === ''").await;
    stage.expect_only_status(401).await;
    browser.type_into("dialog input", &secret).await;
    browser.click_text("Use key").await;
    browser.until_text(".empty", "No faces that pass the quality profile are stored yet").await;
    browser.until("!document.querySelector('dialog') && !document.getElementById('key').hidden").await;

    // The key is also sent for crops and for the event stream of a crawl.
    let site = site::start().await;
    stage.open("/crawls/new", "New crawl").await;
    browser.type_into("textarea", &site.url("/0.jpg")).await;
    browser.click_text("Start the crawl").await;
    browser.until_text(".chip", "Completed").await;
    browser.until("document.querySelector('.tile img')?.naturalWidth > 0").await;

    // The tab keeps the key. If the key lacks a scope, the web page displays the missing scope.
    browser.run("location.reload()").await;
    browser.until("document.querySelector('.tile img')?.naturalWidth > 0").await;
    stage.expect_empty_console().await;
    browser.click_text("Delete").await;
    browser.click("dialog .danger").await;
    browser.until_text(".toast.bad", "scope erase").await;
    stage.expect_only_status(403).await;
    stage.stop().await;
}

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn people_are_found_and_named_with_a_key() {
    let stage = Stage::with(&[("AUTH", "keys")]).await;
    let browser = &stage.browser;
    let scopes = [Scope::Analyze, Scope::Read, Scope::Search, Scope::Crawl, Scope::Write];
    let secret = key(&stage, "picture desk", &scopes, true).await;
    enter(&stage, "/people", &secret).await;
    browser.until_text(".empty", "There are no people yet").await;
    stage.crawl(&site::start().await).await;
    stage.open("/people", "People").await;
    browser.click_text("Find people").await;
    browser.until_text("[role=status]", "15 new faces processed").await;
    // The key is also sent for the images of people.
    browser.until("document.querySelector('.person img')?.naturalWidth > 0").await;
    browser.click(".person a").await;
    browser.click_text("Name").await;
    browser.type_into("dialog input", "Ada Example").await;
    browser.click_text("Save").await;
    browser.until_text("h1", "Ada Example").await;
    browser.until_text(".chip", "Enrolled").await;
    stage.check_view("person-with-key").await;
    // Views without the necessary scope are not offered. A direct link explains why the view is not
    // available.
    browser.until("document.querySelector('nav a[href=\"#/audit\"]').hidden && !document.querySelector('nav a[href=\"#/people\"]').hidden").await;
    stage.open("/audit", "Audit log").await;
    browser.until_text(".empty", "a key with the scope admin").await;
    browser.until_text(".empty", "“picture desk”, has analyze, read").await;
    stage.check_view("lacking").await;
    stage.stop().await;
}

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn a_key_is_revoked_with_those_that_came_from_it() {
    let stage = Stage::with(&[("AUTH", "keys")]).await;
    let browser = &stage.browser;
    let operator = key(&stage, "operator", &[Scope::Read, Scope::Keys], false).await;
    let desk = key(&stage, "press desk", &[Scope::Read, Scope::Keys], true).await;
    enter(&stage, "/keys", &operator).await;
    let make = format!(
        "const headers = {{ authorization: 'Bearer {desk}', 'content-type': 'application/json' }};
         const body = JSON.stringify({{ name: 'intern', collection: 'default', scopes: ['read'] }});
         return (await (await fetch('/keys', {{ method: 'POST', headers, body }})).json()).secret"
    );
    let made = browser.run_async(&make).await.as_str().unwrap().to_owned();
    let status =
        format!("return (await fetch('/faces', {{ headers: {{ authorization: 'Bearer {made}' }} }})).status");
    assert_eq!(browser.run_async(&status).await, 200);

    browser.run("location.reload()").await;
    browser.until_text("tbody tr", "intern").await;
    browser.click("button[aria-label='Revoke press desk']").await;
    browser.until_text("dialog", "Also revoke all keys").await;
    stage.check_view("revoke-key").await;
    browser.click("#confirm-option").await;
    browser.click("dialog .danger").await;
    browser.until_text(".toast", "“press desk” was revoked, with 1 key created with it.").await;
    browser.until("[...document.querySelectorAll('tbody .chip.bad')].length === 2").await;
    while browser.run_async(&status).await != 401 {}
    stage.expect_only_status(401).await;
    stage.stop().await;
}

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn a_key_is_made_shown_once_used_and_revoked() {
    let stage = Stage::with(&[("AUTH", "keys")]).await;
    let browser = &stage.browser;
    let operator =
        key(&stage, "operator", &[Scope::Read, Scope::Search, Scope::Admin, Scope::Keys], false).await;
    enter(&stage, "/keys", &operator).await;
    browser.until_text("tbody tr", "This tab").await;

    browser.click_text("New key").await;
    browser.type_into("[name=name]", "press desk").await;
    // Every scope is listed. Scopes that the caller's own key lacks are disabled.
    let shown = browser.run("return [...document.querySelectorAll('[name=scopes]')].map(e => e.value)").await;
    let all: Vec<&str> = Scope::ALL.iter().map(|scope| scope.as_str()).collect();
    assert_eq!(shown, serde_json::json!(all));
    browser.until("document.getElementById('scope-erase').disabled && !document.getElementById('scope-read').disabled").await;
    stage.check_view("new-key").await;
    browser.click_text("Create key").await;
    browser.until_text(".problem", "at least one scope").await;
    stage.expect_only_status(422).await;
    for scope in ["read", "search"] {
        browser.click(&format!("#scope-{scope}")).await;
    }
    browser.click_text("Create key").await;
    browser.until("document.querySelector('.secret')?.value.startsWith('fc_')").await;
    browser.click_text("Copy").await;
    browser.until_text("[role=status]", "The key").await;
    stage.check_view("key-secret").await;
    let secret =
        browser.run("return document.querySelector('.secret').value").await.as_str().unwrap().to_owned();
    // Escape does not close the dialog with the secret.
    browser.press(&['\u{E00C}', '\u{E00C}']).await;
    browser.click_text("Done").await;
    browser.until_text("tbody tr", "press desk").await;
    stage.check_view("keys").await;
    assert!(!browser.run("return document.body.innerHTML").await.as_str().unwrap().contains(&secret));

    // The key grants its scopes until it is revoked.
    let status = format!(
        "return (await fetch('/faces', {{ headers: {{ authorization: 'Bearer {secret}' }} }})).status"
    );
    assert_eq!(browser.run_async(&status).await, 200);
    browser.click("button[aria-label='Revoke press desk']").await;
    browser.click("dialog .danger").await;
    browser.until_text(".toast", "“press desk” was revoked").await;
    browser.until_text("tbody tr", "Revoked").await;
    while browser.run_async(&status).await != 401 {}
    stage.expect_only_status(401).await;

    // Both steps are in the log, with the holder's name.
    stage.open("/audit", "Audit log").await;
    browser.until_text("tbody tr", "Key revoked").await;
    browser.until_text("tbody tr", "operator").await;
    stage.check_view("audit-with-keys").await;
    stage.stop().await;
}
