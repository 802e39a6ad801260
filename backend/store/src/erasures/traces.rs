//! Removes traces of erased images and videos outside their own rows: URLs and alternative texts in
//! ledgers, titles and cached content of pages that contain them, and seeds. The queue's records
//! are not handled here; [`Traces::jobs`] lists them.
mod statements;
mod suppressed;
pub(crate) mod videos;

use crate::StoreError;
use crate::db::text::url_hash;
use crate::erasures::tombstones;
use sqlx::PgConnection;
use statements::{ERASE_PAGES, LedgerRow, Pages, erase_cached_pages, erase_titles, pages_that_are_images};
use std::collections::BTreeSet;
use uuid::Uuid;

/// Jobs whose records contain an erased URL or its host, by their crawls and ledger rows, and by
/// their videos.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "clear the records of these jobs in the same transaction"]
pub struct LedgerJobs {
    pub crawls: BTreeSet<Uuid>,
    pub rows: BTreeSet<Uuid>,
    pub videos: BTreeSet<Uuid>,
}

impl LedgerJobs {
    pub(crate) fn extend(&mut self, more: Self) {
        self.crawls.extend(more.crawls);
        self.rows.extend(more.rows);
        self.videos.extend(more.videos);
    }
}

/// Collects the records that refer to images which an erasure is about to delete.
#[derive(Default)]
pub(crate) struct Traces {
    collection: Uuid,
    /// URLs in plain text.
    texts: BTreeSet<String>,
    /// Hashes of URLs, including URLs of which only the hash is stored.
    hashes: BTreeSet<Uuid>,
    pages: Pages,
    /// Hashes of the URLs of erased pages. Pages that link to an erased page keep their titles.
    erased_pages: BTreeSet<Uuid>,
    pub(crate) jobs: LedgerJobs,
}

impl Traces {
    pub(crate) fn new(collection: Uuid) -> Self {
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
            self.texts.insert(row.url);
            self.jobs.crawls.insert(row.crawl_id);
            self.jobs.rows.insert(row.id);
        }
        tombstones::set(conn, &ids, &[]).await?;
        Ok(ids)
    }

    fn hashes(&self) -> Vec<Uuid> {
        self.hashes.iter().copied().collect()
    }

    /// Removes the rows that lead to these images. Call it while the images exist, because their
    /// sources record where they were found. Rows of jobs that have not run are kept: such a job
    /// records its result later, or finds that it is suppressed.
    pub(crate) async fn erase_image_traces(
        &mut self,
        conn: &mut PgConnection,
        images: &[Uuid],
    ) -> Result<(), StoreError> {
        self.read_images(conn, images).await?;
        self.erase_image_rows(conn, images).await
    }

    /// Removes the rows of these addresses that led to no image, like
    /// [`Self::erase_image_traces`].
    pub(crate) async fn erase_addresses_of_images(
        &mut self,
        conn: &mut PgConnection,
        addresses: &[String],
    ) -> Result<(), StoreError> {
        self.hashes.extend(addresses.iter().map(|address| url_hash(Some(address))));
        self.erase_image_rows(conn, &[]).await
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
        for (page, page_url, asked) in sightings {
            self.pages.add(page, page_url);
            self.pages.add(asked.unwrap_or_default(), None);
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
        let moved: Vec<(Option<Uuid>, Option<Uuid>)> = sqlx::query_as(
            "select distinct final_hash, page_asked_hash from image_sources
             where image_id = any($1) and (final_hash is not null or page_asked_hash is not null)",
        )
        .bind(images)
        .fetch_all(&mut *conn)
        .await?;
        for (answered, asked) in moved {
            self.hashes.extend(answered);
            self.pages.add(asked.unwrap_or_default(), None);
        }
        for (address, page, page_url) in sources {
            self.hashes.insert(url_hash(Some(&address)));
            self.texts.insert(address);
            self.pages.add(page, page_url);
        }
        let image_pages = pages_that_are_images(conn, "u.image_id = any($1)", images).await?;
        self.hashes.extend(image_pages.iter().map(|row| row.url_hash));
        self.erase_page_rows(conn, image_pages).await
    }

    async fn erase_page_rows(
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

    /// Removes the traces of pages at these URLs: the rows of these pages, and the sightings on
    /// these pages of images that were never stored.
    pub(crate) async fn erase_page_traces(
        &mut self,
        conn: &mut PgConnection,
        addresses: &[String],
    ) -> Result<(), StoreError> {
        let hashes: Vec<Uuid> = addresses.iter().map(|url| url_hash(Some(url))).collect();
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
        self.texts.extend(addresses.iter().cloned());
        Ok(())
    }

    /// Removes the remaining traces, after the images' rows. These are seeds of ended crawls,
    /// titles of pages with an image, and cached content of pages that mention a URL.
    pub(crate) async fn finish(&mut self, conn: &mut PgConnection) -> Result<(), StoreError> {
        if self.hashes.is_empty() && self.erased_pages.is_empty() {
            return Ok(());
        }
        let (hashes, texts) = (self.hashes(), self.texts.iter().cloned().collect::<Vec<String>>());
        let erased: Vec<Uuid> = self.erased_pages.iter().copied().collect();
        erase_cached_pages(conn, self.collection, &erased, &mut Pages::default()).await?;
        erase_cached_pages(conn, self.collection, &hashes, &mut self.pages).await?;
        erase_titles(conn, self.collection, None, &self.pages).await?;
        sqlx::query(
            "update crawls set seeds = array(
                 select case when seed = any($2) then 'erased:' || id else seed end
                 from unnest(seeds) with ordinality as s (seed, at) order by at)
             where collection_id = $1 and finished_at is not null and next_run_at is null and seeds && $2",
        )
        .bind(self.collection)
        .bind(texts)
        .execute(conn)
        .await?;
        Ok(())
    }
}
