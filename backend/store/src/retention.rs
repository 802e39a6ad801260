//! Retention: what was last seen longer ago than its collection keeps things, goes.
//!
//! Work is done in small transactions that can be killed anywhere and done again, and a turn is given to one process at a time.
use crate::condemned::condemn;
use crate::erasure::delete_images;
use crate::{Store, StoreError};
use sqlx::PgConnection;
use std::time::Duration;
use uuid::Uuid;

/// Images per call.
const IMAGES: i64 = 200;
/// Ledger rows per call.
const ROWS: i64 = 5_000;

/// What a call took away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Images, with their faces and sources.
    pub images: u64,
    /// Faces.
    pub faces: u64,
    /// Crawls that had ended.
    pub crawls: u64,
    /// Rows of their ledgers.
    pub rows: u64,
    /// Blobs to drop after the commit.
    pub blobs: Vec<String>,
}

impl Expired {
    /// Whether there was nothing to do.
    pub fn is_empty(&self) -> bool {
        self.images + self.crawls + self.rows == 0
    }
}

impl Store {
    /// Gives the turn of a periodic task to one of all processes: `true` for whoever asks first once it is due, and it is due again after
    /// `every`, whatever becomes of that process.
    pub async fn claim_upkeep(&self, task: &str, every: Duration) -> Result<bool, StoreError> {
        let taken = sqlx::query(
            "insert into upkeep (task, due_at) values ($1, now() + make_interval(secs => $2))
             on conflict (task) do update set due_at = excluded.due_at where upkeep.due_at <= now()",
        )
        .bind(task)
        .bind(every.as_secs_f64())
        .execute(&self.pool)
        .await?;
        Ok(taken.rows_affected() == 1)
    }

    /// Collections that do not keep everything.
    pub async fn collections_with_retention(&self) -> Result<Vec<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(
            "select id from collections where retention_days is not null and deleting_at is null order by id",
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// Erases some of what has expired: first images that were stored, and last seen, longer ago than the collection keeps them, then the
    /// records of crawls that ended longer ago. Images with a face that was enrolled stay, and so do crawls that will start again. Call it until
    /// it answers that nothing is left.
    pub async fn expire_some(
        &self,
        conn: &mut PgConnection,
        collection: Uuid,
    ) -> Result<Expired, StoreError> {
        let mut expired = Expired::default();
        let images: Vec<(Uuid, i32)> = sqlx::query_as(
            "select i.id, i.face_count from images i join collections c on c.id = i.collection_id
             where c.id = $1 and c.deleting_at is null and i.created_at < now() - make_interval(days => c.retention_days)
               and not exists (select 1 from image_sources s where s.image_id = i.id
                               and s.found_at >= now() - make_interval(days => c.retention_days))
               and not exists (select 1 from faces f join subject_faces e on e.face_id = f.id
                               join subjects p on p.id = e.subject_id where f.image_id = i.id and p.origin = 'enrolled')
             order by i.id limit $2 for update of i skip locked",
        )
        .bind(collection)
        .bind(IMAGES)
        .fetch_all(&mut *conn)
        .await?;
        if !images.is_empty() {
            let ids: Vec<Uuid> = images.iter().map(|(id, _)| *id).collect();
            let (deleted, keys) = delete_images(conn, &ids).await?;
            expired.images = deleted;
            expired.faces = images.iter().map(|(_, faces)| u64::from(faces.unsigned_abs())).sum();
            expired.blobs = condemn(conn, keys).await?;
            return Ok(expired);
        }
        let crawl: Option<Uuid> = sqlx::query_scalar(
            "select r.id from crawls r join collections c on c.id = r.collection_id
             where c.id = $1 and c.deleting_at is null and r.finished_at < now() - make_interval(days => c.retention_days)
               and r.next_run_at is null
             order by r.id limit 1 for update of r skip locked",
        )
        .bind(collection)
        .fetch_optional(&mut *conn)
        .await?;
        let Some(crawl) = crawl else { return Ok(expired) };
        for part in [
            "delete from image_urls where id in (select id from image_urls where crawl_id = $1 limit $2)",
            "delete from pages where id in (select id from pages where crawl_id = $1 limit $2)",
        ] {
            expired.rows +=
                sqlx::query(part).bind(crawl).bind(ROWS).execute(&mut *conn).await?.rows_affected();
        }
        if expired.rows == 0 {
            expired.blobs = self.delete_crawl(conn, crawl, false).await?;
            expired.crawls = 1;
        }
        Ok(expired)
    }
}
