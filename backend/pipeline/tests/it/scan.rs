//! Tests scans of local files, which the caller controls.

use crate::support::{World, counts};
use domain::{CrawlKind, CrawlState, Reason};
use inference::Priority;
use pipeline::crawls::Reconciled;
use pipeline::{
    AnalyzeOptions, Analyzer, ChangeError, Dedupe, FaceStore, IngestError, IngestOutcome, Scan, StoredFaces,
    Thumbnails,
};
use store::StoreError;
use testing::drawing;

#[testing::test]
async fn scan_records_every_file_in_ledger() {
    let world = World::new().await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("a b.jpg"), drawing("cora.jpg")).unwrap();
    std::fs::write(path("copy.jpg"), drawing("cora.jpg")).unwrap();
    std::fs::write(path("notes.jpg"), "not an image").unwrap();
    let files = ["a b.jpg", "copy.jpg", "notes.jpg", "huge.jpg", "locked.jpg", "left.jpg"].map(path);

    let seeds = [folder.path().display().to_string()];
    let options = AnalyzeOptions::default();
    let scan = Scan::begin(world.face_store.clone(), "default", &seeds, Dedupe::Near, options).await.unwrap();
    assert_eq!(scan.crawl().kind, CrawlKind::Scan);
    let rows = scan.add(&files).await.unwrap();
    assert_eq!(rows.len(), 6);
    assert!(rows[0].url.starts_with("file:///") && rows[0].url.ends_with("a%20b.jpg"), "{}", rows[0].url);
    assert!(scan.add(&files[..2]).await.unwrap().is_empty(), "the ledger already contains these files");
    assert!(scan.add(&["relative.jpg"]).await.is_err());

    let read = |at: usize| bytes::Bytes::from(std::fs::read(&files[at]).unwrap());
    let IngestOutcome::Stored { image, faces: 1 } = scan.ingest(rows[0].id, read(0)).await.unwrap() else {
        panic!("the first file must be stored with its face");
    };
    let result = scan.ingest(rows[1].id, read(1)).await.unwrap();
    assert_eq!(result, IngestOutcome::Duplicate { image, reason: Reason::ExactDuplicate });
    let error = scan.ingest(rows[2].id, read(2)).await.unwrap_err();
    assert!(matches!(error, IngestError::Analyze(_)), "{error:?}");
    scan.skip(rows[3].id, Reason::TooManyBytes, "30 MB").await.unwrap();
    scan.fail(rows[4].id, Reason::Unreadable, "permission denied").await.unwrap();

    // The scan runs until its caller finishes it, even if all rows are settled.
    assert_eq!(world.crawls.reconcile().await.unwrap(), Reconciled::default());
    assert_eq!(world.store.crawls().get(scan.crawl().id).await.unwrap().state, CrawlState::Running);
    assert_eq!(scan.finish(false).await.unwrap().state, CrawlState::Completed);
    let progress = world.progress(scan.crawl().id).await;
    assert_eq!(
        counts(&progress.images),
        [("processed", 1), ("duplicate", 1), ("skipped", 3), ("failed", 1)].into()
    );
    for code in ["exact_duplicate", "not_an_image", "too_many_bytes", "unreadable", "not_scanned"] {
        assert_eq!(progress.reasons.get(&Reason::from(code)), Some(&1), "{code}");
    }
    assert_eq!(progress.faces, 1);
}

#[testing::test]
async fn stores_only_passed_faces_if_configured() {
    let world = World::new().await;
    let config = pipeline::Config { stored_faces: StoredFaces::Passed, ..pipeline::Config::default() };
    let scan = world.scan(Dedupe::Near, config.storage_options()).await;
    let rows = scan.add(&["/x/crowd.jpg"]).await.unwrap();
    let crowd = bytes::Bytes::from(drawing("crowd.jpg"));
    let options = AnalyzeOptions::default();
    let faces = world.face_store.analyzer().analyze(crowd.clone(), &options, Priority::Background).await;
    let faces = faces.unwrap().faces;
    let passed = faces.iter().filter(|face| face.quality.as_ref().unwrap().passed).count();
    assert!(passed > 0 && passed < faces.len(), "{passed} of {} pass", faces.len());

    let IngestOutcome::Stored { image, faces } = scan.ingest(rows[0].id, crowd).await.unwrap() else {
        panic!("the image must be stored");
    };
    assert_eq!(faces, passed);
    let stored = world.faces().await;
    assert_eq!(stored.len(), passed);
    assert!(
        stored.iter().all(|face| face.image_id == image && face.quality.as_ref().unwrap()["passed"] == true)
    );
    let files = testing::files_below(world.folder());
    let blob = std::fs::read(&files[0]).unwrap();
    let jpegs = blob.windows(3).filter(|bytes| bytes == b"\xff\xd8\xff").count();
    assert_eq!((files.len(), jpegs), (1, 1 + passed), "a thumbnail, and no crops of the other faces");
}

#[testing::test]
async fn only_scan_with_expired_lease_is_closed() {
    let world = World::new().await;
    let begin = async || world.scan(Dedupe::Exact, AnalyzeOptions::default()).await;
    let killed = begin().await;
    killed.add(&["/nowhere/a.jpg"]).await.unwrap();
    let id = killed.crawl().id;
    // The scan was killed, so it is not finished and its lease is not renewed.
    drop(killed);
    assert_eq!(world.crawls.reconcile().await.unwrap(), Reconciled::default(), "its lease has not expired");
    world.execute("update crawls set lease_until = now() - interval '1 second'").await;
    let live = begin().await;
    let expected = world.store.crawls().get(id).await.unwrap();
    assert_eq!(expected.state, CrawlState::Failed, "the next scan closes it");
    assert!(expected.error.unwrap().contains("run it again"));
    assert_eq!(world.progress(id).await.reasons.get(&Reason::NotScanned), Some(&1));

    assert_eq!(world.crawls.reconcile().await.unwrap(), Reconciled::default());
    assert_eq!(world.store.crawls().get(live.crawl().id).await.unwrap().state, CrawlState::Running);
    world.execute("update crawls set lease_until = now() - interval '1 second'").await;
    // The service also closes expired scans.
    let expected = Reconciled { scans: 1, ..Reconciled::default() };
    assert_eq!(world.crawls.reconcile().await.unwrap(), expected);
    assert!(matches!(live.finish(false).await, Err(ChangeError::Store(StoreError::Conflict(_)))));
}

#[testing::test]
async fn interrupted_scan_is_cancelled() {
    let world = World::new().await;
    let scan = world.scan(Dedupe::Exact, AnalyzeOptions::default()).await;
    scan.add(&["/nowhere/a.jpg"]).await.unwrap();
    let error = world.crawls.pause(scan.crawl().id).await.unwrap_err();
    assert!(error.to_string().contains("scan"), "{error}");
    assert_eq!(scan.finish(true).await.unwrap().state, CrawlState::Cancelled);
    assert_eq!(world.progress(scan.crawl().id).await.reasons.get(&Reason::NotScanned), Some(&1));
}

#[testing::test]
async fn thumbnail_setting_selects_images() {
    for (thumbnails, expects_portrait, expects_view) in
        [(Thumbnails::Faces, true, false), (Thumbnails::All, true, true), (Thumbnails::None, false, false)]
    {
        let world = World::new().await;
        let config = pipeline::Config { thumbnails, ..pipeline::Config::default() };
        let analyzer = Analyzer::new(world.face_store.analyzer().engine().clone(), config.clone());
        let (store, blobs, queue) = (world.store.clone(), world.blobs.clone(), world.queue.clone());
        let ingest = FaceStore::new(analyzer, store, blobs, queue).await.unwrap();
        let (seeds, options) = (["/x".to_owned()], config.storage_options());
        let scan = Scan::begin(ingest, "default", &seeds, Dedupe::Near, options).await.unwrap();
        for (name, faces, expected) in [("ada.jpg", 1, expects_portrait), ("view.jpg", 0, expects_view)] {
            let files = world.count_files();
            let row = scan.add(&[&format!("/x/{name}")]).await.unwrap()[0].id;
            let stored = scan.ingest(row, bytes::Bytes::from(drawing(name))).await.unwrap();
            let IngestOutcome::Stored { image, faces: face_count } = stored else {
                panic!("{name}: {stored:?}")
            };
            let thumbnail = world.store.images().get(image).await.unwrap().parts.thumbnail();
            assert_eq!((face_count, thumbnail.is_some()), (faces, expected), "{name} {thumbnails:?}");
            // One blob contains all files of the image.
            let has_blob = faces > 0 || expected;
            assert_eq!(world.count_files() - files, usize::from(has_blob), "{name} {thumbnails:?}");
        }
    }
}
