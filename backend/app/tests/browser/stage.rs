//! Starts a service and a browser, and provides the checks for every view.
use crate::chrome::Browser;
use crate::common::files::FileServer;
use crate::common::process::TestFolder;
use crate::common::service::Service;
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use testing::{TestDatabase, root};

pub struct Stage {
    pub browser: Browser,
    pub service: Service,
    pub place: TestFolder,
    pub database: TestDatabase,
    axe: String,
}

impl Stage {
    /// Starts a service and a browser. The test must declare `#[needs(browser)]`.
    pub async fn start() -> Self {
        Self::with(&[]).await
    }

    /// Works like [`Self::set`], with additional variables in the service's environment.
    pub async fn with(variables: &[(&str, &str)]) -> Self {
        let axe = std::fs::read_to_string(root().join(".runtime/axe/axe.min.js"))
            .expect("./scripts/browser-tools has installed axe-core");
        let browser = Browser::start().await;
        let database = TestDatabase::create().await;
        let place = TestFolder::new();
        let mut command = place.facecrawl(&["up", "--port", "0"]);
        command.env("DATABASE_URL", database.url()).envs(variables.iter().copied());
        // The log is not read while the test runs, so it must stay short.
        command.env("CRAWL_ALLOW_PRIVATE", "127.0.0.0/8").env("WORKERS", "2").env("LOG_LEVEL", "warn");
        let service = Service::start(&mut command);
        let stage = Self { browser, service, place, database, axe };
        stage.browser.set_appearance(1280, 860, false).await;
        stage
    }

    pub async fn open(&self, view: &str, heading: &str) {
        self.browser.load(&format!("{}/#{view}", self.service.base)).await;
        self.browser.until(&format!("document.querySelector('h1')?.textContent === {heading:?}")).await;
    }

    /// Crawls the site to the end without deduplication, and stays on the crawl's view.
    pub async fn crawl(&self, site: &FileServer) {
        self.open("/crawls/new", "New crawl").await;
        self.browser.type_into("textarea", &site.url("/")).await;
        self.browser.type_into("[name=delay_ms]", "0").await;
        self.browser.run("document.querySelector('[name=dedupe]').value = 'exact'").await;
        self.browser.click_text("Start the crawl").await;
        self.browser.until_text(".chip", "Completed").await;
    }

    /// Waits until each image in or near the window is loaded or has failed to load. If an image is
    /// requested after its erasure, the service answers 404, and the console reports that. A test
    /// therefore calls this before it erases something.
    pub async fn images_loaded(&self) {
        // The web page loads images at a distance of up to 400 pixels from the window.
        self.browser
            .until(
                "[...document.querySelectorAll('main img')].every((image) => { \
                 const { top, bottom } = image.getBoundingClientRect(); \
                 return image.src || image.classList.contains('missing') || top > innerHeight + 400 || bottom < -400 })",
            )
            .await;
    }

    /// Writes an image to a file, for the file inputs. Returns the path.
    pub fn file(&self, name: &str, content: &[u8]) -> String {
        self.place.put(name, content).display().to_string()
    }

    /// Checks the view in a wide light window and in a narrow dark one. axe-core must find nothing
    /// serious, nothing may be wider than the window, and the console must be empty. Saves a
    /// screenshot of each.
    pub async fn check_view(&self, name: &str) {
        for (width, height, dark) in [(1280, 860, false), (360, 740, true)] {
            self.browser.set_appearance(width, height, dark).await;
            // A phone's browser zooms out if the content is too wide, so the width of the window
            // itself is not enough.
            self.browser.until(&format!("document.documentElement.scrollWidth <= {width}")).await;
            let tone = if dark { "dark" } else { "light" };
            self.check_window(&format!("{name}-{width}-{tone}")).await;
        }
        self.browser.set_appearance(1280, 860, false).await;
        self.expect_empty_console().await;
    }

    /// Checks the window in its current size and colours.
    pub async fn check_window(&self, name: &str) {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../screenshots");
        self.browser.screenshot(&folder.join(format!("{name}.png"))).await;
        let found = self.violations().await;
        assert!(found.is_empty(), "{name}: {found:#?}");
    }

    async fn violations(&self) -> Vec<Value> {
        self.browser.run(&format!("if (!window.axe) {{ {} }}", self.axe)).await;
        let script = "const { violations } = await axe.run({ resultTypes: ['violations'] }); \
                      return violations.map(v => ({ impact: v.impact, id: v.id, help: v.help, nodes: v.nodes.map(n => n.html + ' ' + n.failureSummary) }))";
        let found = self.browser.run_async(script).await;
        let found = found.as_array().unwrap_or_else(|| panic!("axe-core: {found}"));
        let bad = |one: &&Value| matches!(one["impact"].as_str(), Some("serious" | "critical"));
        found.iter().filter(bad).cloned().collect()
    }

    /// Requires an empty console, without errors, warnings or violations of the content security
    /// policy.
    pub async fn expect_empty_console(&self) {
        let lines = self.browser.console().await;
        assert!(lines.is_empty(), "{lines:#?}");
    }

    /// Requires that the console contains only responses with this error status, which browsers
    /// report.
    pub async fn expect_only_status(&self, status: u16) {
        let lines = self.browser.console().await;
        let message = format!("status of {status} ");
        assert!(lines.iter().all(|line| line.contains(&message)), "{lines:#?}");
    }

    /// Stops the browser and the service in order.
    pub async fn stop(mut self) {
        self.expect_empty_console().await;
        self.browser.close().await;
        self.service.signal(Signal::TERM);
        let (status, log) = self.service.ended();
        assert_eq!(status, Some(0), "{log}");
    }
}
