//! Attacks the videos of one service in many ways at once, and kills the service meanwhile.
//!
//! A hostile tenant adds slow addresses, large files, films that take a long time to read, and long
//! playlists. It also reads responses slowly. The service is killed and started again five times.
//! The test requires that the videos of another tenant are read and that no accepted video is lost.
//! Memory and disk space must stay within their limits, and a stop must leave no incomplete files.
//! The test prints the time until a video of the other tenant is read, without an assertion.
//! `ATTACK_ADDRESSES` sets the number of slow addresses (default 1,000).
mod attackers;
mod world;

use crate::common::service::wait_until;
use attackers::{HostileTenant, LARGE_FILE_BYTES, Site, padding};
use bytes::Bytes;
use futures::{StreamExt, stream};
use reqwest::Method;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testing::film::{Codec, Container, Encoding, Film, MovieIndex, repeat};
use world::{HOSTILE, Tenant, World};

/// Number of slow addresses without `ATTACK_ADDRESSES`.
const DEFAULT_ADDRESSES: usize = 1_000;
const KILLS: usize = 5;
/// Disk space in bytes for all files except those of the hostile tenant.
const OTHER_FILES_BYTES: u64 = 64 << 20;
/// Number of concurrent requests that check the accepted videos.
const CONCURRENT_READS: usize = 8;

struct Films {
    /// 2 s with two people.
    short: Bytes,
    /// 25 s with seven people.
    standard: Bytes,
    /// 5 minutes.
    long: Bytes,
}

impl HostileTenant {
    /// Stores a video of the tenant, which the slow readers read.
    async fn prepare(tenant: Tenant, films: &Films) -> Self {
        let video = tenant.send(variant(&films.short, 1), "sampling=fps=5").await.id;
        tenant.wait_until_read(&video).await;
        let (_, _, face) = read_stored(&tenant, &video).await;
        Self {
            tenant,
            site: Site::start().await,
            video,
            face: face["id"].as_str().unwrap().to_owned(),
            film: films.short.clone(),
            long_film: films.long.clone(),
            address_count: std::env::var("ATTACK_ADDRESSES")
                .map_or(DEFAULT_ADDRESSES, |count| count.parse().unwrap()),
            progress: Arc::default(),
        }
    }
}

impl Films {
    fn encode() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let read = |path: PathBuf| Bytes::from(std::fs::read(path).unwrap());
        let encoding = Encoding { index: MovieIndex::Start, ..Encoding::new(Codec::H264, Container::Mp4) };
        let [short, standard, long] = ["short.mp4", "standard.mp4", "long.mp4"].map(path);
        Film::short().encode(&encoding, &short).unwrap();
        Film::standard().encode(&encoding, &standard).unwrap();
        repeat(&standard, 12, &encoding, &long).unwrap();
        Self { short: read(short), standard: read(standard), long: read(long) }
    }
}

/// Returns a film that differs from others by its padding.
fn variant(film: &Bytes, number: usize) -> Vec<u8> {
    [&film[..], &padding(number as u64, 16)].concat()
}

async fn read_stored(tenant: &Tenant, video: &str) -> (Value, Value, Value) {
    let video = tenant.get(&format!("/videos/{video}")).await;
    let path = format!("/videos/{}/tracks?limit=1000", video["id"].as_str().unwrap());
    let tracks = tenant.get(&path).await;
    let face = tracks["tracks"][0]["faces"][0]["face_id"].as_str().unwrap();
    let face = tenant.get(&format!("/faces/{face}")).await;
    (video, tracks, face)
}

/// Returns the videos that no longer exist.
async fn missing_videos(tenant: &Tenant, videos: Vec<String>) -> Vec<String> {
    let missing_videos = stream::iter(videos).map(async |id| {
        let response = tenant.request(Method::GET, &format!("/videos/{id}")).send().await.unwrap();
        (response.status() != 200).then(|| format!("{id}: {}", response.status()))
    });
    missing_videos.buffer_unordered(CONCURRENT_READS).filter_map(std::future::ready).collect().await
}

/// The result of [`kill_repeatedly`].
#[derive(Default)]
struct Kills {
    /// Ids of the videos of the normal tenant that were accepted.
    accepted: Vec<String>,
    /// Number of requests that sent these videos, including repeated ones.
    requests: usize,
    /// Number of files whose writing was interrupted.
    incomplete: usize,
}

/// Kills the service and starts it again while the attackers send their addresses.
async fn kill_repeatedly(world: &mut World, hostile: &HostileTenant, film: &Bytes) -> Kills {
    let mut kills = Kills::default();
    for kill in 1..=KILLS {
        let sent = kill * hostile.address_count / (KILLS + 1);
        wait_until("slow addresses", async || hostile.progress.answered_addresses() >= sent).await;
        // Every other kill also interrupts an upload of the normal tenant.
        let upload = kill.is_multiple_of(2).then(|| {
            let (tenant, film) = (world.normal.clone(), variant(film, kill + 1));
            tokio::spawn(async move { tenant.send(film, "sampling=fps=5").await })
        });
        // Waits at most one second for an incomplete file, so that the kill interrupts its writing.
        for _ in 0..200 {
            if !world.incomplete_files().is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        kills.incomplete += world.kill_and_start().await;
        if let Some(upload) = upload {
            let sent = upload.await.unwrap();
            kills.requests += sent.requests;
            kills.accepted.push(sent.id);
        }
    }
    wait_until("slow addresses", async || hostile.progress.answered_addresses() >= hostile.address_count)
        .await;
    kills
}

/// Sends a film of the normal tenant and waits until it was read. Returns its id.
async fn read_during_attacks(normal: &Tenant, film: &Bytes) -> String {
    let sent = Instant::now();
    let video = normal.send(variant(film, 0), "").await.id;
    normal.wait_for_video(&video, |video| video["state"] != "queued").await;
    let begun = sent.elapsed().as_secs_f64();
    let read = normal.wait_until_read(&video).await;
    let ended = sent.elapsed().as_secs_f64();
    println!("a video of {} bytes was read from {begun:.1} s to {ended:.1} s after its upload", film.len());
    assert!(read["people"].as_i64() > Some(0), "{read:#}");
    video
}

/// Requires that memory and disk space stayed within their limits.
async fn check_usage(world: &World) {
    let (peaks, unused) = (world.usage.peaks(), world.unused_files().await);
    let (memory, large) = (world::memory_limit(), LARGE_FILE_BYTES as u64);
    // If a process is killed before it inserts the row of a file, only the sweep deletes the file.
    let disk = world::disk_limit(large) + unused * large + OTHER_FILES_BYTES;
    let mb = |bytes: u64| bytes / 1_000_000;
    println!(
        "peak memory: {} MB, of the service {} MB; limit {} MB; at most {} decoders",
        mb(peaks.memory),
        mb(peaks.memory_of_service),
        mb(memory),
        peaks.decoders
    );
    println!(
        "peak disk space: {} MB, of copies {} MB; limit {} MB; {unused} unused files",
        mb(peaks.disk),
        mb(peaks.unnamed),
        mb(disk)
    );
    assert!(peaks.decoders > 0, "no decoder was measured");
    assert!(peaks.memory < memory, "the memory exceeds its limit");
    assert!(peaks.disk < disk, "the disk space exceeds its limit");
    let waiting = world.waiting_videos(HOSTILE).await;
    assert!(waiting.videos <= world::MAX_WAITING_VIDEOS, "{waiting:?}");
    assert!(waiting.bytes <= world::MAX_WAITING_VIDEO_MB << 20, "{waiting:?}");
}

#[testing::needs(video, slow)]
#[testing::test(flavor = "multi_thread", worker_threads = 4)]
async fn hostile_videos_and_kills_lose_no_accepted_video() {
    let films = Films::encode();
    let mut world = World::start().await;
    let normal = world.normal.clone();
    let first = normal.send(variant(&films.short, 0), "sampling=fps=5").await.id;
    normal.wait_until_read(&first).await;
    let before = read_stored(&normal, &first).await;
    let hostile = HostileTenant::prepare(world.hostile.clone(), &films).await;

    let attacks = hostile.start();
    let kills = kill_repeatedly(&mut world, &hostile, &films.short).await;
    attacks.wait_for_first_results().await;
    let crashed_jobs = world.database.number("select count(*) from jobs where crashes > 1").await;
    for video in &kills.accepted {
        normal.wait_until_read(video).await;
    }
    let last = read_during_attacks(&normal, &films.standard).await;
    let report = attacks.stop().await;

    let (sent, incomplete) = (kills.requests, kills.incomplete);
    println!("{} videos were accepted by {sent} requests during {KILLS} kills", kills.accepted.len());
    println!("{incomplete} files were interrupted; {crashed_jobs} jobs crashed more than once");
    report.lines.iter().for_each(|line| println!("{line}"));
    assert_eq!(report.unexpected, Vec::<String>::new(), "responses that an attacker must not get");
    assert_eq!(missing_videos(&hostile.tenant, hostile.progress.accepted()).await, Vec::<String>::new());
    let accepted = [&kills.accepted[..], &[first.clone(), last]].concat();
    let listed = normal.get("/videos?limit=100").await;
    assert_eq!(listed["videos"].as_array().unwrap().len(), accepted.len());
    assert_eq!(missing_videos(&normal, accepted).await, Vec::<String>::new());
    assert_eq!(read_stored(&normal, &first).await, before, "the other tenant's data changed");

    world.stop().await;
    check_usage(&world).await;
    assert_eq!(world.incomplete_files(), Vec::<PathBuf>::new(), "files that remain incomplete");
}
