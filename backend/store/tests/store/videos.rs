//! Tests erasures and exports of videos at the level of rows.
use crate::fixture::{self, Commit, assert_not_found};
use crate::tombstones::{deletion_log, reapply};
use domain::{Reason, VideoState};
use store::Store;
use store::erasures::suppressions::Suppression;
use store::erasures::{ErasureRecord, Target};
use store::faces::FaceListQuery;
use store::index::scope::{FaceFilter, Site};
use store::people::NewSubject;
use store::videos::tracks::TrackFilter;
use store::videos::{NewVideo, VideoEnd};
use testing::TestDatabase;
use uuid::Uuid;

async fn set_address(database: &TestDatabase, video: Uuid, url: &str) {
    run(database, format!("update videos set source_url = '{url}' where id = '{video}'")).await;
}

async fn run(database: &TestDatabase, statement: String) {
    sqlx::query(sqlx::AssertSqlSafe(statement)).execute(database.pool()).await.unwrap();
}

/// The tables with the rows of videos, in the order of their references.
const TABLES: [&str; 6] = ["videos", "images", "faces", "video_frames", "tracks", "track_faces"];

#[testing::test]
async fn restored_backup_loses_deleted_and_erased_videos() {
    let (db, store, collection, model) = fixture::with_model(4).await;
    let (erased, faces) = fixture::completed_video(&store, &model, [1; 32], 3).await;
    let (deleted, _) = fixture::completed_video(&store, &model, [2; 32], 0).await;
    let (kept, _) = fixture::completed_video(&store, &model, [3; 32], 2).await;
    for table in TABLES {
        run(&db, format!("create table backup_of_{table} as select * from {table}")).await;
    }
    let mut tx = store.begin().await.unwrap();
    store.videos().delete(tx.conn(), deleted).await.unwrap();
    let plan = store.erasures().plan(tx.conn(), collection, &Target::Video(erased)).await.unwrap();
    assert_eq!((plan.faces.len(), plan.videos.as_slice()), (faces.len(), &[erased][..]));
    assert_eq!(plan.suppressions, [Suppression::VideoFile { sha256: vec![1; 32] }]);
    let record = ErasureRecord { kind: "video".into(), ..fixture::erasure_by_likeness(collection) };
    store.erasures().record(tx.conn(), &record).await.unwrap();
    store.erasures().carry_out(tx.conn(), &plan).await.unwrap();
    store.suppressions().suppress(tx.conn(), collection, record.id, &plan.suppressions).await.unwrap();
    tx.commit().await.unwrap();
    let log = deletion_log(&store).await;

    // The backup is restored without the deletion log, which is then applied.
    for table in TABLES {
        run(&db, format!("insert into {table} select * from backup_of_{table} on conflict do nothing")).await;
    }
    for table in ["tombstones", "suppressions", "erasures"] {
        run(&db, format!("delete from {table}")).await;
    }
    assert!(store.videos().get(erased).await.is_ok() && store.videos().get(deleted).await.is_ok());
    assert_eq!(reapply(&store, collection, log.clone()).await, (3, 3, 0));
    for video in [erased, deleted] {
        assert_not_found(store.videos().get(video).await, "video");
    }
    assert_eq!(store.crawled_videos().counts(kept).await.unwrap().tracks, 2);
    for (file, suppressed) in [([1; 32], true), ([2; 32], false)] {
        assert_eq!(
            store.suppressions().suppresses_video(store.pool(), collection, &file).await.unwrap(),
            suppressed
        );
    }
    assert_eq!(reapply(&store, collection, log).await, (0, 0, 0), "no logged row is left");
}

#[testing::test]
async fn erasing_video_erases_all_videos_of_its_file() {
    let (db, store, collection, model) = fixture::with_model(4).await;
    let (original, _) = fixture::completed_video(&store, &model, [1; 32], 1).await;
    let (other, _) = fixture::completed_video(&store, &model, [2; 32], 1).await;
    // A duplicate at another address, an earlier attempt, and a duplicate of another video.
    run(&db, format!(
        "insert into videos (id, collection_id, state, sha256, source_url, options, original_id, finished_at)
             select gen_random_uuid(), collection_id, 'failed', null, 'http://site.test/copy.mp4', options, id, now()
             from videos where id = '{original}'
             union all select gen_random_uuid(), collection_id, 'cancelled', sha256, null, options, null, now()
             from videos where id = '{original}'
             union all select gen_random_uuid(), collection_id, 'failed', null, 'file:///film.mp4', options, id, now()
             from videos where id = '{other}'"
    ))
    .await;
    let duplicate: Uuid = sqlx::query_scalar("select id from videos where original_id = $1")
        .bind(original)
        .fetch_one(store.pool())
        .await
        .unwrap();
    // An erasure of any of these videos erases all of them.
    for video in [original, duplicate] {
        let mut tx = store.begin().await.unwrap();
        let plan = store.erasures().plan(tx.conn(), collection, &Target::Video(video)).await.unwrap();
        assert_eq!((plan.videos.len(), plan.faces.len()), (3, 1));
        assert!(!plan.videos.contains(&other));
        let address = Suppression::Url("http://site.test/copy.mp4".into());
        assert!(
            plan.suppressions.contains(&address) && plan.suppressions.len() == 2,
            "{:?}",
            plan.suppressions
        );
    }
    let mut tx = store.begin().await.unwrap();
    let plan = store.erasures().plan(tx.conn(), collection, &Target::Video(other)).await.unwrap();
    assert_eq!(
        plan.suppressions,
        [Suppression::VideoFile { sha256: vec![2; 32] }],
        "paths are not suppressed"
    );
    let other_collection = store.collections().ensure("elsewhere").await.unwrap().id;
    let result = store.erasures().plan(tx.conn(), other_collection, &Target::Video(other)).await;
    assert_not_found(result, "video");
}

#[testing::test]
async fn erasure_by_url_includes_earlier_attempts_of_file() {
    let (db, store, collection, model) = fixture::with_model(4).await;
    let (attempt, mut faces) = fixture::completed_video(&store, &model, [1; 32], 2).await;
    let first = "http://site.test/first.mp4";
    set_address(&db, attempt, first).await;
    db.execute("update videos set state = 'cancelled'").await;
    let (completed, completed_faces) = fixture::completed_video(&store, &model, [1; 32], 3).await;
    let second = "http://site.test/second.mp4";
    set_address(&db, completed, second).await;
    let (other, _) = fixture::completed_video(&store, &model, [2; 32], 1).await;
    set_address(&db, other, "http://site.test/other.mp4").await;
    faces.extend(completed_faces);
    faces.sort_unstable();
    for url in [first, second] {
        let mut tx = store.begin().await.unwrap();
        let target = Target::Url(vec![url.into()]);
        let plan = store.erasures().plan(tx.conn(), collection, &target).await.unwrap();
        let mut videos = plan.videos.clone();
        videos.sort_unstable();
        assert_eq!(videos, [attempt, completed], "{url}");
        let mut planned: Vec<Uuid> = plan.faces.iter().map(|face| face.id).collect();
        planned.sort_unstable();
        assert_eq!(planned, faces, "{url}");
    }
}

#[testing::test]
async fn duplicate_video_is_recorded_once() {
    let (db, store, collection, model) = fixture::with_model(4).await;
    let (original, _) = fixture::completed_video(&store, &model, [1; 32], 0).await;
    let new = NewVideo {
        source_url: Some("file:///film.mp4".into()),
        scan: Some(fixture::crawl(&store).await.id),
        ..fixture::video(collection, [1; 32])
    };
    let id = Uuid::now_v7();
    // The response of the first commit was lost.
    for _ in 0..2 {
        store
            .commit(async |tx| store.crawled_videos().record_duplicate(tx.conn(), id, &new, original).await)
            .await;
    }
    assert_eq!(store.videos().get(id).await.unwrap().original_id, Some(original));
    let records = "select count(*) from videos where original_id is not null";
    assert_eq!(db.number(records).await, 1);
}

#[testing::test]
async fn paged_export_omits_faces_erased_in_between() {
    let (_db, store, _, model) = fixture::with_model(4).await;
    let (video, faces) = fixture::completed_video(&store, &model, [1; 32], 5).await;
    let first = store.crawled_videos().export_tracks(video, None, 2, true).await.unwrap();
    let ids = |tracks: &[store::videos::export::ExportedTrack]| -> Vec<Uuid> {
        tracks.iter().flat_map(|track| &track.faces).map(|(_, (face, _))| face.id).collect()
    };
    assert_eq!(ids(&first.tracks), faces[..2]);
    let (_, (_, embedding)) = &first.tracks[0].faces[0];
    assert_eq!(embedding.as_deref(), Some([1.0, 0.0, 0.0, 0.0].as_slice()));
    store.commit(async |tx| store.faces().delete(tx.conn(), faces[2]).await).await;
    let second = store.crawled_videos().export_tracks(video, first.next, 2, false).await.unwrap();
    assert_eq!(ids(&second.tracks), faces[3..5]);
    assert!(
        second.tracks.iter().all(|track| track.faces[0].1.1.is_none()),
        "embeddings are returned only on request"
    );
    assert_eq!(second.next, None);

    store.commit(async |tx| store.videos().delete(tx.conn(), video).await).await;
    assert!(
        store.crawled_videos().export_tracks(video, first.next, 2, true).await.unwrap().tracks.is_empty()
    );
}

#[testing::test]
async fn export_lists_each_file_once_with_own_sources() {
    let (db, store, _, model) = fixture::with_model(4).await;
    let (first, _) = fixture::completed_video(&store, &model, [1; 32], 1).await;
    let (second, _) = fixture::completed_video(&store, &model, [2; 32], 1).await;
    let scan = fixture::crawl(&store).await.id;
    set_address(&db, first, "file:///a.mp4").await;
    run(&db, format!("update videos set scan_id = '{scan}' where id = '{first}'")).await;
    set_address(&db, second, "http://site.test/b.mp4").await;
    // The places of a file are in the order of their ids.
    for original in [first, second] {
        run(&db, format!(
            "insert into videos (id, collection_id, state, source_url, options, original_id, scan_id, finished_at)
             select ('f' || substr(gen_random_uuid()::text, 2))::uuid, collection_id, 'failed', 'file:///copy.mp4', options, id, '{scan}', now()
             from videos where id = '{original}'"
        ))
        .await;
    }
    let ids = store.crawled_videos().list_for_export(scan, Uuid::nil(), 1).await.unwrap();
    assert_eq!(ids, [first]);
    assert_eq!(store.crawled_videos().list_for_export(scan, first, 10).await.unwrap(), [second]);
    assert!(store.crawled_videos().list_for_export(scan, second, 10).await.unwrap().is_empty());
    let urls_of = async |id| {
        let exported = store.crawled_videos().export_of_crawl(scan, id).await.unwrap().unwrap();
        assert_eq!(exported.total as usize, exported.sources.len());
        exported.sources.into_iter().map(|source| source.video_url.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(urls_of(first).await, ["file:///a.mp4", "file:///copy.mp4"]);
    assert_eq!(urls_of(second).await, ["file:///copy.mp4"], "the sources of another crawl are not listed");
    let other_collection = store.collections().ensure("elsewhere").await.unwrap().id;
    let scoped = store.within(other_collection);
    assert!(scoped.crawled_videos().list_for_export(scan, Uuid::nil(), 10).await.unwrap().is_empty());
    assert_not_found(scoped.crawled_videos().export(first).await, "video");
}

#[testing::test]
async fn video_frames_are_found_by_site_of_video() {
    let database = TestDatabase::create().await;
    let store = database.store().with_exact_limit(0);
    let (collection, model) = fixture::default_and_model(&store, 4).await;
    let (page_video, on_page) = fixture::completed_video(&store, &model, [1; 32], 3).await;
    let (direct_video, direct) = fixture::completed_video(&store, &model, [2; 32], 2).await;
    fixture::completed_video(&store, &model, [3; 32], 1).await;
    for video in [page_video, direct_video] {
        set_address(&database, video, "https://cdn.test/film.mp4").await;
    }
    fixture::build_index(&store, &model).await;
    let columns = "video_sources (video_id, page_url, page_hash)";
    let values = format!("('{page_video}', 'https://www.press.test/films', gen_random_uuid())");
    run(&database, format!("insert into {columns} values {values}")).await;
    for (site, mut expected) in [("press.test", on_page), ("cdn.test", direct), ("film.mp4", Vec::new())] {
        let filter = FaceFilter { site: Some(Site::parse(site).unwrap()), ..FaceFilter::default() };
        let list = FaceListQuery { collection: "default".into(), filter, ..FaceListQuery::default() };
        let mut listed: Vec<Uuid> =
            store.faces().list(&list, None, 9).await.unwrap().into_iter().map(|face| face.id).collect();
        expected.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, expected, "{site}");
        // A search with fewer results than faces in scope uses the index, and tests each face.
        let probe = vec![1.0, 0.0, 0.0, 0.0];
        let mut search = crate::fixture::query(collection, model.id, probe);
        (search.filter, search.limit) = (list.filter, (expected.len() as i64 - 1).max(0));
        let (hits, exact) = store.faces().search(&search).await.unwrap();
        assert_eq!((hits.len() as i64, exact), (search.limit, expected.is_empty()), "{site}");
        assert!(hits.iter().all(|hit| expected.contains(&hit.face.id)), "{site}");
    }
}

#[testing::test]
async fn track_page_with_many_boxes_is_shorter() {
    let (db, store) = fixture::database().await;
    fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", 4).await;
    let (video, _) = fixture::completed_video(&store, &model, [1; 32], 40).await;
    let starts = async |limit, after| {
        let page = store.tracks().list(video, &TrackFilter::default(), after, limit).await.unwrap();
        let starts: Vec<i64> = page.tracks.iter().map(|track| track.started_us / 1_000_000).collect();
        (starts, page.next)
    };
    assert_eq!(starts(100, None).await, ((0..40).collect(), None));
    assert_eq!(starts(40, None).await, ((0..40).collect(), None));
    let (two, next) = starts(2, None).await;
    assert_eq!((two.as_slice(), next.map(|(start, _)| start)), (&[0, 1][..], Some(1_000_000)));
    // Each track has 16 kB of boxes, and a page has at most 256 KiB.
    run(&db, "update tracks set boxes = decode(repeat('00', 16000), 'hex')".into()).await;
    let (first, next) = starts(100, None).await;
    assert_eq!(first, (0..17).collect::<Vec<_>>());
    let (second, next) = starts(100, next).await;
    assert_eq!(second, (17..34).collect::<Vec<_>>());
    assert_eq!(starts(100, next).await, ((34..40).collect(), None));
}

/// Makes everything 31 days old, in a collection that keeps it for 30 days.
async fn make_content_expire(db: &TestDatabase) {
    for statement in [
        "update collections set retention_days = 30",
        "update images set created_at = now() - interval '31 days'",
        "update videos set created_at = now() - interval '31 days', finished_at = now() - interval '31 days',
                           found_at = now() - interval '31 days'",
    ] {
        db.execute(statement).await;
    }
}

async fn expire(store: &Store, collection: Uuid) -> (u64, u64) {
    let mut total = (0, 0);
    loop {
        let expired =
            store.commit(async |tx| store.retention().expire_step(tx.conn(), collection).await).await;
        if expired.is_empty() {
            return total;
        }
        total = (total.0 + expired.images, total.1 + expired.videos);
    }
}

#[testing::test]
async fn retention_keeps_video_after_file_was_found_again() {
    let (db, store, collection, model) = fixture::with_model(4).await;
    let (id, faces) = fixture::completed_video(&store, &model, [1; 32], 2).await;
    make_content_expire(&db).await;
    assert_eq!(store.deletion_counts().of_retention(collection, 30).await.unwrap().faces, 2);
    // A crawl finds the same file.
    let repeated = NewVideo {
        sha256: None,
        bytes: None,
        source_url: Some("http://site.test/film.mkv".into()),
        ..fixture::video(collection, [1; 32])
    };
    let mut tx = store.begin().await.unwrap();
    let repeated = store.videos().insert(tx.conn(), &repeated).await.unwrap().unwrap();
    let (state, reason) = (VideoState::Failed, Some(Reason::ExactDuplicate));
    let end = VideoEnd { state, people: None, reason, detail: None, original: Some(id), keep_file: false };
    store.videos().end(tx.conn(), repeated, end).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(store.deletion_counts().of_retention(collection, 30).await.unwrap().faces, 0);
    assert_eq!(expire(&store, collection).await, (0, 0));
    for face in &faces {
        store.faces().get(*face).await.unwrap();
    }
    make_content_expire(&db).await;
    assert_eq!(expire(&store, collection).await, (2, 2));
    assert!(store.videos().get(id).await.is_err());
}

#[testing::test]
async fn partially_expired_video_file_can_be_read_again() {
    let (db, store, collection, model) = fixture::with_model(4).await;
    let (id, faces) = fixture::completed_video(&store, &model, [1; 32], 2).await;
    let ada = NewSubject { name: Some("Ada".into()), ..fixture::unnamed_subject() };
    fixture::person(&store, collection, &ada, &faces[..1]).await;
    let video = fixture::video(collection, [1; 32]);
    let add = async || store.commit(async |tx| store.videos().insert(tx.conn(), &video).await).await;
    assert_eq!(add().await, Err(id));
    make_content_expire(&db).await;
    // The frame with the enrolled face remains, and its video with it.
    assert_eq!(expire(&store, collection).await, (1, 0));
    store.faces().get(faces[0]).await.unwrap();
    let repeated = add().await.expect("the file can be read again");
    assert_eq!(add().await, Err(repeated));
}
