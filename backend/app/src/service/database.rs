//! The database: the one of `DATABASE_URL`, or a private Postgres that lives and dies with this process.
use super::memory;
use crate::config::{DATABASE, Settings, mask::mask_url};
use anyhow::{Context, bail};
use embedded_postgres::Cluster;
use std::time::{Duration, Instant};
use store::Store;

/// How long connections in use may hold up the end.
const CLOSING: Duration = Duration::from_secs(5);

/// A connection, and the private server behind it where there is one.
pub struct Database {
    /// Rows.
    pub store: Store,
    /// Where it is, password included: never to be shown.
    pub url: String,
    cluster: Option<Cluster>,
}

/// What to do when another process runs the private server already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Refuse: a service is alone on its data.
    Alone,
    /// Use that server while it lasts: a command beside a running service.
    Join,
}

impl Database {
    /// Starts the private server where no other is named, and connects.
    pub async fn open(settings: &Settings, sharing: Sharing) -> anyhow::Result<Self> {
        let started = Instant::now();
        let (url, cluster) = match &settings.storage.database_url {
            Some(url) => (url.clone(), None),
            None => {
                let config = private(settings)?;
                match Cluster::start(&config).await {
                    Ok(cluster) => (cluster.default_url(), Some(cluster)),
                    Err(embedded_postgres::Error::InUse(_)) if sharing == Sharing::Join => {
                        (Cluster::url_of_running(&config)?, None)
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        };
        let shown = mask_url(&url);
        let store = Store::connect(&settings.store(url.clone()))
            .await
            .with_context(|| format!("the database {shown}"))?;
        tracing::info!(
            database = if cluster.is_some() { "private" } else { shown.as_str() },
            seconds = started.elapsed().as_secs_f64(),
            "database connected"
        );
        Ok(Self { store, url, cluster })
    }

    /// Brings the schema up to date; the number of migrations that ran.
    pub async fn migrate(&self) -> anyhow::Result<usize> {
        let ran = self.store.migrate().await?;
        if ran > 0 {
            tracing::info!(migrations = ran, "database migrated");
        }
        Ok(ran)
    }

    /// Resolves when the private server has gone by itself; never without one.
    pub async fn lost(&self) {
        match &self.cluster {
            Some(cluster) => cluster.exited().await,
            None => std::future::pending().await,
        }
    }

    /// Closes the connections and stops the private server. Whoever still holds a connection is waited for, but not for long.
    pub async fn close(self) {
        if tokio::time::timeout(CLOSING, self.store.pool().close()).await.is_err() {
            tracing::warn!("some database connections were still in use and are cut");
        }
        if let Some(cluster) = self.cluster {
            cluster.stop().await;
            tracing::debug!("database stopped");
        }
    }
}

fn private(settings: &Settings) -> anyhow::Result<embedded_postgres::Config> {
    let Some(bin_dir) = settings.postgres_bin_dir() else {
        bail!(
            "there is no database: set DATABASE_URL, or run ./scripts/setup (or set POSTGRES_BIN_DIR) for a private Postgres"
        );
    };
    let mut config = embedded_postgres::Config::new(bin_dir, settings.postgres_data_dir());
    config.database = DATABASE.into();
    if let Some(memory) = memory::read() {
        config = config.with_setting(format!("shared_buffers={}MB", shared_buffers(memory.total) >> 20));
    }
    Ok(config)
}

/// What the private server keeps in memory of its own, in bytes, of a machine (or container) with so much: an eighth, since models, pictures and
/// the kernel's cache want theirs, and the HNSW index of a million faces takes half a gigabyte. Pages are taken as they are used.
fn shared_buffers(total: u64) -> u64 {
    (total / 8).clamp(128 << 20, 8 << 30)
}

#[cfg(test)]
mod tests {
    use super::shared_buffers;

    #[test]
    fn the_private_server_takes_an_eighth_within_bounds() {
        assert_eq!(shared_buffers(512 << 20), 128 << 20);
        assert_eq!(shared_buffers(24 << 30), 3 << 30);
        assert_eq!(shared_buffers(1 << 40), 8 << 30);
    }
}
