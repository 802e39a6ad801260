//! The HTTP cache of a collection: validators of URLs for conditional requests, and the content
//! that these URLs returned.
//!
//! Validators are deleted together with the content. The validators of a page are deleted with the
//! last crawl that fetched it, and those of an image with the stored image.
use crate::StoreError;
use crate::db::values::{short_hash, url_hash, url_hashes, without_nul};
use crate::store::Hosts;
use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

/// A response that can be revalidated.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct CachedResponse {
    /// The URL after redirects.
    pub final_url: String,
    /// `ETag`. At least one of `etag` and `last_modified` is set.
    pub etag: Option<String>,
    pub last_modified: Option<String>,
    pub bytes: i64,
}

#[derive(Clone, Debug, FromRow)]
pub struct CachedPage {
    #[sqlx(flatten)]
    pub response: CachedResponse,
    /// The parsed content, in the caller's own format.
    pub content: Vec<u8>,
    /// All URLs in the content, by which an erasure finds the page. Empty for a page that was read
    /// from the database, because the database contains only hashes of these URLs.
    #[sqlx(skip)]
    pub mentions: Vec<String>,
}

/// A cached image URL and the image that it returned.
#[derive(Clone, Debug, FromRow)]
pub struct CachedImage {
    pub image_id: Uuid,
    #[sqlx(flatten)]
    pub response: CachedResponse,
}

impl Hosts<'_> {
    /// Returns the cached content of a page, if it was parsed in the same way. `reader` identifies
    /// the parser.
    pub async fn cached_page(
        self,
        collection: Uuid,
        url: &str,
        reader: &str,
    ) -> Result<Option<CachedPage>, StoreError> {
        let query = "select final_url, etag, last_modified, bytes, content from page_visits
                     where collection_id = $1 and url_hash = $2 and reader = $3";
        Ok(sqlx::query_as(query)
            .bind(collection)
            .bind(url_hash(url))
            .bind(url_hash(reader))
            .fetch_optional(&self.0.pool)
            .await?)
    }

    /// Replaces the cached content of a page, or removes it if `page` is `None`.
    pub async fn cache_page(
        self,
        conn: &mut PgConnection,
        crawl: Uuid,
        url: &str,
        reader: &str,
        page: Option<&CachedPage>,
    ) -> Result<(), StoreError> {
        let hash = url_hash(url);
        let Some(CachedPage { response, content, mentions }) = page else {
            let statement = "delete from page_visits v using crawls c
                          where c.id = $1 and v.collection_id = c.collection_id and v.url_hash = $2";
            sqlx::query(statement).bind(crawl).bind(hash).execute(conn).await?;
            return Ok(());
        };
        sqlx::query(
            "insert into page_visits (collection_id, url_hash, crawl_id, final_url, etag, last_modified, bytes, reader, content, mentions)
             select collection_id, $2, id, $3, $4, $5, $6, $7, $8, $9 from crawls where id = $1
             on conflict (collection_id, url_hash) do update set crawl_id = excluded.crawl_id, final_url = excluded.final_url,
                 etag = excluded.etag, last_modified = excluded.last_modified, bytes = excluded.bytes, reader = excluded.reader,
                 content = excluded.content, mentions = excluded.mentions",
        )
        .bind(crawl)
        .bind(hash)
        .bind(without_nul(&response.final_url))
        .bind(response.etag.as_deref().map(without_nul))
        .bind(response.last_modified.as_deref().map(without_nul))
        .bind(response.bytes)
        .bind(url_hash(reader))
        .bind(content)
        .bind(short_hashes(mentions))
        .execute(conn)
        .await?;
        Ok(())
    }

    /// Assigns the cached content of an unchanged page to this crawl.
    pub async fn renew_cached_page(
        self,
        conn: &mut PgConnection,
        crawl: Uuid,
        url: &str,
    ) -> Result<(), StoreError> {
        let statement = "update page_visits v set crawl_id = c.id from crawls c
                     where c.id = $1 and v.collection_id = c.collection_id and v.url_hash = $2";
        let hash = url_hash(url);
        sqlx::query(statement).bind(crawl).bind(hash).execute(conn).await?;
        Ok(())
    }

    /// Returns the cached response of an image URL, if the image is stored and all its faces have
    /// embeddings of `model`.
    pub async fn cached_image(
        self,
        collection: Uuid,
        url: &str,
        model: i32,
    ) -> Result<Option<CachedImage>, StoreError> {
        let query = "select image_id, final_url, etag, last_modified, bytes from image_visits v
                     where collection_id = $1 and url_hash = $2
                       and not exists (select from faces f where f.image_id = v.image_id and f.model_id <> $3)";
        Ok(sqlx::query_as(query)
            .bind(collection)
            .bind(url_hash(url))
            .bind(model)
            .fetch_optional(&self.0.pool)
            .await?)
    }

    /// Replaces the cached response of an image URL, or removes it if `response` is `None`. The
    /// image must be locked, or new in this transaction.
    pub async fn cache_image(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        url: &str,
        image: Uuid,
        response: Option<&CachedResponse>,
    ) -> Result<(), StoreError> {
        let hash = url_hash(url);
        let Some(response) = response else {
            let statement = "delete from image_visits where collection_id = $1 and url_hash = $2";
            sqlx::query(statement).bind(collection).bind(hash).execute(conn).await?;
            return Ok(());
        };
        sqlx::query(
            "insert into image_visits (collection_id, url_hash, image_id, final_url, etag, last_modified, bytes)
             values ($1, $2, $3, $4, $5, $6, $7)
             on conflict (collection_id, url_hash) do update set image_id = excluded.image_id, final_url = excluded.final_url,
                 etag = excluded.etag, last_modified = excluded.last_modified, bytes = excluded.bytes",
        )
        .bind(collection)
        .bind(hash)
        .bind(image)
        .bind(without_nul(&response.final_url))
        .bind(response.etag.as_deref().map(without_nul))
        .bind(response.last_modified.as_deref().map(without_nul))
        .bind(response.bytes)
        .execute(conn)
        .await?;
        Ok(())
    }
}

/// Returns the short hashes of the URLs, sorted and distinct.
fn short_hashes(urls: &[String]) -> Vec<i32> {
    let mut hashes: Vec<i32> = url_hashes(urls).iter().map(short_hash).collect();
    hashes.sort_unstable();
    hashes.dedup();
    hashes
}
