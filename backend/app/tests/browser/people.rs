//! Tests that people are found by clustering, named, merged and enrolled.
use crate::site;
use crate::stage::Stage;

#[testing::needs(browser, slow)]
#[testing::test(flavor = "multi_thread")]
async fn people_are_found_named_merged_enrolled_and_deleted() {
    let stage = Stage::start().await;
    let browser = &stage.browser;
    let site = site::start().await;
    stage.open("/people", "People").await;
    browser.until_text(".empty", "There are no people yet").await;
    stage.crawl(&site).await;

    // Clusters appear when the search for people has ended.
    stage.open("/people", "People").await;
    browser.click_text("Find people").await;
    browser.until_text("[role=status]", "15 new faces processed").await;
    browser.until("document.querySelector('.person img[src]')").await;

    // Adds a person with an image and with a stored face.
    browser.click_text("New person").await;
    browser.type_into("dialog input", "Ada Example").await;
    browser.click_text("Add").await;
    browser.until_text("h1", "Ada Example").await;
    browser.until_text(".empty", "This person has no faces yet").await;
    browser.type_into("input[type=file]", &stage.file("ada.jpg", &site::portrait(7, 1))).await;
    browser.until("document.querySelector('.person img[src]')").await;
    browser.until_text(".facts", "1 face").await;
    stage.check_view("person").await;

    stage.open("/people", "People").await;
    browser.until_text(".person", "Ada Example").await;
    browser.until("document.querySelectorAll('.person').length >= 2").await;
    stage.check_view("people").await;
    // A named cluster becomes a person.
    browser.run("[...document.querySelectorAll('.person a')].find(e => e.textContent.includes('Unnamed')).setAttribute('data-test', '')").await;
    browser.click("[data-test]").await;
    browser.click_text("Name").await;
    browser.type_into("dialog input", "Bo Example").await;
    browser.click_text("Save").await;
    browser.until_text("h1", "Bo Example").await;
    browser.until_text(".chip", "Enrolled").await;

    // A search shows the names of enrolled people.
    browser.click_text("Search this person").await;
    browser.until_text("h1", "Search").await;
    browser.until_text(".match .chip", "Bo Example").await;

    // Merges two entries of one person.
    stage.open("/people", "People").await;
    browser.until_text(".person", "Bo Example").await;
    let before = browser.run("return document.querySelectorAll('.person').length").await.as_u64().unwrap();
    for name in ["Ada Example", "Bo Example"] {
        browser.click(&format!(".pick input[aria-label^='Choose {name}']")).await;
    }
    browser.click_text("Merge 2").await;
    browser.click("dialog .primary").await;
    browser.until_text(".toast", "were merged").await;
    browser.until(&format!("document.querySelectorAll('.person').length === {}", before - 1)).await;

    // Removes a face that was added by mistake, then deletes the person.
    browser.run("[...document.querySelectorAll('.person a')].find(e => e.textContent.includes('Example')).setAttribute('data-test', '')").await;
    browser.click("[data-test]").await;
    browser.until_text("h1", "Example").await;
    browser.until("document.querySelectorAll('.person').length >= 2").await;
    let faces = browser.run("return document.querySelectorAll('.person').length").await.as_u64().unwrap();
    stage.images_loaded().await;
    browser.click(".person .button").await;
    browser.until(&format!("document.querySelectorAll('.person').length === {}", faces - 1)).await;
    browser.click_text("Delete").await;
    browser.click("dialog .danger").await;
    browser.until_text("h1", "People").await;
    // The merged person is deleted, and the other clusters remain.
    browser.until(&format!("document.querySelectorAll('.person').length === {}", before - 2)).await;

    // Enrols a face in the view of that face.
    stage.open("/faces", "Faces").await;
    browser.click(".tile").await;
    browser.click_text("Enrol").await;
    browser.type_into("dialog input", "Cy Example").await;
    browser.click_text("Add").await;
    browser.until_text(".toast", "The face was enrolled as Cy Example").await;
    stage.stop().await;
}
