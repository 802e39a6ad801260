//! Removes traces of erased images and videos: their URLs and alternative texts in ledgers, titles
//! and cached content of pages that contain them, and seeds. The queue's records are not handled
//! here; [`Traces::jobs`] lists them.
use crate::StoreError;
use crate::db::deletions::{LedgerJobs, set_tombstones};
use crate::db::values::{short_hash, url_hash, url_hashes};
use crate::videos::delete_ended_files;
use sqlx::{AssertSqlSafe, FromRow, PgConnection};
use std::collections::BTreeSet;
use uuid::Uuid;

/// Collects the records that refer to images which an erasure is about to delete.
#[derive(Default)]
pub(super) struct Traces {
    collection: Uuid,
    /// URLs in plain text.
    urls: BTreeSet<String>,
    /// Hashes of URLs, including URLs of which only the hash is stored.
    pub(super) hashes: BTreeSet<Uuid>,
    pub(super) pages: Pages,
    /// Hashes of the URLs of erased pages. Pages that link to an erased page keep their titles.
    erased_pages: BTreeSet<Uuid>,
    pub(super) jobs: LedgerJobs,
}

impl Traces {
    pub(super) fn new(collection: Uuid) -> Self {
        Self { collection, ..Self::default() }
    }

    /// Records the URLs and jobs of these rows and returns the row ids. The rows get tombstones, so
    /// that their URLs are erased again after an older backup is restored.
    async fn record_rows(
        &mut self,
        conn: &mut PgConnection,
        rows: Vec<LedgerRow>,
    ) -> Result<Vec<Uuid>, StoreError> {
        let ids: Vec<Uuid> = rows.iter().map(|row| row.id).collect();
        for row in rows {
            self.urls.insert(row.url);
            self.jobs.crawls.insert(row.crawl_id);
            self.jobs.rows.insert(row.id);
        }
        set_tombstones(conn, &ids, &[]).await?;
        Ok(ids)
    }

    pub(super) fn hashes(&self) -> Vec<Uuid> {
        self.hashes.iter().copied().collect()
    }

    /// Removes the rows that lead to these images. Call it while the images exist, because their
    /// sources record where they were found. Rows of jobs that have not run are kept: such a job
    /// records its result later, or finds that it is suppressed.
    pub(super) async fn erase_image_traces(
        &mut self,
        conn: &mut PgConnection,
        images: &[Uuid],
    ) -> Result<(), StoreError> {
        self.read_images(conn, images).await?;
        self.erase_image_rows(conn, images).await
    }

    async fn erase_image_rows(&mut self, conn: &mut PgConnection, images: &[Uuid]) -> Result<(), StoreError> {
        // Rows of other crawls with the same URLs, which led to no image.
        let rows: Vec<LedgerRow> = sqlx::query_as(
            "select u.id, u.crawl_id, u.url, u.url_hash from crawls c join image_urls u on u.crawl_id = c.id
             where c.collection_id = $1 and u.url_hash = any($2) and u.state <> 'queued'
               and (u.image_id is null or u.image_id = any($3))
             union select u.id, u.crawl_id, u.url, u.url_hash from image_urls u
             where u.image_id = any($3) and u.state <> 'queued'",
        )
        .bind(self.collection)
        .bind(self.hashes())
        .bind(images)
        .fetch_all(&mut *conn)
        .await?;
        self.hashes.extend(rows.iter().map(|row| row.url_hash));
        let rows = self.record_rows(conn, rows).await?;
        sqlx::query("update image_urls set url = 'erased:' || id, detail = null where id = any($1)")
            .bind(&rows)
            .execute(&mut *conn)
            .await?;
        let sightings: Vec<(Uuid, Option<String>, Option<Uuid>)> = sqlx::query_as(
            "delete from image_sources where image_url_id = any($1) and image_id is null
             returning page_hash, page_url, page_asked_hash",
        )
        .bind(&rows)
        .fetch_all(&mut *conn)
        .await?;
        for (page, page_url, requested_hash) in sightings {
            self.pages.add(page, page_url);
            self.pages.add(requested_hash.unwrap_or_default(), None);
        }
        Ok(())
    }

    /// Reads the URLs of images, of the pages that contain them, and of pages that turned out to be
    /// one of the images.
    async fn read_images(&mut self, conn: &mut PgConnection, images: &[Uuid]) -> Result<(), StoreError> {
        let sources: Vec<(String, Uuid, Option<String>)> = sqlx::query_as(
            "select distinct image_url, page_hash, page_url from image_sources where image_id = any($1)
             union select final_url, $2, null from image_visits where image_id = any($1)
             union select url, $2, null from image_urls where image_id = any($1)",
        )
        .bind(images)
        .bind(Uuid::nil())
        .fetch_all(&mut *conn)
        .await?;
        let redirects: Vec<(Option<Uuid>, Option<Uuid>)> = sqlx::query_as(
            "select distinct final_hash, page_asked_hash from image_sources
             where image_id = any($1) and (final_hash is not null or page_asked_hash is not null)",
        )
        .bind(images)
        .fetch_all(&mut *conn)
        .await?;
        for (final_hash, requested_hash) in redirects {
            self.hashes.extend(final_hash);
            self.pages.add(requested_hash.unwrap_or_default(), None);
        }
        for (address, page, page_url) in sources {
            self.hashes.insert(url_hash(&address));
            self.urls.insert(address);
            self.pages.add(page, page_url);
        }
        let image_pages = pages_that_are_images(conn, "u.image_id = any($1)", images).await?;
        self.hashes.extend(image_pages.iter().map(|row| row.url_hash));
        self.erase_page_rows(conn, image_pages).await
    }

    pub(super) async fn erase_page_rows(
        &mut self,
        conn: &mut PgConnection,
        pages: Vec<LedgerRow>,
    ) -> Result<(), StoreError> {
        let pages = self.record_rows(conn, pages).await?;
        sqlx::query(ERASE_PAGES).bind(pages).execute(conn).await?;
        Ok(())
    }

    /// Returns the rows of the pages at these URLs, as requested or after redirects. With
    /// `only_videos`, returns only pages that turned out to be a video.
    async fn pages_at(
        &self,
        conn: &mut PgConnection,
        addresses: &[String],
        hashes: &[Uuid],
        only_videos: bool,
    ) -> Result<Vec<LedgerRow>, StoreError> {
        Ok(sqlx::query_as(
            "select p.id, p.crawl_id, p.url, p.url_hash from crawls c join pages p on p.crawl_id = c.id
             where c.collection_id = $1 and p.url_hash = any($2) and (p.reason = 'is_a_video' or not $4)
             union select p.id, p.crawl_id, p.url, p.url_hash
             from crawls c cross join unnest($3::text[]) as a (url)
             join pages p on p.crawl_id = c.id and md5(p.final_url) = md5(a.url) and p.final_url = a.url
             where c.collection_id = $1 and p.final_url is not null and p.final_url <> p.url
               and (p.reason = 'is_a_video' or not $4)",
        )
        .bind(self.collection)
        .bind(hashes)
        .bind(addresses)
        .bind(only_videos)
        .fetch_all(conn)
        .await?)
    }

    /// Removes the traces of these URLs: image rows that led to no image, like
    /// [`Self::erase_image_traces`], the rows of pages, and the sightings on these pages of images
    /// that were never stored.
    pub(super) async fn erase_addresses(
        &mut self,
        conn: &mut PgConnection,
        addresses: &[String],
    ) -> Result<(), StoreError> {
        let hashes = url_hashes(addresses);
        self.hashes.extend(&hashes);
        self.erase_image_rows(conn, &[]).await?;
        let pages = self.pages_at(conn, addresses, &hashes, false).await?;
        self.erased_pages.extend(pages.iter().map(|row| row.url_hash));
        self.erase_page_rows(conn, pages).await?;
        sqlx::query(
            "delete from image_sources s using crawls c
             where s.page_hash = any($1) and s.image_id is null and c.id = s.crawl_id and c.collection_id = $2",
        )
        .bind(&hashes)
        .bind(self.collection)
        .execute(conn)
        .await?;
        self.erased_pages.extend(hashes);
        self.urls.extend(addresses.iter().cloned());
        Ok(())
    }

    /// Records the addresses of videos and the pages that contain them, for [`Traces::finish`], and
    /// removes them from the videos' rows. The hash of an address is kept, so that the crawl does
    /// not read the video again.
    pub(super) async fn erase_video_traces(
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
        self.hashes.extend(addresses.into_iter().filter_map(|(_, final_hash)| final_hash));
        let hashes = url_hashes(&texts);
        self.hashes.extend(&hashes);
        // Pages that turned out to be one of the videos.
        let pages = self.pages_at(conn, &texts, &hashes, true).await?;
        self.hashes.extend(pages.iter().map(|row| row.url_hash));
        self.erase_page_rows(conn, pages).await?;
        self.urls.extend(texts);
        let sources: Vec<(String, Uuid, Option<Uuid>)> = sqlx::query_as(
            "delete from video_sources where video_id = any($1) returning page_url, page_hash, page_asked_hash",
        )
        .bind(videos)
        .fetch_all(&mut *conn)
        .await?;
        for (page, hash, requested_hash) in sources {
            self.pages.add(hash, Some(page));
            self.pages.add(requested_hash.unwrap_or_default(), None);
        }
        sqlx::query("update videos set source_url = null, host = null, detail = null, etag = null, last_modified = null where id = any($1)")
            .bind(videos)
            .execute(&mut *conn)
            .await?;
        delete_ended_files(conn, videos).await
    }

    /// Removes the remaining traces, after the images' rows. These are seeds of ended crawls,
    /// titles of pages with an image, and cached content of pages that mention a URL.
    pub(super) async fn finish(&mut self, conn: &mut PgConnection) -> Result<(), StoreError> {
        if self.hashes.is_empty() && self.erased_pages.is_empty() {
            return Ok(());
        }
        let (hashes, urls) = (self.hashes(), self.urls.iter().cloned().collect::<Vec<String>>());
        let erased_hashes: Vec<Uuid> = self.erased_pages.iter().copied().collect();
        erase_cached_pages(conn, self.collection, &erased_hashes, &mut Pages::default()).await?;
        erase_cached_pages(conn, self.collection, &hashes, &mut self.pages).await?;
        erase_titles(conn, self.collection, None, &self.pages).await?;
        sqlx::query(
            "update crawls set seeds = array(
                 select case when seed = any($2) then 'erased:' || id else seed end
                 from unnest(seeds) with ordinality as s (seed, at) order by at)
             where collection_id = $1 and finished_at is not null and next_run_at is null and seeds && $2",
        )
        .bind(self.collection)
        .bind(urls)
        .execute(conn)
        .await?;
        Ok(())
    }
}

/// Clears the columns of a page's row that contain its URLs and content. The hash is kept, so that
/// the crawl does not fetch the page again.
const ERASE_PAGES: &str =
    "update pages set url = 'erased:' || id, final_url = null, title = null, detail = null, etag = null,
        last_modified = null
     where id = any($1) and state <> 'queued'";

#[derive(FromRow)]
pub(super) struct LedgerRow {
    id: Uuid,
    pub(super) crawl_id: Uuid,
    url: String,
    pub(super) url_hash: Uuid,
}

/// Pages that contain images: the hashes of their URLs, and their URLs if known.
#[derive(Default)]
pub(super) struct Pages {
    hashes: BTreeSet<Uuid>,
    /// URLs after redirects.
    urls: BTreeSet<String>,
}

impl Pages {
    pub(super) fn add(&mut self, hash: Uuid, url: Option<String>) {
        if !hash.is_nil() {
            self.hashes.insert(hash);
        }
        self.urls.extend(url);
    }
}

/// Returns the rows of pages that turned out to be one of these images. `condition` selects rows
/// `u` of the image ledger by `$1`.
pub(super) async fn pages_that_are_images(
    conn: &mut PgConnection,
    condition: &'static str,
    ids: &[Uuid],
) -> Result<Vec<LedgerRow>, StoreError> {
    // Built at run time from a condition, which is a constant of the caller.
    let sql = format!(
        "select p.id, p.crawl_id, p.url, p.url_hash from image_urls u join pages p on p.crawl_id = u.crawl_id
         where {condition} and p.state = 'skipped' and p.reason = 'is_an_image' and p.final_url = u.url"
    );
    Ok(sqlx::query_as(AssertSqlSafe(sql)).bind(ids).fetch_all(conn).await?)
}

/// Deletes cached pages that mention one of the URLs or are cached under one of them, and adds
/// these pages to `pages`.
pub(super) async fn erase_cached_pages(
    conn: &mut PgConnection,
    collection: Uuid,
    hashes: &[Uuid],
    pages: &mut Pages,
) -> Result<(), StoreError> {
    let mentions: Vec<i32> = hashes.iter().map(short_hash).collect();
    let deleted: Vec<(Uuid, String)> = sqlx::query_as(
        // A transaction that stores pages locks the rows in the same order.
        "with locked as materialized (
             select url_hash from page_visits where collection_id = $1 and (mentions && $2 or url_hash = any($3))
             order by url_hash for update)
         delete from page_visits where collection_id = $1 and url_hash in (select url_hash from locked)
         returning url_hash, final_url",
    )
    .bind(collection)
    .bind(mentions)
    .bind(hashes)
    .fetch_all(conn)
    .await?;
    deleted.into_iter().for_each(|(page, text)| pages.add(page, Some(text)));
    Ok(())
}

/// Removes the titles of these pages, matched by requested URL or URL after redirects, in one crawl
/// or in all crawls of the collection.
pub(super) async fn erase_titles(
    conn: &mut PgConnection,
    collection: Uuid,
    crawl: Option<Uuid>,
    pages: &Pages,
) -> Result<(), StoreError> {
    sqlx::query(
        "update pages p set title = null from crawls c
         where c.collection_id = $1 and ($3::uuid is null or c.id = $3)
           and p.crawl_id = c.id and p.url_hash = any($2) and p.title is not null",
    )
    .bind(collection)
    .bind(pages.hashes.iter().copied().collect::<Vec<Uuid>>())
    .bind(crawl)
    .execute(&mut *conn)
    .await?;
    sqlx::query(
        "update pages p set title = null from crawls c cross join unnest($2::text[]) as a (url)
         where c.collection_id = $1 and ($3::uuid is null or c.id = $3)
           and p.crawl_id = c.id and md5(p.final_url) = md5(a.url) and p.final_url = a.url
           and p.final_url is not null and p.final_url <> p.url and p.title is not null",
    )
    .bind(collection)
    .bind(pages.urls.iter().cloned().collect::<Vec<String>>())
    .bind(crawl)
    .execute(conn)
    .await?;
    Ok(())
}
