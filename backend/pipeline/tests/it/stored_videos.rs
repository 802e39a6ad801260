//! Tests stored videos: their tracks, interruptions, erasures and deletions.

use crate::support::{Response, World, pixels, wait_for};
use crate::videos::{analyze_file, decoder};
use domain::{JobKind, Reason, VideoState};
use pipeline::{AddOutcome, Rotate, Upload, VideoLimits, VideoOptions, VideoRequest, Videos};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use store::erasures::suppressions::Suppression;
use store::erasures::{Plan, Target};
use store::videos::Video;
use store::videos::tracks::{Track, TrackFilter};
use testing::film::{Codec, Container, Encoding, Film, repeat};
use tokio::sync::Semaphore;
use url::Url;
use uuid::Uuid;
use video::Sampling;

pub(crate) const REQUEST: VideoRequest =
    VideoRequest { sampling: Sampling::Fps(1.0), max_gap_ms: 2_000, refine: false, rotate: Rotate::Off };

/// Writes the standard film, which lasts 25 s, `times` times in a row.
pub(crate) fn film(folder: &Path, times: u32) -> PathBuf {
    let (once, path) = (folder.join("once.mkv"), folder.join(format!("film{times}.mkv")));
    let encoding = Encoding::new(Codec::H264, Container::Mkv);
    Film::standard().encode(&encoding, &once).unwrap();
    repeat(&once, times, &encoding, &path).unwrap();
    path
}

/// Creates a world with such a film in its folder.
pub(crate) async fn world_with_film(times: u32) -> (World, PathBuf) {
    let world = World::new().await;
    let path = film(world.folder(), times);
    (world, path)
}

/// Works like [`world_with_film`], and adds the film as a video.
async fn world_with_video(times: u32) -> (World, PathBuf, Uuid) {
    let (world, path) = world_with_film(times).await;
    let id = add(&world, &path).await;
    (world, path, id)
}

pub(crate) async fn collection(world: &World) -> Uuid {
    world.store.collections().get("default").await.unwrap().id
}

pub(crate) fn videos(world: &World) -> Videos {
    Videos::new(world.store.clone(), world.queue.clone(), world.blobs.clone())
}

async fn upload(world: &World, path: &Path) -> Upload {
    let bytes = std::fs::read(path).unwrap();
    let sha256 = Sha256::digest(&bytes).into();
    let key = world.blobs.put_file("videos", "bin", &sha256, &mut &bytes[..]).await.unwrap();
    Upload { sha256, bytes: bytes.len() as u64, key }
}

pub(crate) async fn add(world: &World, path: &Path) -> Uuid {
    add_to(world, collection(world).await, path).await
}

async fn add_to(world: &World, collection: Uuid, path: &Path) -> Uuid {
    let upload = upload(world, path).await;
    match videos(world).add(collection, &upload, REQUEST).await.unwrap() {
        AddOutcome::New(id) => id,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn wait_for_video(world: &World, id: Uuid, condition: impl Fn(&Video) -> bool) -> Video {
    let video = wait_for(async || Some(world.store.videos().get(id).await.unwrap()).filter(&condition)).await;
    match video {
        Some(video) => video,
        None => panic!("{:?}", world.store.videos().get(id).await),
    }
}

async fn until_ended(world: &World, id: Uuid) -> Video {
    wait_for_video(world, id, |video| !video.state.is_live()).await
}

/// Waits until the video is read to its end.
async fn until_completed(world: &World, id: Uuid) -> Video {
    let video = until_ended(world, id).await;
    assert_eq!(video.state, VideoState::Completed, "{:?}", video.detail);
    video
}

pub(crate) async fn tracks(world: &World, id: Uuid) -> Vec<Track> {
    world.store.tracks().list(id, &TrackFilter::default(), None, 1_000).await.unwrap().tracks
}

/// The values of a track that must not depend on interruptions.
type Summary = (i32, Option<i32>, i64, i64, i32, Vec<u8>, Vec<(i64, Option<f32>)>);

fn summaries(tracks: &[Track]) -> Vec<Summary> {
    let summary_of = |track: &Track| {
        let shots = track.faces.iter().map(|shot| (shot.at_us, shot.quality)).collect();
        let (started, ended) = (track.started_us, track.ended_us);
        (track.number, track.person, started, ended, track.samples, track.boxes.clone(), shots)
    };
    tracks.iter().map(summary_of).collect()
}

#[testing::needs(video, slow)]
#[testing::test]
async fn stored_video_matches_analysis() {
    let (world, path, id) = world_with_video(3).await;
    let worker = world.video_worker("one", decoder());
    let video = until_ended(&world, id).await;
    until_file_deleted(&world, &path).await;
    worker.stop().await;
    assert_eq!((video.state, video.reason), (VideoState::Completed, None), "{:?}", video.detail);

    let options = VideoOptions { sampling: REQUEST.sampling, ..VideoOptions::default() };
    let file = File::open(&path).unwrap();
    let analysis =
        analyze_file(world.face_store.analyzer(), &decoder(), &options, file, &mut ()).await.unwrap();
    let stored = tracks(&world, id).await;
    let identified: Vec<_> = analysis.tracks.iter().filter(|track| track.person.is_some()).collect();
    assert_eq!(stored.len(), identified.len());
    for (stored, identified) in stored.iter().zip(&identified) {
        assert_eq!((stored.started_us, stored.ended_us), (identified.started_us, identified.ended_us));
        assert_eq!(tracking::boxes::encode(&identified.boxes), stored.boxes);
        assert_eq!(stored.person, identified.person.map(u32::cast_signed));
        assert!((1..=3).contains(&stored.faces.len()));
    }
    assert_eq!(video.people, Some(analysis.people.cast_signed()));
    assert_eq!(video.frames, analysis.frames.cast_signed());
    assert_eq!(video.unidentified as usize, analysis.tracks.len() - identified.len());
    assert_eq!((video.width, video.height), (Some(640), Some(360)));
    assert_eq!(video.codec.as_deref(), Some("h264"));
    // Crops and chips of the best shots remain.
    let faces: usize = stored.iter().map(|track| track.faces.len()).sum();
    assert_eq!(world.faces().await.len(), faces);
    assert_eq!(video.source_key, None);
    for face in world.faces().await {
        for part in [face.parts.crop(), face.parts.chip()] {
            let bytes = world.blobs.get_part(&part.unwrap()).await.unwrap();
            pixels(&bytes.unwrap());
        }
    }
    for image in world.images().await {
        assert_eq!(
            (image.format.as_str(), image.phash, image.parts.thumbnail()),
            ("video_frame", None, None)
        );
        assert!(image.face_count > 0);
    }
    // The same file again is the same video.
    let second = upload(&world, &path).await;
    assert_eq!(
        videos(&world).add(collection(&world).await, &second, REQUEST).await.unwrap(),
        AddOutcome::Existing(id)
    );
    videos(&world).discard_upload(second.key.clone()).await;
    assert!(world.blobs.get(&second.key).await.unwrap().is_none());
}

fn upload_key(path: &Path) -> String {
    let digest = Sha256::digest(std::fs::read(path).unwrap());
    let sha256: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("videos/{}/{sha256}.bin", &sha256[..2])
}

/// Waits until the file of an ended video is deleted. A stopped worker would not delete it.
async fn until_file_deleted(world: &World, path: &Path) {
    let is_deleted = async || world.blobs.get(&upload_key(path)).await.unwrap().is_none().then_some(());
    wait_for(is_deleted).await.unwrap();
}

#[testing::needs(video, slow)]
#[testing::test]
async fn interruptions_do_not_change_stored_tracks() {
    let (world, path, id) = world_with_video(6).await;
    let control = videos(&world);
    // Nothing was read before this pause.
    control.pause(&world.store, id).await.unwrap();
    assert!(control.pause(&world.store, id).await.is_err());
    control.resume(&world.store, id).await.unwrap();
    let first = world.video_worker("one", decoder());
    // The worker is in the second part, and drops its unstored results.
    let paused_at = wait_for_video(&world, id, |video| video.checkpoint_us.is_some()).await.checkpoint_us;
    let paused = control.pause(&world.store, id).await.unwrap();
    assert_eq!(paused.state, VideoState::Paused);
    wait_for(async || {
        let mut tx = world.store.begin().await.unwrap();
        let running = world.queue.groups().is_live(tx.conn(), id).await.unwrap();
        running.then_some(())
    })
    .await
    .unwrap();
    control.resume(&world.store, id).await.unwrap();
    // The worker stops and another one continues.
    wait_for_video(&world, id, |video| video.checkpoint_us > paused_at).await;
    first.stop().await;
    let stopped = world.store.videos().get(id).await.unwrap();
    assert_eq!(stopped.people, None, "it was not read to its end");
    let second = world.video_worker("two", decoder());
    let video = until_completed(&world, id).await;
    let interrupted = summaries(&tracks(&world, id).await);
    assert!(interrupted.len() > 20);

    let undisturbed = World::new().await;
    let second_id = add(&undisturbed, &path).await;
    let worker = undisturbed.video_worker("three", decoder());
    let expected = until_ended(&undisturbed, second_id).await;
    assert_eq!(interrupted, summaries(&tracks(&undisturbed, second_id).await));
    assert_eq!((video.people, video.frames), (expected.people, expected.frames));
    assert_eq!(video.unidentified, expected.unidentified);
    worker.stop().await;
    second.stop().await;
}

#[testing::needs(video, slow)]
#[testing::test]
async fn cancelled_video_keeps_tracks_and_deleted_video_keeps_nothing() {
    let (world, path, id) = world_with_video(6).await;
    let control = videos(&world);
    let worker = world.video_worker("one", decoder());
    wait_for_video(&world, id, |video| video.checkpoint_us.is_some()).await;
    let video = control.cancel(&world.store, id).await.unwrap();
    assert_eq!((video.state, video.reason), (VideoState::Cancelled, Some(Reason::Cancelled)));
    assert!(control.cancel(&world.store, id).await.is_err(), "it has ended");
    let stored = tracks(&world, id).await;
    assert!(!stored.is_empty() && stored.iter().all(|track| track.person.is_none()));
    assert!(world.blobs.get(&upload_key(&path)).await.unwrap().is_none(), "the file is deleted");
    // A cancelled video does not prevent another attempt.
    let second_id = add(&world, &path).await;
    until_completed(&world, second_id).await;
    until_file_deleted(&world, &path).await;
    worker.stop().await;
    for id in [id, second_id] {
        let unused = world.commit(async |tx| world.store.videos().delete(tx.conn(), id).await).await;
        world.store.blobs().delete(&world.blobs, &unused).await.unwrap();
    }
    assert!(world.faces().await.is_empty() && world.images().await.is_empty());
    let blobs = testing::files_below(world.folder());
    assert!(blobs.iter().all(|file| file.extension().is_some_and(|end| end == "mkv")), "{blobs:?}");
}

#[testing::needs(video)]
#[testing::test]
async fn erased_person_does_not_return_with_reread_video() {
    let (world, path, id) = world_with_video(1).await;
    let worker = world.video_worker("one", decoder());
    until_ended(&world, id).await;
    let stored = tracks(&world, id).await;
    let track = stored.iter().find(|track| track.faces.len() > 1).unwrap().clone();
    erase_track(&world, &track).await;
    let remaining = tracks(&world, id).await;
    assert_eq!(remaining.len(), stored.len() - 1);
    assert!(remaining.iter().all(|remaining_track| remaining_track.id != track.id));
    // The same file is read again. All tracks except the erased one return.
    world.commit(async |tx| world.store.videos().delete(tx.conn(), id).await).await;
    let second_id = add(&world, &path).await;
    assert_eq!(until_ended(&world, second_id).await.state, VideoState::Completed);
    let times = |tracks: &[Track]| -> Vec<(i64, i64)> {
        tracks.iter().map(|track| (track.started_us, track.ended_us)).collect()
    };
    let returned = tracks(&world, second_id).await;
    assert_eq!(times(&returned), times(&remaining));
    worker.stop().await;
}

/// Erases the target and suppresses its images and `extra`. Counts the suppressions.
pub(crate) async fn erase(world: &World, target: Target, extra: &[Suppression]) -> (Plan, u64) {
    let collection = collection(world).await;
    let mut tx = world.store.begin().await.unwrap();
    let plan = world.store.erasures().plan(tx.conn(), collection, &target).await.unwrap();
    let erasure = erasure(collection);
    world.store.erasures().record(tx.conn(), &erasure).await.unwrap();
    let done = world.store.erasures().carry_out(tx.conn(), &plan).await.unwrap();
    let suppressions = [plan.suppressions.as_slice(), extra].concat();
    let suppressed =
        world.store.suppressions().suppress(tx.conn(), collection, erasure.id, &suppressions).await.unwrap();
    tx.commit().await.unwrap();
    world.store.blobs().delete(&world.blobs, &done.blobs).await.unwrap();
    (plan, suppressed)
}

/// Erases one face of a track, with suppression. This erases the whole track.
pub(crate) async fn erase_track(world: &World, track: &Track) {
    let (plan, suppressed) = erase(world, Target::Face(track.faces.last().unwrap().face_id), &[]).await;
    assert_eq!(plan.faces.len(), track.faces.len());
    assert_eq!(suppressed as usize, track.faces.len());
}

pub(crate) fn erasure(collection: Uuid) -> store::erasures::ErasureRecord {
    store::erasures::ErasureRecord {
        id: Uuid::now_v7(),
        collection_id: collection,
        kind: "face".into(),
        suppress: true,
        suppress_person: false,
        threshold: None,
        faces: 0,
        images: 0,
        videos: Some(0),
        suppressions: 0,
        created_at: time::OffsetDateTime::UNIX_EPOCH,
        lifted_at: None,
    }
}

#[testing::needs(video)]
#[testing::test]
async fn non_video_file_fails_with_reason() {
    let world = World::new().await;
    let path = world.folder().join("film.mkv");
    std::fs::write(&path, b"not a video").unwrap();
    let id = add(&world, &path).await;
    let worker = world.video_worker("one", decoder());
    let video = until_ended(&world, id).await;
    until_file_deleted(&world, &path).await;
    worker.stop().await;
    assert_eq!((video.state, video.reason), (VideoState::Failed, Some(Reason::NotAVideo)));
    assert!(video.detail.is_some());
}

#[testing::needs(video, slow)]
#[testing::test]
async fn stored_part_resets_attempts_and_crashes_of_video() {
    let (world, _, id) = world_with_video(3).await;
    // Its process was killed four times, so the next run is the last one and runs alone.
    world.execute("update jobs set attempt = 4, crashes = 4").await;
    let worker = world.video_worker("one", decoder());
    wait_for_video(&world, id, |video| video.checkpoint_us.is_some()).await;
    let is_reset = "do $$ begin assert (select attempt = 1 and crashes = 0 and not alone from jobs); end $$";
    world.execute(is_reset).await;
    until_completed(&world, id).await;
    worker.stop().await;
}

/// Ends the video's job as the queue does if the process ends in every attempt.
async fn discard_job(world: &World) {
    let job = world.queue.claim(&["scan_video".to_owned()], 1, "killed").await.unwrap().remove(0);
    world.commit(async |tx| world.queue.fail(tx.conn(), job.claim, "lease expired", true, None).await).await;
    assert_eq!(videos(world).reconcile().await.unwrap(), 1);
}

#[testing::needs(video)]
#[testing::test]
async fn file_of_discarded_video_is_kept_for_retry() {
    let (world, path, id) = world_with_video(1).await;
    let control = videos(&world);
    assert!(control.retry(&world.store, id).await.is_err(), "it has not failed");
    discard_job(&world).await;
    let failed = world.store.videos().get(id).await.unwrap();
    assert_eq!((failed.state, failed.reason), (VideoState::Failed, Some(Reason::JobDiscarded)));
    assert!(world.blobs.get(&upload_key(&path)).await.unwrap().is_some(), "the file is kept");
    let retried = control.retry(&world.store, id).await.unwrap();
    assert_eq!((retried.as_ref().unwrap().state, retried.unwrap().reason), (VideoState::Queued, None));
    let worker = world.video_worker("one", decoder());
    until_completed(&world, id).await;
    until_file_deleted(&world, &path).await;
    worker.stop().await;
}

#[testing::needs(video)]
#[testing::test]
async fn failed_video_file_is_deleted_after_one_week() {
    let (world, path, id) = world_with_video(1).await;
    discard_job(&world).await;
    assert_eq!(videos(&world).reconcile().await.unwrap(), 0);
    world.execute("update videos set finished_at = now() - interval '8 days'").await;
    assert_eq!(videos(&world).reconcile().await.unwrap(), 1);
    assert!(world.blobs.get(&upload_key(&path)).await.unwrap().is_none());
    assert!(videos(&world).retry(&world.store, id).await.is_err(), "its file was deleted");
}

#[testing::needs(video)]
#[testing::test]
async fn failed_video_is_not_retried_beside_newer_video() {
    let (world, path, id) = world_with_video(1).await;
    discard_job(&world).await;
    let newer = add(&world, &path).await;
    assert_ne!(id, newer);
    assert!(videos(&world).retry(&world.store, id).await.is_err());
    assert_eq!(world.store.videos().get(id).await.unwrap().state, VideoState::Failed);
}

#[testing::needs(video, slow)]
#[testing::test]
async fn video_restarts_from_beginning_under_another_model() {
    let (world, _, id) = world_with_video(3).await;
    let control = videos(&world);
    let worker = world.video_worker("one", decoder());
    wait_for_video(&world, id, |video| video.checkpoint_us.is_some()).await;
    control.pause(&world.store, id).await.unwrap();
    worker.stop().await;
    // Simulates parts that an earlier version of the service stored with another pack.
    world.store.models().register("other", "other", 3).await.unwrap();
    let change_model = "update faces set embedding = '[1,0,0]',
                 model_id = (select id from embedding_models where name = 'other')";
    world.execute(change_model).await;
    let first_tracks: Vec<Uuid> = tracks(&world, id).await.iter().map(|track| track.id).collect();
    assert!(!first_tracks.is_empty());
    control.resume(&world.store, id).await.unwrap();
    let worker = world.video_worker("two", decoder());
    let video = until_ended(&world, id).await;
    worker.stop().await;
    assert_eq!((video.state, video.reason), (VideoState::Completed, None), "{:?}", video.detail);
    let stored = tracks(&world, id).await;
    assert!(stored.len() > first_tracks.len());
    assert!(stored.iter().all(|track| track.person.is_some() && !first_tracks.contains(&track.id)));
    let numbers: Vec<i32> = stored.iter().map(|track| track.number).collect();
    assert!(numbers.is_sorted() && numbers[0] == 1, "{numbers:?}");
    for face in world.faces().await {
        let (model, _) = world.store.faces().embedding(face.id).await.unwrap();
        assert_eq!(model, world.face_store.model_id());
    }
}

#[testing::needs(video)]
#[testing::test]
async fn video_waits_while_disk_is_full() {
    let (mut world, _, id) = world_with_video(1).await;
    let with_space = world.fill_disk().await;
    let worker = world.video_worker("one", decoder());
    world.until_postponed(JobKind::ScanVideo).await;
    worker.stop().await;
    let video = world.store.videos().get(id).await.unwrap();
    assert_eq!((video.state, video.reason), (VideoState::Queued, None));
    world.face_store = with_space;
    world.execute("update jobs set scheduled_at = now()").await;
    let worker = world.video_worker("two", decoder());
    assert_eq!(until_ended(&world, id).await.state, VideoState::Completed);
    worker.stop().await;
}

async fn other_collection(world: &World) -> Uuid {
    let other = world
        .commit(async |tx| world.store.collections().create(tx.conn(), "other", &Default::default()).await)
        .await;
    other.id
}

/// Adds a video whose file is at `url`.
async fn add_address(world: &World, url: &str) -> Uuid {
    let added = videos(world).add_address(collection(world).await, &Url::parse(url).unwrap(), REQUEST).await;
    match added.unwrap() {
        AddOutcome::New(id) => id,
        other => panic!("{other:?}"),
    }
}

#[testing::needs(video)]
#[testing::test]
async fn slow_downloads_do_not_block_video_analysis() {
    let (world, site) = World::with_site().await;
    let path = film(world.folder(), 1);
    let gate = Arc::new(Semaphore::new(0));
    let mut slow = Vec::new();
    for n in 0..6 {
        let response = match n {
            0 => Response::new("video/x-matroska", std::fs::read(&path).unwrap()),
            _ => Response::status(410),
        };
        site.set(&format!("/{n}.mkv"), response.gated(&gate));
        slow.push(add_address(&world, &site.url(&format!("/{n}.mkv"))).await);
    }
    let worker = world.video_worker("one", decoder());
    wait_for(async || (!site.requests().is_empty()).then_some(())).await.unwrap();
    let second_collection = other_collection(&world).await;
    let id = add_to(&world, second_collection, &path).await;
    until_completed(&world, id).await;
    for id in &slow {
        assert!(world.store.videos().get(*id).await.unwrap().state.is_live(), "its host has not responded");
    }
    gate.add_permits(100);
    let first = until_completed(&world, slow[0]).await;
    assert_eq!(first.source_key, None);
    worker.stop().await;
}

#[testing::needs(video, slow)]
#[testing::test]
async fn long_video_does_not_block_other_collection() {
    let world = World::new().await;
    let (long, short) = (film(world.folder(), 8), film(world.folder(), 1));
    let first = add(&world, &long).await;
    let worker = world.video_worker_with("one", decoder(), VideoLimits::default(), Duration::ZERO);
    wait_for_video(&world, first, |video| video.state == VideoState::Running).await;
    let short_video = add_to(&world, other_collection(&world).await, &short).await;
    until_ended(&world, short_video).await;
    let long_video = world.store.videos().get(first).await.unwrap();
    assert!(long_video.state.is_live() && long_video.checkpoint_us.is_some(), "{long_video:?}");
    until_completed(&world, first).await;
    worker.stop().await;
}

#[testing::needs(video)]
#[testing::test]
async fn video_fetch_waits_while_storage_limit_is_reached() {
    let (world, site) = World::with_site().await;
    let path = film(world.folder(), 1);
    let uploaded = add(&world, &path).await;
    videos(&world).pause(&world.store, uploaded).await.unwrap();
    site.set("/a.mkv", Response::status(410));
    let id = add_address(&world, &site.url("/a.mkv")).await;
    let limits = VideoLimits { bytes: 1, ..VideoLimits::default() };
    let worker = world.video_worker_with("one", decoder(), limits, Duration::from_secs(60));
    let postponed = async || {
        let due = world.queue.next_due(&[JobKind::FetchVideo.into()]).await.unwrap();
        due.filter(|due| *due > Duration::from_secs(5))
    };
    wait_for(postponed).await.expect("the job is postponed");
    assert!(site.requests().is_empty());
    videos(&world).cancel(&world.store, uploaded).await.unwrap();
    world.execute("update jobs set scheduled_at = now()").await;
    assert_eq!(until_ended(&world, id).await.reason, Some(Reason::Http(410)));
    worker.stop().await;
}
