//! Starts and stops the Postgres server. Before a start, it removes the remains of a previous run:
//! a lock, an orphaned server, a stale pid file, and a stale socket.
use crate::identity::Identity;
use crate::initialise::sibling_path;
use crate::{Config, Error, initialise};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr};
use tokio::sync::watch;

/// Maximum length of the socket folder's path. A socket's path is limited to 104 bytes on macOS and
/// 108 on Linux (`sockaddr_un`), including the name `/.s.PGSQL.5432` and a terminating zero.
const MAX_SOCKET_DIR_LENGTH: usize = 104 - ".s.PGSQL.5432".len() - 2;

/// The server logs this text for each connection and each child process that it closes when it
/// stops.
const EXPECTED_AT_STOP: &str = "due to administrator command";

/// A running cluster. Dropping it stops the server; prefer [`Cluster::stop`], which does not block
/// the thread.
pub struct Cluster {
    child: Option<Child>,
    socket_dir: PathBuf,
    database: String,
    has_exited: watch::Receiver<bool>,
    /// Whether the server is being stopped. Log messages about closed connections are then
    /// expected.
    is_stopping: Arc<AtomicBool>,
    _lock: File,
}

impl Cluster {
    /// Starts the server. Creates the cluster first if it does not exist. Returns when the server
    /// accepts connections.
    ///
    /// # Errors
    /// Fails with [`Error::InUse`] if another process uses the data. See [`Error`] for other
    /// errors.
    pub async fn start(config: &Config) -> Result<Self, Error> {
        let mut config = absolute_paths(config)?;
        if !config.bin_dir.join("postgres").is_file() || !config.bin_dir.join("initdb").is_file() {
            return Err(Error::NoBinaries(config.bin_dir));
        }
        let lock = lock(&config.data_dir)?;
        let identity = Identity::choose(&config.data_dir)?;
        if !identity.can_run(&config.bin_dir) {
            config.bin_dir = initialise::copy_binaries(&config.bin_dir)?;
        }
        initialise::create_if_missing(&config, &identity).await?;
        let socket_dir = socket_dir(&config.data_dir);
        identity.make_private_folder(&socket_dir)?;
        clear_remains(&config.data_dir, &socket_dir).await?;

        let program = config.bin_dir.join("postgres");
        let mut command = identity.command(&program);
        command.arg("-D").arg(&config.data_dir).arg("-k").arg(&socket_dir);
        for setting in ["listen_addresses=", "port=5432", "unix_socket_permissions=0700", "lc_messages=C"] {
            command.args(["-c", setting]);
        }
        for setting in &config.settings {
            command.args(["-c", setting]);
        }
        // Uses a separate process group, so that Ctrl-C reaches only this process. This process
        // stops the server when its work is done.
        command.stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(Error::io(&program))?;
        let stderr = child.stderr.take().expect("stderr is piped");
        let last_lines = Arc::new(Mutex::new(VecDeque::new()));
        let (ready, mut is_ready) = watch::channel(false);
        let (exit_sender, has_exited) = watch::channel(false);
        let is_stopping = Arc::new(AtomicBool::new(false));
        tokio::spawn(forward_log(stderr, last_lines.clone(), ready, exit_sender, is_stopping.clone()));

        // From here on, dropping `cluster` (on an error or a cancelled start) stops the server.
        let mut cluster = Self {
            child: Some(child),
            socket_dir,
            database: config.database,
            has_exited,
            is_stopping,
            _lock: lock,
        };
        let log_tail = || {
            last_lines
                .lock()
                .map(|lines| lines.iter().cloned().collect::<Vec<_>>().join("\n"))
                .unwrap_or_default()
        };
        match tokio::time::timeout(config.start_timeout, is_ready.wait_for(|ready| *ready)).await {
            Ok(Ok(_)) => {}
            // The log ended before the server was ready, so the server has exited.
            Ok(Err(_)) => return Err(Error::Failed { program: "postgres", output: log_tail() }),
            Err(_) => {
                cluster.stop_now().await;
                return Err(Error::Timeout { seconds: config.start_timeout.as_secs(), output: log_tail() });
            }
        }
        tracing::debug!(socket = %cluster.socket_dir.display(), uid = identity.uid(), "database is ready");
        Ok(cluster)
    }

    /// Returns the URL of a database, through the socket.
    pub fn url(&self, database: &str) -> String {
        socket_url(&self.socket_dir, database)
    }

    /// Returns the URL of the configured database while another process runs the cluster (after
    /// [`Error::InUse`]).
    ///
    /// # Errors
    /// Fails with [`Error::Io`] if the folder cannot be read.
    pub fn url_of_running(config: &Config) -> Result<String, Error> {
        let config = absolute_paths(config)?;
        Ok(socket_url(&socket_dir(&config.data_dir), &config.database))
    }

    pub fn default_url(&self) -> String {
        self.url(&self.database)
    }

    /// Returns the server's process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// Waits until the server has exited, for any reason.
    pub async fn wait_for_exit(&self) {
        let _ = self.has_exited.clone().wait_for(|has_exited| *has_exited).await;
    }

    /// Stops the server: closes open connections and writes all data. Returns when the server has
    /// exited.
    pub async fn stop(mut self) {
        self.stop_now().await;
    }

    async fn stop_now(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        self.is_stopping.store(true, Ordering::Relaxed);
        for (signal, wait) in [(Signal::INT, 60), (Signal::QUIT, 10), (Signal::KILL, 5)] {
            signal_child(&child, signal);
            if tokio::time::timeout(Duration::from_secs(wait), child.wait()).await.is_ok() {
                return;
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        self.is_stopping.store(true, Ordering::Relaxed);
        signal_child(&child, Signal::INT);
        // Otherwise, the lock would be released while the server is still writing.
        for _ in 0..500 {
            match child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(20)),
                _ => return,
            }
        }
        signal_child(&child, Signal::QUIT);
    }
}

fn signal_child(child: &Child, signal: Signal) {
    if let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Reads the server's log to its end: forwards it to the program's log, keeps its last lines, and
/// detects when the server is ready.
async fn forward_log(
    stderr: ChildStderr,
    last_lines: Arc<Mutex<VecDeque<String>>>,
    ready: watch::Sender<bool>,
    exit_sender: watch::Sender<bool>,
    is_stopping: Arc<AtomicBool>,
) {
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let is_expected = is_stopping.load(Ordering::Relaxed) && line.contains(EXPECTED_AT_STOP);
        if !is_expected && (line.contains("FATAL:") || line.contains("PANIC:")) {
            tracing::warn!(target: "postgres", "{line}");
        } else {
            tracing::debug!(target: "postgres", "{line}");
        }
        if line.contains("database system is ready to accept connections") {
            ready.send_replace(true);
        }
        if let Ok(mut last_lines) = last_lines.lock() {
            last_lines.push_back(line);
            if last_lines.len() > 12 {
                last_lines.pop_front();
            }
        }
    }
    drop(ready);
    exit_sender.send_replace(true);
}

fn socket_url(socket_dir: &Path, database: &str) -> String {
    let encoded: String = socket_dir
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(*b).to_string(),
            _ => format!("%{b:02X}"),
        })
        .collect();
    format!("postgres://postgres@localhost:5432/{database}?host={encoded}")
}

fn absolute_paths(config: &Config) -> Result<Config, Error> {
    let to_absolute = |path: &Path| std::path::absolute(path).map_err(Error::io(path));
    let mut config = config.clone();
    config.bin_dir = to_absolute(&config.bin_dir)?;
    config.data_dir = to_absolute(&config.data_dir)?;
    // Postgres reports its folder with resolved links. Resolving the links here allows an orphaned
    // server to be recognised by its folder.
    if let (Some(parent), Some(name)) = (config.data_dir.parent(), config.data_dir.file_name()) {
        std::fs::create_dir_all(parent).map_err(Error::io(parent))?;
        config.data_dir = parent.canonicalize().map_err(Error::io(parent))?.join(name);
    }
    Ok(config)
}

/// Returns the socket folder, which has the same parent as the data folder. If that path is too
/// long for a socket, the socket folder is in `/tmp`, with a hash of the data folder in its name.
fn socket_dir(data_dir: &Path) -> PathBuf {
    let sibling = sibling_path(data_dir, "run");
    if sibling.as_os_str().len() <= MAX_SOCKET_DIR_LENGTH {
        return sibling;
    }
    let digest = Sha256::digest(data_dir.as_os_str().as_encoded_bytes());
    PathBuf::from("/tmp").join(format!("facecrawl-{}", hex::encode(&digest[..8])))
}

/// Locks the data folder for the lifetime of the cluster. The operating system releases the lock
/// when the process ends, for any reason.
fn lock(data_dir: &Path) -> Result<File, Error> {
    let path = sibling_path(data_dir, "lock");
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(Error::io(parent))?;
    }
    let file =
        File::options().create(true).truncate(false).write(true).open(&path).map_err(Error::io(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(Error::InUse(data_dir.to_path_buf())),
        Err(std::fs::TryLockError::Error(source)) => Err(Error::Io { path, source }),
    }
}

/// Stops an orphaned server and removes stale files. The lock must be held.
///
/// While the lock is held, a server that still uses the data belongs to a dead process and is
/// therefore stopped. A pid file with the id of any other process is removed, because Postgres
/// would refuse to start if that pid is in use.
pub(crate) async fn clear_remains(data_dir: &Path, socket_dir: &Path) -> Result<(), Error> {
    let pid_file = data_dir.join("postmaster.pid");
    if let Ok(text) = std::fs::read_to_string(&pid_file) {
        let pid = text.lines().next().and_then(|line| line.trim().parse().ok()).and_then(Pid::from_raw);
        match pid.filter(|pid| is_server_on(*pid, data_dir)) {
            Some(pid) => {
                tracing::warn!(
                    pid = pid.as_raw_nonzero().get(),
                    "stopping the orphaned database server of a dead process"
                );
                stop(pid, Duration::from_secs(60)).await;
            }
            None => std::fs::remove_file(&pid_file).map_err(Error::io(&pid_file))?,
        }
    }
    for name in [".s.PGSQL.5432", ".s.PGSQL.5432.lock"] {
        let path = socket_dir.join(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(Error::io(path)(error)),
            _ => {}
        }
    }
    Ok(())
}

/// Returns `true` if the process is a server on this data folder, which is the working directory of
/// such a server. If the system does not provide working directories, returns `true` for any living
/// process.
fn is_server_on(pid: Pid, data_dir: &Path) -> bool {
    if test_kill_process(pid).is_err_and(|error| error == rustix::io::Errno::SRCH) {
        return false;
    }
    match std::fs::read_link(format!("/proc/{}/cwd", pid.as_raw_nonzero())) {
        Ok(folder) => folder == data_dir,
        Err(_) => !Path::new("/proc/self/cwd").exists(),
    }
}

/// Requests a fast shutdown, then an immediate one, then kills the process. Returns when the
/// process has ended.
pub(crate) async fn stop(pid: Pid, time_limit: Duration) {
    for (signal, wait) in [
        (Signal::INT, time_limit),
        (Signal::QUIT, Duration::from_secs(10)),
        (Signal::KILL, Duration::from_secs(5)),
    ] {
        if kill_process(pid, signal).is_err() {
            return;
        }
        let deadline = Instant::now() + wait;
        while Instant::now() < deadline {
            if test_kill_process(pid).is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
