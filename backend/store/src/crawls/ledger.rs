//! Reads both ledgers of a crawl together (queued rows and outcomes), and counts the images that
//! its directories and hosts yield.
use crate::StoreError;
use crate::crawls::pages::{NewPage, lock_crawl};
use crate::db::values::url_hashes;
use crate::store::Ledgers;
use domain::{ImageState, Reason};
use sqlx::{FromRow, PgConnection};
use std::collections::{BTreeMap, HashMap, HashSet};
use time::OffsetDateTime;
use uuid::Uuid;

/// One of the two ledgers of a crawl.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ledger {
    Pages,
    ImageUrls,
}

/// Number of rows of a crawl with the same outcome.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct LedgerCount {
    /// Whether the URLs were fetched: neither skipped nor failed.
    pub fetched: bool,
    pub reason: Option<Reason>,
    pub count: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct UnprocessedImage {
    pub id: Uuid,
    pub url: String,
    /// The first page that contained the image.
    pub page_url: Option<String>,
    /// `Skipped` or `Failed`.
    pub state: ImageState,
    pub reason: Option<Reason>,
    pub finished_at: Option<OffsetDateTime>,
}

impl Ledgers<'_> {
    /// Returns image URLs of a crawl that were skipped or failed, after the row `after`, in the
    /// order in which they were found. `reason` selects those with this reason. Suppressed images
    /// and erased addresses are omitted.
    pub async fn unprocessed_images(
        self,
        crawl: Uuid,
        reason: Option<&Reason>,
        after: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<UnprocessedImage>, StoreError> {
        Ok(sqlx::query_as(
            "select u.id, u.url, u.state, u.reason, u.finished_at,
                    (select s.page_url from image_sources s where s.image_url_id = u.id order by s.id limit 1) as page_url
             from image_urls u
             where u.crawl_id = $1 and u.state in ('skipped', 'failed') and u.url <> 'erased:' || u.id
               and ($2::text is null or u.reason = $2) and ($3::uuid is null or u.id > $3)
               and ($4::uuid is null or exists (select from crawls where id = $1 and collection_id = $4))
             order by u.id limit $5",
        )
        .bind(crawl)
        .bind(reason)
        .bind(after)
        .bind(self.0.collection_scope)
        .bind(limit.max(0))
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Returns ids of queued rows of one ledger, in id order, after `after`.
    pub async fn queued_rows(
        self,
        conn: &mut PgConnection,
        crawl: Uuid,
        ledger: Ledger,
        after: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<Uuid>, StoreError> {
        let sql = match ledger {
            Ledger::Pages => {
                "select id from pages where crawl_id = $1 and state = 'queued' and ($2::uuid is null or id > $2)
                 order by id limit $3"
            }
            Ledger::ImageUrls => {
                "select id from image_urls where crawl_id = $1 and state = 'queued' and ($2::uuid is null or id > $2)
                 order by id limit $3"
            }
        };
        Ok(sqlx::query_scalar(sql).bind(crawl).bind(after).bind(limit).fetch_all(conn).await?)
    }

    /// Returns the outcomes of the settled rows of both ledgers and of the videos that have ended,
    /// as this transaction sees them.
    pub async fn outcomes(
        self,
        conn: &mut PgConnection,
        crawl: Uuid,
    ) -> Result<Vec<LedgerCount>, StoreError> {
        Ok(sqlx::query_as(
            "select state not in ('skipped', 'failed', 'cancelled') as fetched, reason, count(*) as count
             from (select state, reason from pages where crawl_id = $1 and state <> 'queued'
                   union all
                   select state, reason from image_urls where crawl_id = $1 and state <> 'queued'
                   union all
                   select case when reason in ($2, $3) then 'completed' else state end, reason from videos
                   where crawl_id = $1 and state not in ('queued', 'running', 'paused')) as settled
             group by fetched, reason
             order by count desc, fetched, reason",
        )
        .bind(crawl)
        // The file was fetched, or the server reported that it has not changed.
        .bind(Reason::ExactDuplicate)
        .bind(Reason::NotModified)
        .fetch_all(conn)
        .await?)
    }
}

/// Number of pages read in a directory or on a host, and number of images on these pages that were
/// new to the crawl.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectoryYield {
    pub pages: i64,
    pub images: i64,
}

/// A page that was read.
#[derive(Clone, Debug)]
pub struct PageYield {
    /// The page's directory and its host.
    pub directories: Vec<String>,
    /// Number of images on the page that were new to the crawl.
    pub images: i64,
}

impl Ledgers<'_> {
    /// Adds pages to the counts of their directories.
    ///
    /// Admission locks the crawl first. Without this lock, a page without images locks its
    /// directories first, which can deadlock with a page that has images.
    pub async fn count_yields(
        self,
        conn: &mut PgConnection,
        crawl: Uuid,
        pages: &[PageYield],
    ) -> Result<(), StoreError> {
        lock_crawl(conn, crawl).await?;
        let mut yields: BTreeMap<Uuid, DirectoryYield> = BTreeMap::new();
        for page in pages {
            let directories: HashSet<Uuid> = url_hashes(&page.directories).into_iter().collect();
            for directory in directories {
                let counted = yields.entry(directory).or_default();
                counted.pages += 1;
                counted.images += page.images;
            }
        }
        sqlx::query(
            "insert into crawl_directories (crawl_id, directory_hash, pages, pages_read, images_found)
             select $1, hash, 0, pages, images from unnest($2::uuid[], $3::bigint[], $4::bigint[]) as d (hash, pages, images)
             order by hash
             on conflict (crawl_id, directory_hash) do update
             set pages_read = crawl_directories.pages_read + excluded.pages_read,
                 images_found = crawl_directories.images_found + excluded.images_found",
        )
        .bind(crawl)
        .bind(yields.keys().copied().collect::<Vec<Uuid>>())
        .bind(yields.values().map(|counted| counted.pages).collect::<Vec<i64>>())
        .bind(yields.values().map(|counted| counted.images).collect::<Vec<i64>>())
        .execute(conn)
        .await?;
        Ok(())
    }

    /// Returns the yield of each directory, in input order.
    pub async fn yields(
        self,
        conn: &mut PgConnection,
        crawl: Uuid,
        directories: &[&str],
    ) -> Result<Vec<DirectoryYield>, StoreError> {
        let hashes = url_hashes(directories);
        let rows: Vec<(Uuid, i64, i64)> = sqlx::query_as(
            "select directory_hash, pages_read, images_found from crawl_directories
             where crawl_id = $1 and directory_hash = any($2)",
        )
        .bind(crawl)
        .bind(&hashes)
        .fetch_all(conn)
        .await?;
        let yields: HashMap<Uuid, DirectoryYield> =
            rows.into_iter().map(|(hash, pages, images)| (hash, DirectoryYield { pages, images })).collect();
        Ok(hashes.iter().map(|hash| yields.get(hash).copied().unwrap_or_default()).collect())
    }

    /// Filters pages by the budget of their directories. Returns the pages that are new to the
    /// crawl and within the budget of their directory, and the number of pages over the budget.
    ///
    /// Each page is returned with the name of its directory. The returned pages are already
    /// counted, so admit them in the same transaction. Locks the crawl's row until the transaction
    /// ends, like admission, so that the budget is exact.
    pub async fn within_directory_budget(
        self,
        conn: &mut PgConnection,
        crawl: Uuid,
        budget: i64,
        pages: Vec<(NewPage, String)>,
    ) -> Result<(Vec<NewPage>, i64), StoreError> {
        lock_crawl(conn, crawl).await?;
        let hashes = url_hashes(pages.iter().map(|(page, _)| &page.url));
        let directories = url_hashes(pages.iter().map(|(_, name)| name));
        let query = "select url_hash from pages where crawl_id = $1 and url_hash = any($2)";
        let mut known_hashes: HashSet<Uuid> = sqlx::query_scalar(query)
            .bind(crawl)
            .bind(&hashes)
            .fetch_all(&mut *conn)
            .await?
            .into_iter()
            .collect();
        let query = "select directory_hash, pages from crawl_directories where crawl_id = $1 and directory_hash = any($2)";
        let counted: Vec<(Uuid, i64)> =
            sqlx::query_as(query).bind(crawl).bind(&directories).fetch_all(&mut *conn).await?;
        let mut counts: HashMap<Uuid, i64> = counted.into_iter().collect();

        let mut added: HashMap<Uuid, i64> = HashMap::new();
        let (mut accepted, mut rejected) = (Vec::new(), 0);
        for (((page, _), hash), directory) in pages.into_iter().zip(hashes).zip(directories) {
            if !known_hashes.insert(hash) {
                continue;
            }
            let count = counts.entry(directory).or_default();
            if *count >= budget {
                rejected += 1;
                continue;
            }
            *count += 1;
            *added.entry(directory).or_default() += 1;
            accepted.push(page);
        }
        let (directories, counts_added): (Vec<Uuid>, Vec<i64>) = added.into_iter().unzip();
        sqlx::query(
            "insert into crawl_directories (crawl_id, directory_hash, pages)
             select $1, d.hash, d.pages from unnest($2::uuid[], $3::bigint[]) as d (hash, pages)
             on conflict (crawl_id, directory_hash) do update set pages = crawl_directories.pages + excluded.pages",
        )
        .bind(crawl)
        .bind(&directories)
        .bind(&counts_added)
        .execute(conn)
        .await?;
        Ok((accepted, rejected))
    }
}
