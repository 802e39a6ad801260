//! Controls a running service by signals, and reads its log.
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use testing::MAX_WAIT;

pub struct Service {
    pub child: Child,
    pub base: String,
    lines: mpsc::Receiver<String>,
    pub log: String,
}

impl Service {
    /// Starts the service and waits for the line that contains its address.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = mpsc::channel();
        // The log is read to the end, because a full pipe would block the service.
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _closed = sender.send(line);
            }
        });
        let mut service = Self { child, base: String::new(), lines, log: String::new() };
        let ready = service.wait_for("facecrawl", "is ready");
        let base = ready.split_whitespace().find(|word| word.starts_with("http://"));
        service.base = base.unwrap_or_default().to_owned();
        service
    }

    /// Reads the log up to the line that starts with `start` and contains `part`.
    pub fn wait_for(&mut self, start: &str, part: &str) -> String {
        let deadline = Instant::now() + MAX_WAIT;
        while let Some(line) = next_line(&self.lines, deadline) {
            self.log.push_str(&format!("{line}\n"));
            if line.starts_with(start) && line.contains(part) {
                return line;
            }
        }
        panic!("the service ended without the line `{part}`:\n{}", self.log)
    }

    /// Returns a caller of a service that requires no keys.
    pub fn caller(&self) -> Caller {
        Caller { base: self.base.clone(), key: "none".into() }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end of the process. Returns its exit status and its log.
    pub fn ended(&mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + MAX_WAIT;
        let rest: Vec<String> = std::iter::from_fn(|| next_line(&self.lines, deadline)).collect();
        let status = self.child.wait().unwrap();
        (status.code(), format!("{}{}", self.log, rest.join("\n")))
    }
}

impl Drop for Service {
    /// Kills a service that a failed test did not stop. Otherwise the process has already ended.
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Returns the next line of a log, or `None` if the log has ended. Panics at the deadline.
fn next_line(lines: &mpsc::Receiver<String>, deadline: Instant) -> Option<String> {
    match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(line) => Some(line),
        Err(RecvTimeoutError::Disconnected) => None,
        Err(RecvTimeoutError::Timeout) => panic!("the service did not end, or did not log the line"),
    }
}

/// Returns a client with a time limit of one minute.
pub fn client() -> reqwest::Client {
    let _already = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(60)).build().unwrap()
}

pub async fn get(url: &str) -> (u16, String) {
    let response = client().get(url).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

/// A caller of a service, with a key if the service requires one.
pub struct Caller {
    pub base: String,
    pub key: String,
}

impl Caller {
    pub async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> reqwest::Response {
        let mut request = client().request(method, format!("{}{path}", self.base)).bearer_auth(&self.key);
        if let Some(body) = body {
            request = request.json(body);
        }
        request.send().await.unwrap()
    }

    /// Sends a request and requires `status`. Returns the JSON of the response.
    pub async fn ask(&self, status: u16, method: Method, path: &str, body: Option<&Value>) -> Value {
        let response = self.send(method, path, body).await;
        let (got, text) = (response.status().as_u16(), response.text().await.unwrap());
        assert_eq!(got, status, "{path}: {text}");
        serde_json::from_str(&text).unwrap_or_default()
    }

    pub async fn get(&self, path: &str) -> Value {
        self.ask(200, Method::GET, path, None).await
    }

    pub async fn bytes(&self, path: &str) -> Vec<u8> {
        let response = self.send(Method::GET, path, None).await;
        assert_eq!(response.status().as_u16(), 200, "{path}");
        response.bytes().await.unwrap().to_vec()
    }

    /// Repeats a GET request until `right` returns `true` for the response. Panics after
    /// [`MAX_WAIT`].
    pub async fn until(&self, path: &str, right: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + MAX_WAIT;
        loop {
            let answer = self.get(path).await;
            if right(&answer) {
                return answer;
            }
            assert!(Instant::now() < deadline, "{answer:#}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Works like [`Caller::until`], without a key.
pub async fn until(url: &str, right: impl Fn(&Value) -> bool) -> Value {
    Caller { base: String::new(), key: "none".into() }.until(url, right).await
}
