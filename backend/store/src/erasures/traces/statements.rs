//! SQL statements that remove traces of erased images.
use crate::StoreError;
use crate::db::text::mention;
use sqlx::{AssertSqlSafe, FromRow, PgConnection};
use std::collections::BTreeSet;
use uuid::Uuid;

/// Clears the columns of a page's row that contain its URLs and content. The hash is kept, so that
/// the crawl does not fetch the page again.
pub(super) const ERASE_PAGES: &str =
    "update pages set url = 'erased:' || id, final_url = null, title = null, detail = null, etag = null,
        last_modified = null
     where id = any($1) and state <> 'queued'";

/// A row of one of the ledgers.
#[derive(FromRow)]
pub(super) struct LedgerRow {
    pub(super) id: Uuid,
    pub(super) crawl_id: Uuid,
    pub(super) url: String,
    pub(super) url_hash: Uuid,
}

/// Pages that contain images: the hashes of their URLs, and their URLs if known.
#[derive(Default)]
pub(super) struct Pages {
    hashes: BTreeSet<Uuid>,
    /// URLs after redirects.
    texts: BTreeSet<String>,
}

impl Pages {
    pub(super) fn add(&mut self, hash: Uuid, text: Option<String>) {
        if !hash.is_nil() {
            self.hashes.insert(hash);
        }
        self.texts.extend(text);
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
    let mentions: Vec<i32> = hashes.iter().map(mention).collect();
    let gone: Vec<(Uuid, String)> = sqlx::query_as(
        "delete from page_visits where collection_id = $1 and (mentions && $2 or url_hash = any($3))
         returning url_hash, final_url",
    )
    .bind(collection)
    .bind(mentions)
    .bind(hashes)
    .fetch_all(conn)
    .await?;
    gone.into_iter().for_each(|(page, text)| pages.add(page, Some(text)));
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
    .bind(pages.texts.iter().cloned().collect::<Vec<String>>())
    .bind(crawl)
    .execute(conn)
    .await?;
    Ok(())
}
