use super::{Sketch, Suppression};
use crate::db::text::{url_hash, without_nul};
use crate::{Store, StoreError};
use sqlx::PgConnection;
use std::collections::HashSet;
use uuid::Uuid;

/// Maximum number of rows that one statement inserts.
const BATCH: usize = 1_000;

impl Store {
    /// Inserts the suppressions of an erasure and returns their number. A suppression that occurs
    /// twice in `suppressions` is inserted once. Suppressions of other calls and other erasures are
    /// not checked for duplicates, so each erasure's suppressions can be lifted independently.
    pub async fn suppress(
        &self,
        conn: &mut PgConnection,
        collection: Uuid,
        erasure: Uuid,
        suppressions: &[Suppression],
    ) -> Result<u64, StoreError> {
        let mut seen = HashSet::new();
        let distinct: Vec<&Suppression> =
            suppressions.iter().filter(|suppression| seen.insert(Identity::of(suppression))).collect();
        drop(seen);
        for batch in distinct.chunks(BATCH) {
            Columns::of(batch).insert(conn, collection, erasure).await?;
        }
        Ok(distinct.len() as u64)
    }
}

/// Identifies a suppression, to find repetitions.
#[derive(PartialEq, Eq, Hash)]
enum Identity<'a> {
    Picture(&'a [u8], Option<[u32; 4]>, Option<i64>),
    Video(&'a [u8]),
    Url(Uuid),
    Person(&'a str, &'a str, i32),
}

impl<'a> Identity<'a> {
    fn of(suppression: &'a Suppression) -> Self {
        match suppression {
            Suppression::Picture { sha256, region, .. } => {
                Self::Picture(sha256, region.map(|region| region.map(f32::to_bits)), None)
            }
            Suppression::PictureFace { sha256, region, .. } => {
                Self::Picture(sha256, Some(region.map(f32::to_bits)), None)
            }
            Suppression::VideoFace { sha256, at_us, region } => {
                Self::Picture(sha256, Some(region.map(f32::to_bits)), Some(*at_us))
            }
            Suppression::VideoFile { sha256 } => Self::Video(sha256),
            Suppression::Url(url) => Self::Url(hash_of(url)),
            Suppression::UrlHash(hash) => Self::Url(*hash),
            Suppression::Person(Sketch { bits, key, model_id }) => Self::Person(bits, key, *model_id),
        }
    }
}

fn hash_of(url: &str) -> Uuid {
    url_hash(Some(&without_nul(url)))
}

/// Stores rows as columns, for one statement.
#[derive(Default)]
struct Columns<'a> {
    id: Vec<Uuid>,
    sha256: Vec<Option<&'a [u8]>>,
    at_us: Vec<Option<i64>>,
    phash: Vec<Option<i64>>,
    dhash: Vec<Option<i64>>,
    ahash: Vec<Option<i64>>,
    /// x, y, width and height of the region. Each has its own column, because `unnest` flattens an
    /// array of arrays.
    region: [Vec<Option<f32>>; 4],
    url_hash: Vec<Option<Uuid>>,
    sketch: Vec<Option<&'a str>>,
    sketch_key: Vec<Option<&'a str>>,
    model_id: Vec<Option<i32>>,
    whole_image: Vec<bool>,
}

impl<'a> Columns<'a> {
    fn of(suppressions: &[&'a Suppression]) -> Self {
        let mut columns = Self::default();
        for suppression in suppressions {
            let (mut file, mut hashes, mut region, mut time) = (None, [None; 3], None, None);
            let (mut address, mut face, mut whole) = (None, None, false);
            match suppression {
                Suppression::Picture { sha256, phash, dhash, ahash, region: of } => {
                    (file, region) = (Some(sha256.as_slice()), *of);
                    hashes = [*phash, *dhash, *ahash].map(Some);
                }
                Suppression::PictureFace { sha256, phash, dhash, ahash, region: of, sketch, whole_image } => {
                    (file, region) = (Some(sha256.as_slice()), Some(*of));
                    hashes = [*phash, *dhash, *ahash].map(Some);
                    (face, whole) = (Some(sketch), *whole_image);
                }
                Suppression::VideoFace { sha256, at_us, region: of } => {
                    (file, region, time) = (Some(sha256.as_slice()), Some(*of), Some(*at_us));
                }
                Suppression::VideoFile { sha256 } => file = Some(sha256.as_slice()),
                Suppression::Url(url) => address = Some(hash_of(url)),
                Suppression::UrlHash(hash) => address = Some(*hash),
                Suppression::Person(sketch) => face = Some(sketch),
            }
            columns.id.push(Uuid::now_v7());
            columns.sha256.push(file);
            columns.at_us.push(time);
            columns.phash.push(hashes[0]);
            columns.dhash.push(hashes[1]);
            columns.ahash.push(hashes[2]);
            for (at, column) in columns.region.iter_mut().enumerate() {
                column.push(region.map(|region| region[at]));
            }
            columns.url_hash.push(address);
            columns.sketch.push(face.map(|sketch| sketch.bits.as_str()));
            columns.sketch_key.push(face.map(|sketch| sketch.key.as_str()));
            columns.model_id.push(face.map(|sketch| sketch.model_id));
            columns.whole_image.push(whole);
        }
        columns
    }

    async fn insert(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        erasure: Uuid,
    ) -> Result<(), StoreError> {
        let [x, y, width, height] = self.region;
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
        .bind(self.id)
        .bind(self.sha256)
        .bind(self.phash)
        .bind(self.dhash)
        .bind(self.ahash)
        .bind(x)
        .bind(y)
        .bind(width)
        .bind(height)
        .bind(self.url_hash)
        .bind(self.sketch)
        .bind(self.sketch_key)
        .bind(self.model_id)
        .bind(self.at_us)
        .bind(self.whole_image)
        .execute(conn)
        .await?;
        Ok(())
    }
}
