//! Videos that crawls and scans found: their admission, their sources, and their cancellation with
//! the crawl.
use crate::StoreError;
use crate::blobs::deletions::enqueue_blob_deletions;
use crate::db::deletions::LedgerJobs;
use crate::db::values::{NewRows, url_hash, url_hashes, without_nul};
use crate::store::CrawledVideos;
use crate::videos::{NewVideo, record_found_again};
use domain::Reason;
use serde_json::Value;
use sqlx::{Connection, PgConnection};
use std::collections::HashSet;
use std::sync::Arc;
use time::OffsetDateTime;
use uuid::Uuid;

/// The address of a video that was found on a page.
#[derive(Clone, Debug)]
pub struct NewVideoUrl {
    /// Normalised URL of the file.
    pub url: String,
    /// Host and port of `url`, as in `crawler::urls::host_key`.
    pub host: String,
    /// The page that contains the video: its URL after redirects. `None` for a seed.
    pub page_url: Option<String>,
    /// The requested URL of the page, if it differs from `page_url`. Without `page_url`, it is not
    /// recorded.
    pub requested_url: Option<Arc<str>>,
}

#[derive(Clone, Copy, Debug)]
pub struct VideoLimits {
    pub total: i64,
    pub per_host: i64,
}

/// A stored video, and the validators of the response with its file.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct KnownVideo {
    pub id: Uuid,
    pub etag: Option<String>,
    pub last_modified: Option<String>,
}

impl CrawledVideos<'_> {
    /// Adds videos that are new to the crawl, in the state `queued`, up to `limits`. Returns the
    /// new ones in input order.
    ///
    /// Sightings of videos that the crawl already has are recorded as sources. Suppressed addresses
    /// are not recorded. Addresses over a limit are only counted. A seed with a suppressed address
    /// and a video on a suppressed page are added, so that a worker can report the reason. Locks
    /// the crawl's row, like `store.ledger().admit_pages`.
    pub async fn admit(
        self,
        conn: &mut PgConnection,
        crawl: Uuid,
        limits: VideoLimits,
        options: &Value,
        videos: &[NewVideoUrl],
    ) -> Result<Vec<Uuid>, StoreError> {
        if videos.is_empty() {
            return Ok(Vec::new());
        }
        let admitted: Option<i32> =
            sqlx::query_scalar("select videos_admitted from crawls where id = $1 for no key update")
                .bind(crawl)
                .fetch_optional(&mut *conn)
                .await?;
        let admitted = admitted.ok_or_else(|| StoreError::not_found("crawl", crawl))?;
        let capacity = (limits.total - i64::from(admitted)).max(0);
        let (mut seen_hashes, mut new_rows, mut hosts) = (HashSet::new(), NewRows::default(), Vec::new());
        let mut seed_flags = Vec::new();
        let seeds: HashSet<&str> =
            videos.iter().filter(|video| video.page_url.is_none()).map(|video| video.url.as_str()).collect();
        for video in videos {
            if new_rows.push(&mut seen_hashes, &video.url) {
                hosts.push(without_nul(&video.host));
                seed_flags.push(seeds.contains(video.url.as_str()));
            }
        }
        let rows: Vec<(Option<Uuid>, i64)> = sqlx::query_as(
            "with new_videos as (
                 select n.*, row_number() over (partition by n.host order by n.id) as position
                 from unnest($2::uuid[], $3::text[], $4::uuid[], $5::text[], $9::bool[]) as n (id, url, url_hash, host, is_seed)
                 where not exists (select 1 from videos v where v.crawl_id = $1 and v.url_hash = n.url_hash)
                   and (n.is_seed or not exists (
                       select 1 from suppressions s join crawls c on c.collection_id = s.collection_id
                       where c.id = $1 and s.url_hash = n.url_hash))),
             existing as (select host, count(*) as count from videos where crawl_id = $1 group by host),
             added as (
                 insert into videos (id, collection_id, crawl_id, source_url, url_hash, host, options)
                 select f.id, c.collection_id, c.id, f.url, f.url_hash, f.host, $6
                 from new_videos f join crawls c on c.id = $1 left join existing t on t.host = f.host
                 where f.position + coalesce(t.count, 0) <= $7
                 order by f.id limit $8
                 returning id)
             select a.id, c.new_count from (select count(*) as new_count from new_videos) c left join added a on true",
        )
        .bind(crawl)
        .bind(&new_rows.ids)
        .bind(&new_rows.urls)
        .bind(&new_rows.hashes)
        .bind(&hosts)
        .bind(options)
        .bind(limits.per_host)
        .bind(capacity)
        .bind(&seed_flags)
        .fetch_all(&mut *conn)
        .await?;
        let new_count = rows.first().map_or(0, |(_, new_count)| *new_count);
        let mut added: Vec<Uuid> = rows.into_iter().filter_map(|(id, _)| id).collect();
        let over_limit = new_count - added.len() as i64;
        if !added.is_empty() || over_limit > 0 {
            sqlx::query(
                "update crawls set videos_admitted = videos_admitted + $2, videos_over_limit = videos_over_limit + $3
                 where id = $1",
            )
            .bind(crawl)
            .bind(i32::try_from(added.len()).unwrap_or(i32::MAX))
            .bind(over_limit)
            .execute(&mut *conn)
            .await?;
        }
        record_sightings(conn, crawl, videos).await?;
        added.sort_unstable();
        Ok(added)
    }

    /// Returns the next queued videos of a crawl after the video `after`.
    pub async fn queued(self, crawl: Uuid, after: Uuid, limit: i64) -> Result<Vec<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(
            "select id from videos where crawl_id = $1 and state = 'queued' and id > $2 order by id limit $3",
        )
        .bind(crawl)
        .bind(after)
        .bind(limit)
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Records the validators of the response with a video's file.
    pub async fn record_validators(
        self,
        conn: &mut PgConnection,
        id: Uuid,
        etag: Option<&str>,
        last_modified: Option<&str>,
    ) -> Result<(), StoreError> {
        sqlx::query("update videos set etag = $2, last_modified = $3 where id = $1")
            .bind(id)
            .bind(etag.map(without_nul))
            .bind(last_modified.map(without_nul))
            .execute(conn)
            .await?;
        Ok(())
    }

    /// Returns the completed video of the file at an address, except the video `id`, with the
    /// newest validators of a response.
    pub async fn find_known(
        self,
        collection: Uuid,
        address: &str,
        id: Uuid,
    ) -> Result<Option<KnownVideo>, StoreError> {
        Ok(sqlx::query_as(
            "select o.id, v.etag, v.last_modified from videos v join videos o on o.id = coalesce(v.original_id, v.id)
             where v.collection_id = $1 and md5(v.source_url) = md5($2) and v.source_url = $2 and v.id <> $3
               and o.state = 'completed' and o.expired_at is null and v.final_hash is null
               and (v.etag is not null or v.last_modified is not null)
             order by v.id desc limit 1",
        )
        .bind(collection)
        .bind(address)
        .bind(id)
        .fetch_optional(&self.0.pool)
        .await?)
    }

    /// Records that a redirect led from the address of a video to another one.
    pub async fn record_redirect(
        self,
        conn: &mut PgConnection,
        id: Uuid,
        final_url: &str,
    ) -> Result<(), StoreError> {
        sqlx::query("update videos set final_hash = $2 where id = $1")
            .bind(id)
            .bind(url_hash(final_url))
            .execute(conn)
            .await?;
        Ok(())
    }
}

/// Records the pages of those videos that the crawl has, unless their address was erased.
async fn record_sightings(
    conn: &mut PgConnection,
    crawl: Uuid,
    videos: &[NewVideoUrl],
) -> Result<(), StoreError> {
    let videos: Vec<(&NewVideoUrl, &String)> =
        videos.iter().filter_map(|video| Some((video, video.page_url.as_ref()?))).collect();
    let urls = url_hashes(videos.iter().map(|(video, _)| &video.url));
    let pages: Vec<String> = videos.iter().map(|(_, page)| without_nul(page)).collect();
    let page_hashes = url_hashes(&pages);
    let requested_hashes: Vec<Option<Uuid>> =
        videos.iter().map(|(video, _)| video.requested_url.as_deref().map(url_hash)).collect();
    // The lock prevents the deletion of a video before its source is stored.
    sqlx::query(
        "with ledger as materialized (
             select id, url_hash from videos where crawl_id = $1 and url_hash = any($2) and source_url is not null
             order by id for key share)
         insert into video_sources (video_id, page_url, page_hash, page_asked_hash)
         select v.id, n.page_url, n.page_hash, n.requested_hash
         from unnest($2::uuid[], $3::text[], $4::uuid[], $5::uuid[]) with ordinality as n (url_hash, page_url, page_hash, requested_hash, position)
         join ledger v using (url_hash)
         order by n.position
         on conflict (video_id, page_hash) do nothing",
    )
    .bind(crawl)
    .bind(&urls)
    .bind(&pages)
    .bind(&page_hashes)
    .bind(&requested_hashes)
    .execute(conn)
    .await?;
    Ok(())
}

/// Ends at most `limit` live videos of a crawl as cancelled, with `reason`. Their stored parts
/// remain, and their fetched files are recorded for deletion. Returns their ids. A job that runs
/// for an ended video does nothing.
pub(crate) async fn cancel_videos_of_crawl(
    conn: &mut PgConnection,
    crawl: Uuid,
    reason: &Reason,
    limit: i64,
) -> Result<Vec<Uuid>, StoreError> {
    let cancelled: Vec<(Uuid, Option<String>)> = sqlx::query_as(
        "with live as materialized (
             select id, source_key from videos where crawl_id = $1 and state in ('queued', 'running', 'paused')
             order by id limit $3 for update
         )
         update videos v set state = 'cancelled', reason = $2, finished_at = now(), source_key = null
         from live where v.id = live.id returning v.id, live.source_key",
    )
    .bind(crawl)
    .bind(reason)
    .bind(limit)
    .fetch_all(&mut *conn)
    .await?;
    let (ids, files): (Vec<Uuid>, Vec<Option<String>>) = cancelled.into_iter().unzip();
    enqueue_blob_deletions(conn, files.into_iter().flatten().collect()).await?;
    Ok(ids)
}

/// Returns the videos that are at one of the addresses, or that were found on a page at one of
/// them. `hashes` also contains the addresses of the pages after redirects, and `requested` only
/// those of the request.
pub(crate) async fn videos_at(
    conn: &mut PgConnection,
    collection: Uuid,
    addresses: &[String],
    hashes: &[Uuid],
    requested: &[Uuid],
) -> Result<Vec<Uuid>, StoreError> {
    Ok(sqlx::query_scalar(
        "select v.id from videos v join unnest($2::text[]) as a (url)
             on md5(v.source_url) = md5(a.url) and v.source_url = a.url
         where v.collection_id = $1
         union select id from videos where collection_id = $1 and final_hash = any($4)
         union select v.id from video_sources s join videos v on v.id = s.video_id
         where v.collection_id = $1 and (s.page_hash = any($3) or s.page_asked_hash = any($4))",
    )
    .bind(collection)
    .bind(addresses)
    .bind(hashes)
    .bind(requested)
    .fetch_all(conn)
    .await?)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, sqlx::FromRow)]
pub struct VideoCounts {
    pub tracks: i64,
    /// Number of faces, which are the best shots of the tracks.
    pub faces: i64,
}

impl CrawledVideos<'_> {
    /// Assigns an ended video to a scan that continues it, and returns its id. Its file, collection
    /// and options are those of `video`, it was cancelled or failed, and all its faces have
    /// embeddings of `model`. No crawl found it and no caller sent its address, because such videos
    /// have their own rules and origin. Returns `None` if there is no such video.
    pub async fn continue_scanned(
        self,
        conn: &mut PgConnection,
        video: &NewVideo,
        model: i32,
    ) -> Result<Option<Uuid>, StoreError> {
        let mut savepoint = conn.begin().await?;
        // Prefers the video with the most stored parts. The index on the file's hash permits only
        // one live video of a file.
        let continued = sqlx::query_scalar(
            "update videos set state = 'running', scan_id = $5, source_url = $6, reason = null, detail = null,
                    finished_at = null
             where id = (
                 select v.id from videos v
                 where v.collection_id = $1 and v.sha256 = $2 and v.options = $3
                   and v.state in ('cancelled', 'failed') and v.expired_at is null
                   and v.crawl_id is null and (v.source_url is null or v.source_url not like 'http%')
                   and not exists (
                       select 1 from tracks t
                       join track_faces s on s.track_id = t.id join faces f on f.id = s.face_id
                       where t.video_id = v.id and f.model_id <> $4)
                   and not exists (
                       select 1 from videos o
                       where o.collection_id = $1 and o.sha256 = $2 and o.state not in ('cancelled', 'failed')
                         and o.expired_at is null)
                 order by v.checkpoint_us desc nulls last, v.id limit 1 for update of v)
             returning id",
        )
        .bind(video.collection)
        .bind(video.sha256.as_ref().map(<[u8; 32]>::as_slice))
        .bind(&video.options)
        .bind(model)
        .bind(video.scan)
        .bind(video.source_url.as_deref().map(without_nul))
        .fetch_optional(&mut *savepoint)
        .await;
        match continued {
            Ok(continued) => {
                savepoint.commit().await?;
                Ok(continued)
            }
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
                // Another process added a video of the file in the meantime.
                savepoint.rollback().await?;
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Records that a scan found a file that the collection already has as the video `original`.
    /// Does nothing if `original` was deleted in the meantime.
    ///
    /// The record has no hash: the file is that of `original`. `id` is the id of the record. Does
    /// nothing if the record exists, so the call can be repeated.
    pub async fn record_duplicate(
        self,
        conn: &mut PgConnection,
        id: Uuid,
        video: &NewVideo,
        original: Uuid,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "insert into videos (id, collection_id, bytes, source_url, scan_id, options, state, reason, original_id, finished_at)
             select $1, o.collection_id, $3, $4, $5, $6, 'failed', $7, o.id, now()
             from (select id, collection_id from videos where id = $2 for key share) o
             on conflict (id) do nothing",
        )
        .bind(id)
        .bind(original)
        .bind(video.bytes)
        .bind(video.source_url.as_deref().map(without_nul))
        .bind(video.scan)
        .bind(&video.options)
        .bind(Reason::ExactDuplicate)
        .execute(&mut *conn)
        .await?;
        record_found_again(conn, original).await
    }

    /// Locks a video that a scan reads, until the transaction ends.
    ///
    /// # Errors
    /// Fails with `Conflict` if the video has ended, or if another scan continues it.
    pub async fn lock_scanned(self, conn: &mut PgConnection, id: Uuid, scan: Uuid) -> Result<(), StoreError> {
        let locked = sqlx::query(
            "select 1 from videos where id = $1 and scan_id = $2 and state = 'running' for update",
        )
        .bind(id)
        .bind(scan)
        .fetch_optional(conn)
        .await?;
        match locked {
            Some(_) => Ok(()),
            None => Err(StoreError::Conflict("another process ended the video or continues it".into())),
        }
    }

    /// Returns the end of the lease of the scan that reads a video; `None` if no scan does.
    pub async fn scan_lease_end(self, id: Uuid) -> Result<Option<OffsetDateTime>, StoreError> {
        let lease: Option<Option<OffsetDateTime>> = sqlx::query_scalar(
            "select c.lease_until from videos v join crawls c on c.id = v.scan_id
             where v.id = $1 and v.state = 'running' and c.state = 'running'",
        )
        .bind(id)
        .fetch_optional(&self.0.pool)
        .await?;
        Ok(lease.flatten())
    }

    /// Ends the videos that ended scans were reading, with `detail`: as failed if the scan failed,
    /// else as cancelled. The stored parts of the videos remain. Returns the jobs of other videos
    /// of the same files, if nothing of the files remains.
    pub async fn end_videos_of_ended_scans(
        self,
        conn: &mut PgConnection,
        detail: &str,
    ) -> Result<LedgerJobs, StoreError> {
        let collections: Vec<Uuid> = sqlx::query_scalar(
            "select distinct v.collection_id from videos v join crawls c on c.id = v.scan_id
             where v.state in ('queued', 'running', 'paused') and c.state <> 'running' order by v.collection_id",
        )
        .fetch_all(&mut *conn)
        .await?;
        for collection in collections {
            // Either an erasure sees the ended videos, or this transaction sees the erasure.
            self.0.suppressions().lock(conn, collection, false).await?;
        }
        let ended: Vec<Uuid> = sqlx::query_scalar(
            "update videos v set state = case when c.state = 'failed' then 'failed' else 'cancelled' end,
                    reason = $1, detail = $2, finished_at = now()
             from crawls c
             where c.id = v.scan_id and v.state in ('queued', 'running', 'paused') and c.state <> 'running'
             returning v.id",
        )
        .bind(Reason::NotScanned)
        .bind(detail)
        .fetch_all(&mut *conn)
        .await?;
        self.0.erasures().erase_videos_if_empty(conn, &ended).await
    }

    pub async fn counts(self, id: Uuid) -> Result<VideoCounts, StoreError> {
        Ok(sqlx::query_as(
            "select count(distinct t.id) as tracks, count(s.face_id) as faces
             from tracks t left join track_faces s on s.track_id = t.id where t.video_id = $1",
        )
        .bind(id)
        .fetch_one(&self.0.pool)
        .await?)
    }
}
