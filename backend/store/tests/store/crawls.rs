use crate::fixture::{self, admit_images, admit_pages, image_url, page, settle};
use domain::{CrawlKind, CrawlState, ImageState, PageState, Reason};
use serde_json::json;
use store::StoreError;
use store::crawls::CrawlFilter;
use store::crawls::pages::PageResult;
use testing::TestDatabase;
use uuid::Uuid;

#[testing::test]
async fn collections_are_made_once_and_default_is_always_there() {
    let db = TestDatabase::create().await;
    let store = db.store();
    assert_eq!(store.collection("default").await.unwrap().name, "default");
    let made =
        futures::future::try_join_all((0..8).map(|_| store.ensure_collection("press-2024"))).await.unwrap();
    assert!(made.iter().all(|collection| collection.id == made[0].id));
    let names: Vec<String> = store.collections().await.unwrap().into_iter().map(|c| c.name).collect();
    assert_eq!(names, ["default", "press-2024"]);
    for name in ["", "Ümlaut", "UPPER", "a b", "nul\0", &"x".repeat(65)] {
        assert!(matches!(store.ensure_collection(name).await, Err(StoreError::Invalid(_))), "{name:?}");
        let missing = store.collection(name).await;
        assert!(matches!(missing, Err(StoreError::NotFound { what: "collection", .. })), "{name:?}");
    }
}

#[testing::test]
async fn a_crawl_is_listed_filtered_and_paged_newest_first() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(fixture::crawl(&store).await.id);
    }
    let other = fixture::collection(&store, "other").await;
    let mut tx = store.begin().await.unwrap();
    let scan =
        store.insert_crawl(tx.conn(), other, CrawlKind::Scan, &["/photos".into()], &json!({})).await.unwrap();
    store.set_crawl_state(tx.conn(), ids[1], &[CrawlState::Running], CrawlState::Paused, None).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(
        (scan.state, scan.collection.as_str(), scan.finished_at),
        (CrawlState::Running, "other", None)
    );

    ids.reverse();
    fn of(name: &str) -> CrawlFilter<'_> {
        CrawlFilter { collection: Some(name), ..CrawlFilter::default() }
    }
    fn in_state(state: CrawlState) -> CrawlFilter<'static> {
        CrawlFilter { state: Some(state), ..CrawlFilter::default() }
    }
    let default = of("default");
    let listed = |rows: Vec<store::crawls::Crawl>| rows.into_iter().map(|row| row.id).collect::<Vec<Uuid>>();
    let first = listed(store.crawls(&default, None, 2).await.unwrap());
    assert_eq!(first, ids[..2]);
    assert_eq!(listed(store.crawls(&default, Some(first[1]), 10).await.unwrap()), ids[2..]);
    assert_eq!(listed(store.crawls(&in_state(CrawlState::Paused), None, 10).await.unwrap()), [ids[3]]);
    assert_eq!(store.crawls(&CrawlFilter::default(), None, 10).await.unwrap().len(), 6);
    assert!(matches!(store.crawls(&of("none"), None, 10).await, Err(StoreError::NotFound { .. })));
    let mut tx = store.begin().await.unwrap();
    assert!(matches!(
        store.insert_crawl(tx.conn(), Uuid::now_v7(), CrawlKind::Web, &[], &json!({})).await,
        Err(StoreError::NotFound { what: "collection", .. })
    ));
}

#[testing::test]
async fn states_change_only_from_where_they_may() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let crawl = fixture::crawl(&store).await;
    let mut conn = store.pool().acquire().await.unwrap();
    let failed = store
        .set_crawl_state(&mut conn, crawl.id, &[CrawlState::Running], CrawlState::Failed, Some("no disk"))
        .await
        .unwrap();
    assert_eq!(failed.error.as_deref(), Some("no disk"));
    assert!(failed.finished_at.is_some());
    match store.set_crawl_state(&mut conn, crawl.id, &CrawlState::LIVE, CrawlState::Cancelled, None).await {
        Err(StoreError::Conflict(why)) => {
            assert_eq!(
                why,
                "the crawl is failed; only a crawl that is running or paused can become cancelled"
            );
        }
        other => panic!("{other:?}"),
    }
    let nobody = store
        .set_crawl_state(&mut conn, Uuid::now_v7(), &[CrawlState::Running], CrawlState::Paused, None)
        .await;
    assert!(matches!(nobody, Err(StoreError::NotFound { what: "crawl", .. })));
    assert!(matches!(store.crawl(Uuid::now_v7()).await, Err(StoreError::NotFound { what: "crawl", .. })));
}

#[testing::test]
async fn progress_is_counted_from_the_ledgers_and_adds_up() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let crawl = fixture::crawl(&store).await;
    let model = fixture::model(&store, "m", 4).await;
    let pages = admit_pages(&store, crawl.id, 100, &[page("a"), page("b"), page("c")]).await;
    let urls: Vec<_> = (0..6).map(|n| image_url(format!("{n}.jpg"), "a")).collect();
    let images = admit_images(&store, crawl.id, 100, &urls).await;
    let progress = store.crawl_progress(crawl.id).await.unwrap();
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
    store.settle_page(&mut conn, pages[0].id, &result(PageState::Fetched, None)).await.unwrap();
    store
        .settle_page(&mut conn, pages[1].id, &result(PageState::Skipped, Some(Reason::RobotsDisallowed)))
        .await
        .unwrap();
    store
        .settle_page(&mut conn, pages[2].id, &result(PageState::Failed, Some(Reason::Timeout)))
        .await
        .unwrap();
    assert_eq!(store.queued_in_crawl(&mut conn, crawl.id).await.unwrap(), 1);
    settle(&store, images[5].id, "skipped", Some("not_an_image"), None).await;

    let progress = store.crawl_progress(crawl.id).await.unwrap();
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
    assert!(matches!(store.crawl_progress(Uuid::now_v7()).await, Err(StoreError::NotFound { .. })));
}
