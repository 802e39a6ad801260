//! Handles the remains of a previous run: a lock, an orphaned server, a stale pid file, and a stale
//! socket.

use crate::Error;
use crate::initialise::sibling_path;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

/// Locks the data folder for the lifetime of the cluster. The operating system releases the lock
/// when the process ends, for any reason.
pub(crate) fn lock(data_dir: &Path) -> Result<File, Error> {
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
pub(crate) async fn clear(data_dir: &Path, socket_dir: &Path) -> Result<(), Error> {
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
