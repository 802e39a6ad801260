//! The page ledger and the image ledger of a crawl: each URL once, with its outcome.
//!
//! Admitting URLs locks the crawl's row until the caller's transaction ends. So each URL is
//! admitted once, and the limits are exact, even under concurrency. Lock order within a
//! transaction: crawl, pages, image URLs, sources.
use crate::StoreError;
use crate::db::values::{NewRows, page_hash, to_storable, url_hash, url_hashes, without_nul};
use crate::store::Ledgers;
use domain::{ImageState, PageState, Reason};
use sqlx::PgConnection;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use uuid::Uuid;

#[derive(Clone, Debug)]
pub struct NewPage {
    /// Normalised URL.
    pub url: String,
    /// Number of links between a seed and the page.
    pub depth: i32,
}

/// An image URL found on a page (or given as a seed, with no page).
#[derive(Clone, Debug)]
pub struct NewImageUrl {
    /// Normalised URL or path.
    pub url: String,
    /// The page that contains the image: its URL after redirects.
    pub page_url: Option<String>,
    /// The requested URL of the page, if it differs from `page_url`.
    pub requested_url: Option<Arc<str>>,
    pub alt: Option<String>,
}

/// A new ledger row, whose URL has to be fetched.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct AdmittedUrl {
    pub id: Uuid,
    pub url: String,
    /// Number of links between a seed and the page (0 for images).
    pub depth: i32,
}

#[derive(Clone, Debug)]
pub struct PageResult {
    /// The state, which must not be `Queued`.
    pub state: PageState,
    /// The reason, if the page was not fetched or its images are not used.
    pub reason: Option<Reason>,
    /// A human-readable explanation.
    pub detail: Option<String>,
    /// HTTP status.
    pub status: Option<i32>,
    /// The URL after redirects.
    pub final_url: Option<String>,
    pub title: Option<String>,
    /// `ETag` for the next conditional request.
    pub etag: Option<String>,
    /// `Last-Modified` for the next conditional request.
    pub last_modified: Option<String>,
}

impl PageResult {
    pub fn new(state: PageState) -> Self {
        Self {
            state,
            reason: None,
            detail: None,
            status: None,
            final_url: None,
            title: None,
            etag: None,
            last_modified: None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct ImageUrlResult<'a> {
    /// The state, which must not be `Queued`.
    pub state: ImageState,
    /// The reason, if the image was not processed, or only in part.
    pub reason: Option<Reason>,
    /// A human-readable explanation.
    pub detail: Option<&'a str>,
    pub image: Option<Uuid>,
    /// The URL after redirects, if it differs from the one in the row. It is recorded only with an
    /// image.
    pub final_url: Option<&'a str>,
}

/// The SQL condition that an image URL, a page that contains it, or the URL after redirects is
/// suppressed. Its parameters are `$1` (collection), `$2` (image URL)
/// and `$3` (hash of the URL after redirects, or null).
macro_rules! suppresses_url {
    () => {
        "exists(
             select 1 from suppressions s where s.collection_id = $1 and s.url_hash in (
                 select url_hash from image_urls where id = $2
                 union all select page_hash from image_sources where image_url_id = $2
                 union all select page_asked_hash from image_sources where image_url_id = $2
                 union all select $3::uuid))"
    };
}
pub(crate) use suppresses_url;

impl Ledgers<'_> {
    /// Adds pages that are new to the crawl, up to `max_pages` in total. Returns the new rows in
    /// input order. The other pages are known or over the limit. Those over the limit are counted
    /// ([`crate::crawls::OverLimit`]).
    pub async fn admit_pages(
        self,
        conn: &mut PgConnection,
        crawl: Uuid,
        max_pages: i64,
        pages: &[NewPage],
    ) -> Result<Vec<AdmittedUrl>, StoreError> {
        if pages.is_empty() {
            return Ok(Vec::new());
        }
        let capacity = (max_pages - lock_crawl(conn, crawl).await?.pages).max(0);
        let mut seen_hashes = HashSet::new();
        let mut new_rows = NewRows::default();
        let mut depths = Vec::new();
        for page in pages {
            if new_rows.push(&mut seen_hashes, &page.url) {
                depths.push(page.depth.max(0));
            }
        }
        let rows: Vec<AdmittedRow> = sqlx::query_as(
            "with new_urls as (
                 select n.* from unnest($2::uuid[], $3::text[], $4::uuid[], $5::int[]) as n (id, url, url_hash, depth)
                 where not exists (select 1 from pages p where p.crawl_id = $1 and p.url_hash = n.url_hash)),
             added as (
                 insert into pages (id, crawl_id, url, url_hash, depth)
                 select id, $1, url, url_hash, depth from new_urls order by id limit $6
                 returning id, url, depth)
             select a.*, c.new_count from (select count(*) as new_count from new_urls) c left join added a on true",
        )
        .bind(crawl)
        .bind(&new_rows.ids)
        .bind(&new_rows.urls)
        .bind(&new_rows.hashes)
        .bind(&depths)
        .bind(capacity)
        .fetch_all(&mut *conn)
        .await?;
        count_admitted(conn, crawl, COUNT_PAGES, rows).await
    }

    /// Adds image URLs that are new to the crawl, up to `max_images` in total. Returns the new rows
    /// in input order. Sightings of known URLs are recorded as sources, with the image if it is
    /// known already. URLs over the limit are counted, but not recorded.
    pub async fn admit_images(
        self,
        conn: &mut PgConnection,
        crawl: Uuid,
        max_images: i64,
        images: &[NewImageUrl],
    ) -> Result<Vec<AdmittedUrl>, StoreError> {
        if images.is_empty() {
            return Ok(Vec::new());
        }
        let capacity = (max_images - lock_crawl(conn, crawl).await?.images).max(0);
        let mut seen_hashes = HashSet::new();
        let mut new_rows = NewRows::default();
        for image in images {
            new_rows.push(&mut seen_hashes, &image.url);
        }
        let rows: Vec<AdmittedRow> = sqlx::query_as(
            "with new_urls as (
                 select n.* from unnest($2::uuid[], $3::text[], $4::uuid[]) as n (id, url, url_hash)
                 where not exists (select 1 from image_urls u where u.crawl_id = $1 and u.url_hash = n.url_hash)),
             added as (
                 insert into image_urls (id, crawl_id, url, url_hash)
                 select id, $1, url, url_hash from new_urls order by id limit $5
                 returning id, url, 0 as depth)
             select a.*, c.new_count from (select count(*) as new_count from new_urls) c left join added a on true",
        )
        .bind(crawl)
        .bind(&new_rows.ids)
        .bind(&new_rows.urls)
        .bind(&new_rows.hashes)
        .bind(capacity)
        .fetch_all(&mut *conn)
        .await?;
        let admitted = count_admitted(conn, crawl, COUNT_IMAGE_URLS, rows).await?;
        record_sightings(conn, crawl, images).await?;
        Ok(admitted)
    }

    /// Settles a page's row; see [`Self::settle_pages`].
    pub async fn settle_page(
        self,
        conn: &mut PgConnection,
        page: Uuid,
        result: &PageResult,
    ) -> Result<(), StoreError> {
        self.settle_pages(conn, &[(page, result)]).await
    }

    /// Settles the rows of pages that are `queued`. A row that is settled, or deleted with its
    /// crawl, does not change.
    ///
    /// # Errors
    /// Fails with `Invalid` if a new state is `Queued`.
    pub async fn settle_pages(
        self,
        conn: &mut PgConnection,
        settled: &[(Uuid, &PageResult)],
    ) -> Result<(), StoreError> {
        check_settled(settled.iter().all(|(_, result)| result.state != PageState::Queued))?;
        macro_rules! column {
            ($get:expr) => {
                settled.iter().map(|(_, result)| *result).map($get).collect::<Vec<_>>()
            };
        }
        // The crawl's row is locked before the pages' rows, because this transaction then admits
        // links. Otherwise it could deadlock with a cancellation, which locks the crawl's row and
        // then all page rows.
        sqlx::query(
            "with locked_crawls as materialized (
                 select id from crawls where id in (select crawl_id from pages where id = any($1))
                 order by id for no key update),
             locked as materialized (
                 select id from pages
                 where id = any($1) and state = 'queued' and crawl_id in (select id from locked_crawls)
                 order by id for no key update)
             update pages p set state = n.state, reason = n.reason, detail = n.detail, status = n.status,
                    final_url = n.final_url, title = n.title, etag = n.etag, last_modified = n.last_modified,
                    finished_at = now()
             from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::int[], $6::text[], $7::text[], $8::text[], $9::text[])
                  as n (id, state, reason, detail, status, final_url, title, etag, last_modified)
             where p.id = n.id and p.id in (select id from locked)",
        )
        .bind(settled.iter().map(|(id, _)| *id).collect::<Vec<Uuid>>())
        .bind(column!(|result| result.state.as_str()))
        .bind(column!(|result| result.reason.as_ref().map(Reason::code)))
        .bind(column!(|result| to_storable(result.detail.as_deref())))
        .bind(column!(|result| result.status))
        .bind(column!(|result| result.final_url.as_deref().map(without_nul)))
        .bind(column!(|result| to_storable(result.title.as_deref())))
        .bind(column!(|result| to_storable(result.etag.as_deref())))
        .bind(column!(|result| to_storable(result.last_modified.as_deref())))
        .execute(conn)
        .await?;
        Ok(())
    }

    /// Settles an image URL's row; see [`Self::settle_image_urls`].
    pub async fn settle_image_url(
        self,
        conn: &mut PgConnection,
        image_url: Uuid,
        result: ImageUrlResult<'_>,
    ) -> Result<(), StoreError> {
        self.settle_image_urls(conn, &[(image_url, result)]).await.map(drop)
    }

    /// Settles the rows of image URLs that are `queued`, and links their sources to the image, if
    /// given. Returns the number of settled rows. A row that is settled, or deleted with its crawl,
    /// does not change. Insert the images before this call, so that all transactions lock in the
    /// same order.
    ///
    /// # Errors
    /// Fails with `Invalid` if a new state is `Queued`.
    pub async fn settle_image_urls(
        self,
        conn: &mut PgConnection,
        settled: &[(Uuid, ImageUrlResult<'_>)],
    ) -> Result<usize, StoreError> {
        check_settled(settled.iter().all(|(_, result)| result.state != ImageState::Queued))?;
        let final_hash = |result: &ImageUrlResult<'_>| result.image.and(result.final_url).map(url_hash);
        // The rows are locked in order, which prevents deadlocks.
        let updated: Vec<Uuid> = sqlx::query_scalar(
            "with locked as materialized (
                 select id from image_urls where id = any($1) and state = 'queued' order by id for no key update)
             update image_urls u
             set state = n.state, reason = n.reason, detail = n.detail, image_id = n.image_id, finished_at = now(),
                 final_hash = coalesce(n.final_hash, u.final_hash)
             from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::uuid[], $6::uuid[])
                  as n (id, state, reason, detail, image_id, final_hash)
             where u.id = n.id and u.id in (select id from locked) returning u.id",
        )
        .bind(settled.iter().map(|(id, _)| *id).collect::<Vec<Uuid>>())
        .bind(settled.iter().map(|(_, result)| result.state.as_str()).collect::<Vec<&str>>())
        .bind(settled.iter().map(|(_, result)| result.reason.as_ref().map(Reason::code)).collect::<Vec<_>>())
        .bind(settled.iter().map(|(_, result)| to_storable(result.detail)).collect::<Vec<_>>())
        .bind(settled.iter().map(|(_, result)| result.image).collect::<Vec<_>>())
        .bind(settled.iter().map(|(_, result)| final_hash(result)).collect::<Vec<_>>())
        .fetch_all(&mut *conn)
        .await?;
        let linked = settled.iter().filter(|(id, result)| result.image.is_some() && updated.contains(id));
        let linked: Vec<_> = linked.collect();
        if linked.is_empty() {
            return Ok(updated.len());
        }
        // A separate statement, so that it sees sightings of transactions for which the first
        // statement had to wait.
        sqlx::query(
            "update image_sources s
             set image_id = coalesce(s.image_id, n.image_id), final_hash = coalesce(n.final_hash, s.final_hash)
             from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as n (image_url_id, image_id, final_hash)
             where s.image_url_id = n.image_url_id and (s.image_id is null or n.final_hash is not null)",
        )
        .bind(linked.iter().map(|(id, _)| *id).collect::<Vec<Uuid>>())
        .bind(linked.iter().map(|(_, result)| result.image).collect::<Vec<_>>())
        .bind(linked.iter().map(|(_, result)| final_hash(result)).collect::<Vec<_>>())
        .execute(conn)
        .await?;
        Ok(updated.len())
    }

    /// Settles those of the image URLs that are `queued` as skipped, without an image. They are
    /// never fetched.
    pub async fn skip_image_urls(
        self,
        conn: &mut PgConnection,
        image_urls: &[Uuid],
        reason: Reason,
        detail: &str,
    ) -> Result<(), StoreError> {
        if image_urls.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "update image_urls set state = 'skipped', reason = $2, detail = $3, finished_at = now()
             where id = any($1) and state = 'queued'",
        )
        .bind(image_urls)
        .bind(reason)
        .bind(to_storable(Some(detail)))
        .execute(conn)
        .await?;
        Ok(())
    }

    /// Returns the number of `queued` rows in both ledgers, and of live videos.
    pub async fn queued_in_crawl(self, conn: &mut PgConnection, crawl: Uuid) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar(
            "select (select count(*) from pages where crawl_id = $1 and state = 'queued')
                  + (select count(*) from image_urls where crawl_id = $1 and state = 'queued')
                  + (select count(*) from videos where crawl_id = $1 and state in ('queued', 'running', 'paused'))",
        )
        .bind(crawl)
        .fetch_one(conn)
        .await?)
    }
}

fn check_settled(is_final: bool) -> Result<(), StoreError> {
    if is_final { Ok(()) } else { Err(StoreError::Invalid("queued is not the state of a result".into())) }
}

#[derive(sqlx::FromRow)]
pub(crate) struct LockedCrawl {
    pub(crate) collection_id: Uuid,
    /// Number of pages admitted so far.
    #[sqlx(rename = "pages_admitted")]
    pages: i64,
    /// Number of image URLs admitted so far.
    #[sqlx(rename = "images_admitted")]
    images: i64,
}

/// Locks the crawl's row until the transaction ends, without blocking foreign key checks.
pub(crate) async fn lock_crawl(conn: &mut PgConnection, crawl: Uuid) -> Result<LockedCrawl, StoreError> {
    sqlx::query_as(
        "select collection_id, pages_admitted, images_admitted from crawls where id = $1 for no key update",
    )
    .bind(crawl)
    .fetch_optional(conn)
    .await?
    .ok_or_else(|| StoreError::not_found("crawl", crawl))
}

/// An added row, with the number of addresses that were new to the crawl. If no row was added, one
/// row contains only this number.
#[derive(sqlx::FromRow)]
struct AdmittedRow {
    id: Option<Uuid>,
    url: Option<String>,
    depth: Option<i32>,
    new_count: i64,
}

const COUNT_PAGES: &str = "
update crawls set pages_admitted = pages_admitted + $2, pages_over_limit = pages_over_limit + $3 where id = $1";
const COUNT_IMAGE_URLS: &str = "
update crawls set images_admitted = images_admitted + $2, images_over_limit = images_over_limit + $3 where id = $1";

/// Counts the added rows, and the new addresses that were not added. Returns the added rows in
/// input order.
async fn count_admitted(
    conn: &mut PgConnection,
    crawl: Uuid,
    statement: &'static str,
    rows: Vec<AdmittedRow>,
) -> Result<Vec<AdmittedUrl>, StoreError> {
    let new_count = rows.first().map_or(0, |row| row.new_count);
    let to_admitted = |row: AdmittedRow| Some(AdmittedUrl { id: row.id?, url: row.url?, depth: row.depth? });
    let mut admitted: Vec<AdmittedUrl> = rows.into_iter().filter_map(to_admitted).collect();
    let (added, over_limit) = (admitted.len() as i64, new_count - admitted.len() as i64);
    if added > 0 || over_limit > 0 {
        sqlx::query(statement).bind(crawl).bind(added).bind(over_limit).execute(conn).await?;
    }
    // The ids were generated in input order, and UUIDv7 values of one process are ordered.
    admitted.sort_by_key(|row| row.id);
    Ok(admitted)
}

/// Records one source per image URL in the ledger and page. Records no sources for suppressed or
/// erased URLs, which must not be stored again. `for share` waits for a transaction that settles
/// such a row. So either this statement sees the image, or that transaction sees the source.
async fn record_sightings(
    conn: &mut PgConnection,
    crawl: Uuid,
    images: &[NewImageUrl],
) -> Result<(), StoreError> {
    let urls: Vec<String> = images.iter().map(|image| without_nul(&image.url)).collect();
    let hashes: Vec<Uuid> = url_hashes(&urls);
    let pages: Vec<Option<String>> =
        images.iter().map(|image| image.page_url.as_deref().map(without_nul)).collect();
    let page_hashes: Vec<Uuid> = pages.iter().map(|page| page_hash(page.as_deref())).collect();
    // All images of a page have the same URL here. This URL can be long, so it is hashed once.
    let mut cache: HashMap<&str, Uuid> = HashMap::new();
    let mut cached_hash = |url| *cache.entry(url).or_insert_with(|| url_hash(url));
    let requested_hashes: Vec<Option<Uuid>> =
        images.iter().map(|image| image.requested_url.as_deref().map(&mut cached_hash)).collect();
    let alts: Vec<Option<String>> = images.iter().map(|image| to_storable(image.alt.as_deref())).collect();
    sqlx::query(
        "with ledger as materialized (
             select id, url_hash, image_id, final_hash from image_urls
             where crawl_id = $1 and url_hash = any($3) and state <> 'suppressed' and url <> 'erased:' || id
             order by id for share)
         insert into image_sources (image_id, image_url_id, crawl_id, page_url, page_hash, image_url, alt, final_hash, page_asked_hash)
         select u.image_id, u.id, $1, n.page_url, n.page_hash, n.url, n.alt, u.final_hash, n.requested_hash
         from unnest($2::text[], $3::uuid[], $4::text[], $5::uuid[], $6::text[], $7::uuid[])
              with ordinality as n (url, url_hash, page_url, page_hash, alt, requested_hash, position)
         join ledger u using (url_hash)
         order by n.position
         on conflict (image_url_id, page_hash) do nothing",
    )
    .bind(crawl)
    .bind(&urls)
    .bind(&hashes)
    .bind(&pages)
    .bind(&page_hashes)
    .bind(&alts)
    .bind(&requested_hashes)
    .execute(conn)
    .await?;
    Ok(())
}
