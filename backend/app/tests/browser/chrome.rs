//! Controls Chromium through chromedriver, with the parts of the WebDriver protocol that the tests
//! need.
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::Method;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

/// The browser's time limit for scripts and page loads. Conditions wait half as long, so that the
/// test and not the browser reports them.
const DEADLINE_MS: u64 = 2 * testing::MAX_WAIT.as_secs() * 1_000;

/// A browser window with a separate profile.
pub struct Browser {
    driver: Child,
    client: reqwest::Client,
    session: String,
    /// The actions so far, which the report of a failure lists.
    actions: Mutex<Vec<String>>,
    _profile: tempfile::TempDir,
}

/// Returns the path of the first program that exists.
fn find_program(names: &[&str]) -> PathBuf {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders)
        .flat_map(|folder| names.iter().map(move |name| folder.join(name)))
        .find(|path| path.is_file())
        .unwrap_or_else(|| {
            panic!("{names:?} is not installed; on Debian: apt-get install chromium chromium-driver")
        })
}

/// How often the page may replace an element before a click on it.
const MAX_REPLACEMENTS: usize = 20;

impl Browser {
    /// Opens a window. The test must declare `#[needs(browser)]`.
    pub async fn start() -> Self {
        let chromium = find_program(&["chromium", "chromium-browser", "google-chrome"]);
        let mut driver = Command::new(find_program(&["chromedriver"]));
        let mut driver = driver.arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let port = BufReader::new(driver.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok)
            .find_map(|line| {
                line.split_once("successfully on port ")
                    .map(|(_, port)| port.trim_end_matches('.').to_owned())
            })
            .expect("chromedriver reports its port");
        let profile = tempfile::tempdir().unwrap();
        let mut arguments = vec![
            "--headless".to_owned(),
            "--disable-gpu".into(),
            "--disable-quic".into(),
            "--no-first-run".into(),
            "--disable-background-networking".into(),
            "--disable-component-update".into(),
            "--disable-sync".into(),
            "--hide-scrollbars".into(),
            // A simulated camera, which needs no permission.
            "--use-fake-device-for-media-stream".into(),
            "--use-fake-ui-for-media-stream".into(),
            format!("--user-data-dir={}", profile.path().display()),
        ];
        if rustix::process::getuid().is_root() {
            arguments.push("--no-sandbox".into());
        }
        let _result = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let mut browser = Self {
            driver,
            client,
            session: format!("http://127.0.0.1:{port}/session"),
            actions: Mutex::default(),
            _profile: profile,
        };
        let capabilities = json!({
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"binary": chromium, "args": arguments},
            "timeouts": {"script": DEADLINE_MS, "pageLoad": DEADLINE_MS},
        });
        let created = browser.post("", json!({"capabilities": {"alwaysMatch": capabilities}})).await;
        browser.session = format!("{}/{}", browser.session, created["sessionId"].as_str().unwrap());
        browser
    }

    async fn request(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value, String> {
        let mut request = self.client.request(method, format!("{}{path}", self.session));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.unwrap();
        let is_success = response.status().is_success();
        let mut response_body: Value = response.json().await.unwrap();
        let value = response_body["value"].take();
        if is_success { Ok(value) } else { Err(format!("{}: {}", value["error"], value["message"])) }
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        self.request(Method::POST, path, Some(body)).await.unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    pub async fn load(&self, url: &str) {
        self.post("/url", json!({"url": url})).await;
    }

    pub async fn back(&self) {
        self.post("/back", json!({})).await;
    }

    /// Runs the body of a function in the page and returns its result.
    pub async fn run(&self, body: &str) -> Value {
        self.post("/execute/sync", json!({"script": body, "args": []})).await
    }

    pub async fn run_async(&self, body: &str) -> Value {
        let script = format!(
            "const done = arguments[0]; (async () => {{ {body} }})().then(done, error => done(`failed: ${{error.stack}}`))"
        );
        self.post("/execute/async", json!({"script": script, "args": []})).await
    }

    /// Waits until an expression is true in the page. On timeout, fails with the content of the
    /// page.
    pub async fn until(&self, condition: &str) {
        let script = format!(
            "const done = arguments[0], end = Date.now() + {}; (function check() {{ let met = false; try {{ met = Boolean({condition}) }} catch {{}} \
             if (met || Date.now() > end) done(met); else setTimeout(check, 20) }})()",
            DEADLINE_MS / 2
        );
        let is_true = self.post("/execute/async", json!({"script": script, "args": []})).await;
        if is_true != true {
            let text = self.run("return `${location}\\n${document.body.innerText}`").await;
            let actions = self.actions.lock().unwrap().join("\n  ");
            panic!(
                "the condition was never met: {condition}\nactions before it:\n  {actions}\ncontent of the page:\n{}",
                text.as_str().unwrap()
            );
        }
        self.record_action(format!("condition met: {condition}"));
    }

    /// Waits until this number of elements is in the page.
    pub async fn until_count(&self, css: &str, count: impl std::fmt::Display) {
        self.until(&format!("document.querySelectorAll({css:?}).length === {count}")).await;
    }

    pub async fn until_text(&self, css: &str, text: &str) {
        self.until(&format!(
            "[...document.querySelectorAll({css:?})].some(e => e.textContent.includes({text:?}))"
        ))
        .await;
    }

    fn record_action(&self, action: String) {
        self.actions.lock().unwrap().push(action);
    }

    async fn wait_for_element(&self, css: &str) -> String {
        self.until(&format!("document.querySelector({css:?})")).await;
        self.find_element(css).await.unwrap_or_else(|error| panic!("{css}: {error}"))
    }

    async fn find_element(&self, css: &str) -> Result<String, String> {
        let body = json!({"using": "css selector", "value": css});
        let found = self.request(Method::POST, "/element", Some(body)).await?;
        Ok(found.as_object().unwrap().values().next().unwrap().as_str().unwrap().to_owned())
    }

    /// Clicks an element as a user would, so the element must be visible and not covered.
    pub async fn click(&self, css: &str) {
        self.click_when(&format!("document.querySelector({css:?})"), css).await;
    }

    /// Clicks the button or link with this text, as soon as it is enabled.
    pub async fn click_text(&self, text: &str) {
        let script = format!(
            "for (const e of document.querySelectorAll('[data-test]')) e.removeAttribute('data-test'); \
             const found = [...document.querySelectorAll('dialog[open] button, dialog[open] a')].concat([...document.querySelectorAll('button, a')]) \
             .find(e => e.textContent.trim() === {text:?} && e.offsetParent && !e.disabled); found?.setAttribute('data-test', ''); return Boolean(found)"
        );
        self.click_when(&format!("(() => {{ {script} }})()"), "[data-test]").await;
    }

    /// Clicks a button or link, and confirms in the dialog that it opens.
    pub async fn confirm(&self, text: &str) {
        self.click_text(text).await;
        self.click("dialog .danger").await;
    }

    /// Waits for a condition and clicks an element. Tries again if the page replaces the element in
    /// between, because the new element looks the same to a user.
    async fn click_when(&self, condition: &str, css: &str) {
        for _ in 0..MAX_REPLACEMENTS {
            self.until(condition).await;
            let Ok(id) = self.find_element(css).await else { continue };
            match self.request(Method::POST, &format!("/element/{id}/click"), Some(json!({}))).await {
                Ok(_) => return self.record_action(format!("clicked {css}")),
                Err(error) if error.contains("stale element") => {}
                Err(error) => panic!("click on {css}: {error}"),
            }
        }
        panic!("the page replaced {css} {MAX_REPLACEMENTS} times");
    }

    /// Types into an element. For a file input, sets the path of the file.
    pub async fn type_into(&self, css: &str, text: &str) {
        let id = self.wait_for_element(css).await;
        self.post(&format!("/element/{id}/value"), json!({"text": text})).await;
    }

    /// Sets the value of a field or a list, as if a user had changed it.
    pub async fn choose(&self, css: &str, value: &str) {
        let change = "field.dispatchEvent(new Event('change'))";
        let set = format!("const field = document.querySelector({css:?}); field.value = {value:?}; {change}");
        self.run(&set).await;
    }

    /// Presses keys one after the other in the focused element.
    pub async fn press(&self, keys: &[char]) {
        let actions: Vec<Value> = keys
            .iter()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key.to_string()})))
            .collect();
        self.post("/actions", json!({"actions": [{"type": "key", "id": "keys", "actions": actions}]})).await;
    }

    /// Sets the size of the window, and light or dark colours.
    pub async fn set_appearance(&self, width: u32, height: u32, dark: bool) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call_devtools("Emulation.setDeviceMetricsOverride", size).await;
        let scheme = if dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call_devtools("Emulation.setEmulatedMedia", features).await;
    }

    async fn call_devtools(&self, command: &str, params: Value) -> Value {
        self.post("/goog/cdp/execute", json!({"cmd": command, "params": params})).await
    }

    pub async fn screenshot(&self, file: &Path) {
        let image = self.request(Method::GET, "/screenshot", None).await.unwrap();
        let bytes = BASE64_STANDARD.decode(image.as_str().unwrap()).unwrap();
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }

    /// Returns the messages of the console since the last call, with their level.
    pub async fn take_console_messages(&self) -> Vec<String> {
        let lines = self.post("/se/log", json!({"type": "browser"})).await;
        let line =
            |log: &Value| format!("{} {}", log["level"].as_str().unwrap(), log["message"].as_str().unwrap());
        lines.as_array().unwrap().iter().map(line).collect()
    }

    /// Closes the window. The driver stops when this value is dropped.
    pub async fn close(&self) {
        let _result = self.request(Method::DELETE, "", None).await;
    }
}

impl Drop for Browser {
    /// Kills the driver, which also ends its browser.
    fn drop(&mut self) {
        let _result = self.driver.kill();
        let _status = self.driver.wait();
    }
}
