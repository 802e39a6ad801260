//! A private Postgres cluster that lives and dies with the process.
//!
//! The cluster listens on a Unix socket in a folder that only its user can enter, never on the network. It survives
//! what happens to it: a clean stop, a killed parent (the orphan is stopped before the next start), a crash (Postgres
//! recovers from its log), a stale pid file, and a half-finished first start (the folder appears only when complete).
//!
//! Postgres refuses to run as root. Started as root, this crate runs it as an unprivileged user; see [`identity`].

#![cfg(unix)]

mod cluster;
pub mod identity;
mod initialise;
mod reachable;
mod takeover;

pub use cluster::Cluster;

use std::path::PathBuf;
use std::time::Duration;

/// Where the binaries and the data are, and how the server is tuned.
#[derive(Clone, Debug)]
pub struct Config {
    /// Folder of `postgres` and `initdb`.
    pub bin_dir: PathBuf,
    /// The cluster's folder; made on the first start. Two files beside it belong to it: `<name>.lock` and the folder `<name>.run`.
    pub data_dir: PathBuf,
    /// Name of the database that the first start creates.
    pub database: String,
    /// `name=value` settings passed on the command line.
    pub settings: Vec<String>,
    /// How long the server may take until it accepts connections; crash recovery of a large cluster takes its time.
    pub start_timeout: Duration,
}

impl Config {
    /// A configuration with the defaults for serving: 100 connections, everything durable.
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

    /// Adds a `name=value` setting; later ones win.
    #[must_use]
    pub fn with_setting(mut self, setting: impl Into<String>) -> Self {
        self.settings.push(setting.into());
        self
    }
}

/// Why there is no cluster.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The binaries are not there.
    #[error("there is no Postgres in {0} (run ./scripts/setup, or set DATABASE_URL to use another server)")]
    NoBinaries(PathBuf),
    /// Another process holds the data.
    #[error(
        "the database in {0} is in use by another facecrawl process; stop it, or give this one another DATA_DIR"
    )]
    InUse(PathBuf),
    /// The folder holds something else.
    #[error("{0} is not empty and holds no Postgres data; choose another DATA_DIR")]
    NotACluster(PathBuf),
    /// A link or a file stands where a folder has to be.
    #[error("{0} is not a folder; remove it")]
    NotAFolder(PathBuf),
    /// The data was written by another major version.
    #[error(
        "the data in {path} was written by Postgres {found}, and this is Postgres {have}; dump it with the old version and restore it, or set DATABASE_URL"
    )]
    Version {
        /// The folder.
        path: PathBuf,
        /// From its `PG_VERSION`.
        found: String,
        /// From `postgres --version`.
        have: String,
    },
    /// Root cannot hand the folder to the unprivileged user.
    #[error(
        "Postgres does not run as root, and the user that would run it (uid {uid}) cannot reach {path}: {reason}. Start facecrawl as an ordinary user, or choose a DATA_DIR that every user can enter"
    )]
    Unreachable {
        /// Who would run it.
        uid: u32,
        /// What it cannot reach.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// `initdb` or the server failed; its last words.
    #[error("{program} failed: {output}")]
    Failed {
        /// `initdb`, `postgres`.
        program: &'static str,
        /// What it printed.
        output: String,
    },
    /// It did not accept connections in time; its last words.
    #[error("Postgres did not accept connections within {seconds} s: {output}")]
    Timeout {
        /// `Config::start_timeout`.
        seconds: u64,
        /// What it printed.
        output: String,
    },
    /// A file operation failed.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
