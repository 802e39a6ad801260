//! Reads both ledgers of a crawl together: queued rows and outcomes.
use crate::{Store, StoreError};
use domain::{CrawlState, ImageState, Reason};
use sqlx::{FromRow, PgConnection, PgExecutor};
use time::OffsetDateTime;
use uuid::Uuid;

/// One of the two ledgers of a crawl.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ledger {
    Pages,
    ImageUrls,
}

/// Number of rows of a crawl with the same outcome.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Outcomes {
    /// Whether the URLs were fetched: neither skipped nor failed.
    pub fetched: bool,
    pub reason: Option<Reason>,
    pub count: i64,
}

/// An image URL of a crawl that was not processed.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct UnprocessedImage {
    pub id: Uuid,
    pub url: String,
    /// The first page that contained the image.
    pub page_url: Option<String>,
    /// `Skipped` or `Failed`.
    pub state: ImageState,
    pub reason: Option<Reason>,
    pub finished_at: Option<OffsetDateTime>,
}

impl Store {
    /// Returns image URLs of a crawl that were skipped or failed, after the row `after`, in the
    /// order in which they were found. `reason` selects those with this reason. Suppressed images
    /// and erased addresses are omitted.
    pub async fn unprocessed_images(
        &self,
        crawl: Uuid,
        reason: Option<&Reason>,
        after: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<UnprocessedImage>, StoreError> {
        Ok(sqlx::query_as(
            "select u.id, u.url, u.state, u.reason, u.finished_at,
                    (select s.page_url from image_sources s where s.image_url_id = u.id order by s.id limit 1) as page_url
             from image_urls u
             where u.crawl_id = $1 and u.state in ('skipped', 'failed') and u.url <> 'erased:' || u.id
               and ($2::text is null or u.reason = $2) and ($3::uuid is null or u.id > $3)
               and ($4::uuid is null or exists (select from crawls where id = $1 and collection_id = $4))
             order by u.id limit $5",
        )
        .bind(crawl)
        .bind(reason)
        .bind(after)
        .bind(self.collection_scope)
        .bind(limit.max(0))
        .fetch_all(&self.pool)
        .await?)
    }

    /// Locks the crawl's row until the transaction ends (lock order: after the suppressions, before
    /// any row of its ledgers). Other transactions can still add rows that refer to the crawl.
    pub async fn lock_crawl(&self, conn: &mut PgConnection, crawl: Uuid) -> Result<Uuid, StoreError> {
        Ok(crate::crawls::pages::lock_crawl(conn, crawl).await?.collection_id)
    }

    /// Returns the crawl's state as this transaction sees it; `None` if it is gone.
    pub async fn crawl_state(
        &self,
        conn: &mut PgConnection,
        crawl: Uuid,
    ) -> Result<Option<CrawlState>, StoreError> {
        let state = "select state from crawls where id = $1";
        Ok(sqlx::query_scalar(state).bind(crawl).fetch_optional(conn).await?)
    }

    /// Returns `true` if a ledger of the crawl has a `queued` row, or if one of its videos is live.
    pub async fn has_queued_rows(
        &self,
        executor: impl PgExecutor<'_>,
        crawl: Uuid,
    ) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar(
            "select exists (select from pages where crawl_id = $1 and state = 'queued')
                 or exists (select from image_urls where crawl_id = $1 and state = 'queued')
                 or exists (select from videos where crawl_id = $1 and state in ('queued', 'running', 'paused'))",
        )
        .bind(crawl)
        .fetch_one(executor)
        .await?)
    }

    /// Returns ids of queued rows of one ledger, in id order, after `after`.
    pub async fn queued_rows(
        &self,
        conn: &mut PgConnection,
        crawl: Uuid,
        ledger: Ledger,
        after: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<Uuid>, StoreError> {
        let sql = match ledger {
            Ledger::Pages => {
                "select id from pages where crawl_id = $1 and state = 'queued' and ($2::uuid is null or id > $2)
                 order by id limit $3"
            }
            Ledger::ImageUrls => {
                "select id from image_urls where crawl_id = $1 and state = 'queued' and ($2::uuid is null or id > $2)
                 order by id limit $3"
            }
        };
        Ok(sqlx::query_scalar(sql).bind(crawl).bind(after).bind(limit).fetch_all(conn).await?)
    }

    /// Returns the outcomes of the settled rows of both ledgers and of the videos that have ended,
    /// as this transaction sees them.
    pub async fn outcomes(&self, conn: &mut PgConnection, crawl: Uuid) -> Result<Vec<Outcomes>, StoreError> {
        Ok(sqlx::query_as(
            "select state not in ('skipped', 'failed', 'cancelled') as fetched, reason, count(*) as count
             from (select state, reason from pages where crawl_id = $1 and state <> 'queued'
                   union all
                   select state, reason from image_urls where crawl_id = $1 and state <> 'queued'
                   union all
                   select case when reason in ($2, $3) then 'completed' else state end, reason from videos
                   where crawl_id = $1 and state not in ('queued', 'running', 'paused')) as settled
             group by fetched, reason
             order by count desc, fetched, reason",
        )
        .bind(crawl)
        // The file was fetched, or the server said that it is the stored one.
        .bind(Reason::ExactDuplicate)
        .bind(Reason::NotModified)
        .fetch_all(conn)
        .await?)
    }

    /// Takes advisory locks with these keys and holds them until the transaction ends. Transactions
    /// that must see each other's changes use the same keys. The keys are locked in order, which
    /// prevents deadlocks.
    pub async fn lock_keys(&self, conn: &mut PgConnection, keys: &[i64]) -> Result<(), StoreError> {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        sqlx::query("select pg_advisory_xact_lock(key) from unnest($1::bigint[]) as locks(key)")
            .bind(&keys)
            .execute(conn)
            .await?;
        Ok(())
    }
}
