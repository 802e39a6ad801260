//! Tests the view Detect.
use crate::stage::Stage;

const ENTER: char = '\u{E007}';
const TAB: char = '\u{E004}';

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn a_pictures_faces_are_marked_and_listed_for_mouse_and_keyboard() {
    let stage = Stage::start().await;
    let browser = &stage.browser;
    stage.open("/detect", "Detect").await;
    stage.check_view("detect-empty").await;
    browser.type_into("input[type=file]", &stage.file("group.jpg", &testing::picture("group.jpg"))).await;
    browser.until("document.querySelectorAll('.facerow').length === 10").await;
    browser.until("document.querySelectorAll('.mark').length === 10").await;
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
async fn pictures_come_by_drop_paste_and_camera_and_bad_ones_are_told() {
    let stage = Stage::start().await;
    let browser = &stage.browser;
    stage.open("/detect", "Detect").await;
    let transfer = "const canvas = document.createElement('canvas'); canvas.width = canvas.height = 64; canvas.getContext('2d').fillRect(0, 0, 64, 64); \
        const blob = await new Promise(resolve => canvas.toBlob(resolve)); \
        const data = new DataTransfer(); data.items.add(new File([blob], 'black.png', { type: 'image/png' }));";
    for act in [
        "document.querySelector('.drop').dispatchEvent(new DragEvent('drop', { bubbles: true, cancelable: true, dataTransfer: data }))",
        "document.dispatchEvent(new ClipboardEvent('paste', { bubbles: true, cancelable: true, clipboardData: data }))",
    ] {
        browser.run_async(&format!("document.querySelector('.detected')?.remove(); {transfer} {act}")).await;
        browser.until_text(".detected", "No face was found").await;
    }
    browser.run("document.querySelector('.detected').remove()").await;
    browser.click_text("Camera").await;
    browser.click_text("Take photo").await;
    browser.until("document.querySelector('.detected') && !document.querySelector('dialog')").await;
    stage.expect_empty_console().await;

    // The service's error is shown with its code and the request's id.
    browser.type_into("input[type=file]", &stage.file("text.jpg", b"no picture at all")).await;
    browser.until_text(".problem", "Code not_an_image").await;
    browser.until("document.querySelector('.problem code').textContent.length === 36").await;
    stage.expect_only_status(415).await;
    stage.check_view("problem").await;
    stage.stop().await;
}
