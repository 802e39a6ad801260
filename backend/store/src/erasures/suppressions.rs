//! Suppressions, which prevent erased content from being stored again. They contain hashes and
//! sketches, but no images, addresses or embeddings.
use crate::StoreError;
use crate::crawls::pages::suppresses_url;
use crate::db::values::{to_box, url_hash};
use crate::images::{self, CandidateHashes};
use crate::store::Suppressions;
use sqlx::{AssertSqlSafe, FromRow, PgConnection, PgExecutor};
use std::collections::HashSet;
use std::hash::Hash;
use uuid::Uuid;

pub const SKETCH_BITS: usize = 256;

/// First half of the advisory lock keys. The second half is a hash of the collection's id.
const LOCK_CLASS: i32 = 0x7375_7070;

/// A one-way sketch of a face, with the name of the secret used to compute it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sketch {
    /// [`SKETCH_BITS`] characters, `0` and `1`.
    pub bits: String,
    /// Name of the secret.
    pub key: String,
    pub model_id: i32,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Suppression {
    /// A whole image, or one face in it.
    Image {
        /// SHA-256 of the file.
        sha256: Vec<u8>,
        phash: i64,
        dhash: i64,
        ahash: i64,
        /// The face: x, y, width, height as fractions of the image. `None` for the whole image.
        region: Option<[f32; 4]>,
    },
    /// A face of an erased image or in an image that is kept. Matches the file itself, and images
    /// that show the face at the same place.
    ImageFace {
        /// SHA-256 of the file.
        sha256: Vec<u8>,
        phash: i64,
        dhash: i64,
        ahash: i64,
        /// The face: x, y, width, height as fractions of the image.
        region: [f32; 4],
        /// The sketch of the face. Its bits are masked, so that they have no similarity to other
        /// sketches.
        sketch: Sketch,
        /// Whether the whole image was erased.
        whole_image: bool,
    },
    VideoFace {
        /// SHA-256 of the video's file.
        sha256: Vec<u8>,
        at_us: i64,
        /// The face: x, y, width, height as fractions of the frame.
        region: [f32; 4],
    },
    VideoFile {
        sha256: Vec<u8>,
    },
    /// The video at a URL, and images whose own URL or page URL is this URL.
    Url(String),
    /// Works like [`Self::Url`], for a URL of which only the hash is stored.
    UrlHash(Uuid),
    Person(Sketch),
}

/// The suppression that may match an incoming image.
#[derive(Clone, Debug, PartialEq, FromRow)]
pub struct SuppressedImage {
    pub is_same_file: bool,
    pub phash: i64,
    pub dhash: i64,
    pub ahash: i64,
    /// The face that is suppressed; `None` for the whole image.
    pub region: Option<Vec<f32>>,
    /// Whether the whole image was erased, and the region is one of its faces.
    pub whole_image: bool,
    pub sha256: Option<Vec<u8>>,
    /// Masked sketch of the face, with the name of its secret and the embedding model.
    pub sketch: Option<String>,
    pub sketch_key: Option<String>,
    pub model_id: Option<i32>,
}

impl SuppressedImage {
    /// Returns `true` if the whole image was erased, and not only a face of it.
    pub fn is_whole(&self) -> bool {
        self.whole_image || self.region.is_none()
    }
}

/// The columns of a [`SuppressedImage`], except the first.
macro_rules! image_columns {
    () => {
        "phash, dhash, ahash, region, whole_image, sha256, sketch::text as sketch, sketch_key, model_id"
    };
}

impl Suppressions<'_> {
    /// Locks the suppressions of a collection until the transaction ends, so that erasures and
    /// incoming images wait for each other.
    ///
    /// An image checks the suppressions and is stored under the shared lock. An erasure finds
    /// stored images and suppresses them under the exclusive lock.
    pub async fn lock(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        exclusive: bool,
    ) -> Result<(), StoreError> {
        if !exclusive {
            return self.lock_shared(conn, &[collection]).await;
        }
        let lock = "select pg_advisory_xact_lock($1, hashtext($2::text))";
        sqlx::query(lock).bind(LOCK_CLASS).bind(collection).execute(conn).await?;
        Ok(())
    }

    /// Acquires the shared locks of [`Self::lock`] for several collections, in order.
    pub async fn lock_shared(self, conn: &mut PgConnection, collections: &[Uuid]) -> Result<(), StoreError> {
        sqlx::query(
            "select pg_advisory_xact_lock_shared($1, key) from (
                 select distinct hashtext(id::text) as key from unnest($2::uuid[]) as c (id) order by key) keys",
        )
        .bind(LOCK_CLASS)
        .bind(collections)
        .execute(conn)
        .await?;
        Ok(())
    }

    /// Acquires the shared lock of [`Self::lock`] for the collection of a crawl and returns the
    /// collection. Call it before the crawl's row is locked.
    ///
    /// # Errors
    /// Fails with `NotFound` if the crawl does not exist.
    pub async fn lock_for_crawl(self, conn: &mut PgConnection, crawl: Uuid) -> Result<Uuid, StoreError> {
        let collection: Option<Uuid> = sqlx::query_scalar("select collection_id from crawls where id = $1")
            .bind(crawl)
            .fetch_optional(&mut *conn)
            .await?;
        let collection = collection.ok_or_else(|| StoreError::not_found("crawl", crawl))?;
        self.lock(conn, collection, false).await?;
        Ok(collection)
    }

    /// Returns `true` if the collection has any suppression. Usually it has none, and further
    /// checks are unnecessary.
    pub async fn suppresses(
        self,
        executor: impl PgExecutor<'_>,
        collection: Uuid,
    ) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar("select exists(select 1 from suppressions where collection_id = $1)")
            .bind(collection)
            .fetch_one(executor)
            .await?)
    }

    /// Returns `true` if a URL of an image is suppressed. The checked URLs are that of the ledger
    /// row, those of pages that contain the image, and `final_url`, the URL after redirects.
    pub async fn suppresses_url(
        self,
        executor: impl PgExecutor<'_>,
        collection: Uuid,
        image_url: Uuid,
        final_url: Option<&str>,
    ) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar(concat!("select ", suppresses_url!()))
            .bind(collection)
            .bind(image_url)
            .bind(final_url.map(url_hash))
            .fetch_one(executor)
            .await?)
    }

    /// Returns `true` if a page that contains a video is suppressed.
    pub async fn suppresses_pages_of_video(
        self,
        executor: impl PgExecutor<'_>,
        collection: Uuid,
        video: Uuid,
    ) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar(
            "select exists(
                 select 1 from suppressions s where s.collection_id = $1 and s.url_hash in (
                     select page_hash from video_sources where video_id = $2
                     union all select page_asked_hash from video_sources where video_id = $2))",
        )
        .bind(collection)
        .bind(video)
        .fetch_one(executor)
        .await?)
    }

    /// Returns `true` if a URL without a ledger row is suppressed.
    pub async fn suppresses_address(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        url: &str,
    ) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar(
            "select exists(select 1 from suppressions where collection_id = $1 and url_hash = $2)",
        )
        .bind(collection)
        .bind(url_hash(url))
        .fetch_one(conn)
        .await?)
    }

    /// Returns the suppressions that may match an image: those with the same bytes, and those whose
    /// phash and dhash may be near (see `store.images().near_candidates`). The caller decides with
    /// `vision::PerceptualHashes::is_near`.
    pub async fn suppressed_images(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        sha256: &[u8; 32],
        hashes: Option<(i64, i64)>,
    ) -> Result<Vec<SuppressedImage>, StoreError> {
        let Some((phash, dhash)) = hashes else {
            return Ok(sqlx::query_as(concat!(
                "select true as is_same_file, ",
                image_columns!(),
                " from suppressions where phash is not null and collection_id = $1 and sha256 = $2",
            ))
            .bind(collection)
            .bind(sha256.as_slice())
            .fetch_all(conn)
            .await?);
        };
        let sql = format!(
            "select sha256 is not distinct from $4 as is_same_file, {}
             from suppressions where phash is not null and id in (
                 select id from suppressions where collection_id = $1 and sha256 = $4 union {})",
            image_columns!(),
            images::candidates_sql("suppressions", &CandidateHashes::PARAMETERS)
        );
        // Built at run time, because several queries share the part for candidates.
        Ok(sqlx::query_as(AssertSqlSafe(sql))
            .bind(collection)
            .bind(phash)
            .bind(dhash)
            .bind(sha256.as_slice())
            .fetch_all(conn)
            .await?)
    }

    /// Returns the suppressed faces of a video: times in microseconds, and x, y, width, height as
    /// fractions of the frame.
    pub async fn suppressed_video_faces(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        sha256: &[u8; 32],
    ) -> Result<Vec<(i64, [f32; 4])>, StoreError> {
        let rows: Vec<(i64, Vec<f32>)> = sqlx::query_as(
            "select at_us, region from suppressions
             where collection_id = $1 and sha256 = $2 and at_us is not null order by at_us",
        )
        .bind(collection)
        .bind(sha256.as_slice())
        .fetch_all(conn)
        .await?;
        Ok(rows.into_iter().map(|(at_us, region)| (at_us, to_box(&region))).collect())
    }

    pub async fn suppresses_video(
        self,
        executor: impl PgExecutor<'_>,
        collection: Uuid,
        sha256: &[u8; 32],
    ) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar(
            "select exists(select 1 from suppressions
                           where collection_id = $1 and sha256 = $2 and phash is null and region is null)",
        )
        .bind(collection)
        .bind(sha256.as_slice())
        .fetch_one(executor)
        .await?)
    }

    /// Returns, for each sketch, whether the sketch of a suppressed person differs from it in at
    /// most `max_bits` bits. All sketches must have been computed with the same secret and model.
    pub async fn suppressed_sketches(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        sketches: &[Sketch],
        max_bits: u32,
    ) -> Result<Vec<bool>, StoreError> {
        let Some(first) = sketches.first() else { return Ok(Vec::new()) };
        let bits: Vec<&str> = sketches.iter().map(|sketch| sketch.bits.as_str()).collect();
        Ok(sqlx::query_scalar(
            "select exists(
                 select 1 from suppressions s where s.collection_id = $1 and s.sketch is not null and s.sha256 is null
                    and s.sketch_key = $2 and s.model_id = $3 and bit_count(s.sketch # probe.bits::bit(256)) <= $5)
             from unnest($4::text[]) with ordinality as probe (bits, at) order by at",
        )
        .bind(collection)
        .bind(&first.key)
        .bind(first.model_id)
        .bind(bits)
        .bind(i64::from(max_bits))
        .fetch_all(conn)
        .await?)
    }

    /// Returns the number of sketches of people, in any collection, computed with a secret other
    /// than `key`. This process cannot compare faces with them.
    pub async fn count_sketches_with_other_keys(self, key: &str) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar(
            "select count(*) from suppressions where sketch is not null and sha256 is null and sketch_key <> $1",
        )
        .bind(key)
        .fetch_one(&self.0.pool)
        .await?)
    }
}

/// Maximum number of rows that one statement inserts.
const BATCH: usize = 1_000;

impl Suppressions<'_> {
    /// Inserts the suppressions of an erasure and returns their number. A suppression that occurs
    /// twice in `suppressions` is inserted once. Suppressions of other calls and other erasures are
    /// not checked for duplicates, so each erasure's suppressions can be lifted independently.
    pub async fn suppress(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        erasure: Uuid,
        suppressions: &[Suppression],
    ) -> Result<u64, StoreError> {
        let mut seen = HashSet::new();
        let distinct: Vec<&Suppression> =
            suppressions.iter().filter(|new| seen.insert(Row::new(new).identity())).collect();
        drop(seen);
        for batch in distinct.chunks(BATCH) {
            let rows: Vec<Row<'_>> = batch.iter().map(|suppression| Row::new(suppression)).collect();
            insert(conn, collection, erasure, &rows).await?;
        }
        Ok(distinct.len() as u64)
    }
}

/// The columns of a suppression.
#[derive(Default)]
struct Row<'a> {
    sha256: Option<&'a [u8]>,
    /// The perceptual hashes: DCT, gradients, mean.
    hashes: Option<[i64; 3]>,
    region: Option<[f32; 4]>,
    at_us: Option<i64>,
    url_hash: Option<Uuid>,
    sketch: Option<&'a Sketch>,
    whole_image: bool,
}

impl<'a> Row<'a> {
    fn new(suppression: &'a Suppression) -> Self {
        let row = Self::default();
        match suppression {
            Suppression::Image { sha256, phash, dhash, ahash, region } => {
                let hashes = Some([*phash, *dhash, *ahash]);
                Self { sha256: Some(sha256), hashes, region: *region, ..row }
            }
            Suppression::ImageFace { sha256, phash, dhash, ahash, region, sketch, whole_image } => {
                let (hashes, sketch) = (Some([*phash, *dhash, *ahash]), Some(sketch));
                let (region, whole_image) = (Some(*region), *whole_image);
                Self { sha256: Some(sha256), hashes, region, sketch, whole_image, ..row }
            }
            Suppression::VideoFace { sha256, at_us, region } => {
                Self { sha256: Some(sha256), at_us: Some(*at_us), region: Some(*region), ..row }
            }
            Suppression::VideoFile { sha256 } => Self { sha256: Some(sha256), ..row },
            Suppression::Url(url) => Self { url_hash: Some(url_hash(url)), ..row },
            Suppression::UrlHash(hash) => Self { url_hash: Some(*hash), ..row },
            Suppression::Person(sketch) => Self { sketch: Some(sketch), ..row },
        }
    }

    /// Returns the identity of the suppressed content, to find duplicates. The sketch identifies
    /// only a person.
    fn identity(&self) -> impl Eq + Hash + use<'a> {
        let region = self.region.map(|region| region.map(f32::to_bits));
        let person = self.sketch.filter(|_| self.sha256.is_none());
        (self.sha256, self.hashes.is_some(), region, self.at_us, self.url_hash, person)
    }
}

async fn insert(
    conn: &mut PgConnection,
    collection: Uuid,
    erasure: Uuid,
    rows: &[Row<'_>],
) -> Result<(), StoreError> {
    fn column<'a, T>(rows: &'a [Row<'_>], value: impl Fn(&'a Row<'_>) -> T) -> Vec<T> {
        rows.iter().map(value).collect()
    }
    let hash = |at: usize| column(rows, |row| row.hashes.map(|hashes| hashes[at]));
    // Each number of a region has its own column, because `unnest` flattens an array of arrays.
    let region = |at: usize| column(rows, |row| row.region.map(|region| region[at]));
    sqlx::query(
        "insert into suppressions (collection_id, erasure_id, id, sha256, phash, dhash, ahash, region, url_hash, sketch, sketch_key,
                                   model_id, at_us, whole_image)
         select $1, $2, id, sha256, phash, dhash, ahash, case when x is not null then array[x, y, width, height] end, url_hash,
                sketch::bit(256), sketch_key, model_id, at_us, whole_image
         from unnest($3::uuid[], $4::bytea[], $5::bigint[], $6::bigint[], $7::bigint[], $8::real[], $9::real[], $10::real[],
                     $11::real[], $12::uuid[], $13::text[], $14::text[], $15::integer[], $16::bigint[], $17::boolean[])
             as rows (id, sha256, phash, dhash, ahash, x, y, width, height, url_hash, sketch, sketch_key, model_id, at_us,
                      whole_image)",
    )
    .bind(collection)
    .bind(erasure)
    .bind(column(rows, |_| Uuid::now_v7()))
    .bind(column(rows, |row| row.sha256))
    .bind(hash(0))
    .bind(hash(1))
    .bind(hash(2))
    .bind(region(0))
    .bind(region(1))
    .bind(region(2))
    .bind(region(3))
    .bind(column(rows, |row| row.url_hash))
    .bind(column(rows, |row| row.sketch.map(|sketch| sketch.bits.as_str())))
    .bind(column(rows, |row| row.sketch.map(|sketch| sketch.key.as_str())))
    .bind(column(rows, |row| row.sketch.map(|sketch| sketch.model_id)))
    .bind(column(rows, |row| row.at_us))
    .bind(column(rows, |row| row.whole_image))
    .execute(conn)
    .await?;
    Ok(())
}
