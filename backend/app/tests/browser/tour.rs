//! Follows a new user from the first command to the first search result, and prints the seconds of
//! each step. `./scripts/tour` runs it.
use crate::chrome::Browser;
use crate::common::service::{Service, TestFolder};
use crate::stage::start_site;
use std::path::PathBuf;
use std::time::Instant;

/// Prints the duration of each step.
struct Stopwatch {
    started: Instant,
    last: Instant,
}

impl Stopwatch {
    fn start() -> Self {
        println!("{:>8} {:>8}  step", "seconds", "total");
        Self { started: Instant::now(), last: Instant::now() }
    }

    fn step(&mut self, name: &str) {
        let elapsed = self.last.elapsed().as_secs_f64();
        println!("{elapsed:>8.2} {:>8.2}  {name}", self.started.elapsed().as_secs_f64());
        self.last = Instant::now();
    }
}

#[testing::test(flavor = "multi_thread")]
#[ignore = "prints times without assertions; run ./scripts/tour"]
async fn measures_first_command_to_first_search_result() {
    let browser = Browser::start().await;
    browser.set_appearance(1280, 860, false).await;
    let site = start_site().await;
    let folder = TestFolder::new();
    let binary =
        std::env::var_os("TOUR_BINARY").map_or_else(|| env!("CARGO_BIN_EXE_facecrawl").into(), PathBuf::from);
    // The private database, which a new user has by default.
    let mut command = folder.facecrawl_at(&binary, &["up", "--port", "0"]);
    command
        .env("POSTGRES_BIN_DIR", testing::database::programs())
        .env("CRAWL_ALLOW_PRIVATE", "127.0.0.0/8")
        .env("LOG_LEVEL", "warn");

    let mut stopwatch = Stopwatch::start();
    let mut service = Service::start(&mut command);
    stopwatch.step("the service is ready in an empty folder: database created, models fetched and loaded");
    browser.load(&format!("{}/", service.base)).await;
    browser.until("document.querySelector('h1')?.textContent === 'Detect'").await;
    stopwatch.step("the page is open");
    browser.click("nav a[href='#/crawls']").await;
    browser.click_text("Start the first crawl").await;
    browser.type_into("textarea", &site.url("/")).await;
    browser.click_text("Start the crawl").await;
    browser.until("document.querySelector('dl.big')").await;
    stopwatch.step("a crawl is configured and started");
    browser.until("document.querySelector('.tile img')?.naturalWidth > 0").await;
    stopwatch.step("the first stored face is shown");
    browser.until_text(".chip", "Completed").await;
    stopwatch.step("the crawl has ended: 4 pages, 17 images");
    browser.click(".tile").await;
    browser.click_text("Search this face").await;
    browser.until("document.querySelector('.match:not([hidden]) img')?.naturalWidth > 0").await;
    stopwatch.step("a search with this face shows the first match");

    browser.close().await;
    service.stop();
}
