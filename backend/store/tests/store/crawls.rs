//! Tests crawls, and the ledgers of their pages and images.
use crate::fixture::{
    self, Commit, admit_images, admit_pages, assert_not_found, image_url, page, settle, wait_for_lock,
};
use domain::{CrawlKind, CrawlState, ImageState, PageState, Reason};
use serde_json::json;
use std::collections::HashSet;
use store::StoreError;
use store::crawls::ledger::{Ledger, LedgerCount, PageYield};
use store::crawls::pages::{ImageUrlResult, NewImageUrl, PageResult};
use store::crawls::{CrawlFilter, OverLimit};
use store::videos::crawled::{NewVideoUrl, VideoLimits};
use uuid::Uuid;

#[testing::test]
async fn collection_is_created_once_and_default_always_exists() {
    let (_db, store) = fixture::database().await;
    assert_eq!(store.collections().get("default").await.unwrap().name, "default");
    let collections = futures::future::try_join_all((0..8).map(|_| store.collections().ensure("press-2024")))
        .await
        .unwrap();
    assert!(collections.iter().all(|collection| collection.id == collections[0].id));
    let names: Vec<String> = store.collections().list().await.unwrap().into_iter().map(|c| c.name).collect();
    assert_eq!(names, ["default", "press-2024"]);
    for name in ["", "Ümlaut", "UPPER", "a b", "nul\0", &"x".repeat(65)] {
        assert!(matches!(store.collections().ensure(name).await, Err(StoreError::Invalid(_))), "{name:?}");
        let result = store.collections().get(name).await;
        assert!(matches!(result, Err(StoreError::NotFound { resource: "collection", .. })), "{name:?}");
    }
}

#[testing::test]
async fn crawl_list_filters_and_pages_newest_first() {
    let (_db, store) = fixture::database().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(fixture::crawl(&store).await.id);
    }
    let other = fixture::collection(&store, "other").await;
    let (kind, seeds, options) = (CrawlKind::Scan, ["/photos".to_owned()], json!({}));
    let scan =
        store.commit(async |tx| store.crawls().insert(tx.conn(), other, kind, &seeds, &options).await).await;
    fixture::set_state(&store, ids[1], CrawlState::Paused).await;
    assert_eq!(
        (scan.state, scan.collection.as_str(), scan.finished_at),
        (CrawlState::Running, "other", None)
    );

    ids.reverse();
    fn in_collection(name: &str) -> CrawlFilter<'_> {
        CrawlFilter { collection: Some(name), ..CrawlFilter::default() }
    }
    fn in_state(state: CrawlState) -> CrawlFilter<'static> {
        CrawlFilter { state: Some(state), ..CrawlFilter::default() }
    }
    let default = in_collection("default");
    let ids_of = |rows: Vec<store::crawls::Crawl>| rows.into_iter().map(|row| row.id).collect::<Vec<Uuid>>();
    let first = ids_of(store.crawls().list(&default, None, 2).await.unwrap());
    assert_eq!(first, ids[..2]);
    assert_eq!(ids_of(store.crawls().list(&default, Some(first[1]), 10).await.unwrap()), ids[2..]);
    assert_eq!(ids_of(store.crawls().list(&in_state(CrawlState::Paused), None, 10).await.unwrap()), [ids[3]]);
    assert_eq!(store.crawls().list(&CrawlFilter::default(), None, 10).await.unwrap().len(), 6);
    assert_not_found(store.crawls().list(&in_collection("none"), None, 10).await, "collection");
    let mut tx = store.begin().await.unwrap();
    assert_not_found(
        store.crawls().insert(tx.conn(), Uuid::now_v7(), CrawlKind::Web, &[], &json!({})).await,
        "collection",
    );
}

#[testing::test]
async fn crawl_state_changes_only_from_allowed_states() {
    let (_db, store) = fixture::database().await;
    let crawl = fixture::crawl(&store).await;
    let mut conn = store.pool().acquire().await.unwrap();
    let failed = store
        .crawls()
        .set_state(&mut conn, crawl.id, &[CrawlState::Running], CrawlState::Failed, Some("no disk"))
        .await
        .unwrap();
    assert_eq!(failed.error.as_deref(), Some("no disk"));
    assert!(failed.finished_at.is_some());
    match store.crawls().set_state(&mut conn, crawl.id, &CrawlState::LIVE, CrawlState::Cancelled, None).await
    {
        Err(StoreError::Conflict(message)) => {
            assert_eq!(
                message,
                "the crawl is failed; only a crawl that is running or paused can become cancelled"
            );
        }
        other => panic!("{other:?}"),
    }
    let result = store
        .crawls()
        .set_state(&mut conn, Uuid::now_v7(), &[CrawlState::Running], CrawlState::Paused, None)
        .await;
    assert_not_found(result, "crawl");
    assert_not_found(store.crawls().get(Uuid::now_v7()).await, "crawl");
}

#[testing::test]
async fn crawl_progress_counts_ledger_rows() {
    let (_db, store, _, model) = fixture::with_model(4).await;
    let crawl = fixture::crawl(&store).await;
    let pages = admit_pages(&store, crawl.id, 100, &[page("a"), page("b"), page("c")]).await;
    let urls: Vec<_> = (0..6).map(|n| image_url(format!("{n}.jpg"), "a")).collect();
    let images = admit_images(&store, crawl.id, 100, &urls).await;
    let progress = store.crawls().progress(crawl.id).await.unwrap();
    assert_eq!(
        (
            progress.pages[&PageState::Queued],
            progress.images[&ImageState::Queued],
            progress.images[&ImageState::Failed]
        ),
        (3, 6, 0)
    );

    let faces: Vec<_> = (0..2).map(|_| fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0])).collect();
    let stored = fixture::store_image(&store, crawl.collection_id, &fixture::image(1), &faces).await.unwrap();
    settle(&store, images[0].id, "processed", None, Some(stored)).await;
    settle(&store, images[1].id, "duplicate", None, Some(stored)).await;
    settle(&store, images[2].id, "skipped", Some("not_an_image"), None).await;
    settle(&store, images[3].id, "failed", Some("timeout"), None).await;
    settle(&store, images[4].id, "suppressed", None, None).await;
    let mut conn = store.pool().acquire().await.unwrap();
    let result = |state, reason| PageResult { reason, ..PageResult::new(state) };
    for (page, result) in pages.iter().zip([
        result(PageState::Fetched, None),
        result(PageState::Skipped, Some(Reason::RobotsDisallowed)),
        result(PageState::Failed, Some(Reason::Timeout)),
    ]) {
        store.ledger().settle_page(&mut conn, page.id, &result).await.unwrap();
    }
    assert_eq!(store.ledger().queued_in_crawl(&mut conn, crawl.id).await.unwrap(), 1);
    settle(&store, images[5].id, "skipped", Some("not_an_image"), None).await;

    let progress = store.crawls().progress(crawl.id).await.unwrap();
    assert_eq!(
        serde_json::to_value(&progress).unwrap(),
        json!({
            "pages": {"queued": 0, "fetched": 1, "skipped": 1, "failed": 1},
            "images": {"queued": 0, "processed": 1, "duplicate": 1, "skipped": 2, "failed": 1, "suppressed": 1},
            "videos": {"queued": 0, "running": 0, "paused": 0, "completed": 0, "cancelled": 0, "failed": 0},
            "faces": 2,
            "over_limit": {"pages": 0, "images": 0, "videos": 0},
            "links_left_out": {},
            "reasons": {"not_an_image": 2, "timeout": 2, "robots_disallowed": 1},
        })
    );
    assert_not_found(store.crawls().progress(Uuid::now_v7()).await, "crawl");
}

fn result(state: ImageState, reason: Option<Reason>, image: Option<Uuid>) -> ImageUrlResult<'static> {
    ImageUrlResult { state, reason, detail: None, image, final_url: None }
}

#[testing::test]
async fn pages_are_admitted_once_in_order_up_to_limit() {
    let (_db, store) = fixture::database().await;
    let crawl = fixture::crawl(&store).await;
    let urls = |rows: &[store::crawls::pages::AdmittedUrl]| {
        rows.iter().map(|row| row.url.clone()).collect::<Vec<_>>()
    };
    let first = admit_pages(&store, crawl.id, 4, &[page("b"), page("a"), page("b")]).await;
    assert_eq!(urls(&first), ["http://site.test/b", "http://site.test/a"]);
    assert_eq!(first[0].depth, 1);
    let second = admit_pages(&store, crawl.id, 4, &[page("a"), page("c"), page("d"), page("e")]).await;
    assert_eq!(urls(&second), ["http://site.test/c", "http://site.test/d"]);
    assert!(admit_pages(&store, crawl.id, 4, &[page("f")]).await.is_empty());
    assert!(admit_pages(&store, crawl.id, 4, &[]).await.is_empty());
    // Another crawl has its own ledger.
    let other = fixture::crawl(&store).await;
    assert_eq!(admit_pages(&store, other.id, 4, &[page("a")]).await.len(), 1);
    // URLs may have any length and content.
    let long_page = page("x".repeat(20_000) + "\0");
    assert_eq!(admit_pages(&store, other.id, 4, &[long_page.clone(), long_page]).await.len(), 1);
    let mut conn = store.pool().acquire().await.unwrap();
    let result = store.ledger().admit_pages(&mut conn, Uuid::now_v7(), 4, &[page("a")]).await;
    assert_not_found(result, "crawl");
}

#[testing::test]
async fn urls_over_limits_are_counted() {
    let (_db, store) = fixture::database().await;
    let crawl = fixture::crawl(&store).await;
    let over_limit = async || store.crawls().progress(crawl.id).await.unwrap().over_limit;
    admit_pages(&store, crawl.id, 3, &[page("a"), page("b")]).await;
    admit_images(&store, crawl.id, 2, &[image_url(1, "p"), image_url(2, "p")]).await;
    assert_eq!(over_limit().await, OverLimit::default());
    // One page fits, `a` is known, and `d` is listed twice.
    admit_pages(&store, crawl.id, 3, &[page("a"), page("c"), page("d"), page("d"), page("e")]).await;
    admit_images(&store, crawl.id, 2, &[image_url(2, "q"), image_url(3, "q")]).await;
    assert_eq!(over_limit().await, OverLimit { pages: 2, images: 1, videos: 0 });
    // An address that is found again counts again.
    admit_pages(&store, crawl.id, 3, &[page("d")]).await;
    let video = |host: &str, number| NewVideoUrl {
        url: format!("http://{host}/{number}.mp4"),
        host: host.into(),
        page_url: Some("http://site.test/a".into()),
        requested_url: None,
    };
    let videos = [video("a.test", 1), video("a.test", 2), video("b.test", 1), video("c.test", 1)];
    let mut tx = store.begin().await.unwrap();
    // The limits allow one video of each host, and two of the crawl.
    let limits = VideoLimits { total: 2, per_host: 1 };
    let admitted =
        store.crawled_videos().admit(tx.conn(), crawl.id, limits, &json!({}), &videos).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(admitted.len(), 2);
    assert_eq!(over_limit().await, OverLimit { pages: 3, images: 1, videos: 2 });
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_callers_admit_each_url_once() {
    let (db, store) = fixture::database().await;
    let crawl = fixture::crawl(&store).await;
    let tasks = (0..10).map(|task| {
        let store = store.clone();
        tokio::spawn(async move {
            let (mut pages, mut images) = (Vec::new(), Vec::new());
            for round in 0..8 {
                // The ranges overlap, so several tasks submit each URL.
                let from = (task * 3 + round * 5) % 60;
                let candidates: Vec<_> = (from..from + 20).map(page).collect();
                pages.extend(admit_pages(&store, crawl.id, 50, &candidates).await);
                let candidates: Vec<_> =
                    (from..from + 20).map(|n| image_url(n, &format!("page{task}"))).collect();
                images.extend(admit_images(&store, crawl.id, 1_000, &candidates).await);
            }
            (pages, images)
        })
    });
    let (mut pages, mut images) = (Vec::new(), Vec::new());
    for (p, i) in futures::future::try_join_all(tasks).await.unwrap() {
        pages.extend(p.into_iter().map(|row| row.url));
        images.extend(i.into_iter().map(|row| row.url));
    }
    assert_eq!(pages.len(), 50);
    assert_eq!(pages.iter().collect::<HashSet<_>>().len(), 50);
    assert_eq!(images.iter().collect::<HashSet<_>>().len(), images.len());
    let progress = store.crawls().progress(crawl.id).await.unwrap();
    assert_eq!(
        (progress.pages[&PageState::Queued], progress.images[&ImageState::Queued]),
        (50, images.len() as i64)
    );
    let (sightings, distinct): (i64, i64) =
        sqlx::query_as("select count(*), count(distinct (image_url, page_url)) from image_sources")
            .fetch_one(db.pool())
            .await
            .unwrap();
    assert_eq!(sightings, distinct);
}

#[testing::test]
async fn image_sightings_are_recorded_as_sources_once() {
    let (_db, store) = fixture::database().await;
    let crawl = fixture::crawl(&store).await;
    let sightings = [image_url("a.jpg", "one"), image_url("a.jpg", "two"), image_url("a.jpg", "one")];
    let admitted = admit_images(&store, crawl.id, 1, &sightings).await;
    assert_eq!(admitted.len(), 1);
    // The URL is over the limit, so it is neither admitted nor recorded as a source.
    assert!(admit_images(&store, crawl.id, 1, &[image_url("b.jpg", "one")]).await.is_empty());
    let image = fixture::store_image(&store, crawl.collection_id, &fixture::image(1), &[]).await.unwrap();
    settle(&store, admitted[0].id, "processed", None, Some(image)).await;
    // The row is already settled, so neither its state nor its image changes.
    settle(&store, admitted[0].id, "failed", Some("late"), None).await;
    // A later sighting is linked to the image immediately, even if the limit is reached.
    let seed = NewImageUrl { page_url: None, alt: None, ..image_url("a.jpg", "") };
    assert!(admit_images(&store, crawl.id, 1, &[image_url("a.jpg", "three"), seed]).await.is_empty());

    let sources = store.images().sources(&[image, Uuid::now_v7(), image]).await.unwrap();
    let pages: Vec<_> = sources.iter().map(|(id, source)| (*id, source.page_url.as_deref())).collect();
    let page = |name: &'static str| (image, Some(name));
    assert_eq!(
        pages,
        [
            page("http://site.test/one"),
            page("http://site.test/two"),
            page("http://site.test/three"),
            (image, None)
        ]
    );
    let source = &sources[0].1;
    assert_eq!(
        (source.image_url.as_str(), source.alt.as_deref()),
        ("http://site.test/a.jpg", Some("a face"))
    );
    assert_eq!(source.crawl_id, Some(crawl.id));
    let progress = store.crawls().progress(crawl.id).await.unwrap();
    assert_eq!((progress.images[&ImageState::Processed], progress.reasons.len()), (1, 0));
}

#[testing::test]
async fn sighting_during_image_settling_is_kept() {
    let (db, store) = fixture::database().await;
    let crawl = fixture::crawl(&store).await;
    let admitted = admit_images(&store, crawl.id, 9, &[image_url("a.jpg", "one")]).await;
    let image = fixture::store_image(&store, crawl.collection_id, &fixture::image(1), &[]).await.unwrap();

    // The row is settled first. The second sighting is recorded before the commit.
    let mut tx = store.begin().await.unwrap();
    store
        .ledger()
        .settle_image_url(tx.conn(), admitted[0].id, result(ImageState::Processed, None, Some(image)))
        .await
        .unwrap();
    let sighting = tokio::spawn({
        let store = store.clone();
        async move { admit_images(&store, crawl.id, 9, &[image_url("a.jpg", "two")]).await }
    });
    wait_for_lock(&db).await;
    tx.commit().await.unwrap();
    sighting.await.unwrap();
    assert_eq!(store.images().sources(&[image]).await.unwrap().len(), 2);

    // The second sighting is recorded first. The row is settled before the commit.
    let admitted = admit_images(&store, crawl.id, 9, &[image_url("b.jpg", "one")]).await;
    let mut tx = store.begin().await.unwrap();
    store.ledger().admit_images(tx.conn(), crawl.id, 9, &[image_url("b.jpg", "two")]).await.unwrap();
    let settle_task = tokio::spawn({
        let (store, row) = (store.clone(), admitted[0].id);
        async move { settle(&store, row, "duplicate", None, Some(image)).await }
    });
    wait_for_lock(&db).await;
    tx.commit().await.unwrap();
    settle_task.await.unwrap();
    assert_eq!(store.images().sources(&[image]).await.unwrap().len(), 4);
}

#[testing::test]
async fn page_is_settled_once_with_all_fields() {
    let (db, store) = fixture::database().await;
    let crawl = fixture::crawl(&store).await;
    let pages = admit_pages(&store, crawl.id, 9, &[page("a"), page("b")]).await;
    let mut conn = store.pool().acquire().await.unwrap();
    let result = PageResult {
        status: Some(200),
        final_url: Some("http://site.test/final".into()),
        title: Some("a\0title".into()),
        etag: Some("\"tag\"".into()),
        last_modified: Some("yesterday".into()),
        ..PageResult::new(PageState::Fetched)
    };
    store.ledger().settle_page(&mut conn, pages[0].id, &result).await.unwrap();
    let late = PageResult { reason: Some("late".into()), ..PageResult::new(PageState::Failed) };
    store.ledger().settle_page(&mut conn, pages[0].id, &late).await.unwrap();
    store.ledger().settle_page(&mut conn, Uuid::now_v7(), &late).await.unwrap();
    let row: (String, Option<i32>, String, String, String, String, bool) = sqlx::query_as(
        "select state, status, final_url, title, etag, last_modified, finished_at is not null from pages where id = $1",
    )
    .bind(pages[0].id)
    .fetch_one(db.pool())
    .await
    .unwrap();
    let row = (row.0.as_str(), row.1, row.2.as_str(), row.3.as_str(), row.4.as_str(), row.5.as_str(), row.6);
    assert_eq!(
        row,
        ("fetched", Some(200), "http://site.test/final", "a\u{FFFD}title", "\"tag\"", "yesterday", true)
    );
    let queued = PageResult::new(PageState::Queued);
    assert!(matches!(
        store.ledger().settle_page(&mut conn, pages[1].id, &queued).await,
        Err(StoreError::Invalid(_))
    ));
    let queued = self::result(ImageState::Queued, None, None);
    let result = store.ledger().settle_image_url(&mut conn, pages[1].id, queued).await;
    assert!(matches!(result, Err(StoreError::Invalid(_))));
}

#[testing::test]
async fn cancellation_waits_for_running_page_and_skips_queued_rows() {
    let (db, store) = fixture::database().await;
    let crawl = fixture::crawl(&store).await;
    let pages = admit_pages(&store, crawl.id, 9, &[page("a"), page("b")]).await;
    admit_images(&store, crawl.id, 9, &[image_url("a.jpg", "a"), image_url("b.jpg", "a")]).await;

    let mut page_tx = store.begin().await.unwrap();
    let fetched = PageResult::new(PageState::Fetched);
    store.ledger().settle_page(page_tx.conn(), pages[0].id, &fetched).await.unwrap();
    let cancel_task = tokio::spawn({
        let store = store.clone();
        async move {
            let mut tx = store.begin().await.unwrap();
            store
                .crawls()
                .set_state(tx.conn(), crawl.id, &[CrawlState::Running], CrawlState::Cancelled, None)
                .await
                .unwrap();
            let skipped =
                store.crawls().skip_queued(tx.conn(), crawl.id, Reason::Cancelled, i64::MAX).await.unwrap();
            tx.commit().await.unwrap();
            skipped
        }
    });
    wait_for_lock(&db).await;
    // The page then admits its links. The cancellation waits for that, and skips them too.
    assert_eq!(store.ledger().admit_pages(page_tx.conn(), crawl.id, 9, &[page("c")]).await.unwrap().len(), 1);
    page_tx.commit().await.unwrap();
    assert_eq!(cancel_task.await.unwrap().rows, 4);
    let progress = store.crawls().progress(crawl.id).await.unwrap();
    assert_eq!(
        (
            progress.pages[&PageState::Fetched],
            progress.pages[&PageState::Skipped],
            progress.images[&ImageState::Skipped]
        ),
        (1, 2, 2)
    );
    assert_eq!(progress.reasons[&Reason::Cancelled], 4);
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_settle_same_image_urls_without_deadlock() {
    let (_db, store) = fixture::database().await;
    let crawl = fixture::crawl(&store).await;
    let urls: Vec<_> = (0..40).map(|n| image_url(format!("{n}.jpg"), "p")).collect();
    let rows: Vec<Uuid> =
        admit_images(&store, crawl.id, 99, &urls).await.into_iter().map(|row| row.id).collect();
    let settle = |rows: Vec<Uuid>| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut tx = store.begin().await.unwrap();
            let settled: Vec<_> = rows
                .iter()
                .map(|row| (*row, result(ImageState::Failed, Some(Reason::DnsFailure), None)))
                .collect();
            let count = store.ledger().settle_image_urls(tx.conn(), &settled).await.unwrap();
            tx.commit().await.unwrap();
            count
        })
    };
    let reversed = rows.iter().rev().copied().collect();
    let (first, second) = tokio::join!(settle(rows.clone()), settle(reversed));
    let counts = [first.unwrap(), second.unwrap()];
    assert_eq!(counts.iter().sum::<usize>(), rows.len(), "{counts:?}");
}

#[testing::test]
async fn transaction_reads_its_queued_rows_and_outcomes() {
    let (_db, store) = fixture::database().await;
    let crawl = fixture::crawl(&store).await;
    let pages = admit_pages(&store, crawl.id, 9, &[page("a"), page("b"), page("c")]).await;
    let images = admit_images(&store, crawl.id, 9, &[image_url("a.jpg", "a"), image_url("b.jpg", "a")]).await;
    let mut tx = store.begin().await.unwrap();
    let conn = tx.conn();
    assert_eq!(store.ledger().queued_in_crawl(conn, crawl.id).await.unwrap(), 5);
    assert!(store.crawls().has_queued_rows(&mut *conn, crawl.id).await.unwrap());
    let first = store.ledger().queued_rows(conn, crawl.id, Ledger::Pages, None, 2).await.unwrap();
    assert_eq!(first, [pages[0].id, pages[1].id]);
    let remaining =
        store.ledger().queued_rows(conn, crawl.id, Ledger::Pages, Some(first[1]), 9).await.unwrap();
    assert_eq!(remaining, [pages[2].id]);
    for image in &images[..2] {
        let result = result(ImageState::Failed, Some(Reason::Timeout), None);
        store.ledger().settle_image_url(conn, image.id, result).await.unwrap();
    }
    let fetched = PageResult::new(PageState::Fetched);
    store.ledger().settle_page(conn, pages[0].id, &fetched).await.unwrap();
    assert!(store.crawls().has_queued_rows(&mut *conn, crawl.id).await.unwrap(), "pages");
    assert!(store.ledger().queued_rows(conn, crawl.id, Ledger::ImageUrls, None, 9).await.unwrap().is_empty());
    let outcome = |fetched, reason, count| LedgerCount { fetched, reason, count };
    let outcomes = store.ledger().outcomes(conn, crawl.id).await.unwrap();
    assert_eq!(outcomes, [outcome(false, Some(Reason::Timeout), 2), outcome(true, None, 1)]);
    for page in &pages[1..] {
        store.ledger().settle_page(conn, page.id, &fetched).await.unwrap();
    }
    assert!(!store.crawls().has_queued_rows(&mut *conn, crawl.id).await.unwrap());
    let result = store.crawls().lock(conn, Uuid::now_v7()).await;
    assert_not_found(result, "crawl");
}

#[testing::test]
async fn key_locks_hold_until_transaction_ends() {
    let (db, store) = fixture::database().await;
    let mut tx = store.begin().await.unwrap();
    store.images().lock_near_keys(tx.conn(), &[7, -3, 7]).await.unwrap();
    let task = tokio::spawn({
        let store = store.clone();
        async move {
            let mut tx = store.begin().await.unwrap();
            store.images().lock_near_keys(tx.conn(), &[1, -3]).await.unwrap();
        }
    });
    wait_for_lock(&db).await;
    assert!(!task.is_finished());
    tx.commit().await.unwrap();
    task.await.unwrap();
}

#[testing::test]
async fn page_transactions_lock_in_same_order() {
    let (db, store) = fixture::database().await;
    let crawl = fixture::crawl(&store).await.id;
    let directories = ["http://site.test/", "site.test"];
    // A page without images counts its directories before it adds the pages that it links to.
    let mut tx = store.begin().await.unwrap();
    let read = move |images| PageYield { directories: directories.map(str::to_owned).to_vec(), images };
    store.ledger().count_yields(tx.conn(), crawl, &[read(0)]).await.unwrap();
    // A page with images adds them first.
    let task = tokio::spawn({
        let store = store.clone();
        async move {
            let mut tx = store.begin().await.unwrap();
            store.ledger().admit_images(tx.conn(), crawl, 9, &[image_url("a.jpg", "a")]).await?;
            store.ledger().count_yields(tx.conn(), crawl, &[read(1), read(2)]).await?;
            tx.commit().await
        }
    });
    wait_for_lock(&db).await;
    store.ledger().admit_pages(tx.conn(), crawl, 9, &[page("b")]).await.unwrap();
    tx.commit().await.unwrap();
    task.await.unwrap().unwrap();
    let mut tx = store.begin().await.unwrap();
    let yields = store.ledger().yields(tx.conn(), crawl, &directories).await.unwrap();
    assert!(yields.iter().all(|counted| (counted.pages, counted.images) == (3, 3)), "{yields:?}");
}
