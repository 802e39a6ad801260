//! Tests that erasures are previewed and carried out, and that the next crawl does not store the
//! erased data again.
use crate::site;
use crate::stage::Stage;

#[testing::needs(browser, slow)]
#[testing::test(flavor = "multi_thread")]
async fn a_face_a_person_and_an_address_are_erased_and_kept_out() {
    let stage = Stage::with(&[("SUPPRESSION_SECRET", &"s".repeat(40))]).await;
    let browser = &stage.browser;
    let site = site::start().await;
    stage.crawl(&site).await;
    stage.open("/erasures", "Erasures").await;
    browser.until_text(".empty", "Nothing has been erased").await;

    // Erases a face in the view of that face, after a preview.
    stage.open("/faces", "Faces").await;
    browser.click(".tile").await;
    browser.click_text("Erase and suppress").await;
    browser.until_text("h1", "New erasure").await;
    browser.until("document.querySelector('.probeface img')").await;
    stage.images_loaded().await;
    browser.click_text("Show preview").await;
    browser.until_text("h2", "1 face and 1 whole image would be erased").await;
    browser.click_text("Erase permanently").await;
    browser.until_text("dialog", "cannot be undone").await;
    browser.click("dialog .danger").await;
    browser.until_text(".toast", "created 1 suppression").await;
    browser.until_text("tbody tr", "A face").await;

    // Erases a person identified by an image that was never stored. The preview shows a threshold
    // that would include all people.
    browser.click_text("New erasure").await;
    browser.until_text("h1", "New erasure").await;
    browser.type_into("input[type=file]", &stage.file("group.jpg", &testing::picture("group.jpg"))).await;
    browser.until("document.querySelectorAll('.facerow').length === 10").await;
    // The fifth face of the group is one of the people of the site; the first is not.
    browser.run("document.querySelectorAll('.facerow')[4].click()").await;
    browser.type_into("input[type=number]", "0.7").await;
    browser.click("input[type=checkbox]:not(:checked)").await;
    browser.click_text("Show preview").await;
    browser.until_text("h2", "whole images would be erased").await;
    // The view shows two or three images, depending on which face was erased before.
    browser.until("document.querySelector('.tile img')").await;
    stage.images_loaded().await;
    stage.check_view("new-erasure").await;
    // Typing would append to the number in the field. At similarity 0, strangers match too, so the
    // web page asks for confirmation.
    browser
        .run("const t = document.querySelector('input[type=number]'); t.value = '0'; for (const e of ['input', 'change']) t.dispatchEvent(new Event(e, { bubbles: true }))")
        .await;
    browser.click_text("Show preview").await;
    browser.until_text(".problem", "strangers").await;
    stage.expect_only_status(422).await;
    browser.click_text("Preview anyway").await;
    browser.until_text("h2", "whole images would be erased").await;
    stage.images_loaded().await;
    browser.click_text("Erase permanently").await;
    browser.click("dialog .danger").await;
    browser.until_text("tbody tr", "A person, by an image").await;
    browser.until_text(".chip", "Person").await;

    // Erases the rest of the site by the URLs of its pages.
    for (path, rows) in [("/team.html", 3), ("/archive.html", 4)] {
        stage.open(&format!("/erasures/new?url={}", site.url(path)), "New erasure").await;
        browser.click_text("Show preview").await;
        browser.until_text("h2", "would be erased").await;
        stage.images_loaded().await;
        browser.click(".panel .heading .danger").await;
        browser.click("dialog .danger").await;
        browser.until(&format!("document.querySelectorAll('tbody tr').length === {rows}")).await;
    }

    // No data is stored for this URL, so the web page cannot determine which person is meant.
    stage.open(&format!("/erasures/new?url={}", site.url("/7.jpg")), "New erasure").await;
    browser.until("document.querySelectorAll('input[type=checkbox]')[1].disabled").await;
    browser.click_text("Show preview").await;
    browser.until_text("h2", "No stored data would be erased").await;
    browser.click_text("Suppress anyway").await;
    browser.click("dialog .danger").await;
    browser.until("document.querySelectorAll('tbody tr').length === 5").await;
    stage.check_view("erasures").await;

    // A new crawl of the same site stores none of the erased data. It also skips the two files on
    // its pages that are not images.
    stage.crawl(&site).await;
    browser
        .until("[...document.querySelectorAll('.legend li')].some(e => e.textContent.trim() === 'Suppressed 17')")
        .await;
    browser.until_text(".reasons", "is suppressed").await;
    stage.check_view("crawl-suppressed").await;

    // A mistaken suppression is lifted.
    stage.open("/erasures", "Erasures").await;
    browser.click("tbody tr td .button").await;
    browser.click("dialog .danger").await;
    browser.until_text(".toast", "suppressions were lifted").await;
    browser.until_text("tbody tr:first-child", "lifted").await;
    stage.stop().await;
}
