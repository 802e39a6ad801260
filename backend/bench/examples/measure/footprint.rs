//! Measures how much a crawl writes to the database. Reports the bytes per row of every table and
//! index. For each image, also reports the WAL, the commits and the written pages of 8 kB.
//!
//! Calls the store and the queue in the same way as the jobs of a crawl do: page by page and image
//! by image, in the same transactions. Nothing is fetched and no model runs. Every page contains
//! eight images, and every image contains four faces. Addresses have about 60 characters; hashes
//! and embeddings are random. The server should have no other load, because WAL is counted for the
//! whole server. `docs/explanation/SCALING.md` uses the report.
use crate::common::{per_second, rounded};
use anyhow::{Result, anyhow};
use domain::{CrawlKind, ImageState, PageState};
use queue::{Claim, NewJob, Queue};
use serde_json::{Value, json};
use std::time::Instant;
use store::Store;
use store::blobs::parts::{NewFaceParts, NewImageParts};
use store::crawls::pages::{AdmittedUrl, ImageUrlResult, NewImageUrl, NewPage, PageResult};
use store::faces::NewFace;
use store::images::NewImage;
use store::index::Pgvector;
use testing::embeddings::Random;
use testing::{TestDatabase, rows};
use uuid::Uuid;

const IMAGES_PER_PAGE: usize = 8;
const FACES_PER_IMAGE: usize = 4;
/// Lengths of the files of an image, in bytes.
const THUMBNAIL_BYTES: i32 = 15_000;
const CROP_BYTES: i32 = 20_000;
const CHIP_BYTES: i32 = 25_000;
/// Number of pages that one call admits, like the links of one page.
const LINKS: usize = 50;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[arg(long, default_value_t = 20_000)]
    images: usize,
    /// Number of components of an embedding
    #[arg(long, default_value_t = 128)]
    dimensions: usize,
}

struct Crawl {
    store: Store,
    queue: Queue,
    id: Uuid,
    collection: Uuid,
    model: i32,
    dimensions: usize,
    random: Random,
}

pub(crate) async fn measure(arguments: &Arguments) -> Result<Value> {
    let database = TestDatabase::create().await;
    let mut crawl = Crawl::begin(database.store(), arguments.dimensions).await?;
    let pages = arguments.images.div_ceil(IMAGES_PER_PAGE);
    let total = Meter::begin(&database).await;
    crawl.admit_pages(pages).await?;
    let admission_report = total.finish(pages).await;
    let meter = Meter::begin(&database).await;
    let mut read = 0;
    while let Some(job) = crawl.claim("scan_page").await? {
        crawl.process_page(job, read).await?;
        read += 1;
    }
    let page_report = meter.finish(read).await;
    let meter = Meter::begin(&database).await;
    let mut stored = 0;
    while let Some(job) = crawl.claim("scan_image").await? {
        crawl.process_image(job).await?;
        stored += 1;
    }
    let image_report = meter.finish(stored).await;
    Ok(json!({
        "images": stored, "pages": read, "faces": stored * FACES_PER_IMAGE, "dimensions": arguments.dimensions,
        "page_admitted": admission_report, "page_read": page_report, "image_stored": image_report,
        "all_per_image": total.finish(stored).await, "tables": database.sizes().await,
    }))
}

/// Measures how much the server writes between two points in time.
struct Meter<'a> {
    database: &'a TestDatabase,
    before: [i64; 3],
    started: Instant,
}

impl<'a> Meter<'a> {
    async fn begin(database: &'a TestDatabase) -> Self {
        database.execute("checkpoint").await;
        Self { database, before: Self::read(database).await, started: Instant::now() }
    }

    async fn read(database: &TestDatabase) -> [i64; 3] {
        const WAL: &str = "select (pg_current_wal_insert_lsn() - '0/0')::bigint";
        const PAGES: &str =
            "select coalesce(sum(writes), 0)::bigint from pg_stat_io where object = 'relation'";
        const COMMITS: &str = "select xact_commit from pg_stat_database where datname = current_database()";
        [database.number(WAL).await, database.number(PAGES).await, database.number(COMMITS).await]
    }

    /// Returns the amount written per item, for `number` items.
    async fn finish(&self, number: usize) -> Value {
        let rate = per_second(number, self.started).round();
        self.database.execute("checkpoint").await;
        let after = Self::read(self.database).await;
        let per_item = |index: usize| rounded((after[index] - self.before[index]) as f64 / number as f64, 1);
        json!({"wal_bytes": per_item(0), "pages_written": per_item(1), "commits": per_item(2), "a_second": rate})
    }
}

impl Crawl {
    async fn begin(store: Store, dimensions: usize) -> Result<Self> {
        let queue = Queue::new(store.pool().clone(), queue::Config::default());
        let collection = store.collections().ensure("footprint").await?.id;
        let model = store.models().register("footprint", "footprint", i32::try_from(dimensions)?).await?;
        // Each face is added to the search index, as in a set above `SEARCH_EXACT_LIMIT`.
        Pgvector::new(store.pool().clone()).rebuild(&model).await?;
        let model = model.id;
        let mut tx = store.begin().await?;
        let seeds = ["http://www.example.org/".to_owned()];
        let id = store.crawls().insert(tx.conn(), collection, CrawlKind::Web, &seeds, &json!({})).await?.id;
        tx.commit().await?;
        Ok(Self { store, queue, id, collection, model, dimensions, random: Random(1) })
    }

    fn new_jobs(&self, kind: &str, rows: &[AdmittedUrl]) -> Vec<NewJob> {
        let job = |row: &AdmittedUrl| NewJob {
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

    async fn admit_pages(&self, pages: usize) -> Result<()> {
        let page = |n| NewPage {
            url: format!("http://www.example.org/articles/2030/01/a-story-number-{n}.html"),
            depth: 1,
        };
        let new_pages: Vec<NewPage> = (0..pages).map(page).collect();
        for links in new_pages.chunks(LINKS) {
            let mut tx = self.store.begin().await?;
            let rows = self.store.ledger().admit_pages(tx.conn(), self.id, i64::MAX, links).await?;
            self.queue.enqueue(tx.conn(), &self.new_jobs("scan_page", &rows)).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    /// Returns the claim and the row of the next job of a kind.
    async fn claim(&self, kind: &str) -> Result<Option<(Claim, Uuid)>> {
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

    async fn process_page(&self, (claim, row): (Claim, Uuid), number: usize) -> Result<()> {
        let page_url = format!("http://www.example.org/articles/2030/01/a-story-number-{number}.html");
        let image = |n| NewImageUrl {
            requested_url: None,
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
        let rows = self.store.ledger().admit_images(tx.conn(), self.id, i64::MAX, &images).await?;
        self.store.ledger().settle_page(tx.conn(), row, &result).await?;
        self.queue.enqueue(tx.conn(), &self.new_jobs("scan_image", &rows)).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn process_image(&mut self, (claim, row): (Claim, Uuid)) -> Result<()> {
        let key = self.random_blob_key();
        let parts = Some(NewImageParts { key, thumbnail_bytes: THUMBNAIL_BYTES });
        let image = NewImage { parts, ..rows::image(&mut self.random) };
        let faces: Vec<NewFace> = (0..FACES_PER_IMAGE).map(|number| self.new_face(number)).collect();
        let mut tx = self.store.begin().await?;
        self.queue.complete(tx.conn(), claim).await?;
        let inserted = self.store.images().insert(tx.conn(), self.collection, &image).await?;
        inserted.map_err(|_| anyhow!("two images have the same bytes"))?;
        self.store.faces().insert(tx.conn(), self.collection, image.id, &faces).await?;
        let (state, image) = (ImageState::Processed, Some(image.id));
        let result = ImageUrlResult { state, reason: None, detail: None, image, final_url: None };
        self.store.ledger().settle_image_url(tx.conn(), row, result).await?;
        tx.commit().await?;
        Ok(())
    }

    fn new_face(&mut self, number: usize) -> NewFace {
        let part = json!({"value": 0.83, "raw": 412.25});
        let quality = json!({
            "overall": 0.81, "passed": true, "reasons": [], "blur": part, "sharpness": part, "brightness": part,
            "contrast": part, "exposure": part, "size": part, "pose": part, "truncation": part, "det_score": part,
        });
        NewFace {
            quality: Some(quality),
            parts: Some(NewFaceParts {
                own_key: None,
                offset: THUMBNAIL_BYTES + number as i32 * (CROP_BYTES + CHIP_BYTES),
                crop_bytes: CROP_BYTES,
                chip_bytes: CHIP_BYTES,
            }),
            ..rows::face(self.random.unit_vector(self.dimensions), self.model, 0.81)
        }
    }

    /// Returns a random blob key in the format of the product, which uses SHA-256 in hexadecimal.
    fn random_blob_key(&mut self) -> String {
        let digest: String = (0..4).map(|_| format!("{:016x}", self.random.bits())).collect();
        format!("parts/{}/{digest}.bin", &digest[..2])
    }
}
