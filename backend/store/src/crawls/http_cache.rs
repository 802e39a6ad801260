//! The HTTP cache of a collection: validators of URLs for conditional requests, and the content
//! that these URLs returned.
//!
//! Validators are deleted together with the content. The validators of a page are deleted with the
//! last crawl that fetched it, and those of an image with the stored image.
use crate::StoreError;
use crate::crawls::pages::suppresses_url;
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

/// A fetched page and its content, if it can be revalidated.
#[derive(Clone, Copy, Debug)]
pub struct PageVisit<'a> {
    /// The requested URL.
    pub url: &'a str,
    /// Identifies the parser.
    pub reader: &'a str,
    pub page: Option<&'a CachedPage>,
}

/// A fetched image URL, the image that it returned, and the response if it can be revalidated.
#[derive(Clone, Copy, Debug)]
pub struct ImageVisit<'a> {
    pub collection: Uuid,
    /// The requested URL.
    pub url: &'a str,
    pub image: Uuid,
    pub response: Option<&'a CachedResponse>,
}

/// A cached image URL and the image that it returned.
#[derive(Clone, Debug)]
pub struct CachedImage {
    pub image_id: Uuid,
    pub response: CachedResponse,
}

/// An image that is about to be fetched.
#[derive(Clone, Copy, Debug)]
pub struct ImageRequest<'a> {
    pub collection: Uuid,
    /// The row of the ledger.
    pub image_url: Uuid,
    pub url: &'a str,
    /// The embedding model of this service. `None` if no cached response may be used.
    pub model: Option<i32>,
    /// The page that shows the image.
    pub page: Option<Uuid>,
}

#[derive(Clone, Debug)]
pub struct ImageFetch {
    /// Whether the address of the image, or of a page that contains it, is suppressed.
    pub is_suppressed: bool,
    /// The cached response, if the image is stored and all its faces have embeddings of the model.
    pub cached: Option<CachedImage>,
    /// The URL of the page after redirects, or its requested URL until it is fetched. `None` if the
    /// request names no page or its row was deleted. The URL of an erased page does not begin with
    /// `http`.
    pub page_url: Option<String>,
}

/// The row of [`Hosts::image_fetch`]. Without a cached response, the columns `image_id` to `bytes`
/// are null.
#[derive(FromRow)]
struct ImageFetchRow {
    is_suppressed: bool,
    image_id: Option<Uuid>,
    final_url: Option<String>,
    etag: Option<String>,
    last_modified: Option<String>,
    bytes: Option<i64>,
    page_url: Option<String>,
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

    /// Locks the cached content of pages. Call it before their content is changed by several
    /// statements, so that all transactions lock the rows in the same order.
    pub async fn lock_cached_pages(
        self,
        conn: &mut PgConnection,
        crawl: Uuid,
        urls: &[&str],
    ) -> Result<(), StoreError> {
        sqlx::query(
            "select 1 from page_visits v join crawls c on c.collection_id = v.collection_id
             where c.id = $1 and v.url_hash = any($2) order by v.url_hash for update of v",
        )
        .bind(crawl)
        .bind(url_hashes(urls))
        .execute(conn)
        .await?;
        Ok(())
    }

    /// Replaces the cached content of pages. A visit without content removes the cached one. A URL
    /// may appear once.
    pub async fn cache_pages(
        self,
        conn: &mut PgConnection,
        crawl: Uuid,
        visits: &[PageVisit<'_>],
    ) -> Result<(), StoreError> {
        // All transactions insert the rows in the same order, which prevents deadlocks.
        let mut visits = visits.to_vec();
        visits.sort_by_cached_key(|visit| url_hash(visit.url));
        let removed = visits.iter().filter(|visit| visit.page.is_none()).map(|visit| url_hash(visit.url));
        let removed: Vec<Uuid> = removed.collect();
        if !removed.is_empty() {
            let statement = "delete from page_visits v using crawls c
                          where c.id = $1 and v.collection_id = c.collection_id and v.url_hash = any($2)";
            sqlx::query(statement).bind(crawl).bind(removed).execute(&mut *conn).await?;
        }
        let kept: Vec<(PageVisit<'_>, &CachedPage)> =
            visits.into_iter().filter_map(|visit| Some((visit, visit.page?))).collect();
        if kept.is_empty() {
            return Ok(());
        }
        macro_rules! column {
            ($get:expr) => {
                kept.iter().map(|(_, page)| *page).map($get).collect::<Vec<_>>()
            };
        }
        sqlx::query(
            "insert into page_visits (collection_id, url_hash, crawl_id, final_url, etag, last_modified, bytes, reader, content, mentions)
             select c.collection_id, n.url_hash, c.id, n.final_url, n.etag, n.last_modified, n.bytes, n.reader, n.content, n.mentions::int[]
             from unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::uuid[], $8::bytea[], $9::text[])
                  as n (url_hash, final_url, etag, last_modified, bytes, reader, content, mentions)
             join crawls c on c.id = $1
             on conflict (collection_id, url_hash) do update set crawl_id = excluded.crawl_id, final_url = excluded.final_url,
                 etag = excluded.etag, last_modified = excluded.last_modified, bytes = excluded.bytes, reader = excluded.reader,
                 content = excluded.content, mentions = excluded.mentions",
        )
        .bind(crawl)
        .bind(kept.iter().map(|(visit, _)| url_hash(visit.url)).collect::<Vec<Uuid>>())
        .bind(column!(|page| without_nul(&page.response.final_url)))
        .bind(column!(|page| page.response.etag.as_deref().map(without_nul)))
        .bind(column!(|page| page.response.last_modified.as_deref().map(without_nul)))
        .bind(column!(|page| page.response.bytes))
        .bind(kept.iter().map(|(visit, _)| url_hash(visit.reader)).collect::<Vec<Uuid>>())
        .bind(column!(|page| page.content.as_slice()))
        .bind(column!(|page| array_literal(&short_hashes(&page.mentions))))
        .execute(conn)
        .await?;
        Ok(())
    }

    /// Assigns the cached content of unchanged pages to this crawl.
    pub async fn renew_cached_pages(
        self,
        conn: &mut PgConnection,
        crawl: Uuid,
        urls: &[&str],
    ) -> Result<(), StoreError> {
        if urls.is_empty() {
            return Ok(());
        }
        let statement = "update page_visits v set crawl_id = c.id from crawls c
                     where c.id = $1 and v.collection_id = c.collection_id and v.url_hash = any($2)";
        sqlx::query(statement).bind(crawl).bind(url_hashes(urls)).execute(conn).await?;
        Ok(())
    }

    /// Returns whether the image's address is suppressed, its cached response, and the URL of its
    /// page.
    pub async fn image_fetch(self, image: &ImageRequest<'_>) -> Result<ImageFetch, StoreError> {
        let row: ImageFetchRow = sqlx::query_as(concat!(
            "select ",
            suppresses_url!(),
            " as is_suppressed, v.image_id, v.final_url, v.etag, v.last_modified, v.bytes,
               (select coalesce(final_url, url) from pages where id = $6) as page_url
             from (values (1)) one
             left join image_visits v on v.collection_id = $1 and v.url_hash = $4 and $5::int is not null
                  and not exists (select from faces f where f.image_id = v.image_id and f.model_id <> $5::int)",
        ))
        .bind(image.collection)
        .bind(image.image_url)
        .bind(None::<Uuid>)
        .bind(url_hash(image.url))
        .bind(image.model)
        .bind(image.page)
        .fetch_one(&self.0.pool)
        .await?;
        let ImageFetchRow { is_suppressed, image_id, final_url, etag, last_modified, bytes, page_url } = row;
        let response = final_url.zip(bytes);
        let response =
            response.map(|(final_url, bytes)| CachedResponse { final_url, etag, last_modified, bytes });
        let cached = image_id.zip(response).map(|(image_id, response)| CachedImage { image_id, response });
        Ok(ImageFetch { is_suppressed, cached, page_url })
    }

    /// Replaces the cached responses of image URLs. A visit without a response removes the cached
    /// one. The images must be locked, or new in this transaction. A URL may appear once per
    /// collection.
    pub async fn cache_images(
        self,
        conn: &mut PgConnection,
        visits: &[ImageVisit<'_>],
    ) -> Result<(), StoreError> {
        // All transactions change the rows in the same order, which prevents deadlocks.
        let mut visits = visits.to_vec();
        visits.sort_by_cached_key(|visit| (visit.collection, url_hash(visit.url)));
        let (kept, removed): (Vec<ImageVisit<'_>>, Vec<ImageVisit<'_>>) =
            visits.into_iter().partition(|visit| visit.response.is_some());
        if !removed.is_empty() {
            sqlx::query(
                "delete from image_visits v using unnest($1::uuid[], $2::uuid[]) as n (collection_id, url_hash)
                 where v.collection_id = n.collection_id and v.url_hash = n.url_hash",
            )
            .bind(removed.iter().map(|visit| visit.collection).collect::<Vec<Uuid>>())
            .bind(removed.iter().map(|visit| url_hash(visit.url)).collect::<Vec<Uuid>>())
            .execute(&mut *conn)
            .await?;
        }
        if kept.is_empty() {
            return Ok(());
        }
        macro_rules! column {
            ($get:expr) => {
                kept.iter().filter_map(|visit| visit.response).map($get).collect::<Vec<_>>()
            };
        }
        sqlx::query(
            "insert into image_visits (collection_id, url_hash, image_id, final_url, etag, last_modified, bytes)
             select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::bigint[])
             on conflict (collection_id, url_hash) do update set image_id = excluded.image_id, final_url = excluded.final_url,
                 etag = excluded.etag, last_modified = excluded.last_modified, bytes = excluded.bytes",
        )
        .bind(kept.iter().map(|visit| visit.collection).collect::<Vec<Uuid>>())
        .bind(kept.iter().map(|visit| url_hash(visit.url)).collect::<Vec<Uuid>>())
        .bind(kept.iter().map(|visit| visit.image).collect::<Vec<Uuid>>())
        .bind(column!(|response| without_nul(&response.final_url)))
        .bind(column!(|response| response.etag.as_deref().map(without_nul)))
        .bind(column!(|response| response.last_modified.as_deref().map(without_nul)))
        .bind(column!(|response| response.bytes))
        .execute(conn)
        .await?;
        Ok(())
    }
}

/// Returns the text of a Postgres array. `unnest` cannot return arrays of different lengths.
fn array_literal(numbers: &[i32]) -> String {
    let numbers: Vec<String> = numbers.iter().map(i32::to_string).collect();
    format!("{{{}}}", numbers.join(","))
}

/// Returns the short hashes of the URLs, sorted and distinct.
fn short_hashes(urls: &[String]) -> Vec<i32> {
    let mut hashes: Vec<i32> = url_hashes(urls).iter().map(short_hash).collect();
    hashes.sort_unstable();
    hashes.dedup();
    hashes
}
