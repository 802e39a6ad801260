//! The running binary, its log and its signals.
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// A running service.
pub struct Service {
    pub child: Child,
    pub base: String,
    lines: mpsc::Receiver<String>,
    pub log: String,
}

impl Service {
    /// Starts it and waits for the line that says where it is.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (said, lines) = mpsc::channel();
        // Read to its end whether or not the test looks: a full pipe would stop the service.
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _nobody_asks = said.send(line);
            }
        });
        let mut service = Self { child, base: String::new(), lines, log: String::new() };
        let ready = service.wait_for("facecrawl", "is ready");
        let base = ready.split_whitespace().find(|word| word.starts_with("http://"));
        service.base = base.unwrap_or_default().to_owned();
        service
    }

    /// Reads the log up to the line that starts and goes on like this.
    pub fn wait_for(&mut self, start: &str, part: &str) -> String {
        while let Ok(line) = self.lines.recv() {
            self.log.push_str(&format!("{line}\n"));
            if line.starts_with(start) && line.contains(part) {
                return line;
            }
        }
        panic!("it ended without saying `{part}`:\n{}", self.log)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Status and log.
    pub fn ended(&mut self) -> (Option<i32>, String) {
        let rest: Vec<String> = self.lines.iter().collect();
        let status = self.child.wait().unwrap();
        (status.code(), format!("{}{}", self.log, rest.join("\n")))
    }
}

impl Drop for Service {
    /// For a test that fails before it stopped its service; otherwise there is nothing left to kill.
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Status and body.
pub async fn get(url: &str) -> (u16, String) {
    let _already = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(20)).build().unwrap();
    let response = client.get(url).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}
