//! The budget of pages per directory, against parts of a site that never end.
use crate::pages::{NewPage, lock_crawl};
use crate::text::{url_hash, without_nul};
use crate::{Store, StoreError};
use sqlx::PgConnection;
use std::collections::{HashMap, HashSet};
use uuid::Uuid;

impl Store {
    /// Of `pages`, each with its directory's name, those that the crawl has not seen and whose directory has room for them; and how many had
    /// no room. Counts what it lets through: admit those in the same transaction.
    ///
    /// Locks the crawl's row until the transaction ends, as admitting does, so that the budget is exact.
    pub async fn within_directories(
        &self,
        conn: &mut PgConnection,
        crawl: Uuid,
        budget: i64,
        pages: Vec<(NewPage, String)>,
    ) -> Result<(Vec<NewPage>, u64), StoreError> {
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
