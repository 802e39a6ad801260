//! Provides the Postgres server of a test process. [`crate::database`] creates databases on it.

use embedded_postgres::{Cluster, Config};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

/// Stops the server `$0` and deletes its folder `$1` when standard input ends, that is, when the
/// test process has exited. The number of attempts is limited, because some containers keep ended
/// processes in the process table.
const WATCH: &str = r#"cat; kill -INT "$0"
for attempt in $(seq 100); do kill -0 "$0" 2>/dev/null || break; sleep 0.1; done
rm -rf "$1""#;

/// Returns the URL of the server: `TEST_DATABASE_URL` if it is set, and otherwise that of a private
/// server, which all tests of the process share. It starts when it is first needed and ends with
/// the process. It does not sync to disk. Panics if the server does not start.
pub fn url() -> &'static str {
    static URL: OnceLock<String> = OnceLock::new();
    URL.get_or_init(|| std::env::var("TEST_DATABASE_URL").unwrap_or_else(|_| private()))
}

fn private() -> String {
    let (ready, url) = channel();
    // The thread outlives every test. It reads the log of the server.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be created").block_on(run(ready));
    });
    url.recv().expect("Postgres starts")
}

async fn run(ready: Sender<String>) {
    let folder = parent().join(format!("facecrawl-tests-{}", std::process::id()));
    let cluster = Cluster::start(&Config::for_tests(programs(), folder.join("data")))
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    let server = cluster.pid().expect("the server runs");
    watch(server, &folder);
    ready.send(cluster.url("postgres")).expect("a test waits for the server");
    std::future::pending::<()>().await;
}

/// Returns the folder for the data. Each test creates and drops a database, which is faster in
/// memory. The build folder is not suitable, because the server's user may be unable to enter it.
fn parent() -> PathBuf {
    /// Databases of concurrent tests, the log and the template, in bytes.
    const NEEDED: u64 = 4 << 30;
    let memory = Path::new("/dev/shm");
    match rustix::fs::statvfs(memory) {
        Ok(found) if found.f_bavail * found.f_frsize >= NEEDED => memory.to_owned(),
        _ => std::env::temp_dir(),
    }
}

/// Returns the folder of Postgres's programs.
pub fn programs() -> PathBuf {
    let installed = || crate::assets::root().join(".runtime/postgres/bin");
    std::env::var_os("POSTGRES_BIN_DIR").map_or_else(installed, PathBuf::from)
}

/// Starts the process that stops the server. A destructor cannot do this, because Rust does not
/// drop statics at exit.
fn watch(server: u32, folder: &Path) {
    let mut command = Command::new("sh");
    command.arg("-c").arg(WATCH).arg(server.to_string()).arg(folder).stdin(Stdio::piped());
    #[cfg(unix)]
    // Ctrl-C in the terminal must end the test process only.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let watcher = command.stdout(Stdio::null()).spawn().expect("sh starts");
    // Keeps the pipe open until the process exits.
    std::mem::forget(watcher);
}
