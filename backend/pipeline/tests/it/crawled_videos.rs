//! Tests videos that crawls find: pauses, deletions and busy hosts.

use crate::stored_videos::{add, erase, film as repeated_film, videos, wait_for_video};
use crate::support::{Response, Site, World, fast, wait_for};
use crate::videos::decoder;
use domain::{CrawlState, JobKind, Reason, VideoState};
use pipeline::CrawlOptions;
use store::crawls::Crawl;
use store::erasures::Target;
use store::erasures::suppressions::Suppression;
use store::videos::{Video, VideoFilter};
use testing::film::{Codec, Container, Encoding, Film};

/// Starts a crawl of a page with one video, and reads the page. No worker reads videos yet.
async fn crawl_with_video(world: &World, site: &Site) -> (Crawl, Video) {
    site.set("/", Response::html("<video src=/film.mkv></video>"));
    let crawl = world.create(&[site.url("/")], CrawlOptions { videos: true, ..fast() }).await;
    let worker = world.worker("pages");
    let video = wait_for(async || video_of(world, &crawl).await).await.expect("the video is found");
    worker.stop().await;
    (crawl, video)
}

/// Works like [`crawl_with_video`], and waits until the crawl ends. Returns the video.
async fn crawled_video(world: &World, site: &Site) -> Video {
    let (crawl, video) = crawl_with_video(world, site).await;
    world.until_ended(crawl.id).await;
    world.store.videos().get(video.id).await.unwrap()
}

async fn video_of(world: &World, crawl: &Crawl) -> Option<Video> {
    let filter =
        VideoFilter { collection: "default".into(), crawl_id: Some(crawl.id), ..VideoFilter::default() };
    world.store.videos().list(&filter, None, 10).await.unwrap().pop()
}

/// Waits until the job of the only video is postponed.
async fn until_job_postponed(world: &World) {
    let kind = JobKind::FetchVideo.as_str();
    let postponed = async || {
        let jobs = world.queue.jobs().list(None, Some(kind), None, None, 10).await.unwrap();
        (jobs[0].scheduled_at > jobs[0].created_at + time::Duration::seconds(10)).then_some(())
    };
    wait_for(postponed).await.expect("the job is postponed");
}

#[testing::needs(video)]
#[testing::test]
async fn video_of_paused_crawl_waits_until_resume() {
    let (world, site) = World::with_site().await;
    site.set("/film.mkv", Response::new("video/x-matroska", video_file()));
    let (crawl, video) = crawl_with_video(&world, &site).await;
    world.crawls.pause(crawl.id).await.unwrap();
    let worker = world.video_worker("videos", decoder());
    until_job_postponed(&world).await;
    assert_eq!(site.count_requests("/film.mkv"), 0);
    assert_eq!(world.store.videos().get(video.id).await.unwrap().state, VideoState::Queued);
    assert_eq!(world.store.crawls().get(crawl.id).await.unwrap().state, CrawlState::Paused);

    world.crawls.resume(crawl.id).await.unwrap();
    let jobs =
        world.queue.jobs().list(None, Some(JobKind::FetchVideo.as_str()), None, None, 10).await.unwrap();
    let now = time::OffsetDateTime::now_utc();
    assert!(jobs.iter().all(|job| job.scheduled_at <= now), "the video does not wait: {jobs:?}");
    let fetched = async || (site.count_requests("/film.mkv") > 0).then_some(());
    wait_for(fetched).await.expect("the video is fetched");
    assert_eq!(world.until_ended(crawl.id).await.state, CrawlState::Completed);
    assert_eq!(world.store.videos().get(video.id).await.unwrap().state, VideoState::Completed);
    let progress = world.progress(crawl.id).await;
    assert_eq!(progress.videos[&VideoState::Completed], 1);
    assert!(progress.faces > 0, "{progress:?}");
    worker.stop().await;
}

#[testing::needs(video)]
#[testing::test]
async fn busy_video_host_postpones_fetch() {
    let (world, site) = World::with_site().await;
    site.set("/film.mkv", Response::status(503).header("retry-after", "600"));
    let (crawl, video) = crawl_with_video(&world, &site).await;
    let worker = world.video_worker("videos", decoder());
    until_job_postponed(&world).await;
    site.set("/film.mkv", Response::status(410));
    world.execute("update hosts set not_before = null").await;
    world.execute("update jobs set scheduled_at = now()").await;
    assert_eq!(world.until_ended(crawl.id).await.state, CrawlState::Completed);
    assert_eq!(world.store.videos().get(video.id).await.unwrap().reason, Some(Reason::Http(410)));
    worker.stop().await;
}

#[testing::test]
async fn crawl_ends_after_last_video_is_cancelled_or_deleted() {
    let (world, site) = World::with_site().await;
    let control = videos(&world);
    let (crawl, video) = crawl_with_video(&world, &site).await;
    control.cancel(&world.store, video.id).await.unwrap();
    assert_eq!(world.store.crawls().get(crawl.id).await.unwrap().state, CrawlState::Completed);

    let (crawl, video) = crawl_with_video(&world, &site).await;
    world.commit(async |tx| control.delete(tx, &world.store, video.id).await).await;
    world.crawls.reconcile().await.unwrap();
    assert_eq!(world.store.crawls().get(crawl.id).await.unwrap().state, CrawlState::Completed);

    // The deletion of a crawl cancels its videos, because its rules are deleted too.
    let (crawl, video) = crawl_with_video(&world, &site).await;
    world.crawls.cancel(crawl.id).await.unwrap();
    world.commit(async |tx| world.store.crawls().delete(tx.conn(), crawl.id, false).await).await;
    let video = world.store.videos().get(video.id).await.unwrap();
    assert_eq!((video.state, video.crawl_id), (VideoState::Cancelled, None));
}

#[testing::needs(video)]
#[testing::test]
async fn unchanged_video_file_is_not_downloaded_again() {
    let (world, site) = World::with_site().await;
    site.set("/film.mkv", Response::new("video/x-matroska", video_file()).etag("one"));
    let worker = world.video_worker("videos", decoder());
    let mut copies = Vec::new();
    for _ in 0..3 {
        copies.push(crawled_video(&world, &site).await);
    }
    assert_eq!((copies[0].state, &copies[0].reason), (VideoState::Completed, &None));
    for video in &copies[1..] {
        assert_eq!((video.state, &video.reason), (VideoState::Failed, &Some(Reason::NotModified)));
        assert_eq!(video.original_id, Some(copies[0].id));
    }
    // A file is read again after its video was deleted, or after the file changed.
    let control = videos(&world);
    world.commit(async |tx| control.delete(tx, &world.store, copies[0].id).await).await;
    assert_eq!(crawled_video(&world, &site).await.state, VideoState::Completed);
    site.set("/film.mkv", Response::new("text/plain", "changed").etag("two"));
    assert_eq!(crawled_video(&world, &site).await.reason, Some(Reason::NotAVideo));
    worker.stop().await;
}

#[testing::needs(video)]
#[testing::test]
async fn seed_may_be_video_with_or_without_extension() {
    let (world, site) = World::with_site().await;
    let playlist = "#EXTM3U\n#EXTINF:6,\n/film.mkv\n#EXT-X-ENDLIST\n";
    let video_file = video_file();
    site.set("/film.mkv", Response::new("video/x-matroska", video_file.clone()));
    site.set("/watch", Response::new("video/x-matroska", video_file));
    site.set("/list.m3u8", Response::new("application/vnd.apple.mpegurl", playlist));
    let (pages, videos) = (world.worker("pages"), world.video_worker("videos", decoder()));
    for path in ["/film.mkv", "/watch", "/list.m3u8"] {
        let crawl =
            world.create(&[site.url(path)], CrawlOptions { videos: true, revalidate: false, ..fast() }).await;
        assert_eq!(world.until_ended(crawl.id).await.state, CrawlState::Completed, "{path}");
        let video = video_of(&world, &crawl).await.unwrap();
        assert_eq!((video.source_url.as_deref(), video.page_url), (Some(site.url(path).as_str()), None));
        // All addresses have the same file, so only the first video is read.
        let is_first = path == "/film.mkv";
        assert_eq!(video.reason, (!is_first).then_some(Reason::ExactDuplicate), "{path}");
    }
    // Without the option, the reason contains the remedy.
    for path in ["/film.mkv", "/watch", "/list.m3u8"] {
        let crawl = world.create(&[site.url(path)], fast()).await;
        world.until_ended(crawl.id).await;
        assert!(video_of(&world, &crawl).await.is_none());
        let progress = world.progress(crawl.id).await;
        assert_eq!(progress.reasons, [(Reason::IsAVideo, 1)].into(), "{path}");
    }
    let too_few = CrawlOptions { videos: true, max_videos: 1, ..fast() };
    let seeds = [site.url("/a.mp4"), site.url("/b.m3u8")];
    let error = world.crawls.create("default", &seeds, too_few).await.unwrap_err();
    assert!(error.to_string().contains("max_videos"), "{error}");
    let too_few = CrawlOptions { videos: true, max_videos_per_host: Some(1), ..fast() };
    let error = world.crawls.create("default", &seeds, too_few.clone()).await.unwrap_err();
    assert!(error.to_string().contains("max_videos_per_host"), "{error}");
    let hosts = [site.url("/a.mp4"), "http://other.test/a.mp4".into()];
    world.crawls.create("default", &hosts, too_few).await.unwrap();
    pages.stop().await;
    videos.stop().await;
}

/// Erases the content from an address, and suppresses the address.
async fn erase_address(world: &World, url: &str) {
    erase(world, Target::Url(vec![url.to_owned()]), &[Suppression::Url(url.to_owned())]).await;
}

#[testing::test]
async fn unread_video_of_erased_page_is_not_found_again() {
    let (world, site) = World::with_site().await;
    let (_, video) = crawl_with_video(&world, &site).await;
    erase_address(&world, &site.url("/")).await;
    assert!(world.store.videos().get(video.id).await.is_err());
    site.set("/other", Response::html("<video src=/film.mkv></video>"));
    let (crawl, _) = world.crawl(&[site.url("/other")], CrawlOptions { videos: true, ..fast() }).await;
    assert_eq!(crawl.state, CrawlState::Completed);
    assert!(video_of(&world, &crawl).await.is_none());
}

#[testing::needs(video)]
#[testing::test]
async fn videos_of_erased_urls_are_not_fetched() {
    let (world, site) = World::with_site().await;
    erase_address(&world, &site.url("/")).await;
    erase_address(&world, &site.url("/seed.mkv")).await;
    let (crawl, video) = crawl_with_video(&world, &site).await;
    let worker = world.video_worker("videos", decoder());
    world.until_ended(crawl.id).await;
    let video = world.store.videos().get(video.id).await.unwrap();
    assert_eq!((video.state, video.reason), (VideoState::Failed, Some(Reason::SuppressedUrl)));
    assert_eq!((video.source_url, video.page_url), (None, None));

    let crawl = world.create(&[site.url("/seed.mkv")], CrawlOptions { videos: true, ..fast() }).await;
    let ended = world.until_ended(crawl.id).await;
    assert_eq!(ended.state, CrawlState::Failed);
    assert_eq!(ended.error.as_deref(), Some("nothing could be fetched: suppressed_url (1)"));
    assert_eq!(site.count_requests("/film.mkv") + site.count_requests("/seed.mkv"), 0);
    worker.stop().await;
}

#[testing::test]
async fn html_page_is_not_mistaken_for_video() {
    let (world, site) = World::with_site().await;
    site.set("/", Response::html("<h1>mdat and free films</h1><a href=/next>next</a>"));
    site.set("/next", Response::new("", "<h1>free films</h1><a href=/last>last</a>"));
    site.set("/last", Response::html("the end"));
    world.complete_crawl(&[site.url("/")], CrawlOptions { videos: true, ..fast() }).await;
    assert_eq!(site.count_requests("/last"), 1);
}

/// Makes postponed jobs due.
async fn run_postponed(world: &World) {
    world.execute("update jobs set scheduled_at = now() where state = 'available'").await;
}

#[testing::needs(video)]
#[testing::test]
async fn video_waits_for_running_video_of_same_file() {
    let (world, site) = World::with_site().await;
    site.set("/film.mkv", Response::new("video/x-matroska", video_file()));
    let (_, first) = crawl_with_video(&world, &site).await;
    let worker = world.video_worker("videos", decoder());
    world.until_ended(first.crawl_id.unwrap()).await;
    world.execute("update videos set state = 'running', finished_at = null").await;
    let (crawl, second) = crawl_with_video(&world, &site).await;
    until_job_postponed(&world).await;
    let waiting = world.store.videos().get(second.id).await.unwrap();
    assert_eq!((waiting.state, waiting.original_id), (VideoState::Queued, Some(first.id)));
    // While it waits, the file is not fetched again.
    run_postponed(&world).await;
    until_job_postponed(&world).await;
    assert_eq!(site.count_requests("/film.mkv"), 2);
    world.execute("update videos set state = 'failed', finished_at = now() where state = 'running'").await;
    run_postponed(&world).await;
    assert_eq!(world.until_ended(crawl.id).await.state, CrawlState::Completed);
    let last = world.store.videos().get(second.id).await.unwrap();
    assert_eq!((last.state, last.original_id, last.reason), (VideoState::Completed, None, None));

    let third = crawled_video(&world, &site).await;
    assert_eq!((third.reason, third.original_id), (Some(Reason::ExactDuplicate), Some(second.id)));
    worker.stop().await;
}

#[testing::needs(video, slow)]
#[testing::test]
async fn refetches_file_after_its_video_failed() {
    let (world, site) = World::with_site().await;
    site.set("/film.mkv", Response::new("video/x-matroska", video_file()).etag("one"));
    let worker = world.video_worker("videos", decoder());
    let mut videos = Vec::new();
    for _ in 0..2 {
        videos.push(crawled_video(&world, &site).await);
    }
    assert_eq!(videos[1].reason, Some(Reason::NotModified));
    world.execute("update videos set state = 'failed' where original_id is null").await;
    assert_eq!(crawled_video(&world, &site).await.state, VideoState::Completed);
    worker.stop().await;
}

#[testing::test]
async fn paused_video_leaves_no_job_after_crawl_cancellation() {
    let (world, site) = World::with_site().await;
    let control = videos(&world);
    let (crawl, video) = crawl_with_video(&world, &site).await;
    control.pause(&world.store, video.id).await.unwrap();
    assert_eq!(control.reconcile().await.unwrap(), 0);
    world.crawls.cancel(crawl.id).await.unwrap();
    control.reconcile().await.unwrap();
    let mut tx = world.store.begin().await.unwrap();
    assert!(!world.queue.groups().is_live(tx.conn(), video.id).await.unwrap());
    assert!(!world.queue.groups().is_held(tx.conn(), video.id).await.unwrap());
}

fn video_file() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("film.mkv");
    Film::standard().encode(&Encoding::new(Codec::H264, Container::Mkv), &path).unwrap();
    std::fs::read(path).unwrap()
}

#[testing::needs(video, slow)]
#[testing::test]
async fn cancelled_crawl_deletes_fetched_video_file() {
    let (world, site) = World::with_site().await;
    // The only slot for reading videos is occupied.
    let long = add(&world, &repeated_film(world.folder(), 8)).await;
    let worker = world.video_worker("videos", decoder());
    wait_for_video(&world, long, |video| video.state == VideoState::Running).await;
    site.set("/film.mkv", Response::new("video/x-matroska", video_file()));
    let (crawl, video) = crawl_with_video(&world, &site).await;
    let fetched = wait_for_video(&world, video.id, |video| video.source_key.is_some()).await;
    let key = fetched.source_key.unwrap();
    assert!(world.blobs.exists(&key).await.unwrap());
    world.crawls.cancel(crawl.id).await.unwrap();
    assert_eq!(world.store.videos().get(video.id).await.unwrap().source_key, None);
    world.store.blobs().delete_pending(&world.blobs).await.unwrap();
    assert!(!world.blobs.exists(&key).await.unwrap());
    worker.stop().await;
}
