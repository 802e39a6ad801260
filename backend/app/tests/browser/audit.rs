//! Tests the audit log.
use crate::stage::Stage;
use serde_json::json;
use store::keys::audit::{Action, AuditEntry};

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn the_log_is_filtered_and_grows_as_one_scrolls() {
    let stage = Stage::start().await;
    let browser = &stage.browser;
    let store = stage.database.store();
    let default = store.collection("default").await.unwrap().id;
    let mut tx = store.begin().await.unwrap();
    for number in 0..130 {
        let action = if number % 10 == 0 { Action::Erase } else { Action::Search };
        let detail = json!({"faces": number, "suppress": true, "face_id": uuid::Uuid::now_v7()});
        let entry =
            AuditEntry { action, collection_id: Some(default), key_id: None, request_id: None, detail };
        store.audit(tx.conn(), &entry).await.unwrap();
    }
    tx.commit().await.unwrap();

    stage.open("/audit", "Audit log").await;
    browser.until_text("tbody tr", "Searched for a face").await;
    stage.check_view("audit").await;
    // The table has one page of records so far. The file has all of them, and a header.
    browser.until("document.querySelectorAll('tbody tr').length === 100").await;
    browser
        .run("const url = URL.createObjectURL; URL.createObjectURL = (blob) => url.call(URL, (window.saved = blob))")
        .await;
    browser.click_text("CSV").await;
    browser.until("window.saved").await;
    let lines = browser.run_async("return (await window.saved.text()).trim().split('\\r\\n').length").await;
    assert_eq!(lines, 131);
    browser.run("scrollTo(0, document.documentElement.scrollHeight)").await;
    browser.until("document.querySelectorAll('tbody tr').length === 130").await;

    // Every recorded action has a name in the filter.
    let shown =
        browser.run("return [...document.querySelector('.filters select').options].map(e => e.value)").await;
    let mut named: Vec<&str> = Action::ALL.iter().map(|action| action.as_str()).collect();
    let mut shown: Vec<&str> = shown.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    shown.retain(|name| !name.is_empty());
    named.sort_unstable();
    shown.sort_unstable();
    assert_eq!(shown, named);
    let choose = |value: &str| {
        format!(
            "const s = document.querySelector('.filters select'); s.value = '{value}'; s.dispatchEvent(new Event('change'))"
        )
    };
    browser.run(&choose("erasure.create")).await;
    browser.until("document.querySelectorAll('tbody tr').length === 13").await;
    browser.until("location.hash.includes('action=erasure.create')").await;
    browser.run(&choose("key.revoke")).await;
    browser.until_text(".empty", "No record matches").await;
    // A past day has no entries. The address contains the filters.
    stage.open("/audit?until=2020-01-01", "Audit log").await;
    browser.until_text(".empty", "No record matches").await;

    // A file has a limit, and the page says so.
    let fill = "insert into audit_log (action) select 'face.search' from generate_series(1, 10000)";
    stage.database.execute(fill).await;
    stage.open("/audit?until=", "Audit log").await;
    browser.until_text("tbody tr", "Searched for a face").await;
    browser.click_text("CSV").await;
    browser.until_text(".toast", "only the newest 10,000 records").await;
    stage.stop().await;
}
