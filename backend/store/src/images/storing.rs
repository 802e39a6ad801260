//! Stores several new images with few statements, in the caller's transaction. Images that need
//! further checks are left to the caller.
use super::{CandidateHashes, NewImage, candidates_sql, insert_rows};
use crate::StoreError;
use crate::store::Images;
use domain::CrawlState;
use sqlx::{AssertSqlSafe, PgConnection};
use std::collections::HashSet;
use std::sync::LazyLock;
use uuid::Uuid;

/// A new image and what must be checked before it is stored.
#[derive(Clone, Copy, Debug)]
pub struct ImageToStore<'a> {
    pub collection: Uuid,
    pub image: &'a NewImage,
    /// The number of faces that are stored with the image.
    pub face_count: usize,
    /// The crawl or the local scan, which must be live.
    pub crawl: Uuid,
    /// The row of the ledger, which must be queued.
    pub image_url: Uuid,
    /// Whether a stored image with near hashes must be compared with it first.
    pub compares_near: bool,
}

impl Images<'_> {
    /// Returns for each image whether it can be stored without further checks: its crawl is live,
    /// its row is queued, its collection has no suppressions, and no stored image has the same
    /// bytes or, if `compares_near` is set, may be a near-duplicate. Lock the claims, the
    /// suppressions (shared) and the keys of near-duplicates before this call. Only the check for
    /// the same bytes can then become outdated, and [`Self::insert_many`] repeats it.
    pub async fn need_no_checks(
        self,
        conn: &mut PgConnection,
        images: &[ImageToStore<'_>],
    ) -> Result<Vec<bool>, StoreError> {
        let column = |get: fn(&ImageToStore<'_>) -> i64| images.iter().map(get).collect::<Vec<i64>>();
        let live: Vec<&str> = CrawlState::LIVE.iter().map(|state| state.as_str()).collect();
        // Built at run time, once.
        Ok(sqlx::query_scalar(AssertSqlSafe(NEED_NO_CHECKS.as_str()))
            .bind(images.iter().map(|image| image.collection).collect::<Vec<Uuid>>())
            .bind(images.iter().map(|image| image.crawl).collect::<Vec<Uuid>>())
            .bind(images.iter().map(|image| image.image.sha256.as_slice()).collect::<Vec<&[u8]>>())
            .bind(column(|image| image.image.phash))
            .bind(column(|image| image.image.dhash))
            .bind(images.iter().map(|image| image.compares_near).collect::<Vec<bool>>())
            .bind(live)
            .bind(images.iter().map(|image| image.image_url).collect::<Vec<Uuid>>())
            .fetch_all(conn)
            .await?)
    }

    /// Inserts images with the number of their faces, and returns the ids of the inserted ones. An
    /// image is not inserted if the collection already contains the same bytes. Waits for other
    /// transactions that insert the same bytes.
    pub async fn insert_many(
        self,
        conn: &mut PgConnection,
        images: &[ImageToStore<'_>],
    ) -> Result<HashSet<Uuid>, StoreError> {
        let rows = images.iter().map(|image| (image.collection, image.image, image.face_count));
        insert_rows(conn, rows.collect()).await
    }
}

/// Built at run time, because several queries share the part for candidates.
static NEED_NO_CHECKS: LazyLock<String> = LazyLock::new(|| {
    const NEW: CandidateHashes =
        CandidateHashes { collection: "n.collection_id", phash: "n.phash", dhash: "n.dhash" };
    format!(
        "select exists (select from crawls c where c.id = n.crawl_id and c.state = any($7))
            and exists (select from image_urls u where u.id = n.image_url_id and u.state = 'queued')
            and not exists (select from suppressions s where s.collection_id = n.collection_id)
            and not exists (select from images i where i.collection_id = n.collection_id and i.sha256 = n.sha256)
            and not (n.compares_near and exists ({}))
         from unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bool[], $8::uuid[])
              with ordinality as n (collection_id, crawl_id, sha256, phash, dhash, compares_near, image_url_id, i)
         order by n.i",
        candidates_sql("images", &NEW)
    )
});
