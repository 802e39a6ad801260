//! Crawls, their states and their progress.

pub mod closing;
pub mod hosts;
pub mod http_cache;
pub mod ledger;
pub mod pages;
use crate::StoreError;
use crate::crawls::pages::lock_crawl;
use crate::db::values::to_storable;
use crate::store::Crawls;
use domain::{CrawlKind, CrawlState, ImageState, PageState, Reason, VideoState};
use serde_json::Value;
use sqlx::types::Json;
use sqlx::{PgConnection, PgExecutor, Postgres, QueryBuilder};
use std::collections::BTreeMap;
use time::OffsetDateTime;
use uuid::Uuid;

/// A crawl of the web, or a scan of local files.
#[derive(Clone, Debug, serde::Serialize, sqlx::FromRow)]
pub struct Crawl {
    /// The crawl's id, which is also its group in the queue.
    pub id: Uuid,
    pub collection_id: Uuid,
    pub collection: String,
    pub kind: CrawlKind,
    pub state: CrawlState,
    /// Seed URLs or paths. `store.crawls().list` and `store.crawls().get_brief` return only the
    /// first.
    pub seeds: Vec<String>,
    pub seed_count: i32,
    /// The options with which the crawl was created (`pipeline::CrawlOptions`).
    pub options: Value,
    pub error: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it reached a terminal state.
    #[serde(with = "time::serde::rfc3339::option")]
    pub finished_at: Option<OffsetDateTime>,
    /// Id of the first run of its schedule; `None` for a crawl that runs once.
    pub series_id: Option<Uuid>,
    /// When the next scheduled run begins. Set only for a run that has ended.
    #[serde(with = "time::serde::rfc3339::option")]
    pub next_run_at: Option<OffsetDateTime>,
}

/// Numbers of new addresses that a crawl did not add because of a limit on the whole crawl. An
/// address that is found on several pages counts each time, but once for pages that are stored
/// together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OverLimit {
    pub pages: i64,
    pub images: i64,
    /// Includes addresses over the limit of a host.
    pub videos: i64,
}

/// The progress of a crawl, counted from the ledgers, so the numbers always add up.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CrawlProgress {
    /// Pages by state. Every state is present.
    pub pages: BTreeMap<PageState, i64>,
    /// Image URLs by state. Every state is present.
    pub images: BTreeMap<ImageState, i64>,
    /// Videos by state. Every state is present.
    pub videos: BTreeMap<VideoState, i64>,
    /// Number of faces in the distinct images that this crawl's URLs led to, including the
    /// originals of duplicates, and in its videos. Equals the number of faces that `faces` lists
    /// for the crawl.
    pub faces: i64,
    pub over_limit: OverLimit,
    /// Number of links that the crawl did not follow, by reason. A link counts on each page.
    pub links_left_out: BTreeMap<Reason, i64>,
    /// The part of `faces` that is in videos.
    #[serde(skip)]
    pub video_faces: i64,
    /// Number of pages, images and videos that were not read, by reason.
    pub reasons: BTreeMap<Reason, i64>,
    /// The part of `reasons` that concerns videos.
    #[serde(skip)]
    pub video_reasons: BTreeMap<Reason, i64>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct CrawlFilter<'a> {
    pub collection: Option<&'a str>,
    pub state: Option<CrawlState>,
    /// Only runs of this schedule.
    pub series: Option<Uuid>,
}

macro_rules! select_crawls {
    ($tail:literal) => {
        select_crawls!("r.seeds", $tail)
    };
    // Selects the first 100 seeds, or fewer if these exceed 16 KiB together, but at least one.
    (brief $tail:literal) => {
        select_crawls!(
            "(select coalesce(array_agg(seed order by at), '{}') from (
                 select seed, at, sum(octet_length(seed)) over (order by at) as bytes
                 from unnest(r.seeds[1:100]) with ordinality as first_seeds (seed, at)) counted
              where at = 1 or bytes <= 16384) as seeds",
            $tail
        )
    };
    ($seeds:literal, $tail:literal) => {
        concat!(
            "select r.id, r.collection_id, c.name as collection, r.kind, r.state, ",
            $seeds,
            ", cardinality(r.seeds) as seed_count, r.options, r.error, ",
            "r.created_at, r.finished_at, r.series_id, r.next_run_at from crawls r join collections c on c.id = r.collection_id ",
            $tail
        )
    };
}

impl Crawls<'_> {
    /// Inserts a running crawl.
    ///
    /// # Errors
    /// Fails with `NotFound` if the collection does not exist.
    pub async fn insert(
        self,
        conn: &mut PgConnection,
        collection_id: Uuid,
        kind: CrawlKind,
        seeds: &[String],
        options: &Value,
    ) -> Result<Crawl, StoreError> {
        let id = Uuid::now_v7();
        let inserted = sqlx::query(
            "insert into crawls (id, collection_id, kind, seeds, options)
             select $1, id, $3, $4, $5 from collections where id = $2",
        )
        .bind(id)
        .bind(collection_id)
        .bind(kind)
        .bind(seeds)
        .bind(options)
        .execute(&mut *conn)
        .await?;
        if inserted.rows_affected() == 0 {
            return Err(StoreError::not_found("collection", collection_id));
        }
        crawl_row(conn, id).await
    }

    pub async fn get(self, id: Uuid) -> Result<Crawl, StoreError> {
        self.get_in(&mut *self.0.pool.acquire().await?, id).await
    }

    pub(crate) async fn get_in(self, conn: &mut PgConnection, id: Uuid) -> Result<Crawl, StoreError> {
        sqlx::query_as(select_crawls!("where r.id = $1 and ($2::uuid is null or r.collection_id = $2)"))
            .bind(id)
            .bind(self.0.collection_scope)
            .fetch_optional(conn)
            .await?
            .ok_or_else(|| StoreError::not_found("crawl", id))
    }

    /// Returns a crawl by id with its first seeds, as [`Self::list`] does.
    ///
    /// # Errors
    /// Fails with `NotFound` for a crawl that does not exist or that the store's scope excludes.
    pub async fn get_brief(self, id: Uuid) -> Result<Crawl, StoreError> {
        sqlx::query_as(select_crawls!(brief "where r.id = $1 and ($2::uuid is null or r.collection_id = $2)"))
            .bind(id)
            .bind(self.0.collection_scope)
            .fetch_optional(&self.0.pool)
            .await?
            .ok_or_else(|| StoreError::not_found("crawl", id))
    }

    /// Returns crawls, newest first, with up to 100 seeds and up to 16 KiB of seeds each.
    pub async fn list(
        self,
        filter: &CrawlFilter<'_>,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<Crawl>, StoreError> {
        let mut query = QueryBuilder::<Postgres>::new(select_crawls!(brief "where true"));
        if let Some(collection) = self.0.collection_scope {
            query.push(" and r.collection_id = ").push_bind(collection);
        }
        if let Some(name) = filter.collection {
            query.push(" and r.collection_id = ").push_bind(self.0.collections().get(name).await?.id);
        }
        if let Some(state) = filter.state {
            query.push(" and r.state = ").push_bind(state);
        }
        if let Some(series) = filter.series {
            query.push(" and r.series_id = ").push_bind(series);
        }
        if let Some(before) = before {
            query.push(" and r.id < ").push_bind(before);
        }
        query.push(" order by r.id desc limit ").push_bind(limit.max(0));
        Ok(query.build_query_as().fetch_all(&self.0.pool).await?)
    }

    /// Changes a crawl's state from one of `from` to `to`. Terminal states set `finished_at`. Locks
    /// the crawl's row, so it must come before any change of the ledgers in the same transaction.
    ///
    /// # Errors
    /// Fails with `Conflict` if the crawl is in another state. The error contains that state.
    pub async fn set_state(
        self,
        conn: &mut PgConnection,
        id: Uuid,
        from: &[CrawlState],
        to: CrawlState,
        error: Option<&str>,
    ) -> Result<Crawl, StoreError> {
        let changed = sqlx::query(
            "update crawls set state = $3, error = coalesce($4, error),
                    finished_at = case when $3 in ('running', 'paused') then null else now() end
             where id = $1 and state = any($2)",
        )
        .bind(id)
        .bind(from)
        .bind(to)
        .bind(to_storable(error))
        .execute(&mut *conn)
        .await?
        .rows_affected();
        let crawl = crawl_row(conn, id).await?;
        if changed == 0 {
            let from: Vec<&str> = from.iter().map(|state| state.as_str()).collect();
            return Err(StoreError::Conflict(format!(
                "the crawl is {}; only a crawl that is {} can become {to}",
                crawl.state,
                from.join(" or ")
            )));
        }
        Ok(crawl)
    }

    /// Locks the crawl's row until the transaction ends (lock order: after the suppressions, before
    /// any row of its ledgers). Other transactions can still add rows that refer to the crawl.
    pub async fn lock(self, conn: &mut PgConnection, crawl: Uuid) -> Result<Uuid, StoreError> {
        Ok(lock_crawl(conn, crawl).await?.collection_id)
    }

    /// Returns the crawl's state as this transaction sees it. Returns `None` if it was deleted.
    pub async fn state(self, conn: &mut PgConnection, crawl: Uuid) -> Result<Option<CrawlState>, StoreError> {
        let state = "select state from crawls where id = $1";
        Ok(sqlx::query_scalar(state).bind(crawl).fetch_optional(conn).await?)
    }

    /// Returns `true` if a ledger of the crawl has a `queued` row, or if one of its videos is live.
    pub async fn has_queued_rows(
        self,
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

    /// Adds numbers of links of a page that the crawl did not follow, by reason.
    pub async fn count_links_left_out(
        self,
        conn: &mut PgConnection,
        crawl: Uuid,
        left_out: &BTreeMap<Reason, i64>,
    ) -> Result<(), StoreError> {
        let (codes, counts): (Vec<String>, Vec<i64>) =
            left_out.iter().map(|(reason, count)| (reason.code().into_owned(), *count)).unzip();
        if codes.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "update crawls set links_left_out = links_left_out || (
                 select jsonb_object_agg(n.code, n.count + coalesce((links_left_out ->> n.code)::bigint, 0))
                 from unnest($2::text[], $3::bigint[]) as n (code, count))
             where id = $1",
        )
        .bind(crawl)
        .bind(codes)
        .bind(counts)
        .execute(conn)
        .await?;
        Ok(())
    }

    /// Returns the crawl's progress from one snapshot. Queued rows of a cancelled crawl are counted
    /// as skipped with the reason `cancelled`, and its live videos as cancelled. Workers no longer
    /// process them, and the rows are settled with the same state later.
    pub async fn progress(self, id: Uuid) -> Result<CrawlProgress, StoreError> {
        let rows: Vec<ProgressRow> = sqlx::query_as(
            "select state as crawl, null as page, null as image, null as video, null as reason, 1::bigint as count, false as in_videos,
                    json_build_object('pages', pages_over_limit, 'images', images_over_limit, 'videos', videos_over_limit) as over_limit,
                    links_left_out
             from crawls where id = $1 and ($2::uuid is null or collection_id = $2)
             union all
             select null, state, null, null, reason, count(*), false, null, null from pages where crawl_id = $1 group by state, reason
             union all
             select null, null, state, null, reason, count(*), false, null, null from image_urls where crawl_id = $1 group by state, reason
             union all
             select null, null, null, state, reason, count(*), true, null, null from videos where crawl_id = $1 or scan_id = $1
             group by state, reason
             union all
             select null, null, null, null, null, coalesce(sum(face_count), 0)::bigint, false, null, null from images
             where id in (select image_id from image_urls where crawl_id = $1 and image_id is not null)
             union all
             select null, null, null, null, null, coalesce(sum(i.face_count), 0)::bigint, true, null, null
             from videos v join video_frames f on f.video_id = v.id join images i on i.id = f.image_id
             where v.crawl_id = $1 or v.scan_id = $1",
        )
        .bind(id)
        .bind(self.0.collection_scope)
        .fetch_all(&self.0.pool)
        .await?;
        let state =
            rows.iter().find_map(|row| row.crawl).ok_or_else(|| StoreError::not_found("crawl", id))?;
        let mut progress = CrawlProgress {
            pages: PageState::ALL.map(|state| (state, 0)).into(),
            images: ImageState::ALL.map(|state| (state, 0)).into(),
            videos: VideoState::ALL.map(|state| (state, 0)).into(),
            ..CrawlProgress::default()
        };
        for mut row in rows {
            if let (Some(Json(over_limit)), Some(Json(links_left_out))) =
                (row.over_limit.take(), row.links_left_out.take())
            {
                progress.over_limit = over_limit;
                progress.links_left_out =
                    links_left_out.into_iter().map(|(code, count)| (Reason::from(&*code), count)).collect();
                continue;
            }
            if state == CrawlState::Cancelled {
                row.skip_if_queued();
            }
            match (row.page, row.image, row.video) {
                (Some(state), ..) => *progress.pages.entry(state).or_default() += row.count,
                (_, Some(state), _) => *progress.images.entry(state).or_default() += row.count,
                (.., Some(state)) => *progress.videos.entry(state).or_default() += row.count,
                (None, None, None) => {
                    progress.faces += row.count;
                    progress.video_faces += if row.in_videos { row.count } else { 0 };
                }
            }
            if let Some(reason) = row.reason {
                if row.in_videos {
                    *progress.video_reasons.entry(reason.clone()).or_default() += row.count;
                }
                *progress.reasons.entry(reason).or_default() += row.count;
            }
        }
        Ok(progress)
    }
}

/// A number of pages, image URLs or videos in a state, the state of the crawl with its counters, or
/// a number of faces.
#[derive(sqlx::FromRow)]
struct ProgressRow {
    crawl: Option<CrawlState>,
    page: Option<PageState>,
    image: Option<ImageState>,
    video: Option<VideoState>,
    reason: Option<Reason>,
    count: i64,
    in_videos: bool,
    over_limit: Option<Json<OverLimit>>,
    links_left_out: Option<Json<BTreeMap<String, i64>>>,
}

impl ProgressRow {
    fn skip_if_queued(&mut self) {
        if self.page == Some(PageState::Queued) {
            (self.page, self.reason) = (Some(PageState::Skipped), Some(Reason::Cancelled));
        }
        if self.image == Some(ImageState::Queued) {
            (self.image, self.reason) = (Some(ImageState::Skipped), Some(Reason::Cancelled));
        }
        if self.video.is_some_and(VideoState::is_live) {
            (self.video, self.reason) = (Some(VideoState::Cancelled), Some(Reason::Cancelled));
        }
    }
}

pub(crate) async fn crawl_row(conn: &mut PgConnection, id: Uuid) -> Result<Crawl, StoreError> {
    sqlx::query_as(select_crawls!("where r.id = $1"))
        .bind(id)
        .fetch_optional(conn)
        .await?
        .ok_or_else(|| StoreError::not_found("crawl", id))
}
