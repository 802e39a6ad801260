//! Starts a service, a browser and a site with images of drawn people, and provides the checks for
//! every view.
use crate::chrome::Browser;
use crate::common::service::{Service, TestFolder};
use crate::common::sites::FileServer;
use serde_json::Value;
use std::path::Path;
use std::sync::OnceLock;
pub use testing::people::portrait;
use testing::{TestDatabase, root};

pub struct Stage {
    pub browser: Browser,
    pub service: Service,
    pub folder: TestFolder,
    pub database: TestDatabase,
    axe: String,
}

impl Stage {
    /// Starts a service and a browser. The test must declare `#[needs(browser)]`.
    pub async fn start() -> Self {
        Self::with_environment(&[]).await
    }

    /// Works like [`Self::start`], with a video decoder. The test must declare
    /// `#[needs(video)]`.
    pub async fn with_videos() -> Self {
        Self::with_environment(&[("FFMPEG", testing::ffmpeg().to_str().unwrap())]).await
    }

    /// Works like [`Self::start`], with additional variables in the service's environment.
    pub async fn with_environment(variables: &[(&str, &str)]) -> Self {
        let axe = std::fs::read_to_string(root().join(".runtime/axe/axe.min.js"))
            .expect("axe-core is not installed; run ./scripts/browser-tools");
        let browser = Browser::start().await;
        let database = TestDatabase::create().await;
        let folder = TestFolder::new();
        let mut command = folder.facecrawl_with(&database, &["up", "--port", "0"]);
        command.env_remove("CRAWL_DELAY_MS").envs(variables.iter().copied());
        // The log is not read while the test runs, so it must stay short.
        command.env("WORKERS", "2").env("LOG_LEVEL", "warn");
        let service = Service::start(&mut command);
        let stage = Self { browser, service, folder, database, axe };
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

    /// Waits until each image in or near the window is loaded or has failed to load. A test calls
    /// this before an erasure. Otherwise the page may request an erased image, and the console
    /// reports the status 404.
    pub async fn wait_for_images(&self) {
        // The web page loads images at a distance of up to 400 pixels from the window.
        self.browser
            .until(
                "[...document.querySelectorAll('main img')].every((image) => { \
                 const { top, bottom } = image.getBoundingClientRect(); \
                 return image.src || image.classList.contains('missing') || top > innerHeight + 400 || bottom < -400 })",
            )
            .await;
    }

    /// Writes a file for a file input. Returns its path.
    pub fn write(&self, name: &str, content: &[u8]) -> String {
        self.folder.put(name, content).display().to_string()
    }

    /// Checks the view in a wide light window and in a narrow dark one. axe-core must find no
    /// serious violation, the content must fit into the width, and the console must be empty. Saves
    /// a screenshot of each window.
    pub async fn check_view(&self, name: &str) {
        for (width, height, dark) in [(1280, 860, false), (360, 740, true)] {
            self.browser.set_appearance(width, height, dark).await;
            // A phone's browser zooms out if the content is too wide, so the width of the window
            // itself is not enough.
            self.browser.until(&format!("document.documentElement.scrollWidth <= {width}")).await;
            let scheme = if dark { "dark" } else { "light" };
            self.check_window(&format!("{name}-{width}-{scheme}")).await;
        }
        self.browser.set_appearance(1280, 860, false).await;
        self.expect_empty_console().await;
    }

    /// Checks the window in its current size and colours.
    pub async fn check_window(&self, name: &str) {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../screenshots");
        self.browser.screenshot(&folder.join(format!("{name}.png"))).await;
        let violations = self.axe_violations().await;
        assert!(violations.is_empty(), "{name}: {violations:#?}");
    }

    async fn axe_violations(&self) -> Vec<Value> {
        self.browser.run(&format!("if (!window.axe) {{ {} }}", self.axe)).await;
        let script = "const { violations } = await axe.run({ resultTypes: ['violations'] }); \
                      return violations.map(v => ({ impact: v.impact, id: v.id, help: v.help, nodes: v.nodes.map(n => n.html + ' ' + n.failureSummary) }))";
        let violations = self.browser.run_async(script).await;
        let violations = violations.as_array().unwrap_or_else(|| panic!("axe-core: {violations}"));
        let is_serious = |found: &&Value| matches!(found["impact"].as_str(), Some("serious" | "critical"));
        violations.iter().filter(is_serious).cloned().collect()
    }

    /// Requires an empty console, without errors, warnings or violations of the content security
    /// policy.
    pub async fn expect_empty_console(&self) {
        let lines = self.browser.take_console_messages().await;
        assert!(lines.is_empty(), "{lines:#?}");
    }

    /// Requires that the console contains only responses with this error status, which browsers
    /// report.
    pub async fn expect_only_status(&self, status: u16) {
        let lines = self.browser.take_console_messages().await;
        let message = format!("status of {status} ");
        assert!(lines.iter().all(|line| line.contains(&message)), "{lines:#?}");
    }

    /// Requires an empty console. Then stops the browser and the service.
    pub async fn stop(mut self) {
        self.expect_empty_console().await;
        self.browser.close().await;
        self.service.stop();
    }
}

/// Number of portraits on the site, three of each person.
pub const PORTRAITS: usize = 15;

/// Starts the site. The site also has a damaged image, a dead link and a folder that robots.txt
/// disallows.
pub async fn start_site() -> FileServer {
    serve_site(None).await
}

/// Starts the site with another image in place of the last portrait.
pub async fn start_site_with_last_image(image: Vec<u8>) -> FileServer {
    serve_site(Some(image)).await
}

async fn serve_site(last_image: Option<Vec<u8>>) -> FileServer {
    static PORTRAIT_FILES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    let portraits =
        PORTRAIT_FILES.get_or_init(|| (0..15).map(|number| portrait(number / 3, number % 3)).collect());
    let tags = |numbers: std::ops::Range<usize>| -> String {
        numbers.map(|number| format!("<img src=\"/{number}.jpg\" alt=\"Portrait {number}\">")).collect()
    };
    let home = format!(
        "<a href=\"/team.html\">Team</a> <a href=\"/archive.html\">Archive</a> <a href=\"/private/\">Private</a>{}",
        tags(0..3)
    );
    let archive = format!("{}<img src=\"/damaged.jpg\"><img src=\"/missing.jpg\">", tags(6..PORTRAITS));
    let mut files = vec![
        ("/".to_owned(), home.into_bytes()),
        ("/team.html".to_owned(), tags(0..9).into_bytes()),
        ("/archive.html".to_owned(), archive.into_bytes()),
        ("/robots.txt".to_owned(), b"User-agent: *\nDisallow: /private/\n".to_vec()),
        ("/damaged.jpg".to_owned(), b"not an image".to_vec()),
    ];
    files.extend(portraits.iter().enumerate().map(|(number, file)| (format!("/{number}.jpg"), file.clone())));
    if let (Some(image), Some((_, file))) = (last_image, files.last_mut()) {
        *file = image;
    }
    FileServer::with_files(files).await
}
