//! Deletes crawls, alone or with the images and videos that only they found.
use crate::blobs::deletions::enqueue_blob_deletions;
use crate::crawls::pages::lock_crawl;
use crate::erasures::CarriedOut;
use crate::erasures::deletion::delete_images;
use crate::erasures::tombstones;
use crate::erasures::traces::LedgerJobs;
use crate::videos::crawled::cancel_videos_of_crawl;
use crate::videos::delete_videos;
use crate::{Store, StoreError};
use domain::Reason;
use sqlx::PgConnection;
use uuid::Uuid;

impl Store {
    /// Deletes a crawl with its pages and ledger rows. Returns the blob keys to delete after the
    /// commit, and the jobs of its videos from which nothing is left. The crawl's images, their
    /// sources and its videos are kept; live videos are cancelled. With `with_images`, images and
    /// videos that no other crawl found are deleted too.
    pub async fn delete_crawl(
        &self,
        conn: &mut PgConnection,
        id: Uuid,
        with_images: bool,
    ) -> Result<CarriedOut, StoreError> {
        self.crawl_in(conn, id).await?;
        // An erasure finds the videos ended, or this transaction finds what was erased.
        self.lock_suppressions_of_crawl(conn, id).await?;
        lock_crawl(conn, id).await?;
        let mut keys = Vec::new();
        if with_images {
            let images = images_of_crawl_alone(conn, id).await?;
            tombstones::set(conn, &images, &images).await?;
            keys = delete_images(conn, &images).await?.1;
            let videos = videos_of_crawl_alone(conn, id).await?;
            keys.extend(delete_videos(conn, &videos).await?);
        }
        // Without the crawl, a worker would fetch them without its rules.
        let mut jobs = LedgerJobs::default();
        for video in cancel_videos_of_crawl(conn, id, &Reason::Cancelled, i64::MAX).await? {
            jobs.extend(self.erase_emptied_video(conn, video).await?);
        }
        // Sightings without an image are useless without their ledger row.
        sqlx::query("delete from image_sources where crawl_id = $1 and image_id is null")
            .bind(id)
            .execute(&mut *conn)
            .await?;
        sqlx::query("delete from crawls where id = $1").bind(id).execute(&mut *conn).await?;
        Ok(CarriedOut { blobs: enqueue_blob_deletions(conn, keys).await?, jobs })
    }
}

/// Returns the images that no other crawl found, in the order of their ids.
pub(crate) async fn images_of_crawl_alone(
    conn: &mut PgConnection,
    crawl: Uuid,
) -> Result<Vec<Uuid>, StoreError> {
    // A source without a crawl belongs to a deleted crawl whose images were kept.
    Ok(sqlx::query_scalar(
        "select distinct u.image_id from image_urls u
         where u.crawl_id = $1 and u.image_id is not null
           and not exists (select 1 from image_urls o where o.image_id = u.image_id and o.crawl_id <> $1)
           and not exists (select 1 from image_sources s
                           where s.image_id = u.image_id and s.crawl_id is distinct from $1)
         order by 1",
    )
    .bind(crawl)
    .fetch_all(conn)
    .await?)
}

/// Locks and returns the videos of a crawl or a scan, except videos whose file another crawl or
/// scan found too.
pub(crate) async fn videos_of_crawl_alone(
    conn: &mut PgConnection,
    crawl: Uuid,
) -> Result<Vec<Uuid>, StoreError> {
    Ok(sqlx::query_scalar(
        "select v.id from videos v
         where (v.crawl_id = $1 or v.scan_id = $1)
           and not exists (select 1 from videos o where o.original_id = v.id
                           and o.crawl_id is distinct from $1 and o.scan_id is distinct from $1)
         order by v.id for update",
    )
    .bind(crawl)
    .fetch_all(conn)
    .await?)
}
