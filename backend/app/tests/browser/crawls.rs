//! Tests crawls and the faces that they find.
use crate::stage::{Stage, start_site, start_site_with_last_image};

/// JavaScript condition: a lazily loaded image of a list is displayed.
const LOADED_IMAGE: &str = "document.querySelector('.tile img[src], .match img[src]')";

#[testing::needs(browser, slow)]
#[testing::test(flavor = "multi_thread")]
async fn crawls_site_then_searches_and_erases_face() {
    let stage = Stage::start().await;
    let browser = &stage.browser;
    // The last face fails its quality profile.
    let site = start_site_with_last_image(testing::drawing("blur.jpg")).await;
    stage.open("/crawls", "Crawls").await;
    browser.click_text("Start the first crawl").await;
    browser.until_text("h1", "New crawl").await;
    stage.check_view("new-crawl").await;

    // An invalid field is reported and receives the focus.
    browser.type_into("textarea", "gopher://example.org/").await;
    browser.click_text("Start the crawl").await;
    browser
        .until(
            "document.activeElement.getAttribute('aria-invalid') && document.activeElement.name === 'seeds'",
        )
        .await;
    stage.expect_only_status(422).await;

    browser.run("document.querySelector('textarea').value = ''").await;
    browser.type_into("textarea", &site.url("/")).await;
    browser.type_into("[name=delay_ms]", "0").await;
    browser.run("document.querySelector('[name=dedupe]').value = 'exact'").await;
    browser.click_text("Start the crawl").await;
    browser.until_text(".chip", "Completed").await;
    for (name, number) in [("Faces", "15"), ("Images", "17"), ("Pages", "4")] {
        let shown = format!(
            "[...document.querySelectorAll('.big > div')].some(e => e.textContent === '{name}{number}')"
        );
        browser.until(&shown).await;
    }
    browser.until_text(".reasons", "robots.txt does not allow it").await;
    browser.until_text(".reasons", "The server responded with HTTP 404").await;
    browser.click("details.unprocessed summary").await;
    browser.until_text("details.unprocessed li", ": The server responded with HTTP 404").await;
    browser.until(LOADED_IMAGE).await;
    browser.until("document.querySelector('a[download][href*=\"/export?format=csv\"]')").await;
    stage.check_view("crawl").await;

    stage.open("/crawls", "Crawls").await;
    browser.until_text(".crawl .numbers", "15").await;
    stage.check_view("crawls").await;

    // The steps are: the faces that pass their quality profile, all faces, a filter without
    // results, one face, and back to the list.
    stage.open("/faces", "Faces").await;
    let passing_count = browser
        .run_async("return (await (await fetch('/faces?limit=100')).json()).faces.filter((face) => face.quality.passed).length")
        .await;
    let passing_count = passing_count.as_u64().unwrap();
    assert!((1..15).contains(&passing_count), "{passing_count} of 15 faces pass");
    browser.until_count(".tile", passing_count).await;
    browser.click("#all-faces").await;
    browser.until("location.hash === '#/faces?all=true'").await;
    browser.until_count(".tile", 15).await;
    browser.until(LOADED_IMAGE).await;
    stage.check_view("faces").await;
    browser.run("const q = document.getElementById('min-quality'); q.value = 1; q.dispatchEvent(new Event('input')); q.dispatchEvent(new Event('change'))").await;
    browser.until_text(".empty", "No face passes these filters").await;
    browser.until("location.hash === '#/faces?min_quality=1&all=true'").await;
    stage.open("/faces?all=true", "Faces").await;
    browser.click("summary").await;
    browser.choose("[name=site]", "example.org").await;
    browser.until_text(".empty", "No face passes these filters").await;
    browser.until("location.hash === '#/faces?site=example.org&all=true'").await;
    stage.check_view("faces-filtered").await;
    browser.choose("[name=site]", "127.0.0.1").await;
    browser.choose("[name=from]", "2020-01-31").await;
    browser.until_count(".tile", 15).await;
    browser.choose("[name=to]", "2020-01-31").await;
    browser.until_text(".empty", "No face passes these filters").await;
    browser.choose("[name=site]", "a b").await;
    browser.until_text(".problem", "a host name such as example.org").await;
    stage.expect_only_status(400).await;
    stage.open("/faces", "Faces").await;
    browser.until_count(".tile", passing_count).await;
    browser.click(".tile").await;
    browser.until_text("h1", "Face").await;
    browser
        .until("document.querySelector('.portrait img[src]') && document.querySelector('.marked img[src]')")
        .await;
    browser.until_text("table", "Portrait").await;
    browser.until_text(".match", "127.0.0.1").await;
    stage.check_view("face").await;
    browser.back().await;
    browser.until_count(".tile", passing_count).await;
    browser.click(".tile").await;

    // Other faces of the same person are listed first, and the slider filters immediately.
    browser.click_text("Search this face").await;
    browser.until_text("h1", "Search").await;
    browser.until(LOADED_IMAGE).await;
    let shown = "document.querySelectorAll('.match:not([hidden])').length";
    let set_threshold = |threshold: f64| {
        format!(
            "const t = document.getElementById('threshold'); t.value = {threshold}; t.dispatchEvent(new Event('input'))"
        )
    };
    browser.run(&set_threshold(-1.0)).await;
    browser.until(&format!("{shown} > 3")).await;
    stage.check_view("search").await;
    let scores = browser
        .run("return [...document.querySelectorAll('.match b')].map(e => Number(e.textContent))")
        .await;
    let scores: Vec<f64> = scores.as_array().unwrap().iter().map(|score| score.as_f64().unwrap()).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b) && scores.len() == 14, "{scores:?}");
    browser.run(&set_threshold(0.99)).await;
    let visible_count = scores.iter().filter(|score| **score >= 0.99).count();
    browser.until(&format!("Math.abs({shown} - {visible_count}) <= 1")).await;
    browser.until_text("[role=status]", "at or above 0.99").await;
    browser.click("summary").await;
    browser.choose("[name=site]", "example.org").await;
    browser.until_text(".empty", "passes these filters").await;
    browser.choose("[name=site]", "").await;
    browser.until_count(".match", 14).await;

    // After a confirmation, a face is erased, and then the crawl with all its images.
    browser.click(".probeface").await;
    browser.until_text("h1", "Face").await;
    browser.until("document.querySelector('.portrait img') && document.querySelector('.marked img')").await;
    stage.wait_for_images().await;
    browser.click_text("Erase").await;
    browser.until("document.activeElement.textContent === 'Cancel'").await;
    stage.check_view("erase").await;
    browser.click("dialog .danger").await;
    browser.until_text(".toast", "The face was erased").await;
    browser.until("document.querySelector('#all-faces')").await;
    browser.click("#all-faces").await;
    browser.until_count(".tile", 14).await;
    stage.open("/crawls", "Crawls").await;
    browser.click(".crawl a").await;
    browser.until("document.querySelector('.tile')").await;
    stage.wait_for_images().await;
    browser.click_text("Delete").await;
    browser.click("dialog input[type=checkbox]").await;
    browser.click("dialog .danger").await;
    browser.until_text(".empty", "A crawl reads a site").await;
    stage.open("/faces", "Faces").await;
    browser.until_text(".empty", "No faces that pass the quality profile are stored yet").await;
    browser.click("#all-faces").await;
    browser.until_text(".empty", "No faces are stored yet").await;
    stage.stop().await;
}

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn pauses_resumes_and_cancels_running_crawl() {
    let stage = Stage::start().await;
    let browser = &stage.browser;
    let site = start_site().await;
    stage.open("/crawls/new", "New crawl").await;
    browser.type_into("textarea", &site.url("/")).await;
    // The delay is so long that the crawl does not end during the test.
    browser.type_into("[name=delay_ms]", "300000").await;
    browser.click_text("Start the crawl").await;
    browser.until_text(".chip", "Running").await;
    browser.until_text(".legend", "Queued").await;
    browser.until("document.querySelector('.plot')").await;
    browser.click_text("Pause").await;
    browser.until_text(".chip", "Paused").await;
    stage.check_view("crawl-paused").await;

    // The state comes from the service, so it is the same after a reload.
    browser.run("location.reload()").await;
    browser.click_text("Resume").await;
    browser.until_text(".chip", "Running").await;
    // Changes by other callers are received through the event stream.
    let id = browser.run("return location.hash.split('/')[2]").await;
    let pause = format!(
        "return (await fetch('/crawls/{}/pause', {{ method: 'POST' }})).status",
        id.as_str().unwrap()
    );
    assert_eq!(browser.run_async(&pause).await, 200);
    browser.until_text(".chip", "Paused").await;

    browser.confirm("Cancel").await;
    browser.until_text(".chip", "Cancelled").await;
    browser.until("[...document.querySelectorAll('button')].some(e => e.textContent === 'Delete')").await;
    stage.stop().await;
}

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn crawl_form_matches_api_limits_and_defaults() {
    let stage = Stage::start().await;
    stage.open("/crawls/new", "New crawl").await;
    let differences = stage
        .browser
        .run_async(
            "const api = (await (await fetch('/openapi.json')).json()).components.schemas.CreateCrawl.properties; \
             const fields = [...document.querySelectorAll('input[type=number]')]; \
             if (fields.length < 5) return 'fields are missing'; \
             return fields.map(({ name, min, max, value }) => [name, min, max, value]).filter(([name, min, max, value]) => \
                 min !== String(api[name].minimum) || max !== String(api[name].maximum) || value !== String(api[name].default ?? ''))",
        )
        .await;
    assert_eq!(differences, serde_json::json!([]));
    stage.stop().await;
}
