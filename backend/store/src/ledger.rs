//! Both ledgers of a crawl seen together: what is still queued, and what became of the rest.
use crate::{Store, StoreError};
use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

/// Which of a crawl's two ledgers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ledger {
    /// The pages.
    Pages,
    /// The image URLs.
    ImageUrls,
}

/// How many rows of a crawl ended one way.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Outcomes {
    /// `fetched`, `processed`, `duplicate`, `skipped`, `failed`, `suppressed`.
    pub state: String,
    /// Reason code.
    pub reason: Option<String>,
    /// Rows.
    pub count: i64,
}

impl Store {
    /// Locks the crawl's row for the rest of the transaction (lock order: before any row of its ledgers). It does not keep others from adding
    /// rows that refer to the crawl.
    pub async fn lock_crawl(&self, conn: &mut PgConnection, crawl: Uuid) -> Result<(), StoreError> {
        crate::pages::lock_crawl(conn, crawl).await.map(|_| ())
    }

    /// The crawl's state as this transaction sees it now; `None` when it is gone.
    pub async fn crawl_state(
        &self,
        conn: &mut PgConnection,
        crawl: Uuid,
    ) -> Result<Option<String>, StoreError> {
        let state = "select state from crawls where id = $1";
        Ok(sqlx::query_scalar(state).bind(crawl).fetch_optional(conn).await?)
    }

    /// Rows of either ledger that are still `queued`, counted up to `limit`: cheap however many there are.
    pub async fn queued_up_to(
        &self,
        conn: &mut PgConnection,
        crawl: Uuid,
        limit: i64,
    ) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar(
            "select count(*) from (
                 (select 1 from pages where crawl_id = $1 and state = 'queued' limit $2)
                 union all
                 (select 1 from image_urls where crawl_id = $1 and state = 'queued' limit $2)
                 limit $2
             ) as queued",
        )
        .bind(crawl)
        .bind(limit)
        .fetch_one(conn)
        .await?)
    }

    /// Queued rows of one ledger in id order, after the id `after`.
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

    /// What became of both ledgers' settled rows, seen from inside the transaction.
    pub async fn outcomes(&self, conn: &mut PgConnection, crawl: Uuid) -> Result<Vec<Outcomes>, StoreError> {
        Ok(sqlx::query_as(
            "select state, reason, count(*) as count
             from (select state, reason from pages where crawl_id = $1 and state <> 'queued'
                   union all
                   select state, reason from image_urls where crawl_id = $1 and state <> 'queued') as settled
             group by state, reason
             order by count desc, state, reason",
        )
        .bind(crawl)
        .fetch_all(conn)
        .await?)
    }

    /// Waits for, and holds to the end of the transaction, the locks named by `keys`: a rendezvous of transactions that must see each other's
    /// work. Taken in order, so that two callers never wait for each other crosswise.
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
