//! Opens the database at `DATABASE_URL`, or a private Postgres that runs as long as this process.
//! Also runs the programs of Postgres for backups.
use super::memory;
use crate::config::{DATABASE, Settings, mask_url};
use anyhow::{Context, anyhow, bail};
use embedded_postgres::Cluster;
use std::ffi::OsStr;
use std::process::Stdio;
use std::time::{Duration, Instant};
use store::Store;
use store::db::schema::{MigrationResult, OlderProgramPolicy, SchemaLock};
use tokio::process::Command;
use tokio::sync::Mutex;
use url::Url;

/// Maximum time to wait for connections in use when the database closes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A database connection, with the private server if there is one.
pub struct Database {
    pub store: Store,
    /// The connection URL with its password, which must not be masked_url.
    pub url: String,
    cluster: Option<Cluster>,
    /// Whether another process runs the private server, and this process only uses it.
    is_server_shared: bool,
    /// Set by `migrate`.
    schema: Mutex<Option<SchemaLock>>,
}

/// The behaviour if another process already runs the private server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Fails, because a service must be the only one on its data.
    Exclusive,
    /// Connects to that server while it runs. Commands that run alongside a service use this
    /// behaviour.
    Shared,
}

impl Database {
    /// Connects to the database. Starts the private server if `DATABASE_URL` is unset.
    pub async fn open(settings: &Settings, sharing: Sharing) -> anyhow::Result<Self> {
        let started = Instant::now();
        let (url, cluster) = match &settings.storage.database_url {
            Some(url) => (url.clone(), None),
            None => {
                let config = private_server_config(settings)?;
                match Cluster::start(&config).await {
                    Ok(cluster) => (cluster.default_url(), Some(cluster)),
                    Err(embedded_postgres::Error::InUse(_)) if sharing == Sharing::Shared => {
                        (Cluster::url_of_running(&config)?, None)
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        };
        let masked_url = mask_url(&url);
        let configured = settings.storage.database_url.is_some();
        let name = if configured {
            format!("DATABASE_URL={masked_url}")
        } else {
            format!("the database {masked_url}")
        };
        let store = Store::connect(&settings.store(url.clone()))
            .await
            .with_context(|| format!("cannot connect to {name}"))?;
        tracing::info!(
            database = if cluster.is_some() { "private" } else { masked_url.as_str() },
            seconds = started.elapsed().as_secs_f64(),
            "database connected"
        );
        let is_server_shared = cluster.is_none() && !configured;
        Ok(Self { store, url, cluster, is_server_shared, schema: Mutex::default() })
    }

    /// Opens the database for `work`, and closes it afterwards, also if `work` fails.
    pub async fn with<T>(
        settings: &Settings,
        sharing: Sharing,
        work: impl AsyncFnOnce(&Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let database = Self::open(settings, sharing).await?;
        let result = work(&database).await;
        database.close().await;
        result
    }

    /// Applies the missing schema migrations and returns their number. Until this process ends, no
    /// other version can make a change to the schema that this process cannot work with.
    ///
    /// If another process runs the private server, that process is not stopped, because the server
    /// would end with it.
    pub async fn migrate(&self, older_programs: OlderProgramPolicy) -> anyhow::Result<usize> {
        let older_programs =
            if self.is_server_shared { OlderProgramPolicy::FailMigration } else { older_programs };
        let MigrationResult { migration_count, schema } = self.store.schema().migrate(older_programs).await?;
        if migration_count > 0 {
            tracing::info!(migrations = migration_count, "database migrated");
        }
        *self.schema.lock().await = Some(schema);
        Ok(migration_count)
    }

    /// Waits until this process can no longer use the database, and returns the reason: the private
    /// server exited on its own, or a newer version of the program upgraded the schema.
    pub async fn wait_until_unusable(&self) -> anyhow::Error {
        let exited = async {
            match &self.cluster {
                Some(cluster) => cluster.wait_for_exit().await,
                None => std::future::pending().await,
            }
        };
        let superseded = async {
            match self.schema.lock().await.as_mut() {
                Some(schema) => schema.wait_until_superseded().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = exited => anyhow!("the private Postgres exited unexpectedly"),
            error = superseded => error.into(),
        }
    }

    /// Closes the connections and stops the private server. Waits for connections in use, at most
    /// `CLOSE_TIMEOUT`.
    pub async fn close(self) {
        if tokio::time::timeout(CLOSE_TIMEOUT, self.store.pool().close()).await.is_err() {
            tracing::warn!("closed database connections that were still in use");
        }
        if let Some(cluster) = self.cluster {
            cluster.stop().await;
            tracing::debug!("database stopped");
        }
    }
}

fn private_server_config(settings: &Settings) -> anyhow::Result<embedded_postgres::Config> {
    let Some(bin_dir) = settings.postgres_bin_dir() else {
        bail!(
            "there is no database; set DATABASE_URL, or run ./scripts/setup (or set POSTGRES_BIN_DIR) for a private Postgres"
        );
    };
    let mut config = embedded_postgres::Config::new(bin_dir, settings.storage.data_dir.join("postgres"));
    config.database = DATABASE.into();
    if let Some(memory) = memory::read() {
        config = config.with_setting(format!("shared_buffers={}MB", shared_buffers(memory.total) >> 20));
    }
    Ok(config)
}

/// Returns the `shared_buffers` of the private server in bytes, for a machine or container with
/// `total` bytes of memory. The value is an eighth, between 128 MiB and 8 GiB. Models, images and
/// the kernel's page cache need memory too, and the HNSW index of a million faces takes half a
/// gigabyte. Postgres allocates the pages when it uses them.
fn shared_buffers(total: u64) -> u64 {
    (total / 8).clamp(128 << 20, 8 << 30)
}

/// Runs `pg_dump` or `pg_restore` on a database until it exits. Its messages go to stderr.
///
/// # Errors
/// Fails if the program cannot be started or its exit status is not 0.
pub async fn run_postgres_program<S: AsRef<OsStr>>(
    settings: &Settings,
    program: &str,
    database: &str,
    args: impl IntoIterator<Item = S>,
) -> anyhow::Result<()> {
    let installed =
        settings.postgres_bin_dir().map(|folder| folder.join(program)).filter(|path| path.is_file());
    let mut command = Command::new(installed.unwrap_or_else(|| program.into()));
    // Every user of the machine can read a command line; only the owner can read the environment.
    let mut url = Url::parse(database).context("the database URL is invalid")?;
    if let Some(password) = url.password() {
        command.env("PGPASSWORD", percent_decode(password));
        // Fails only for a URL without a host.
        let _result = url.set_password(None);
    }
    let status = command
        .args(args)
        .arg(format!("--dbname={url}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .status()
        .await
        .with_context(|| {
            format!("{program} cannot be run; run ./scripts/setup, or set POSTGRES_BIN_DIR to the folder of Postgres's programs")
        })?;
    if !status.success() {
        bail!("{program} failed with {status}; its messages are above");
    }
    Ok(())
}

fn percent_decode(text: &str) -> String {
    let form = format!("p={}", text.replace('+', "%2B"));
    url::form_urlencoded::parse(form.as_bytes())
        .map(|(_, value)| value.into_owned())
        .next()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{shared_buffers, *};

    #[test]
    fn shared_buffers_is_bounded_eighth_of_memory() {
        assert_eq!(shared_buffers(512 << 20), 128 << 20);
        assert_eq!(shared_buffers(24 << 30), 3 << 30);
        assert_eq!(shared_buffers(1 << 40), 8 << 30);
    }

    #[test]
    fn percent_decode_preserves_plus_sign() {
        assert_eq!(percent_decode("a%40b+c%25"), "a@b+c%");
    }
}
