//! Removes traces of suppressed pages, images and videos that a crawl found again, and of videos
//! that ended without a face: their addresses, and where crawls found them.
use crate::StoreError;
use crate::db::deletions::LedgerJobs;
use crate::db::values::{url_hash, url_hashes};
use crate::erasures::traces::{LedgerRow, Traces, erase_cached_pages, erase_titles, pages_that_are_images};
use crate::store::Erasures;
use sqlx::{FromRow, PgConnection};
use std::collections::HashSet;
use uuid::Uuid;

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
        erase_videos(conn, collection, &[id]).await
    }

    /// Removes the traces of an ended video, and of its duplicates, if nothing of the file remains:
    /// all its tracks were erased or suppressed. Does nothing otherwise. If `id` is a duplicate,
    /// the file is that of its original.
    ///
    /// An erasure cannot remove them while the video is live, because it is still read from its
    /// address. Returns the jobs whose records contain the address.
    pub async fn erase_video_if_empty(
        self,
        conn: &mut PgConnection,
        id: Uuid,
    ) -> Result<LedgerJobs, StoreError> {
        let videos_to_erase: Vec<(Uuid, Uuid)> = sqlx::query_as(
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
        let Some((_, collection)) = videos_to_erase.first() else { return Ok(LedgerJobs::default()) };
        let videos: Vec<Uuid> = videos_to_erase.iter().map(|(id, _)| *id).collect();
        erase_videos(conn, *collection, &videos).await
    }

    pub(crate) async fn erase_videos_if_empty(
        self,
        conn: &mut PgConnection,
        videos: &[Uuid],
    ) -> Result<LedgerJobs, StoreError> {
        let mut jobs = LedgerJobs::default();
        for video in videos {
            jobs.extend(self.erase_video_if_empty(conn, *video).await?);
        }
        Ok(jobs)
    }

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
        let found_row: Option<(Uuid, Uuid, Uuid)> = sqlx::query_as(
            "select c.collection_id, c.id, u.url_hash from image_urls u join crawls c on c.id = u.crawl_id where u.id = $1",
        )
        .bind(row)
        .fetch_optional(&mut *conn)
        .await?;
        let Some((collection, crawl, hash)) = found_row else { return Ok(LedgerJobs::default()) };
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
        let row: Option<PageWithCollection> = sqlx::query_as(
            "select p.id, p.crawl_id, p.url, p.url_hash, c.collection_id
             from pages p join crawls c on c.id = p.crawl_id
             join image_urls u on u.crawl_id = c.id and u.url_hash = $2
             where p.id = $1 and (u.state = 'suppressed' or u.url = 'erased:' || u.id)",
        )
        .bind(page)
        .bind(url_hash(image))
        .fetch_optional(&mut *conn)
        .await?;
        let Some(PageWithCollection { page, collection_id }) = row else { return Ok(LedgerJobs::default()) };
        erase_page(conn, collection_id, page).await
    }

    /// Works like [`Self::erase_page_of_suppressed_image`] for a page that turned out to be the
    /// video at `video`. Does nothing unless its address is suppressed or this crawl erased it.
    pub async fn erase_page_of_suppressed_video(
        self,
        conn: &mut PgConnection,
        page: Uuid,
        video: &str,
    ) -> Result<LedgerJobs, StoreError> {
        let row: Option<PageWithCollection> = sqlx::query_as(
            "select p.id, p.crawl_id, p.url, p.url_hash, c.collection_id
             from pages p join crawls c on c.id = p.crawl_id
             where p.id = $1 and (
                 exists (select 1 from suppressions s where s.collection_id = c.collection_id and s.url_hash = $2)
                 or exists (select 1 from videos v where v.crawl_id = c.id and v.url_hash = $2 and v.source_url is null))",
        )
        .bind(page)
        .bind(url_hash(video))
        .fetch_optional(&mut *conn)
        .await?;
        let Some(PageWithCollection { page, collection_id }) = row else { return Ok(LedgerJobs::default()) };
        erase_page(conn, collection_id, page).await
    }

    /// Clears those of the pages that mention suppressed content. All pages belong to one crawl and
    /// were just stored. Deletes such a page's cached content, and its title if it contains a
    /// suppressed image or video.
    ///
    /// Call it after the pages' images and videos were inserted into the ledger: that statement
    /// waits for transactions that settle one of them.
    pub async fn clear_pages_with_suppressed(
        self,
        conn: &mut PgConnection,
        pages: &[PageMentions<'_>],
    ) -> Result<(), StoreError> {
        if let [first, _, ..] = pages {
            // Hardly any page mentions suppressed content, so one query for all of them suffices.
            let mentions: HashSet<Uuid> = pages.iter().flat_map(|page| url_hashes(page.mentions)).collect();
            let videos: HashSet<Uuid> = pages.iter().flat_map(|page| url_hashes(page.videos)).collect();
            let (mentions, videos) = (mentions.into_iter().collect(), videos.into_iter().collect());
            let found = find_suppressed(conn, first.page, mentions, videos).await?;
            if found.is_some_and(|found| !found.is_contained && !found.is_mentioned) {
                return Ok(());
            }
        }
        for page in pages {
            let (mentions, videos) = (url_hashes(page.mentions), url_hashes(page.videos));
            let found = find_suppressed(conn, page.page, mentions, videos).await?;
            let Some(found) = found.filter(|found| found.is_contained || found.is_mentioned) else {
                continue;
            };
            sqlx::query("delete from page_visits where collection_id = $1 and url_hash = $2")
                .bind(found.collection_id)
                .bind(found.url_hash)
                .execute(&mut *conn)
                .await?;
            if found.is_contained {
                let statement = "update pages set title = null where id = $1";
                sqlx::query(statement).bind(page.page).execute(&mut *conn).await?;
            }
        }
        Ok(())
    }
}

/// The addresses that a page mentions.
#[derive(Clone, Copy, Debug)]
pub struct PageMentions<'a> {
    pub page: Uuid,
    /// The addresses of everything that the page links to or contains.
    pub mentions: &'a [String],
    /// The addresses of its videos.
    pub videos: &'a [String],
}

#[derive(FromRow)]
struct FoundSuppressed {
    collection_id: Uuid,
    /// The hash of the page's URL.
    url_hash: Uuid,
    /// Whether the page contains a suppressed image or video.
    is_contained: bool,
    /// Whether the page mentions another suppressed address.
    is_mentioned: bool,
}

/// Looks for suppressed content of the crawl of a page among the hashes of addresses. Returns
/// `None` if the page was deleted.
async fn find_suppressed(
    conn: &mut PgConnection,
    page: Uuid,
    mentions: Vec<Uuid>,
    videos: Vec<Uuid>,
) -> Result<Option<FoundSuppressed>, StoreError> {
    Ok(sqlx::query_as(
        "select c.collection_id, p.url_hash,
             exists (select 1 from image_urls u where u.crawl_id = c.id and u.url_hash = any($2)
                     and (u.state = 'suppressed' or u.url = 'erased:' || u.id))
             or exists (select 1 from suppressions s where s.collection_id = c.collection_id and s.url_hash = any($3))
             or exists (select 1 from videos v where v.crawl_id = c.id and v.url_hash = any($3) and v.source_url is null)
                 as is_contained,
             exists (select 1 from suppressions s where s.collection_id = c.collection_id and s.url_hash = any($2))
             or exists (select 1 from pages q where q.crawl_id = c.id and q.url_hash = any($2) and q.url = 'erased:' || q.id)
                 as is_mentioned
         from pages p join crawls c on c.id = p.crawl_id where p.id = $1",
    )
    .bind(page)
    .bind(mentions)
    .bind(videos)
    .fetch_optional(conn)
    .await?)
}

/// A row of a page ledger, with the collection of its crawl.
#[derive(FromRow)]
struct PageWithCollection {
    #[sqlx(flatten)]
    page: LedgerRow,
    collection_id: Uuid,
}

async fn erase_videos(
    conn: &mut PgConnection,
    collection: Uuid,
    videos: &[Uuid],
) -> Result<LedgerJobs, StoreError> {
    let mut traces = Traces::new(collection);
    traces.erase_video_traces(conn, videos).await?;
    traces.finish(conn).await?;
    Ok(traces.jobs)
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
