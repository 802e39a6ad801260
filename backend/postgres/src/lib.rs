//! Runs a private Postgres cluster that stops when the process ends.
//!
//! The cluster listens on a Unix socket in a folder that only its user can enter, never on the
//! network. It handles a clean stop, a stale pid file, and these failures:
//!
//! - A killed parent process: the orphaned server is stopped before the next start.
//! - A crash: Postgres recovers from its log.
//! - An interrupted first start: the data folder appears only when it is complete.
//!
//! Postgres refuses to run as root. If this process runs as root, the crate runs Postgres as an
//! unprivileged user; see [`identity`].

#![cfg(unix)]

mod cluster;
pub mod identity;
mod initialise;

pub use cluster::Cluster;

use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Config {
    /// Folder that contains `postgres` and `initdb`.
    pub bin_dir: PathBuf,
    /// Data folder of the cluster, created on the first start. The file `<name>.lock` and the
    /// folder `<name>.run` are created in its parent folder.
    pub data_dir: PathBuf,
    /// Name of the database that the first start creates.
    pub database: String,
    /// `name=value` settings passed on the command line.
    pub settings: Vec<String>,
    /// Time limit until the server accepts connections. Crash recovery of a large cluster can take
    /// a long time.
    pub start_timeout: Duration,
}

impl Config {
    /// Creates a configuration with the defaults for production: 100 connections, full durability.
    pub fn new(bin_dir: impl Into<PathBuf>, data_dir: impl Into<PathBuf>) -> Self {
        Self {
            bin_dir: bin_dir.into(),
            data_dir: data_dir.into(),
            database: "facecrawl".into(),
            settings: vec![
                "max_connections=100".into(),
                "shared_buffers=256MB".into(),
                "max_wal_size=2GB".into(),
            ],
            start_timeout: Duration::from_secs(300),
        }
    }

    /// Creates a configuration for tests: 400 connections, and nothing is synced to disk.
    pub fn for_tests(bin_dir: impl Into<PathBuf>, data_dir: impl Into<PathBuf>) -> Self {
        ["fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=400"]
            .into_iter()
            .fold(Self::new(bin_dir, data_dir), Self::with_setting)
    }

    /// Adds a `name=value` setting. A later setting overrides an earlier one.
    #[must_use]
    pub fn with_setting(mut self, setting: impl Into<String>) -> Self {
        self.settings.push(setting.into());
        self
    }
}

/// The reason why the cluster could not be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no Postgres in {0} (run ./scripts/setup, or set DATABASE_URL to use another server)")]
    NoBinaries(PathBuf),
    #[error(
        "the database in {0} is in use by another facecrawl process; stop that process, or set a different DATA_DIR"
    )]
    InUse(PathBuf),
    /// The folder contains something other than a cluster.
    #[error("{0} is not empty and contains no Postgres data; set a different DATA_DIR")]
    NotACluster(PathBuf),
    /// A link or a file exists where a folder is required.
    #[error("{0} is not a folder; remove it")]
    NotAFolder(PathBuf),
    #[error(
        "the data in {path} was written by Postgres {found}, but this is Postgres {installed}; dump the data with the old version and restore it with the new one, or set DATABASE_URL"
    )]
    Version {
        path: PathBuf,
        /// Major version in the folder's `PG_VERSION`.
        found: String,
        /// Major version from `postgres --version`.
        installed: String,
    },
    /// The unprivileged user cannot access a folder, and root cannot change that.
    #[error(
        "Postgres does not run as root, and the unprivileged user that would run it (uid {uid}) cannot access {path}: {reason}. Start facecrawl as an ordinary user, or set a DATA_DIR that every user can enter"
    )]
    Unreachable {
        /// The uid that would run the server.
        uid: u32,
        path: PathBuf,
        reason: String,
    },
    #[error("{program} failed: {output}")]
    Failed {
        /// The failed program: `initdb` or `postgres`.
        program: &'static str,
        /// The last lines that the program printed.
        output: String,
    },
    #[error("Postgres did not accept connections within {seconds} s: {output}")]
    Timeout {
        /// The time limit, `Config::start_timeout`.
        seconds: u64,
        output: String,
    },
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
