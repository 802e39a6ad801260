//! What must not come back: kept out by hashes and sketches; neither pictures nor addresses nor embeddings are in here.
mod insert;

use crate::text::{url_hash, without_nul};
use crate::{Store, StoreError, near};
use sqlx::{AssertSqlSafe, FromRow, PgConnection};
use uuid::Uuid;

/// Bits of a sketch.
pub const SKETCH_BITS: usize = 256;

/// First half of the advisory locks' names; the other half is drawn from the collection.
const LOCKS: i32 = 0x7375_7070;

/// A one-way sketch of a face, named by the secret that it was keyed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sketch {
    /// [`SKETCH_BITS`] characters, `0` and `1`.
    pub bits: String,
    /// Name of the secret.
    pub key: String,
    /// Of which embedding model.
    pub model_id: i32,
}

/// What is to be kept out.
#[derive(Clone, Debug, PartialEq)]
pub enum Suppression {
    /// A picture, whole or one face of it.
    Picture {
        /// Of the file.
        sha256: Vec<u8>,
        /// DCT hash.
        phash: i64,
        /// Gradient hash.
        dhash: i64,
        /// Mean hash.
        ahash: i64,
        /// The face: x, y, width, height as fractions of the picture. `None` is all of it.
        region: Option<[f32; 4]>,
    },
    /// What is found at an address, be it the image's or the page's.
    Url(String),
    /// A person.
    Person(Sketch),
}

/// A suppressed picture that one on its way in may be.
#[derive(Clone, Debug, PartialEq, FromRow)]
pub struct SuppressedPicture {
    /// The same bytes.
    pub same_file: bool,
    /// DCT hash.
    pub phash: i64,
    /// Gradient hash.
    pub dhash: i64,
    /// Mean hash.
    pub ahash: i64,
    /// Which face of it; `None` is all of it.
    pub region: Option<Vec<f32>>,
}

impl Store {
    /// Makes erasures and pictures on their way into a collection wait for each other: a picture asks what is suppressed and stores itself under
    /// the shared lock, an erasure finds what is stored and suppresses it under the exclusive one. Held to the end of the transaction.
    pub async fn lock_suppressions(
        &self,
        conn: &mut PgConnection,
        collection: Uuid,
        exclusive: bool,
    ) -> Result<(), StoreError> {
        let lock = if exclusive {
            "select pg_advisory_xact_lock($1, hashtext($2::text))"
        } else {
            "select pg_advisory_xact_lock_shared($1, hashtext($2::text))"
        };
        sqlx::query(lock).bind(LOCKS).bind(collection).execute(conn).await?;
        Ok(())
    }

    /// Whether anything is suppressed in the collection: most of the time this is the only question.
    pub async fn suppresses(&self, conn: &mut PgConnection, collection: Uuid) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar("select exists(select 1 from suppressions where collection_id = $1)")
            .bind(collection)
            .fetch_one(conn)
            .await?)
    }

    /// Returns whether one of these addresses is suppressed: that of a ledger row, that of a page
    /// which shows the image, or `answered`, the address at the end of the redirects.
    pub async fn suppresses_url(
        &self,
        conn: &mut PgConnection,
        collection: Uuid,
        image_url: Uuid,
        answered: Option<&str>,
    ) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar(
            "select exists(
                 select 1 from suppressions s where s.collection_id = $1 and s.url_hash in (
                     select url_hash from image_urls where id = $2
                     union all select page_hash from image_sources where image_url_id = $2
                     union all select page_asked_hash from image_sources where image_url_id = $2
                     union all select $3))",
        )
        .bind(collection)
        .bind(image_url)
        .bind(answered.map(|url| url_hash(Some(&without_nul(url)))))
        .fetch_one(conn)
        .await?)
    }

    /// Whether an address is suppressed that has no ledger row.
    pub async fn suppresses_address(
        &self,
        conn: &mut PgConnection,
        collection: Uuid,
        url: &str,
    ) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar(
            "select exists(select 1 from suppressions where collection_id = $1 and url_hash = $2)",
        )
        .bind(collection)
        .bind(url_hash(Some(&without_nul(url))))
        .fetch_one(conn)
        .await?)
    }

    /// Suppressed pictures of the collection with the same bytes, or with hashes (phash and dhash) that may be near (as [`Store::near_candidates`] finds images);
    /// the caller decides with `vision::PerceptualHashes::is_near`.
    pub async fn suppressed_pictures(
        &self,
        conn: &mut PgConnection,
        collection: Uuid,
        sha256: &[u8; 32],
        hashes: Option<(i64, i64)>,
    ) -> Result<Vec<SuppressedPicture>, StoreError> {
        let Some((phash, dhash)) = hashes else {
            return Ok(sqlx::query_as(
                "select true as same_file, phash, dhash, ahash, region
                 from suppressions where phash is not null and collection_id = $1 and sha256 = $2",
            )
            .bind(collection)
            .bind(sha256.as_slice())
            .fetch_all(conn)
            .await?);
        };
        let sql = format!(
            "select sha256 is not distinct from $15 as same_file, phash, dhash, ahash, region
             from suppressions where phash is not null and id in (
                 select id from suppressions where collection_id = $1 and sha256 = $15 union {})",
            near::candidates("suppressions")
        );
        let query = sqlx::query_as(AssertSqlSafe(sql)).bind(collection);
        Ok(near::bind(query, phash, dhash).bind(sha256.as_slice()).fetch_all(conn).await?)
    }

    /// For each of the sketches (of one secret and model) whether a suppressed one differs from it in at most `most` bits.
    pub async fn suppressed_sketches(
        &self,
        conn: &mut PgConnection,
        collection: Uuid,
        sketches: &[Sketch],
        most: u32,
    ) -> Result<Vec<bool>, StoreError> {
        let Some(first) = sketches.first() else { return Ok(Vec::new()) };
        let bits: Vec<&str> = sketches.iter().map(|sketch| sketch.bits.as_str()).collect();
        Ok(sqlx::query_scalar(
            "select exists(
                 select 1 from suppressions s where s.collection_id = $1 and s.sketch is not null
                    and s.sketch_key = $2 and s.model_id = $3 and bit_count(s.sketch # probe.bits::bit(256)) <= $5)
             from unnest($4::text[]) with ordinality as probe (bits, at) order by at",
        )
        .bind(collection)
        .bind(&first.key)
        .bind(first.model_id)
        .bind(bits)
        .bind(i64::from(most))
        .fetch_all(conn)
        .await?)
    }

    /// Sketches of any collection that another secret than `key` made: this process cannot compare with them.
    pub async fn foreign_sketches(&self, key: &str) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar(
            "select count(*) from suppressions where sketch is not null and sketch_key <> $1",
        )
        .bind(key)
        .fetch_one(&self.pool)
        .await?)
    }
}
