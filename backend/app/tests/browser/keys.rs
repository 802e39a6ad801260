//! A service that asks for keys.
use crate::site;
use crate::stage::Stage;
use store::keys::{NewKey, Scope};

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_asked_for_and_opens_what_it_opens() {
    let Some(stage) = Stage::with(&[("AUTH", "keys")]).await else { return };
    let browser = &stage.browser;
    let store = stage.database.store();
    let collection = store.collection("default").await.unwrap();
    let new = NewKey {
        collection_id: Some(collection.id),
        name: "a reader".into(),
        scopes: vec![Scope::Analyze, Scope::Read, Scope::Search, Scope::Crawl],
        requests_per_minute: None,
        expires_at: None,
    };
    let mut tx = store.begin().await.unwrap();
    let (_, secret) = store.create_key(tx.conn(), &new).await.unwrap();
    tx.commit().await.unwrap();

    browser.load(&format!("{}/#/faces", stage.service.base)).await;
    browser.until_text("dialog", "asks for an API key").await;
    stage.heard_only(401).await;
    stage.judge("key").await;
    // A wrong one is asked for again.
    browser.type_into("dialog input", "fc_wrong").await;
    browser.click_text("Use it").await;
    browser.until("document.querySelector('dialog input')?.value === ''").await;
    stage.heard_only(401).await;
    browser.type_into("dialog input", &secret).await;
    browser.click_text("Use it").await;
    browser.until_text(".empty", "No faces are stored yet").await;
    browser.until("!document.querySelector('dialog') && !document.getElementById('key').hidden").await;

    // Crops come with the key, as does the progress of a crawl.
    let site = site::start().await;
    stage.open("/crawls/new", "New crawl").await;
    browser.type_into("textarea", &site.url("/0.jpg")).await;
    browser.click_text("Start the crawl").await;
    browser.until_text(".chip", "Completed").await;
    browser.until("document.querySelector('.tile img')?.naturalWidth > 0").await;

    // The tab keeps it; what it does not open is told with the scope that is missing.
    browser.run("location.reload()").await;
    browser.until("document.querySelector('.tile img')?.naturalWidth > 0").await;
    stage.silent().await;
    browser.click_text("Delete").await;
    browser.click("dialog .danger").await;
    browser.until_text(".toast.bad", "scope erase").await;
    stage.heard_only(403).await;
    stage.strike().await;
}
