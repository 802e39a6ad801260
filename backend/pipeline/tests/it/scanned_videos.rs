//! Tests video files of scans: cancellations, two scans of one file, and erasures.

use crate::stored_videos::{REQUEST, erase, erase_track, tracks, videos, wait_for_video, world_with_film};
use crate::support::World;
use crate::videos::{decoder, open_with_retries};
use domain::{Reason, VideoState};
use pipeline::scan::ScannedVideo;
use pipeline::videos::store::{StoredVideo, VideoFile, VideoReader};
use pipeline::{AnalyzeOptions, Dedupe, IngestError, Scan, VideoRequest};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::path::Path;
use store::StoreError;
use store::erasures::Target;
use store::videos::tracks::Track;
use store::videos::{Video, VideoFilter};
use uuid::Uuid;
use video::{Config, Decoder, Launcher, Limits};

async fn begin(world: &World) -> Scan {
    world.scan(Dedupe::Exact, AnalyzeOptions::default()).await
}

async fn read(scan: &Scan, path: &Path) -> Result<ScannedVideo, IngestError> {
    read_with(&decoder(), scan, path, REQUEST).await
}

async fn read_with(
    decoder: &Decoder,
    scan: &Scan,
    path: &Path,
    request: VideoRequest,
) -> Result<ScannedVideo, IngestError> {
    let bytes = std::fs::read(path).unwrap();
    let file = VideoFile {
        file: File::open(path).unwrap(),
        sha256: Sha256::digest(&bytes).into(),
        bytes: bytes.len() as u64,
    };
    scan.scan_video(decoder, path, file, request, &mut ()).await
}

fn stored(read: Result<ScannedVideo, IngestError>) -> Video {
    match read {
        Ok(ScannedVideo::Stored { video, .. }) => *video,
        other => panic!("{other:?}"),
    }
}

/// Waits until a part of the only video is stored, and returns the id of the video.
async fn first_part(world: &World) -> Uuid {
    let video = crate::support::wait_for(async || {
        let filter = VideoFilter {
            collection: "default".into(),
            state: Some(VideoState::Running),
            ..VideoFilter::default()
        };
        world.store.videos().list(&filter, None, 1).await.unwrap().pop()
    });
    let id = video.await.unwrap().id;
    wait_for_video(world, id, |video| video.checkpoint_us.is_some()).await;
    id
}

#[testing::needs(video, slow)]
#[testing::test]
async fn scan_stops_cancelled_video_and_resumes_it_later() {
    let (world, path) = world_with_film(8).await;
    let control = videos(&world);
    let scan = begin(&world).await;
    let (cancelled, id) = tokio::join!(read(&scan, &path), async {
        let id = first_part(&world).await;
        let error = control.pause(&world.store, id).await.unwrap_err();
        assert!(error.to_string().contains("scan"), "{error}");
        assert_eq!(control.reconcile().await.unwrap(), 0, "a process reads it");
        control.cancel(&world.store, id).await.unwrap();
        id
    });
    let unprocessed = |read: Result<ScannedVideo, IngestError>| match read {
        Ok(ScannedVideo::Unprocessed { video, reason, .. }) => (video, reason),
        other => panic!("{other:?}"),
    };
    assert_eq!(unprocessed(cancelled), (id, Reason::Cancelled));

    // The record of the scan is cancelled.
    let (cancelled, ()) = tokio::join!(read(&scan, &path), async {
        let checkpoint = world.store.videos().get(id).await.unwrap().checkpoint_us;
        wait_for_video(&world, id, |video| video.checkpoint_us > checkpoint).await;
        world.crawls.cancel(scan.crawl().id).await.unwrap();
        world.crawls.reconcile().await.unwrap();
        let video = world.store.videos().get(id).await.unwrap();
        assert_eq!((video.state, video.reason), (VideoState::Cancelled, Some(Reason::NotScanned)));
    });
    // On a slow machine, the scan first finds that its lease is lost.
    if !matches!(cancelled, Err(IngestError::Store(StoreError::Conflict(_)))) {
        assert_eq!(unprocessed(cancelled), (id, Reason::Cancelled));
    }

    let video = stored(read(&begin(&world).await, &path).await);
    assert_eq!((video.id, video.state, video.reason), (id, VideoState::Completed, None));
}

#[testing::needs(video)]
#[testing::test]
async fn concurrent_scans_store_same_file_once() {
    let (world, path) = world_with_film(1).await;
    let (first, second) = (begin(&world).await, begin(&world).await);
    let results = tokio::join!(read(&first, &path), read(&second, &path));
    let (video, duplicate) = match results {
        (first @ Ok(ScannedVideo::Stored { .. }), Ok(ScannedVideo::Duplicate(other))) => {
            (stored(first), other)
        }
        (Ok(ScannedVideo::Duplicate(other)), second) => (stored(second), other),
        other => panic!("{other:?}"),
    };
    assert_eq!(video.id, duplicate);
    assert!(!tracks(&world, video.id).await.is_empty());
}

#[testing::needs(video)]
#[testing::test]
async fn erased_track_does_not_return_in_another_scan() {
    let (world, path) = world_with_film(1).await;
    let scan = begin(&world).await;
    let id = stored(read(&scan, &path).await).id;
    let stored_tracks = tracks(&world, id).await;
    erase_track(&world, &stored_tracks[0]).await;
    let remaining = tracks(&world, id).await;
    assert_eq!(remaining.len(), stored_tracks.len() - 1);
    world.commit(async |tx| world.store.videos().delete(tx.conn(), id).await).await;
    let second_id = stored(read(&scan, &path).await).id;
    let times = |tracks: &[Track]| -> Vec<(i64, i64)> {
        tracks.iter().map(|track| (track.started_us, track.ended_us)).collect()
    };
    assert_eq!(times(&tracks(&world, second_id).await), times(&remaining));
}

#[testing::needs(video)]
#[testing::test]
async fn scan_does_not_continue_video_of_url() {
    let (world, path) = world_with_film(1).await;
    let first = stored(read(&begin(&world).await, &path).await).id;
    let failed =
        "update videos set state = 'failed', scan_id = null, source_url = 'https://example.org/film.mkv'";
    world.execute(failed).await;
    let second = stored(read(&begin(&world).await, &path).await).id;
    assert_ne!(second, first);
    let first = world.store.videos().get(first).await.unwrap();
    assert_eq!(first.source_url.as_deref(), Some("https://example.org/film.mkv"));
}

#[testing::needs(video)]
#[testing::test]
async fn scan_with_refine_does_not_continue_scan_without() {
    let (world, path) = world_with_film(1).await;
    let auto = VideoRequest::default();
    let refined = VideoRequest { refine: true, ..auto };
    let first = stored(read_with(&decoder(), &begin(&world).await, &path, auto).await);
    world.execute("update videos set state = 'failed'").await;
    let second = stored(read_with(&decoder(), &begin(&world).await, &path, refined).await);
    assert_ne!(second.id, first.id);
    assert!(second.frames > 3 * first.frames, "{} {}", second.frames, first.frames);
    assert_eq!(second.options["refine"], true);
    world.execute("update videos set state = 'failed'").await;
    let third = stored(read_with(&decoder(), &begin(&world).await, &path, refined).await);
    assert_eq!(third.id, second.id);
}

#[testing::needs(video)]
#[testing::test]
async fn erasure_of_last_face_erases_urls_of_video_file() {
    let (world, path) = world_with_film(1).await;
    let id = stored(read(&begin(&world).await, &path).await).id;
    let duplicate = "insert into videos (id, collection_id, state, source_url, options, original_id, finished_at)
                     select gen_random_uuid(), collection_id, 'failed', 'https://example.org/film.mkv', options, id, now()
                     from videos";
    world.execute(duplicate).await;
    for track in tracks(&world, id).await {
        erase_track(&world, &track).await;
    }
    let filter = VideoFilter { collection: "default".into(), ..VideoFilter::default() };
    let videos = world.store.videos().list(&filter, None, 10).await.unwrap();
    assert_eq!(videos.len(), 2);
    assert!(videos.iter().all(|video| video.source_url.is_none()), "{videos:#?}");
}

#[testing::needs(video)]
#[testing::test]
async fn live_video_with_erased_faces_ends_without_url() {
    for completes in [true, false] {
        let (world, path) = world_with_film(1).await;
        let scan = begin(&world).await;
        let video = stored(read(&scan, &path).await);
        let live = "update videos set state = 'running', finished_at = null";
        world.execute(live).await;
        for track in tracks(&world, video.id).await {
            erase_track(&world, &track).await;
        }
        let paused = world.store.videos().get(video.id).await.unwrap();
        assert!(paused.source_url.is_some(), "a live video is still read from its address");
        if completes {
            let reader = VideoReader::Scan(video.scan_id.unwrap());
            let stored = StoredVideo {
                faces: &world.face_store,
                id: video.id,
                collection: video.collection_id,
                sha256: video.sha256.as_deref().unwrap().try_into().unwrap(),
                size: (640, 360),
                reader,
                last_track: video.last_track.unsigned_abs(),
                unidentified: video.unidentified.unsigned_abs(),
            };
            stored.finish(None, None).await.unwrap();
        } else {
            videos(&world).cancel(&world.store, video.id).await.unwrap();
        }
        let ended = world.store.videos().get(video.id).await.unwrap();
        assert_eq!(ended.state == VideoState::Completed, completes);
        assert_eq!(ended.source_url, None);
    }
}

async fn all_videos(world: &World) -> Vec<Video> {
    let filter = VideoFilter { collection: "default".into(), ..VideoFilter::default() };
    world.store.videos().list(&filter, None, 10).await.unwrap()
}

#[testing::needs(video)]
#[testing::test]
async fn erased_video_does_not_return_in_another_scan() {
    let (world, path) = world_with_film(1).await;
    let id = stored(read(&begin(&world).await, &path).await).id;
    // Another scan found the same file.
    let copy = world.folder().join("copy.mkv");
    std::fs::copy(&path, &copy).unwrap();
    assert!(matches!(read(&begin(&world).await, &copy).await, Ok(ScannedVideo::Duplicate(of)) if of == id));
    assert_eq!(all_videos(&world).await.len(), 2);
    erase(&world, Target::Video(id), &[]).await;
    assert!(all_videos(&world).await.is_empty() && world.faces().await.is_empty());
    assert!(matches!(read(&begin(&world).await, &path).await, Ok(ScannedVideo::Suppressed)));
    assert!(all_videos(&world).await.is_empty() && world.faces().await.is_empty());
}

#[testing::needs(video)]
#[testing::test]
async fn scan_deletion_keeps_videos_found_by_another_scan() {
    let (world, path) = world_with_film(1).await;
    let delete = async |scan: Uuid| {
        let extent = world.store.deletion_counts().of_crawl(scan).await.unwrap();
        world.commit(async |tx| world.store.crawls().delete(tx.conn(), scan, true).await).await;
        (extent.videos, extent.faces)
    };
    let (scan_a, scan_b) = (begin(&world).await, begin(&world).await);
    let id = stored(read(&scan_a, &path).await).id;
    let faces = world.faces().await.len() as i64;
    assert!(matches!(read(&scan_b, &path).await, Ok(ScannedVideo::Duplicate(_))));
    let (scan_a, scan_b) = (scan_a.finish(false).await.unwrap().id, scan_b.finish(false).await.unwrap().id);
    let (first, second) = (world.progress(scan_a).await, world.progress(scan_b).await);
    assert_eq!((first.videos[&VideoState::Completed], first.faces, first.video_faces), (1, faces, faces));
    assert_eq!((second.videos[&VideoState::Failed], second.faces), (1, 0));
    assert_eq!(second.video_reasons[&Reason::ExactDuplicate], 1);
    let filter =
        VideoFilter { collection: "default".into(), crawl_id: Some(scan_a), ..VideoFilter::default() };
    assert_eq!(world.store.videos().list(&filter, None, 10).await.unwrap()[0].id, id);

    assert_eq!(delete(scan_a).await, (0, 0), "the other scan found the file too");
    assert_eq!(world.faces().await.len() as i64, faces);
    assert_eq!(delete(scan_b).await, (1, 0), "the record that it found the file");

    world.commit(async |tx| world.store.videos().delete(tx.conn(), id).await).await;
    let last_scan = begin(&world).await;
    stored(read(&last_scan, &path).await);
    let last_scan = last_scan.finish(false).await.unwrap().id;
    assert_eq!(delete(last_scan).await, (1, faces));
    assert!(all_videos(&world).await.is_empty() && world.faces().await.is_empty());
}

#[testing::needs(video)]
#[testing::test]
async fn video_failure_detail_contains_no_local_path() {
    let (world, path) = world_with_film(1).await;
    let ffmpeg = world.folder().join("ffmpeg-of-this-machine");
    std::fs::copy(testing::ffmpeg(), &ffmpeg).unwrap();
    let config =
        Config { ffmpeg: ffmpeg.clone(), launcher: Launcher::Direct, threads: 2, limits: Limits::default() };
    let decoder = open_with_retries(&config);
    std::fs::remove_file(&ffmpeg).unwrap();
    let ScannedVideo::Unprocessed { video, reason, detail, .. } =
        read_with(&decoder, &begin(&world).await, &path, REQUEST).await.unwrap()
    else {
        panic!("the deleted decoder must not read the video");
    };
    assert_eq!(
        (reason, detail.as_str()),
        (Reason::VideoUnavailable, "the decoder cannot be used on this machine")
    );
    assert_eq!(world.store.videos().get(video).await.unwrap().detail, Some(detail));
}
