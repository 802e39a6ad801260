//! Tests that collections are created, used, changed and deleted.
use crate::stage::Stage;

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn a_collection_is_made_used_changed_and_deleted_by_its_name() {
    let stage = Stage::start().await;
    let browser = &stage.browser;
    stage.open("/collections", "Collections").await;
    browser.until_text("tbody tr", "In use").await;
    browser.until("document.getElementById('switcher').hidden").await;

    browser.click_text("New collection").await;
    browser.type_into("[name=name]", "default").await;
    browser.type_into("[name=match_threshold]", "0.45").await;
    browser.type_into("[name=retention_days]", "90").await;
    browser.run("document.querySelector('[name=quality_profile]').value = 'strict'").await;
    browser.click_text("Create").await;
    browser.until_text(".problem", "default").await;
    stage.expect_only_status(409).await;
    stage.check_view("new-collection").await;
    browser.run("document.querySelector('[name=name]').value = ''").await;
    browser.type_into("[name=name]", "press-archive").await;
    browser.click_text("Create").await;

    // The collection is in use, and the header can switch between collections.
    let row = "[...document.querySelectorAll('tbody tr')].find(e => e.textContent.includes('press-archive'))";
    browser.until(&format!("{row}.textContent.includes('In use')")).await;
    for word in ["Strict", "0.45", "90 days"] {
        browser.until(&format!("{row}.textContent.includes('{word}')")).await;
    }
    browser.until("document.getElementById('collection').value === 'press-archive'").await;
    stage.check_view("collections").await;
    browser.click("button[aria-label='Use default']").await;
    browser.until("document.getElementById('collection').value === 'default'").await;

    // Settings are changed. An empty field means the default of the service.
    browser.click("tbody a[href$='press-archive']").await;
    browser.until_text("h1", "press-archive").await;
    browser.until("document.querySelector('[name=match_threshold]').value === '0.45'").await;
    browser.run("document.querySelector('[name=retention_days]').value = ''").await;
    browser.click_text("Save").await;
    browser.until_text(".toast", "The collection was changed").await;
    stage.check_view("collection").await;
    let answer = browser.run_async("return (await fetch('/collections/press-archive')).json()").await;
    assert_eq!(
        (&answer["retention_days"], &answer["quality_profile"]),
        (&serde_json::Value::Null, &"strict".into())
    );

    // The collection is deleted only after its name is typed.
    browser.click_text("Delete this collection").await;
    browser.type_into("dialog input", "press").await;
    browser.until("document.querySelector('dialog .danger').disabled").await;
    stage.check_view("delete-collection").await;
    browser.type_into("dialog input", "-archive").await;
    browser.click("dialog .danger").await;
    browser.until_text(".toast", "is being erased").await;
    browser.until(&format!("document.querySelector('tbody tr') && !{row}")).await;
    stage.stop().await;
}
