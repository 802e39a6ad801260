//! Measures how much a crawl writes to the database: bytes per row of every table and index, and
//! for each image the WAL, the commits and the written pages of 8 kB.
//!
//!     TEST_DATABASE_URL=postgres://… \
//!       cargo run --release -p facecrawl-pipeline --example footprint -- [IMAGES] [DIMENSIONS]
//!
//! The example calls the store and the queue in the same way as the jobs of a crawl: page by page
//! and image by image, in the same transactions. Nothing is fetched and no model runs. Every page
//! contains eight images, and every image contains four faces. Addresses have about 60 characters;
//! hashes and embeddings are random.
//!
//! The server should have no other load, because WAL is counted for the whole server. The example
//! creates its own database and prints one JSON document, which `docs/explanation/SCALING.md` uses.
//! The defaults are 20,000 images and 128 dimensions.
#![allow(missing_docs)]

use domain::{CrawlKind, ImageState, PageState};
use queue::{Claim, NewJob, Queue};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::time::Instant;
use store::Store;
use store::faces::NewFace;
use store::images::NewImage;
use store::pages::{Admitted, ImageUrlResult, NewImageUrl, NewPage, PageResult};
use testing::TestDatabase;
use uuid::Uuid;

const IMAGES_PER_PAGE: usize = 8;
const FACES_PER_IMAGE: usize = 4;
/// Number of pages that one call admits, as for the links of one page.
const LINKS: usize = 50;

type Failure = Box<dyn std::error::Error>;

struct Crawl {
    store: Store,
    queue: Queue,
    id: Uuid,
    collection: Uuid,
    model: i32,
    dimensions: usize,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Result<Vec<usize>, _> = std::env::args().skip(1).map(|text| text.parse()).collect();
    let arguments = arguments.map_err(|error| format!("the arguments are numbers: {error}"))?;
    let (images, dimensions) = (*arguments.first().unwrap_or(&20_000), *arguments.get(1).unwrap_or(&128));
    let database = TestDatabase::create().await;
    let store = database.store();
    let crawl = Crawl::begin(store, dimensions).await?;

    let pages = images.div_ceil(IMAGES_PER_PAGE);
    let whole = Meter::begin(&database).await;
    crawl.admit_pages(pages).await?;
    let admission = whole.end(pages).await;
    let meter = Meter::begin(&database).await;
    let mut read = 0;
    while let Some(job) = crawl.claim("scan_page").await? {
        crawl.page(job, read).await?;
        read += 1;
    }
    let reading = meter.end(read).await;
    let meter = Meter::begin(&database).await;
    let mut stored = 0;
    while let Some(job) = crawl.claim("scan_image").await? {
        crawl.image(job, stored).await?;
        stored += 1;
    }
    let storing = meter.end(stored).await;
    let report = json!({
        "images": stored, "pages": read, "faces": stored * FACES_PER_IMAGE, "dimensions": dimensions,
        "page_admitted": admission, "page_read": reading, "image_stored": storing, "all_per_image": whole.end(stored).await,
        "tables": database.sizes().await,
    });
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}

/// Measures how much the server writes between two points in time.
struct Meter<'a> {
    database: &'a TestDatabase,
    before: [i64; 3],
    begun: Instant,
}

impl<'a> Meter<'a> {
    async fn begin(database: &'a TestDatabase) -> Self {
        database.execute("checkpoint").await;
        Self { database, before: Self::read(database).await, begun: Instant::now() }
    }

    async fn read(database: &TestDatabase) -> [i64; 3] {
        [
            database.number("select (pg_current_wal_insert_lsn() - '0/0')::bigint").await,
            database
                .number("select coalesce(sum(writes), 0)::bigint from pg_stat_io where object = 'relation'")
                .await,
            database
                .number("select xact_commit from pg_stat_database where datname = current_database()")
                .await,
        ]
    }

    /// Returns the amount written per item, for `number` items.
    async fn end(&self, number: usize) -> Value {
        let seconds = self.begun.elapsed().as_secs_f64();
        self.database.execute("checkpoint").await;
        let after = Self::read(self.database).await;
        let each =
            |index: usize| ((after[index] - self.before[index]) as f64 / number as f64 * 10.0).round() / 10.0;
        json!({
            "wal_bytes": each(0), "pages_written": each(1), "commits": each(2),
            "a_second": (number as f64 / seconds).round(),
        })
    }
}

impl Crawl {
    async fn begin(store: Store, dimensions: usize) -> Result<Self, Failure> {
        let queue = Queue::new(store.pool().clone(), queue::Config::default());
        let collection = store.ensure_collection("footprint").await?.id;
        let model = store.register_model("footprint", "footprint", i32::try_from(dimensions)?).await?.id;
        let mut tx = store.begin().await?;
        let seeds = ["http://www.example.org/".to_owned()];
        let id = store.insert_crawl(tx.conn(), collection, CrawlKind::Web, &seeds, &json!({})).await?.id;
        tx.commit().await?;
        Ok(Self { store, queue, id, collection, model, dimensions })
    }

    fn jobs(&self, kind: &str, rows: &[Admitted]) -> Vec<NewJob> {
        let job = |row: &Admitted| NewJob {
            unique_key: Some(row.id.to_string()),
            group_id: Some(self.id),
            partition_key: Some("www.example.org".into()),
            ..NewJob::new(
                kind,
                json!({"row": row.id, "crawl_id": self.id, "url": row.url, "depth": row.depth}),
            )
        };
        rows.iter().map(job).collect()
    }

    async fn admit_pages(&self, pages: usize) -> Result<(), Failure> {
        let page = |n| NewPage {
            url: format!("http://www.example.org/articles/2030/01/a-story-number-{n}.html"),
            depth: 1,
        };
        let all: Vec<NewPage> = (0..pages).map(page).collect();
        for links in all.chunks(LINKS) {
            let mut tx = self.store.begin().await?;
            let rows = self.store.admit_pages(tx.conn(), self.id, i64::MAX, links).await?;
            self.queue.enqueue(tx.conn(), &self.jobs("scan_page", &rows)).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    /// Returns the claim and the row of the next job of a kind.
    async fn claim(&self, kind: &str) -> Result<Option<(Claim, Uuid)>, Failure> {
        let kinds = [kind.to_owned()];
        loop {
            if let Some(job) = self.queue.claim(&kinds, 1, "footprint").await?.pop() {
                let row = job.payload["row"].as_str().unwrap_or_default().parse()?;
                return Ok(Some((job.claim, row)));
            }
            if self.queue.unpark().await? == 0 {
                return Ok(None);
            }
        }
    }

    async fn page(&self, (claim, row): (Claim, Uuid), number: usize) -> Result<(), Failure> {
        let page_url = format!("http://www.example.org/articles/2030/01/a-story-number-{number}.html");
        let image = |n| NewImageUrl {
            asked_url: None,
            url: format!("http://www.example.org/images/2030/01/picture-{number}-{n}-1280x720.jpg"),
            page_url: Some(page_url.clone()),
            alt: Some("two people in front of a house".into()),
        };
        let images: Vec<NewImageUrl> = (0..IMAGES_PER_PAGE).map(image).collect();
        let result = PageResult {
            status: Some(200),
            final_url: Some(page_url.clone()),
            title: Some("A story".into()),
            ..PageResult::new(PageState::Fetched)
        };
        let mut tx = self.store.begin().await?;
        self.queue.complete(tx.conn(), claim).await?;
        let rows = self.store.admit_images(tx.conn(), self.id, i64::MAX, &images).await?;
        self.store.settle_page(tx.conn(), row, &result).await?;
        self.queue.enqueue(tx.conn(), &self.jobs("scan_image", &rows)).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn image(&self, (claim, row): (Claim, Uuid), number: usize) -> Result<(), Failure> {
        let noise = noise(number as u64, 8);
        let hash = |n: usize| i64::from(noise[n].to_bits()) << 32 | i64::from(noise[n + 1].to_bits());
        let image = NewImage {
            id: Uuid::now_v7(),
            sha256: Sha256::digest(number.to_be_bytes()).into(),
            phash: hash(0),
            dhash: hash(2),
            ahash: hash(4),
            width: 1280,
            height: 720,
            format: "jpeg".into(),
            bytes: 150_000,
            rotation: 0,
            thumbnail_key: Some(key("thumbnails", "webp")),
        };
        let faces: Vec<NewFace> =
            (0..FACES_PER_IMAGE).map(|n| self.face(number * FACES_PER_IMAGE + n)).collect();
        let mut tx = self.store.begin().await?;
        self.queue.complete(tx.conn(), claim).await?;
        let inserted = self.store.insert_image(tx.conn(), self.collection, &image).await?;
        inserted.map_err(|_| "two images have the same bytes")?;
        self.store.insert_faces(tx.conn(), self.collection, image.id, &faces).await?;
        let (state, image) = (ImageState::Processed, Some(image.id));
        let result = ImageUrlResult { state, reason: None, detail: None, image };
        self.store.settle_image_url(tx.conn(), row, result).await?;
        tx.commit().await?;
        Ok(())
    }

    fn face(&self, number: usize) -> NewFace {
        let raw = noise(u64::MAX - number as u64, self.dimensions);
        let length = raw.iter().map(|x| x * x).sum::<f32>().sqrt();
        let judged = json!({"value": 0.83, "raw": 412.25});
        NewFace {
            id: Uuid::now_v7(),
            bbox: [101.5, 80.25, 64.0, 80.5],
            det_score: 0.91,
            landmarks: [0.5; 10],
            quality: Some(json!({
                "overall": 0.81, "passed": true, "reasons": [], "blur": judged, "sharpness": judged, "brightness": judged,
                "contrast": judged, "exposure": judged, "size": judged, "pose": judged, "truncation": judged, "det_score": judged,
            })),
            quality_overall: Some(0.81),
            quality_passed: Some(true),
            embedding: raw.into_iter().map(|x| x / length).collect(),
            model_id: self.model,
            chip_key: Some(key("chips", "png")),
            crop_key: Some(key("crops", "jpg")),
        }
    }
}

/// Returns a blob key in the form of the product's keys, which are derived from the content.
fn key(prefix: &str, suffix: &str) -> String {
    let digest = hex(&Sha256::digest(Uuid::now_v7().as_bytes()));
    format!("{prefix}/{}/{digest}.{suffix}", &digest[..2])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns pseudorandom numbers from -1 to 1.
fn noise(seed: u64, length: usize) -> Vec<f32> {
    let block = |n: usize| Sha256::digest([seed.to_be_bytes(), (n as u64).to_be_bytes()].concat());
    let blocks = (0..length.div_ceil(8)).flat_map(|n| block(n).to_vec());
    let bytes: Vec<u8> = blocks.collect();
    let number =
        |four: &[u8]| i32::from_be_bytes([four[0], four[1], four[2], four[3]]) as f32 / i32::MAX as f32;
    bytes.chunks_exact(4).map(number).take(length).collect()
}
