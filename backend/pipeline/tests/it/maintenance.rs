//! Tests retention, the deletion of unreferenced files, and a database whose clock differs from the
//! clock of the process by an hour, as on hosts without time synchronisation.
use crate::support::{Response, Site, World, analyzer, fast, fast_politeness, wait_for};
use bytes::Bytes;
use pipeline::{AnalyzeOptions, CrawlOptions, Dedupe, FaceStore, Maintenance, crawls};
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, SystemTime};
use store::Blobs;
use store::blobs::{Disk, LocalDisk};
use store::crawls::hosts::PermitDecision;
use testing::{TestDatabase, drawing};
use tokio::sync::Notify;

async fn scan(world: &World, names: &[&str]) {
    let scan = world.scan(Dedupe::Near, AnalyzeOptions::default()).await;
    for name in names {
        let rows = scan.add(&[format!("/nowhere/{name}")]).await.unwrap();
        scan.ingest(rows[0].id, Bytes::from(testing::drawing(name))).await.unwrap();
    }
    scan.finish(false).await.unwrap();
}

#[testing::test]
async fn retention_deletes_only_images_not_seen_recently() {
    let world = World::new().await;
    let maintenance = Maintenance::new(world.store.clone(), world.blobs.clone());
    scan(&world, &["ada_small.jpg", "cora.jpg"]).await;
    world.execute("update collections set retention_days = 30").await;
    assert_eq!(maintenance.expire().await.unwrap().images, 0, "the images are new");
    world.execute("update images set created_at = now() - interval '31 days'").await;
    assert_eq!(maintenance.expire().await.unwrap().images, 0, "the images were seen recently");
    let sql = "update image_sources set found_at = now() - interval '31 days' where image_url like '%cora%'";
    world.execute(sql).await;
    world.execute("update crawls set finished_at = now() - interval '31 days'").await;
    let expired = maintenance.expire().await.unwrap();
    assert_eq!((expired.images, expired.faces, expired.crawls), (1, 1, 1));
    assert_eq!(world.images().await.len(), 1);
    assert_eq!(world.count_files(), 1, "the blob of the other image");
    assert_eq!(maintenance.expire().await.unwrap(), Default::default());
}

#[testing::test]
async fn sweep_deletes_orphans_and_reports_missing_blobs() {
    let world = World::new().await;
    let maintenance = Maintenance::new(world.store.clone(), world.blobs.clone());
    scan(&world, &["ada_small.jpg"]).await;
    let orphan = world.blobs.put("crops", "jpg", Bytes::from_static(b"nobody's")).await.unwrap();
    let grace = Duration::from_secs(3600);
    let swept = maintenance.sweep(grace, true, false).await.unwrap();
    assert_eq!(
        (swept.blobs, swept.orphans, swept.missing),
        (2, 0, Some(0)),
        "the row of a new blob may be inserted soon"
    );

    let dry_run = maintenance.sweep(Duration::ZERO, false, true).await.unwrap();
    assert_eq!((dry_run.orphans, dry_run.removed, dry_run.missing), (1, 0, None));
    assert!(world.blobs.exists(&orphan).await.unwrap());
    let swept = maintenance.sweep(Duration::ZERO, false, false).await.unwrap();
    assert_eq!((swept.orphans, swept.removed), (1, 1));
    assert!(!world.blobs.exists(&orphan).await.unwrap());
    assert_eq!(world.count_files(), 1);

    let key = world.faces().await[0].parts.chip().unwrap().key;
    world.blobs.delete(std::slice::from_ref(&key)).await.unwrap();
    let swept = maintenance.sweep(grace, true, false).await.unwrap();
    assert_eq!((swept.missing, swept.missing_keys), (Some(1), vec![key]));
}

#[testing::test]
async fn maintenance_moves_files_of_earlier_releases_into_one_blob() {
    let world = World::new().await;
    scan(&world, &["ada.jpg"]).await;
    let face = &world.faces().await[0];
    let mut files = Vec::new();
    for (part, kind, extension) in [(face.parts.crop(), "crops", "jpg"), (face.parts.chip(), "chips", "png")]
    {
        let bytes = world.blobs.get_part(&part.unwrap()).await.unwrap().unwrap();
        let key = world.blobs.put(kind, extension, bytes.clone()).await.unwrap();
        let column = if kind == "crops" { "crop_key" } else { "chip_key" };
        world.execute(format!("update faces set {column} = '{key}'").leak()).await;
        files.push(bytes);
    }
    world
        .execute(
            "update faces set parts_key = null, parts_offset = null, crop_bytes = null, chip_bytes = null",
        )
        .await;
    assert_eq!(world.count_files(), 3);
    Maintenance::new(world.store.clone(), world.blobs.clone()).run_due().await.unwrap();
    assert_eq!(world.count_files(), 1);
    let parts = &world.faces().await[0].parts;
    for (part, bytes) in [parts.crop(), parts.chip()].into_iter().zip(files) {
        assert_eq!(world.blobs.get_part(&part.unwrap()).await.unwrap(), Some(bytes));
    }
}

/// Starts and ends a request to a host.
async fn request_host(world: &World, host: &str) {
    let PermitDecision::Granted { token } = world.store.hosts().acquire_permit(host, 1_000).await.unwrap()
    else {
        panic!("{host} must be free")
    };
    world.store.hosts().finish_request(host, token, 1_000, None, None).await.unwrap();
}

#[testing::test]
async fn deletes_only_unused_hosts() {
    let world = World::new().await;
    let maintenance = Maintenance::new(world.store.clone(), world.blobs.clone());
    for host in ["old.test", "paused.test", "recent.test"] {
        request_host(&world, host).await;
    }
    let unused =
        "update hosts set finished_at = now() - interval '8 days', granted_at = null, pace_ms = 4000";
    world.execute(unused).await;
    world.execute("update hosts set finished_at = now() where host_key = 'recent.test'").await;
    world
        .execute("update hosts set not_before = now() + interval '1 hour' where host_key = 'paused.test'")
        .await;
    // Creates more than one batch of hosts that have not been used for a long time.
    let many = "insert into hosts (host_key, robots_asked_until)
             select 'many-' || n || '.test', now() - interval '30 days' from generate_series(1, 12000) n";
    world.execute(many).await;
    assert_eq!(maintenance.delete_unused_hosts().await.unwrap(), 12_001);
    assert_eq!(world.store.hosts().pace("old.test").await.unwrap().pace_ms, 0);
    assert_eq!(world.store.hosts().pace("recent.test").await.unwrap().pace_ms, 4000);
    assert!(matches!(
        world.store.hosts().acquire_permit("paused.test", 1_000).await.unwrap(),
        PermitDecision::Wait { .. }
    ));
    request_host(&world, "old.test").await;
    assert_eq!(maintenance.delete_unused_hosts().await.unwrap(), 0);
}

#[testing::test]
async fn maintenance_is_claimed_by_one_process() {
    let world = World::new().await;
    let claim = async || {
        world.store.retention().claim_maintenance("upkeep", Duration::from_secs(3600)).await.unwrap()
    };
    assert_eq!((claim().await, claim().await), (true, false));
    world.execute("update upkeep set due_at = now() - interval '1 second'").await;
    assert_eq!((claim().await, claim().await), (true, false));
}

/// A file system whose first sync of a file waits until it is released.
struct GatedDisk {
    is_open: (Mutex<bool>, Condvar),
    reached: Notify,
    calls: Mutex<Vec<&'static str>>,
}

impl GatedDisk {
    fn open(&self) {
        *self.is_open.0.lock().unwrap() = true;
        self.is_open.1.notify_all();
    }

    fn record(&self, call: &'static str) {
        self.calls.lock().unwrap().push(call);
    }
}

impl Disk for GatedDisk {
    fn sync_file(&self, file: &File) -> std::io::Result<()> {
        self.reached.notify_one();
        let is_open = self.is_open.0.lock().unwrap();
        drop(self.is_open.1.wait_while(is_open, |is_open| !*is_open).unwrap());
        self.record("file");
        LocalDisk.sync_file(file)
    }

    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        self.record("name");
        LocalDisk.rename(from, to)
    }

    fn sync_folder(&self, folder: &Path) -> std::io::Result<()> {
        self.record("folder");
        LocalDisk.sync_folder(folder)
    }
}

#[testing::test(flavor = "multi_thread")]
async fn image_is_stored_after_its_blobs_are_durable() {
    let mut world = World::new().await;
    let disk = Arc::new(GatedDisk {
        is_open: (Mutex::new(false), Condvar::new()),
        reached: Notify::new(),
        calls: Mutex::default(),
    });
    world.blobs = Blobs::open_folder(&world.folder().join("gated"), disk.clone()).unwrap();
    let (store, queue) = (world.store.clone(), world.queue.clone());
    world.face_store = FaceStore::new(analyzer().await, store, world.blobs.clone(), queue).await.unwrap();
    let site = Site::start().await;
    site.set("/", Response::html("<img src=ada.jpg>"));
    site.set("/ada.jpg", Response::jpeg(testing::drawing("ada_small.jpg")));
    let crawl = world.create(&[site.url("/")], fast()).await;
    let worker = world.worker("worker");
    disk.reached.notified().await;
    assert!(world.images().await.is_empty() && world.faces().await.is_empty());
    disk.open();
    world.until_ended(crawl.id).await;
    assert_eq!(world.images().await.len(), 1);
    let calls = disk.calls.lock().unwrap().clone();
    let last = |call: &str| calls.iter().rposition(|one| *one == call);
    assert!(last("file") < last("name") && last("name") < last("folder"), "{calls:?}");
    worker.stop().await;
}

/// Seconds by which the clock of the database is ahead of the clock of the process.
const SHIFTS_S: [i64; 2] = [3600, -3600];

async fn world(shift_s: i64, politeness: crawls::Config) -> World {
    World::on(TestDatabase::with_clock_shifted(shift_s).await, queue::Config::default(), politeness).await
}

/// A pause that a process recorded in the past would be ignored, and one in the future would last
/// an hour longer.
#[testing::test]
async fn host_pause_has_requested_length_despite_clock_shift() {
    let pause = Duration::from_secs(600);
    for shift_s in SHIFTS_S {
        let world = world(shift_s, fast_politeness()).await;
        let site = Site::start().await;
        site.set("/", Response::status(429).header("retry-after", &pause.as_secs().to_string()));
        world.create(&[site.url("/")], fast()).await;
        let worker = world.worker("one");
        let host = site.url("/").trim_end_matches('/').to_owned();
        let wait = wait_for(async || match world.store.hosts().acquire_permit(&host, 0).await.unwrap() {
            PermitDecision::Wait { wait } => Some(wait),
            PermitDecision::Granted { .. } => None,
        })
        .await
        .expect("the host is paused");
        assert!(wait <= pause && wait > pause / 2, "with the database ahead by {shift_s} s: {wait:?}");
        let due = wait_for(async || world.queue.next_due(&["scan_page".into()]).await.unwrap())
            .await
            .expect("the page is tried again");
        assert!(due <= pause && due > pause / 2, "with the database ahead by {shift_s} s: {due:?}");
        worker.stop().await;
        assert_eq!(site.count_requests("/"), 1);
    }
}

/// A wrong clock must not change the delay between requests to an hour or to zero.
#[testing::test]
async fn crawl_with_delay_completes_despite_clock_shift() {
    for shift_s in SHIFTS_S {
        let world =
            world(shift_s, crawls::Config { robots_retry: Duration::ZERO, ..Default::default() }).await;
        let site = Site::start().await;
        site.set("/", Response::html("<img src=a.jpg><img src=b.jpg><img src=c.jpg>"));
        for name in ["/a.jpg", "/b.jpg", "/c.jpg"] {
            site.set(name, Response::jpeg(drawing("cora.jpg")));
        }
        let options = CrawlOptions { delay_ms: Some(100), ..CrawlOptions::default() };
        let (crawl, progress) = world.crawl(&[site.url("/")], options).await;
        assert_eq!(crawl.state, domain::CrawlState::Completed);
        assert_eq!(progress.images.values().sum::<i64>(), 3);
        assert_eq!(site.requests().len(), 5, "robots.txt, the page and three images, once each");
    }
}

/// The time of a blob comes from the clock of the blob store, which may be that of the database. A
/// process whose clock is ahead must not regard a blob as old while it is being stored.
#[testing::test]
async fn sweep_keeps_new_blobs_despite_clock_shift() {
    let grace = Duration::from_secs(1800);
    for shift_s in SHIFTS_S {
        let world = world(shift_s, fast_politeness()).await;
        let key = world.blobs.put("crops", "jpg", Bytes::from_static(b"new")).await.unwrap();
        let file = std::fs::File::options().write(true).open(world.folder().join(&key)).unwrap();
        let shift = Duration::from_secs(shift_s.unsigned_abs());
        let now = SystemTime::now();
        file.set_modified(if shift_s < 0 { now - shift } else { now }).unwrap();
        let swept = Maintenance::new(world.store.clone(), world.blobs.clone())
            .sweep(grace, false, false)
            .await
            .unwrap();
        assert_eq!((swept.blobs, swept.removed), (1, 0), "with the database ahead by {shift_s} s");
        assert!(world.blobs.exists(&key).await.unwrap());
    }
}
