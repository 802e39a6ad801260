//! Tests the views of watchlists and alerts.
use crate::stage::{Stage, portrait};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;

#[testing::needs(browser, slow)]
#[testing::test(flavor = "multi_thread")]
async fn watches_person_and_acknowledges_alert() {
    let stage = Stage::start().await;
    let browser = &stage.browser;
    stage.open("/watchlists", "Watchlists").await;
    browser.until_text(".empty", "There are no watchlists").await;
    stage.open("/people", "People").await;
    browser.click_text("New person").await;
    browser.type_into("dialog input", "Ada Example").await;
    browser.click_text("Add").await;
    browser.until_text("h1", "Ada Example").await;
    browser.type_into("input[type=file]", &stage.write("ada.jpg", &portrait(7, 1))).await;
    browser.until_text(".facts", "1 face").await;

    // The form comes with the person from whose view it was opened.
    browser.click_text("Watch").await;
    browser.until_text("h1", "New watchlist").await;
    browser.until("document.querySelector('[name=subjects]:checked')").await;
    browser.type_into("[name=name]", "Guests").await;
    browser.type_into("[name=purpose]", "Greet the guests").await;
    stage.check_view("new-watchlist").await;
    browser.click_text("Create watchlist").await;
    browser.until_text("h1", "Guests").await;
    browser.until_text(".facts", "1 person").await;
    stage.check_view("watchlist").await;

    // An alert appears while the view is open.
    stage.open("/alerts", "Alerts").await;
    browser.until_text(".empty", "There are no alerts").await;
    let image = BASE64_STANDARD.encode(portrait(7, 2));
    let enrol = format!(
        "const send = async (path, json) => (await fetch(path, {{ method: 'POST', \
         headers: {{ 'content-type': 'application/json' }}, body: JSON.stringify(json) }})).json(); \
         const other = await send('/subjects', {{ name: 'Somebody else' }}); \
         return (await send(`/subjects/${{other.id}}/faces`, {{ image_base64: '{image}', force: true }})).faces.length"
    );
    assert_eq!(browser.run_async(&enrol).await, 1);
    browser.until_count("tbody tr", 1).await;
    browser.until_text("tbody", "Guests").await;
    stage.wait_for_images().await;
    stage.check_view("alerts").await;
    browser.click_text("Acknowledge").await;
    browser.until_text("tbody", "Acknowledged").await;
    browser.until_text(".toast", "The alert was acknowledged").await;

    stage.open("/watchlists", "Watchlists").await;
    browser.until_text("tbody", "Greet the guests").await;
    stage.check_view("watchlists").await;
    browser.click("tbody a").await;
    browser.until_text("h1", "Guests").await;
    browser.confirm("Delete").await;
    browser.until_text("h1", "Watchlists").await;
    browser.until_text(".empty", "There are no watchlists").await;
    stage.stop().await;
}
