//! Removes traces of erased and suppressed videos and images: their addresses, and where crawls
//! found them.
use super::Traces;
use crate::StoreError;
use crate::db::deletions::LedgerJobs;
use crate::db::text::{url_hash, without_nul};
use crate::erasures::traces::{LedgerRow, erase_cached_pages, erase_titles, pages_that_are_images};
use crate::store::Erasures;
use crate::videos::drop_files_of_ended;
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

impl Erasures<'_> {
    /// Removes the traces of a video whose address or file is suppressed: its address, the pages
    /// that contain it, and their titles and cached content. Returns the jobs of pages that turned
    /// out to be the video; their records contain its address.
    pub async fn erase_suppressed_video(
        self,
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

impl Erasures<'_> {
    /// Removes the traces of an ended video, and of its duplicates, if nothing is left of the file:
    /// all tracks in it were erased or suppressed. Does nothing otherwise. If `id` is a duplicate,
    /// the file is that of its original.
    ///
    /// An erasure cannot remove them while the video is live, because it is still read from its
    /// address. Returns the jobs whose records contain the address.
    pub async fn erase_emptied_video(
        self,
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

impl Erasures<'_> {
    /// Removes the traces of a suppressed image that was found again. These are its URL, its
    /// sightings, and the cached content and titles of the pages that mention it.
    ///
    /// The ledger row keeps its hash, so that the crawl does not fetch the image again. Returns the
    /// jobs of pages that turned out to be the image; their records contain its URL.
    pub async fn erase_suppressed_image(
        self,
        conn: &mut PgConnection,
        row: Uuid,
    ) -> Result<LedgerJobs, StoreError> {
        let known: Option<(Uuid, Uuid, Uuid)> = sqlx::query_as(
            "select c.collection_id, c.id, u.url_hash from image_urls u join crawls c on c.id = u.crawl_id where u.id = $1",
        )
        .bind(row)
        .fetch_optional(&mut *conn)
        .await?;
        let Some((collection, crawl, hash)) = known else { return Ok(LedgerJobs::default()) };
        let mut traces = Traces::new(collection);
        let image_pages = pages_that_are_images(conn, "u.id = any($1)", &[row]).await?;
        traces.hashes.extend(image_pages.iter().map(|row| row.url_hash));
        traces.erase_page_rows(conn, image_pages).await?;
        traces.hashes.insert(hash);
        let sightings: Vec<(Uuid, Option<String>)> = sqlx::query_as(
            "delete from image_sources where image_url_id = $1 and image_id is null returning page_hash, page_url",
        )
        .bind(row)
        .fetch_all(&mut *conn)
        .await?;
        sightings.into_iter().for_each(|(page, text)| traces.pages.add(page, text));
        sqlx::query("update image_urls set url = 'erased:' || id, detail = null where id = $1")
            .bind(row)
            .execute(&mut *conn)
            .await?;
        let hashes = traces.hashes();
        erase_cached_pages(conn, collection, &hashes, &mut traces.pages).await?;
        erase_titles(conn, collection, Some(crawl), &traces.pages).await?;
        Ok(traces.jobs)
    }

    /// Removes the addresses of skipped pages and images of a crawl that are suppressed. They were
    /// erased while their jobs waited, and these jobs do not run any more. Returns the jobs whose
    /// records contain the addresses.
    pub(crate) async fn erase_skipped(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        crawl: Uuid,
    ) -> Result<LedgerJobs, StoreError> {
        let images: Vec<Uuid> = sqlx::query_scalar(
            "select distinct u.id from suppressions s join image_urls u on u.crawl_id = $2 and u.url_hash = s.url_hash
             where s.collection_id = $1 and s.url_hash is not null and u.state = 'skipped' and u.url <> 'erased:' || u.id
             order by u.id",
        )
        .bind(collection)
        .bind(crawl)
        .fetch_all(&mut *conn)
        .await?;
        let mut jobs = LedgerJobs::default();
        for image in images {
            jobs.extend(self.erase_suppressed_image(conn, image).await?);
            jobs.crawls.insert(crawl);
            jobs.rows.insert(image);
        }
        let pages: Vec<LedgerRow> = sqlx::query_as(
            "select distinct p.id, p.crawl_id, p.url, p.url_hash
             from suppressions s join pages p on p.crawl_id = $2 and p.url_hash = s.url_hash
             where s.collection_id = $1 and s.url_hash is not null and p.state = 'skipped' and p.url <> 'erased:' || p.id
             order by p.id",
        )
        .bind(collection)
        .bind(crawl)
        .fetch_all(&mut *conn)
        .await?;
        for page in pages {
            jobs.extend(erase_page(conn, collection, page).await?);
        }
        Ok(jobs)
    }

    /// Erases the traces of a page that was just stored and turned out to be the image at `image`.
    /// Does nothing unless that image is suppressed and its row was settled before the page.
    ///
    /// Erases the page's URL, and the cached content and titles of pages that link to it. Returns
    /// the jobs whose records contain the URL.
    ///
    /// Call it after the image was inserted into the ledger: that statement waits for the
    /// transaction that settles the image.
    pub async fn erase_page_of_suppressed_image(
        self,
        conn: &mut PgConnection,
        page: Uuid,
        image: &str,
    ) -> Result<LedgerJobs, StoreError> {
        let known: Option<(Uuid, String, Uuid, Uuid)> = sqlx::query_as(
            "select p.crawl_id, p.url, p.url_hash, c.collection_id
             from pages p join crawls c on c.id = p.crawl_id
             join image_urls u on u.crawl_id = c.id and u.url_hash = $2
             where p.id = $1 and (u.state = 'suppressed' or u.url = 'erased:' || u.id)",
        )
        .bind(page)
        .bind(url_hash(Some(image)))
        .fetch_optional(&mut *conn)
        .await?;
        let Some((crawl, url, hash, collection)) = known else { return Ok(LedgerJobs::default()) };
        let found = LedgerRow { id: page, crawl_id: crawl, url, url_hash: hash };
        erase_page(conn, collection, found).await
    }

    /// Works like [`Self::erase_page_of_suppressed_image`] for a page that turned out to be the
    /// video at `video`. Does nothing unless its address is suppressed or this crawl erased it.
    pub async fn erase_page_of_suppressed_video(
        self,
        conn: &mut PgConnection,
        page: Uuid,
        video: &str,
    ) -> Result<LedgerJobs, StoreError> {
        let known: Option<(Uuid, String, Uuid, Uuid)> = sqlx::query_as(
            "select p.crawl_id, p.url, p.url_hash, c.collection_id
             from pages p join crawls c on c.id = p.crawl_id
             where p.id = $1 and (
                 exists (select 1 from suppressions s where s.collection_id = c.collection_id and s.url_hash = $2)
                 or exists (select 1 from videos v where v.crawl_id = c.id and v.url_hash = $2 and v.source_url is null))",
        )
        .bind(page)
        .bind(url_hash(Some(&without_nul(video))))
        .fetch_optional(&mut *conn)
        .await?;
        let Some((crawl, url, hash, collection)) = known else { return Ok(LedgerJobs::default()) };
        let found = LedgerRow { id: page, crawl_id: crawl, url, url_hash: hash };
        erase_page(conn, collection, found).await
    }

    /// Clears a page that was just stored if it mentions suppressed content, which would otherwise
    /// be stored again. Deletes the page's cached content, and its title if it contains a
    /// suppressed image or video. `videos` are the addresses of its videos.
    ///
    /// Call it after the page's images and videos were inserted into the ledger: that statement
    /// waits for transactions that settle one of them.
    pub async fn clear_page_with_suppressed(
        self,
        conn: &mut PgConnection,
        page: Uuid,
        mentions: &[String],
        videos: &[String],
    ) -> Result<(), StoreError> {
        let hashes = |urls: &[String]| -> Vec<Uuid> {
            urls.iter().map(|url| url_hash(Some(&without_nul(url)))).collect()
        };
        let found: Option<(Uuid, Uuid, bool, bool)> = sqlx::query_as(
            "select c.collection_id, p.url_hash,
                 exists (select 1 from image_urls u where u.crawl_id = c.id and u.url_hash = any($2)
                         and (u.state = 'suppressed' or u.url = 'erased:' || u.id))
                 or exists (select 1 from suppressions s where s.collection_id = c.collection_id and s.url_hash = any($3))
                 or exists (select 1 from videos v where v.crawl_id = c.id and v.url_hash = any($3) and v.source_url is null),
                 exists (select 1 from suppressions s where s.collection_id = c.collection_id and s.url_hash = any($2))
                 or exists (select 1 from pages q where q.crawl_id = c.id and q.url_hash = any($2) and q.url = 'erased:' || q.id)
             from pages p join crawls c on c.id = p.crawl_id where p.id = $1",
        )
        .bind(page)
        .bind(hashes(mentions))
        .bind(hashes(videos))
        .fetch_optional(&mut *conn)
        .await?;
        let Some((collection, hash, shows, mentions)) = found else { return Ok(()) };
        if !shows && !mentions {
            return Ok(());
        }
        sqlx::query("delete from page_visits where collection_id = $1 and url_hash = $2")
            .bind(collection)
            .bind(hash)
            .execute(&mut *conn)
            .await?;
        if shows {
            sqlx::query("update pages set title = null where id = $1").bind(page).execute(conn).await?;
        }
        Ok(())
    }
}

/// Erases a page's URL, and the cached content and titles of pages that link to it.
async fn erase_page(
    conn: &mut PgConnection,
    collection: Uuid,
    page: LedgerRow,
) -> Result<LedgerJobs, StoreError> {
    let (crawl, hash) = (page.crawl_id, page.url_hash);
    let mut traces = Traces::new(collection);
    traces.erase_page_rows(conn, vec![page]).await?;
    erase_cached_pages(conn, collection, &[hash], &mut traces.pages).await?;
    erase_titles(conn, collection, Some(crawl), &traces.pages).await?;
    Ok(traces.jobs)
}
