//! Runs the binary in a separate folder with a separate environment. Controls a running service by
//! signals, and calls it.
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use testing::film::{Codec, Container, Encoding, Film};
use testing::{FixturePack, MAX_WAIT, TestDatabase};

pub struct TestFolder {
    /// The folder in which [`TestFolder::path`] lies. It contains nothing else, so that the program
    /// finds no `../shared/models` of the machine.
    _parent: tempfile::TempDir,
    path: PathBuf,
}

impl TestFolder {
    pub fn new() -> Self {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("folder");
        std::fs::create_dir(&path).unwrap();
        Self { _parent: parent, path }
    }

    /// Creates a folder that contains the models.
    pub fn with_models() -> Self {
        let folder = Self::new();
        folder.run(&["models", "fetch"]).success();
        folder
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a command that runs the binary in this folder. Models come from the mirror. The
    /// environment of the test process is not inherited.
    pub fn facecrawl(&self, args: &[&str]) -> Command {
        self.facecrawl_at(env!("CARGO_BIN_EXE_facecrawl"), args)
    }

    /// Returns the same command for another build of the binary.
    pub fn facecrawl_at(&self, binary: impl AsRef<OsStr>, args: &[&str]) -> Command {
        let mut command = Command::new(binary);
        command.args(args).current_dir(self.path()).env_clear().stdin(Stdio::null());
        command.env("ORT_DYLIB_PATH", testing::library());
        command.env("FACE_MODEL_MIRROR", testing::models_dir());
        // The program would find the plug-ins of the checkout.
        command.env("GPU_PLUGINS_DIR", self.path().join("no-plugins"));
        command
    }

    /// Returns a command that uses a database, and that may crawl this machine without a delay.
    pub fn facecrawl_with(&self, database: &TestDatabase, args: &[&str]) -> Command {
        let mut command = self.facecrawl(args);
        command.env("DATABASE_URL", database.url());
        command.env("CRAWL_ALLOW_PRIVATE", "127.0.0.0/8").env("CRAWL_DELAY_MS", "0");
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        Output::run(&mut self.facecrawl(args))
    }

    /// Runs a command that uses a database.
    pub fn run_with(&self, database: &TestDatabase, args: &[&str]) -> Output {
        Output::run(&mut self.facecrawl_with(database, args))
    }

    /// Creates a folder with small models, which need no download, and their manifest.
    pub fn with_small_models() -> (Self, FixturePack) {
        let folder = Self::new();
        let models = folder.path().join("models");
        std::fs::create_dir(&models).unwrap();
        let pack = testing::fixture_pack(&models);
        folder.put("models/packs.toml", pack.manifest());
        (folder, pack)
    }

    /// Writes an image that shows faces at these points, each with an identity, for the small
    /// models.
    pub fn put_drawing(&self, name: &str, faces: &[(u32, u32, u32)]) -> PathBuf {
        let mut drawing = testing::fixture_models::Canvas::new(640, 480);
        faces.iter().for_each(|(x, y, identity)| testing::draw_face(&mut drawing, *x, *y, *identity));
        self.put(name, vision::encode::png(&vision::Frame::new(640, 480, drawing.into_raw()).unwrap()))
    }

    /// Writes a film in H.264. Returns its path.
    pub fn put_film(&self, name: &str, film: &Film) -> PathBuf {
        let container = if name.ends_with(".mp4") { Container::Mp4 } else { Container::Mkv };
        let path = self.path().join(name);
        film.encode(&Encoding::new(Codec::H264, container), &path).unwrap();
        path
    }

    pub fn put(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }
}

/// Returns a command that runs another command through a shell script, in which `"$0" "$@"` is that
/// command.
pub fn through_shell(script: &str, command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(command.get_program()).args(command.get_args());
    shell.current_dir(command.get_current_dir().unwrap()).env_clear();
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell
}

#[derive(Debug)]
pub struct Output {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    pub fn run(command: &mut Command) -> Self {
        let std::process::Output { status, stdout, stderr } = command.output().unwrap();
        Self {
            status: status.code().expect("the process exited without a signal"),
            stdout: String::from_utf8(stdout).unwrap(),
            stderr: String::from_utf8(stderr).unwrap(),
        }
    }

    /// Panics with the whole output if the exit status is not `status`.
    pub fn assert_status(self, status: i32) -> Self {
        assert_eq!(self.status, status, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    pub fn success(self) -> Self {
        self.assert_status(0)
    }

    /// Requires this exit status, and that stderr contains all parts.
    pub fn fails(self, status: i32, parts: &[&str]) -> Self {
        let finished = self.assert_status(status);
        assert_contains(&finished.stderr, parts);
        finished
    }

    /// Panics if a table on stdout is wider than 100 columns.
    pub fn assert_table_width(&self) {
        for line in self.stdout.lines().filter(|line| line.starts_with(['│', '┌', '├', '└', '╞'])) {
            assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
        }
    }

    /// Parses stdout, which must be one JSON document.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}\n{}", self.stdout, self.stderr))
    }
}

pub struct Service {
    pub child: Child,
    pub base: String,
    lines: mpsc::Receiver<String>,
    pub log: String,
}

impl Service {
    /// Starts the service and waits for the line that contains its address.
    pub fn start(command: &mut Command) -> Self {
        let mut service = Self::spawn(command);
        let ready = service.wait_for("facecrawl", "is ready");
        let base = ready.split_whitespace().find(|word| word.starts_with("http://"));
        service.base = base.unwrap_or_default().to_owned();
        service
    }

    /// Starts the service, and reads its log in a thread. The address is not known yet.
    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = mpsc::channel();
        // The log is read to the end, because a full pipe would block the service.
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _result = sender.send(line);
            }
        });
        Self { child, base: String::new(), lines, log: String::new() }
    }

    /// Starts the API and a worker on any free port.
    pub fn up(folder: &TestFolder, database: &TestDatabase) -> Self {
        Self::start(&mut folder.facecrawl_with(database, &["up", "--port", "0"]))
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
        Caller::without_key(&self.base)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops the service and requires that it exits cleanly. Returns its log.
    pub fn stop(&mut self) -> String {
        self.signal(Signal::TERM);
        let (status, log) = self.wait_for_exit();
        assert_eq!(status, Some(0), "{log}");
        log
    }

    /// Kills the service and waits for the end of the process.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.wait_for_exit();
    }

    /// Returns the peak of the process's resident memory in bytes.
    pub fn peak_memory(&self) -> u64 {
        peak_memory(self.child.id()).unwrap()
    }

    /// Waits for the end of the process. Returns its exit status and its log.
    pub fn wait_for_exit(&mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + MAX_WAIT;
        let rest: Vec<String> = std::iter::from_fn(|| next_line(&self.lines, deadline)).collect();
        let status = self.child.wait().unwrap();
        (status.code(), format!("{}{}", self.log, rest.join("\n")))
    }
}

impl Drop for Service {
    /// Kills a service that a failed test did not stop. Otherwise the process has already ended.
    fn drop(&mut self) {
        let _result = self.child.kill();
        let _status = self.child.wait();
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

/// Returns a field of `/proc/PROCESS/status`, or `None` if the process has ended.
pub fn process_field(process: u32, name: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    Some(status.lines().find_map(|line| line.strip_prefix(name))?.trim().to_owned())
}

/// Returns the peak of a process's resident memory in bytes, or `None` if it has ended.
pub fn peak_memory(process: u32) -> Option<u64> {
    Some(process_field(process, "VmHWM:")?.trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
}

/// Returns the children of a process, and their children.
pub fn descendants(process: u32) -> Vec<u32> {
    let mut descendants = Vec::new();
    let mut parents = vec![process];
    while let Some(parent) = parents.pop() {
        let threads = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        let children: Vec<u32> = lists
            .flat_map(|list| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
            .collect();
        parents.extend(&children);
        descendants.extend(children);
    }
    descendants
}

/// Repeats `condition` until it returns `true`. Panics after [`MAX_WAIT`].
pub async fn wait_until(event: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + MAX_WAIT;
    while !condition().await {
        assert!(Instant::now() < deadline, "timed out waiting for {event}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Returns a request body with an image of [`testing::drawing`].
pub fn image_json(file: &str) -> Value {
    json!({ "image_base64": BASE64_STANDARD.encode(testing::drawing(file)) })
}

/// Requires that a text contains all parts.
pub fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{text}` does not contain `{part}`");
    }
}

/// Returns a client with a time limit of one minute.
pub fn client() -> reqwest::Client {
    let _result = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(60)).build().unwrap()
}

pub async fn get(url: &str) -> (u16, String) {
    let response = client().get(url).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

/// Ends the leases of running jobs, so that a test does not wait until the leases expire.
pub async fn expire_leases(database: &TestDatabase) {
    let expire = "update jobs set lease_until = now() - interval '1 second' where state = 'running'";
    database.execute(expire).await;
}

/// Runs a program of Postgres, and returns its output.
pub fn postgres(program: &str, args: &[&str]) -> String {
    let program = testing::database::programs().join(program);
    Output::run(Command::new(program).args(args)).success().stdout
}

/// Runs a statement with psql, and returns the rows as text.
pub fn psql(url: &str, statement: &str) -> String {
    let options = ["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"];
    postgres("psql", &[&options[..], &["--command", statement, url]].concat())
}

/// A caller of a service, with a key if the service requires one.
pub struct Caller {
    pub base: String,
    pub key: String,
}

impl Caller {
    /// Returns a caller of a service that requires no keys.
    pub fn without_key(base: &str) -> Self {
        Self { base: base.to_owned(), key: "none".into() }
    }

    pub async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> reqwest::Response {
        let mut request = client().request(method, format!("{}{path}", self.base)).bearer_auth(&self.key);
        if let Some(body) = body {
            request = request.json(body);
        }
        request.send().await.unwrap()
    }

    /// Sends a request and requires `status`. Returns the JSON of the response.
    pub async fn request(&self, status: u16, method: Method, path: &str, body: Option<&Value>) -> Value {
        let response = self.send(method, path, body).await;
        let (actual, text) = (response.status().as_u16(), response.text().await.unwrap());
        assert_eq!(actual, status, "{path}: {text}");
        serde_json::from_str(&text).unwrap_or_default()
    }

    pub async fn get(&self, path: &str) -> Value {
        self.request(200, Method::GET, path, None).await
    }

    /// Starts a crawl, and returns its path.
    pub async fn crawl(&self, body: &Value) -> String {
        let crawl = self.request(201, Method::POST, "/crawls", Some(body)).await;
        format!("/crawls/{}", crawl["id"].as_str().unwrap())
    }

    /// Waits until a crawl has ended, and returns it.
    pub async fn wait_for_crawl_end(&self, path: &str) -> Value {
        self.until(path, |crawl| crawl["state"] != "running").await
    }

    /// Sends a film to be stored. Returns the path of the video.
    pub async fn send_video(&self, query: &str, film: &[u8]) -> String {
        let request = client().post(format!("{}/videos?{query}", self.base)).bearer_auth(&self.key);
        let response = request
            .header("content-type", "application/octet-stream")
            .body(film.to_vec())
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), 202);
        response.headers()["location"].to_str().unwrap().to_owned()
    }

    pub async fn bytes(&self, path: &str) -> Vec<u8> {
        let response = self.send(Method::GET, path, None).await;
        assert_eq!(response.status().as_u16(), 200, "{path}");
        response.bytes().await.unwrap().to_vec()
    }

    /// Repeats a GET request until `is_expected` returns `true` for the response. Panics after
    /// [`MAX_WAIT`].
    pub async fn until(&self, path: &str, is_expected: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + MAX_WAIT;
        loop {
            let body = self.get(path).await;
            if is_expected(&body) {
                return body;
            }
            assert!(Instant::now() < deadline, "{body:#}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
