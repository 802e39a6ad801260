//! Tests the view System (devices, queue, discarded jobs), and the behaviour that all views share.
use crate::stage::Stage;
use queue::{NewJob, Queue};
use serde_json::json;

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn devices_plots_and_discarded_jobs_are_shown_and_jobs_are_retried() {
    let stage = Stage::start().await;
    let browser = &stage.browser;
    // A page job without a URL is discarded.
    let queue = Queue::new(stage.database.pool().clone(), queue::Config::default());
    let mut tx = stage.database.store().begin().await.unwrap();
    queue.enqueue(tx.conn(), &[NewJob::new("scan_page", json!({"nothing": true}))]).await.unwrap();
    tx.commit().await.unwrap();

    stage.open("/system", "System").await;
    browser.until_text(".ready", "Ready").await;
    browser.until_text("table", "Face embedding").await;
    browser
        .until_text("table", &testing::pack().pack.file(inference::ModelKind::Embedder).unwrap().file)
        .await;
    // A rate needs two readings of the counters.
    browser
        .until(
            "[...document.querySelectorAll('.plotbox')].every(e => e.querySelector('b').textContent !== '–')",
        )
        .await;
    browser
        .until("[...document.querySelectorAll('.plot')].every(e => /now/.test(e.getAttribute('aria-label')))")
        .await;

    browser.until(
        "(() => { const row = [...document.querySelectorAll('tr')].find(e => e.textContent.includes('Scan page') && e.textContent.includes('Discarded')); \
         if (!row) [...document.querySelectorAll('button')].find(e => e.textContent === 'Refresh')?.click(); return row })()",
    )
    .await;
    stage.check_view("system").await;
    browser.click_text("Retry").await;
    browser.until_text(".toast", "The job is queued again").await;
    stage.stop().await;
}

#[testing::needs(browser)]
#[testing::test(flavor = "multi_thread")]
async fn the_page_finds_its_way_by_address_keyboard_and_switch() {
    let stage = Stage::start().await;
    let browser = &stage.browser;
    // Without a path, the web page shows the view Detect. An unknown path is reported. A missing
    // resource is reported as an error of the service.
    browser.load(&format!("{}/", stage.service.base)).await;
    browser.until("location.hash === '#/detect' && document.title === 'Detect · facecrawl'").await;
    stage.open("/elsewhere", "Page not found").await;
    browser.load(&format!("{}/#/crawls/00000000-0000-7000-8000-000000000000", stage.service.base)).await;
    browser.until_text(".problem", "there is no crawl").await;
    stage.expect_only_status(404).await;
    browser.until("document.querySelector('nav [aria-current]').textContent === 'Crawls'").await;

    // The first keyboard stop leads to the content, not to another view.
    stage.open("/faces", "Faces").await;
    browser.run("location.reload()").await;
    browser.until_text("h1", "Faces").await;
    browser.press(&['\u{E004}', '\u{E007}']).await;
    browser.until("document.activeElement.id === 'main' && location.hash === '#/faces'").await;

    // A service without keys explains how to enable them, and creates none.
    stage.open("/keys", "Keys").await;
    browser.until_text("h2", "requires no key").await;
    browser.until("![...document.querySelectorAll('a')].some(e => e.textContent === 'New key')").await;
    stage.check_view("keys-open").await;

    // On a phone, less used views are in a sheet that Escape closes.
    browser.set_appearance(360, 740, true).await;
    let sheet = "getComputedStyle(document.getElementById('rest')).visibility";
    browser.until(&format!("{sheet} === 'hidden'")).await;
    browser.click("#more").await;
    browser.until(&format!("{sheet} === 'visible'")).await;
    stage.check_window("more").await;
    browser.press(&['\u{E00C}']).await;
    browser.until(&format!("{sheet} === 'hidden' && document.activeElement.id === 'more'")).await;
    browser.click("#more").await;
    browser.click("nav a[href='#/collections']").await;
    browser.until_text("h1", "Collections").await;
    browser.until(&format!("{sheet} === 'hidden'")).await;
    browser.set_appearance(1280, 860, false).await;

    // The colours are light, dark, or those of the system. The choice is kept after a reload.
    let ground = "getComputedStyle(document.body).backgroundColor";
    let light = browser.run(&format!("return {ground}")).await;
    browser.click("#theme").await;
    browser.click("#theme").await;
    browser
        .until(&format!(
            "document.documentElement.dataset.theme === 'dark' && {ground} !== '{}'",
            light.as_str().unwrap()
        ))
        .await;
    browser.run("location.reload()").await;
    browser.until("document.documentElement.dataset.theme === 'dark'").await;
    browser.click("#theme").await;
    browser.until(&format!("{ground} === '{}'", light.as_str().unwrap())).await;
    stage.stop().await;
}
