//! Videos that crawls found: their admission, where they were found, and their end with the crawl.
use crate::blobs::deletions::enqueue_blob_deletions;
use crate::crawls::pages::NewRows;
use crate::db::text::{url_hash, without_nul};
use crate::{Store, StoreError};
use domain::Reason;
use serde_json::Value;
use sqlx::PgConnection;
use std::collections::HashSet;
use std::sync::Arc;
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
    pub asked_url: Option<Arc<str>>,
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

impl Store {
    /// Adds videos that are new to the crawl, in the state `queued`, up to `limits`. Returns the
    /// new ones in input order.
    ///
    /// Sightings of videos that the crawl knows are recorded as sources. Suppressed addresses are
    /// not recorded. Addresses over a limit are only counted. A seed with a suppressed address is
    /// added, so that its worker can report the reason. So is a video on a suppressed page. Locks
    /// the crawl's row, like [`Store::admit_pages`].
    pub async fn admit_videos(
        &self,
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
        let room = (limits.total - i64::from(admitted)).max(0);
        let (mut seen, mut new, mut hosts) = (HashSet::new(), NewRows::default(), Vec::new());
        let mut are_seeds = Vec::new();
        for video in videos {
            if new.push(&mut seen, &video.url) {
                hosts.push(without_nul(&video.host));
                are_seeds.push(video.page_url.is_none());
            }
        }
        let rows: Vec<(Option<Uuid>, i64)> = sqlx::query_as(
            "with fresh as (
                 select n.*, row_number() over (partition by n.host order by n.id) as place
                 from unnest($2::uuid[], $3::text[], $4::uuid[], $5::text[], $9::bool[]) as n (id, url, url_hash, host, is_seed)
                 where not exists (select 1 from videos v where v.crawl_id = $1 and v.url_hash = n.url_hash)
                   and (n.is_seed or not exists (
                       select 1 from suppressions s join crawls c on c.collection_id = s.collection_id
                       where c.id = $1 and s.url_hash = n.url_hash))),
             taken as (select host, count(*) as count from videos where crawl_id = $1 group by host),
             added as (
                 insert into videos (id, collection_id, crawl_id, source_url, url_hash, host, options)
                 select f.id, c.collection_id, c.id, f.url, f.url_hash, f.host, $6
                 from fresh f join crawls c on c.id = $1 left join taken t on t.host = f.host
                 where f.place + coalesce(t.count, 0) <= $7
                 order by f.id limit $8
                 returning id)
             select a.id, c.fresh from (select count(*) as fresh from fresh) c left join added a on true",
        )
        .bind(crawl)
        .bind(&new.ids)
        .bind(&new.urls)
        .bind(&new.hashes)
        .bind(&hosts)
        .bind(options)
        .bind(limits.per_host)
        .bind(room)
        .bind(&are_seeds)
        .fetch_all(&mut *conn)
        .await?;
        let fresh = rows.first().map_or(0, |(_, fresh)| *fresh);
        let mut added: Vec<Uuid> = rows.into_iter().filter_map(|(id, _)| id).collect();
        let over_limit = fresh - added.len() as i64;
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

    /// Returns the next videos of a crawl after the video `after` that wait to be read.
    pub async fn waiting_videos(
        &self,
        crawl: Uuid,
        after: Uuid,
        limit: i64,
    ) -> Result<Vec<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(
            "select id from videos where crawl_id = $1 and state = 'queued' and id > $2 order by id limit $3",
        )
        .bind(crawl)
        .bind(after)
        .bind(limit)
        .fetch_all(&self.pool)
        .await?)
    }

    /// Records the validators of the response with a video's file.
    pub async fn record_video_validators(
        &self,
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
    pub async fn known_video(
        &self,
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
        .fetch_optional(&self.pool)
        .await?)
    }

    /// Records that a redirect led from the address of a video to another one.
    pub async fn record_moved_video(
        &self,
        conn: &mut PgConnection,
        id: Uuid,
        answered: &str,
    ) -> Result<(), StoreError> {
        sqlx::query("update videos set final_hash = $2 where id = $1")
            .bind(id)
            .bind(url_hash(Some(&without_nul(answered))))
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
    let urls: Vec<Uuid> = videos.iter().map(|(video, _)| url_hash(Some(&without_nul(&video.url)))).collect();
    let pages: Vec<String> = videos.iter().map(|(_, page)| without_nul(page)).collect();
    let page_hashes: Vec<Uuid> = pages.iter().map(|page| url_hash(Some(page))).collect();
    let asked: Vec<Option<Uuid>> = videos
        .iter()
        .map(|(video, _)| video.asked_url.as_deref().map(|url| url_hash(Some(&without_nul(url)))))
        .collect();
    // The lock prevents that a video is deleted before its source is stored.
    sqlx::query(
        "with ledger as materialized (
             select id, url_hash from videos where crawl_id = $1 and url_hash = any($2) and source_url is not null
             order by id for key share)
         insert into video_sources (video_id, page_url, page_hash, page_asked_hash)
         select v.id, n.page_url, n.page_hash, n.asked
         from unnest($2::uuid[], $3::text[], $4::uuid[], $5::uuid[]) with ordinality as n (url_hash, page_url, page_hash, asked, position)
         join ledger v using (url_hash)
         order by n.position
         on conflict (video_id, page_hash) do nothing",
    )
    .bind(crawl)
    .bind(&urls)
    .bind(&pages)
    .bind(&page_hashes)
    .bind(&asked)
    .execute(conn)
    .await?;
    Ok(())
}

/// Ends at most `most` live videos of a crawl as cancelled, with `reason`. What is stored of them
/// remains, and their fetched files are recorded for deletion. Returns their ids. A job that runs
/// for an ended video does nothing.
pub(crate) async fn cancel_videos_of_crawl(
    conn: &mut PgConnection,
    crawl: Uuid,
    reason: &Reason,
    most: i64,
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
    .bind(most)
    .fetch_all(&mut *conn)
    .await?;
    let (ids, files): (Vec<Uuid>, Vec<Option<String>>) = cancelled.into_iter().unzip();
    enqueue_blob_deletions(conn, files.into_iter().flatten().collect()).await?;
    Ok(ids)
}

/// Returns the videos that are at one of the addresses, or that were found on a page at one of
/// them. `hashes` also contains the addresses after redirects of the pages; `requested` only those
/// of the request.
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
