//! Page budgets of a crawl's directories, which limit endless parts of a site, and their yield.
use crate::crawls::pages::{NewPage, lock_crawl};
use crate::db::text::{url_hash, without_nul};
use crate::{Store, StoreError};
use sqlx::PgConnection;
use std::collections::{HashMap, HashSet};
use uuid::Uuid;

/// Number of pages read in a directory or on a host, and number of images on these pages that were
/// new to the crawl.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectoryYield {
    pub pages: i64,
    pub images: i64,
}

impl Store {
    /// Adds a page with `images` new images to the counts of each directory.
    ///
    /// Admission locks the crawl first. Without this lock, a page without images locks its
    /// directories first, which can deadlock with a page that has images.
    pub async fn count_yield(
        &self,
        conn: &mut PgConnection,
        crawl: Uuid,
        directories: &[&str],
        images: i64,
    ) -> Result<(), StoreError> {
        lock_crawl(conn, crawl).await?;
        let mut hashes: Vec<Uuid> = directories.iter().map(|name| url_hash(Some(name))).collect();
        hashes.sort_unstable();
        hashes.dedup();
        sqlx::query(
            "insert into crawl_directories (crawl_id, directory_hash, pages, pages_read, images_found)
             select $1, hash, 0, 1, $3 from unnest($2::uuid[]) as d (hash) order by hash
             on conflict (crawl_id, directory_hash) do update set pages_read = crawl_directories.pages_read + 1,
                 images_found = crawl_directories.images_found + excluded.images_found",
        )
        .bind(crawl)
        .bind(&hashes)
        .bind(images)
        .execute(conn)
        .await?;
        Ok(())
    }

    /// Returns the yield of each directory, in input order.
    pub async fn yields(
        &self,
        conn: &mut PgConnection,
        crawl: Uuid,
        directories: &[&str],
    ) -> Result<Vec<DirectoryYield>, StoreError> {
        let hashes: Vec<Uuid> = directories.iter().map(|name| url_hash(Some(name))).collect();
        let rows: Vec<(Uuid, i64, i64)> = sqlx::query_as(
            "select directory_hash, pages_read, images_found from crawl_directories
             where crawl_id = $1 and directory_hash = any($2)",
        )
        .bind(crawl)
        .bind(&hashes)
        .fetch_all(conn)
        .await?;
        let known: HashMap<Uuid, DirectoryYield> =
            rows.into_iter().map(|(hash, pages, images)| (hash, DirectoryYield { pages, images })).collect();
        Ok(hashes.iter().map(|hash| known.get(hash).copied().unwrap_or_default()).collect())
    }

    /// Filters pages by the budget of their directories. Returns the pages that are new to the
    /// crawl and within the budget of their directory, and the number of pages over the budget.
    ///
    /// Each page is returned with the name of its directory. The returned pages are already
    /// counted, so admit them in the same transaction. Locks the crawl's row until the transaction
    /// ends, like admission, so that the budget is exact.
    pub async fn within_directories(
        &self,
        conn: &mut PgConnection,
        crawl: Uuid,
        budget: i64,
        pages: Vec<(NewPage, String)>,
    ) -> Result<(Vec<NewPage>, i64), StoreError> {
        lock_crawl(conn, crawl).await?;
        let hashes: Vec<Uuid> =
            pages.iter().map(|(page, _)| url_hash(Some(&without_nul(&page.url)))).collect();
        let directories: Vec<Uuid> = pages.iter().map(|(_, name)| url_hash(Some(name))).collect();
        let known = "select url_hash from pages where crawl_id = $1 and url_hash = any($2)";
        let mut seen: HashSet<Uuid> = sqlx::query_scalar(known)
            .bind(crawl)
            .bind(&hashes)
            .fetch_all(&mut *conn)
            .await?
            .into_iter()
            .collect();
        let counted = "select directory_hash, pages from crawl_directories where crawl_id = $1 and directory_hash = any($2)";
        let counted: Vec<(Uuid, i64)> =
            sqlx::query_as(counted).bind(crawl).bind(&directories).fetch_all(&mut *conn).await?;
        let mut counts: HashMap<Uuid, i64> = counted.into_iter().collect();

        let mut added: HashMap<Uuid, i64> = HashMap::new();
        let (mut let_through, mut left_out) = (Vec::new(), 0);
        for (((page, _), hash), directory) in pages.into_iter().zip(hashes).zip(directories) {
            if !seen.insert(hash) {
                continue;
            }
            let count = counts.entry(directory).or_default();
            if *count >= budget {
                left_out += 1;
                continue;
            }
            *count += 1;
            *added.entry(directory).or_default() += 1;
            let_through.push(page);
        }
        let (directories, numbers): (Vec<Uuid>, Vec<i64>) = added.into_iter().unzip();
        sqlx::query(
            "insert into crawl_directories (crawl_id, directory_hash, pages)
             select $1, d.hash, d.pages from unnest($2::uuid[], $3::bigint[]) as d (hash, pages)
             on conflict (crawl_id, directory_hash) do update set pages = crawl_directories.pages + excluded.pages",
        )
        .bind(crawl)
        .bind(&directories)
        .bind(&numbers)
        .execute(conn)
        .await?;
        Ok((let_through, left_out))
    }
}
