//! Removes traces of erased videos: their addresses, and where crawls found them.
use super::{LedgerJobs, Traces};
use crate::db::text::url_hash;
use crate::videos::drop_files_of_ended;
use crate::{Store, StoreError};
use sqlx::PgConnection;
use uuid::Uuid;

impl Traces {
    /// Removes the addresses of pages that turned out to be the video at one of these addresses.
    async fn erase_video_pages(
        &mut self,
        conn: &mut PgConnection,
        addresses: &[String],
    ) -> Result<(), StoreError> {
        let hashes: Vec<Uuid> = addresses.iter().map(|url| url_hash(Some(url))).collect();
        let pages = self.pages_at(conn, addresses, &hashes, true).await?;
        self.hashes.extend(pages.iter().map(|row| row.url_hash));
        self.erase_page_rows(conn, pages).await
    }

    /// Records the addresses of videos and the pages that contain them, for [`Traces::finish`], and
    /// removes them from the videos' rows. The hash of an address is kept, so that the crawl does
    /// not read the video again.
    pub(crate) async fn erase_video_traces(
        &mut self,
        conn: &mut PgConnection,
        videos: &[Uuid],
    ) -> Result<(), StoreError> {
        if videos.is_empty() {
            return Ok(());
        }
        self.jobs.videos.extend(videos);
        let addresses: Vec<(Option<String>, Option<Uuid>)> =
            sqlx::query_as("select source_url, final_hash from videos where id = any($1)")
                .bind(videos)
                .fetch_all(&mut *conn)
                .await?;
        let texts: Vec<String> = addresses.iter().filter_map(|(address, _)| address.clone()).collect();
        self.hashes.extend(addresses.into_iter().filter_map(|(_, answered)| answered));
        self.hashes.extend(texts.iter().map(|url| url_hash(Some(url))));
        self.erase_video_pages(conn, &texts).await?;
        self.texts.extend(texts);
        let sources: Vec<(String, Uuid, Option<Uuid>)> = sqlx::query_as(
            "delete from video_sources where video_id = any($1) returning page_url, page_hash, page_asked_hash",
        )
        .bind(videos)
        .fetch_all(&mut *conn)
        .await?;
        for (page, hash, asked) in sources {
            self.pages.add(hash, Some(page));
            self.pages.add(asked.unwrap_or_default(), None);
        }
        sqlx::query("update videos set source_url = null, host = null, detail = null, etag = null, last_modified = null where id = any($1)")
            .bind(videos)
            .execute(&mut *conn)
            .await?;
        drop_files_of_ended(conn, videos).await
    }
}

impl Store {
    /// Removes the traces of a video whose address or file is suppressed: its address, the pages
    /// that contain it, and their titles and cached content. Returns the jobs of pages that turned
    /// out to be the video; their records contain its address.
    pub async fn erase_suppressed_video(
        &self,
        conn: &mut PgConnection,
        id: Uuid,
    ) -> Result<LedgerJobs, StoreError> {
        let collection: Option<Uuid> = sqlx::query_scalar("select collection_id from videos where id = $1")
            .bind(id)
            .fetch_optional(&mut *conn)
            .await?;
        let Some(collection) = collection else { return Ok(LedgerJobs::default()) };
        let mut traces = Traces::new(collection);
        traces.erase_video_traces(conn, &[id]).await?;
        traces.finish(conn).await?;
        Ok(traces.jobs)
    }
}

impl Store {
    /// Removes the traces of an ended video, and of its duplicates, if nothing is left of the file:
    /// all tracks in it were erased or suppressed. Does nothing otherwise. If `id` is a duplicate,
    /// the file is that of its original.
    ///
    /// An erasure cannot remove them while the video is live, because it is still read from its
    /// address. Returns the jobs whose records contain the address.
    pub async fn erase_emptied_video(
        &self,
        conn: &mut PgConnection,
        id: Uuid,
    ) -> Result<LedgerJobs, StoreError> {
        let emptied: Vec<(Uuid, Uuid)> = sqlx::query_as(
            "with file as (
                 select o.id, o.collection_id from videos v join videos o on o.id = coalesce(v.original_id, v.id)
                 where v.id = $1 and v.finished_at is not null and o.finished_at is not null
                   and o.last_track > o.unidentified and o.expired_at is null
                   and not exists (select 1 from video_frames f where f.video_id = o.id))
             select v.id, v.collection_id from videos v, file
             where (v.id = file.id or v.original_id = file.id) and v.finished_at is not null
               and (v.source_url is not null or v.source_key is not null)
             order by v.id for update of v",
        )
        .bind(id)
        .fetch_all(&mut *conn)
        .await?;
        let Some((_, collection)) = emptied.first() else { return Ok(LedgerJobs::default()) };
        let mut traces = Traces::new(*collection);
        let videos: Vec<Uuid> = emptied.iter().map(|(id, _)| *id).collect();
        traces.erase_video_traces(conn, &videos).await?;
        traces.finish(conn).await?;
        Ok(traces.jobs)
    }
}

pub(crate) async fn videos_of_frames(
    conn: &mut PgConnection,
    images: &[Uuid],
) -> Result<Vec<Uuid>, StoreError> {
    Ok(sqlx::query_scalar("select distinct video_id from video_frames where image_id = any($1)")
        .bind(images)
        .fetch_all(conn)
        .await?)
}

/// Returns those of the videos that have ended and have no frames any more, and the videos of the
/// same files, which have the same addresses.
pub(crate) async fn emptied(conn: &mut PgConnection, videos: &[Uuid]) -> Result<Vec<Uuid>, StoreError> {
    Ok(sqlx::query_scalar(
        "with empty as (
             select id from videos v where id = any($1) and finished_at is not null
             and not exists (select 1 from video_frames f where f.video_id = v.id))
         select id from videos where id in (select id from empty) or original_id in (select id from empty)
         order by id for update",
    )
    .bind(videos)
    .fetch_all(conn)
    .await?)
}
