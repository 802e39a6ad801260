//! What a collection remembers of addresses: validators, and what they stand for.
//!
//! Validators never outlive that: those of a page go with the crawl that was there last, those of an image with the stored image.
use crate::text::{mention, url_hash, without_nul};
use crate::{Store, StoreError};
use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

/// A fetch that can be asked about again.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Visit {
    /// The address that answered, after redirects.
    pub final_url: String,
    /// `ETag`; this or the next is there.
    pub etag: Option<String>,
    /// `Last-Modified`.
    pub last_modified: Option<String>,
    /// Length of the body.
    pub bytes: i64,
}

/// A page as it was read.
#[derive(Clone, Debug, FromRow)]
pub struct PageVisit {
    /// The fetch.
    #[sqlx(flatten)]
    pub visit: Visit,
    /// What was read, in the caller's own form.
    pub content: Vec<u8>,
    /// Every address in the content, by which an erasure finds it. Empty when it is read back: only hashes of them are kept.
    #[sqlx(skip)]
    pub mentions: Vec<String>,
}

/// An image's address and what it turned out to be.
#[derive(Clone, Debug, FromRow)]
pub struct ImageVisit {
    /// The stored image.
    pub image_id: Uuid,
    /// The fetch.
    #[sqlx(flatten)]
    pub visit: Visit,
}

impl Store {
    /// The last visit to a page, if it was read in the same way (`reader`: what it is read with, as a text).
    pub async fn page_visit(
        &self,
        collection: Uuid,
        url: &str,
        reader: &str,
    ) -> Result<Option<PageVisit>, StoreError> {
        let visit = "select final_url, etag, last_modified, bytes, content from page_visits
                     where collection_id = $1 and url_hash = $2 and reader = $3";
        Ok(sqlx::query_as(visit)
            .bind(collection)
            .bind(url_hash(Some(&without_nul(url))))
            .bind(url_hash(Some(reader)))
            .fetch_optional(&self.pool)
            .await?)
    }

    /// Remembers a visit to a page in the place of the last one, or only forgets that one.
    pub async fn remember_page(
        &self,
        conn: &mut PgConnection,
        crawl: Uuid,
        url: &str,
        reader: &str,
        visited: Option<&PageVisit>,
    ) -> Result<(), StoreError> {
        let hash = url_hash(Some(&without_nul(url)));
        let Some(PageVisit { visit, content, mentions }) = visited else {
            let forget = "delete from page_visits v using crawls c
                          where c.id = $1 and v.collection_id = c.collection_id and v.url_hash = $2";
            sqlx::query(forget).bind(crawl).bind(hash).execute(conn).await?;
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
        .bind(without_nul(&visit.final_url))
        .bind(visit.etag.as_deref().map(without_nul))
        .bind(visit.last_modified.as_deref().map(without_nul))
        .bind(visit.bytes)
        .bind(url_hash(Some(reader)))
        .bind(content)
        .bind(hashes_of(mentions))
        .execute(conn)
        .await?;
        Ok(())
    }

    /// The page has not changed: its visit is this crawl's now.
    pub async fn renew_page_visit(
        &self,
        conn: &mut PgConnection,
        crawl: Uuid,
        url: &str,
    ) -> Result<(), StoreError> {
        let renew = "update page_visits v set crawl_id = c.id from crawls c
                     where c.id = $1 and v.collection_id = c.collection_id and v.url_hash = $2";
        let hash = url_hash(Some(&without_nul(url)));
        sqlx::query(renew).bind(crawl).bind(hash).execute(conn).await?;
        Ok(())
    }

    /// The last visit to an image, if the image is stored and none of its faces is of another embedding model than `model`.
    pub async fn image_visit(
        &self,
        collection: Uuid,
        url: &str,
        model: i32,
    ) -> Result<Option<ImageVisit>, StoreError> {
        let visit = "select image_id, final_url, etag, last_modified, bytes from image_visits v
                     where collection_id = $1 and url_hash = $2
                       and not exists (select from faces f where f.image_id = v.image_id and f.model_id <> $3)";
        Ok(sqlx::query_as(visit)
            .bind(collection)
            .bind(url_hash(Some(&without_nul(url))))
            .bind(model)
            .fetch_optional(&self.pool)
            .await?)
    }

    /// Remembers what an image's address turned out to be in the place of the last visit, or only forgets that one. The image must be held, or
    /// new in this transaction.
    pub async fn remember_image(
        &self,
        conn: &mut PgConnection,
        collection: Uuid,
        url: &str,
        image: Uuid,
        visit: Option<&Visit>,
    ) -> Result<(), StoreError> {
        let hash = url_hash(Some(&without_nul(url)));
        let Some(visit) = visit else {
            let forget = "delete from image_visits where collection_id = $1 and url_hash = $2";
            sqlx::query(forget).bind(collection).bind(hash).execute(conn).await?;
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
        .bind(without_nul(&visit.final_url))
        .bind(visit.etag.as_deref().map(without_nul))
        .bind(visit.last_modified.as_deref().map(without_nul))
        .bind(visit.bytes)
        .execute(conn)
        .await?;
        Ok(())
    }
}

/// What stands for the addresses, each once.
fn hashes_of(addresses: &[String]) -> Vec<i32> {
    let mut hashes: Vec<i32> =
        addresses.iter().map(|url| mention(&url_hash(Some(&without_nul(url))))).collect();
    hashes.sort_unstable();
    hashes.dedup();
    hashes
}
