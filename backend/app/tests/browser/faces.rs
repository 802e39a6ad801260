//! Tests the views of detection, people and erasures.
use crate::stage::{Stage, portrait, start_site};

const ENTER: char = '\u{E007}';
const TAB: char = '\u{E004}';

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn marks_detected_faces_for_mouse_and_keyboard() {
    let stage = Stage::start().await;
    let browser = &stage.browser;
    stage.open("/detect", "Detect").await;
    stage.check_view("detect-empty").await;
    browser.type_into("input[type=file]", &stage.write("group.jpg", &testing::drawing("group.jpg"))).await;
    browser.until_count(".facerow", 10).await;
    browser.until_count(".mark", 10).await;
    browser.until_text("h2", "10 faces in").await;
    browser.until_text(".legend", "Decode").await;
    stage.check_view("detect").await;

    // A click on a mark selects the corresponding row.
    browser.click(".mark[data-face='4'] .box").await;
    browser.until("document.querySelectorAll('.facerow')[3].getAttribute('aria-pressed') === 'true'").await;
    browser.until_text(".facedetail h3", "Face 4").await;
    // On the keyboard, Enter selects the next row.
    browser.run("document.querySelectorAll('.facerow')[3].focus()").await;
    browser.press(&[TAB, ENTER]).await;
    browser.until("document.querySelector('.mark.chosen text').textContent === '5'").await;
    browser.until_text(".measures", "yaw").await;

    // Changed options are applied to the same image.
    browser.run("document.querySelector('details').open = true").await;
    browser.run("const s = document.querySelector('[name=quality_profile]'); s.value = 'off'; s.dispatchEvent(new Event('change', { bubbles: true }))").await;
    browser
        .until("document.querySelectorAll('.facerow').length === 10 && !document.querySelector('.spinner')")
        .await;

    // A search with that face works before anything is stored.
    browser.click_text("Search this face").await;
    browser.until_text("h1", "Search").await;
    browser.until_text(".empty", "default contains no similar face").await;
    stage.stop().await;
}

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn accepts_images_by_drop_paste_and_camera() {
    let stage = Stage::start().await;
    let browser = &stage.browser;
    stage.open("/detect", "Detect").await;
    let transfer = "const canvas = document.createElement('canvas'); canvas.width = canvas.height = 64; canvas.getContext('2d').fillRect(0, 0, 64, 64); \
        const blob = await new Promise(resolve => canvas.toBlob(resolve)); \
        const data = new DataTransfer(); data.items.add(new File([blob], 'black.png', { type: 'image/png' }));";
    for dispatch in [
        "document.querySelector('.drop').dispatchEvent(new DragEvent('drop', { bubbles: true, cancelable: true, dataTransfer: data }))",
        "document.dispatchEvent(new ClipboardEvent('paste', { bubbles: true, cancelable: true, clipboardData: data }))",
    ] {
        browser
            .run_async(&format!("document.querySelector('.detected')?.remove(); {transfer} {dispatch}"))
            .await;
        browser.until_text(".detected", "No face was found").await;
    }
    browser.run("document.querySelector('.detected').remove()").await;
    browser.click_text("Camera").await;
    browser.click_text("Take photo").await;
    browser.until("document.querySelector('.detected') && !document.querySelector('dialog')").await;
    stage.expect_empty_console().await;

    // The service's error is shown with its code and the request's id.
    browser.type_into("input[type=file]", &stage.write("text.jpg", b"not an image")).await;
    browser.until_text(".problem", "Code not_an_image").await;
    browser.until("document.querySelector('.problem code').textContent.length === 36").await;
    stage.expect_only_status(415).await;
    stage.check_view("problem").await;
    stage.stop().await;
}

#[testing::needs(browser, slow)]
#[testing::test(flavor = "multi_thread")]
async fn finds_names_merges_enrols_and_deletes_people() {
    let stage = Stage::start().await;
    let browser = &stage.browser;
    let site = start_site().await;
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
    browser.type_into("input[type=file]", &stage.write("ada.jpg", &portrait(7, 1))).await;
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
    let person_count =
        browser.run("return document.querySelectorAll('.person').length").await.as_u64().unwrap();
    for name in ["Ada Example", "Bo Example"] {
        browser.click(&format!(".pick input[aria-label^='Choose {name}']")).await;
    }
    browser.click_text("Merge 2").await;
    browser.click("dialog .primary").await;
    browser.until_text(".toast", "were merged").await;
    browser.until_count(".person", person_count - 1).await;

    // Removes a face that was added by mistake, then deletes the person.
    browser.run("[...document.querySelectorAll('.person a')].find(e => e.textContent.includes('Example')).setAttribute('data-test', '')").await;
    browser.click("[data-test]").await;
    browser.until_text("h1", "Example").await;
    browser.until("document.querySelectorAll('.person').length >= 2").await;
    let face_count =
        browser.run("return document.querySelectorAll('.person').length").await.as_u64().unwrap();
    stage.wait_for_images().await;
    browser.click(".person .button").await;
    browser.until_count(".person", face_count - 1).await;
    browser.confirm("Delete").await;
    browser.until_text("h1", "People").await;
    // The merged person is deleted, and the other clusters remain.
    browser.until_count(".person", person_count - 2).await;

    // Enrols a face in the view of that face.
    stage.open("/faces", "Faces").await;
    browser.click(".tile").await;
    browser.click_text("Enrol").await;
    browser.type_into("dialog input", "Cy Example").await;
    browser.click_text("Add").await;
    browser.until_text(".toast", "The face was enrolled as Cy Example").await;
    stage.stop().await;
}

#[testing::needs(browser, slow)]
#[testing::test(flavor = "multi_thread")]
async fn erased_face_person_and_url_stay_suppressed() {
    let stage = Stage::with_environment(&[("SUPPRESSION_SECRET", &"s".repeat(40))]).await;
    let browser = &stage.browser;
    let site = start_site().await;
    stage.crawl(&site).await;
    stage.open("/erasures", "Erasures").await;
    browser.until_text(".empty", "Nothing has been erased").await;

    // Erases a face in the view of that face, after a preview.
    stage.open("/faces", "Faces").await;
    browser.click(".tile").await;
    browser.click_text("Erase and suppress").await;
    browser.until_text("h1", "New erasure").await;
    browser.until("document.querySelector('.probeface img')").await;
    stage.wait_for_images().await;
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
    browser.type_into("input[type=file]", &stage.write("group.jpg", &testing::drawing("group.jpg"))).await;
    browser.until_count(".facerow", 10).await;
    // The fifth face of the group is one of the people of the site; the first is not.
    browser.run("document.querySelectorAll('.facerow')[4].click()").await;
    browser.type_into("input[type=number]", "0.7").await;
    browser.click("input[type=checkbox]:not(:checked)").await;
    browser.click_text("Show preview").await;
    browser.until_text("h2", "whole images would be erased").await;
    // The view shows two or three images, depending on which face was erased before.
    browser.until("document.querySelector('.tile img')").await;
    stage.wait_for_images().await;
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
    stage.wait_for_images().await;
    browser.confirm("Erase permanently").await;
    browser.until_text("tbody tr", "A person, by an image").await;
    browser.until_text(".chip", "Person").await;

    // Erases the rest of the site by the URLs of its pages.
    for (path, rows) in [("/team.html", 3), ("/archive.html", 4)] {
        stage.open(&format!("/erasures/new?url={}", site.url(path)), "New erasure").await;
        browser.click_text("Show preview").await;
        browser.until_text("h2", "would be erased").await;
        stage.wait_for_images().await;
        browser.click(".panel .heading .danger").await;
        browser.click("dialog .danger").await;
        browser.until_count("tbody tr", rows).await;
    }

    // No data is stored for this URL, so the web page cannot determine which person is meant.
    stage.open(&format!("/erasures/new?url={}", site.url("/7.jpg")), "New erasure").await;
    browser.until("document.querySelectorAll('input[type=checkbox]')[1].disabled").await;
    browser.click_text("Show preview").await;
    browser.until_text("h2", "No stored data would be erased").await;
    browser.confirm("Suppress anyway").await;
    browser.until_count("tbody tr", 5).await;
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
