//! Attacks the videos of one service in many ways at once, and kills the service meanwhile.
//!
//! A hostile tenant adds addresses that answer slowly, large files, films that take long and long
//! playlists, and reads responses slowly. The service is killed and started again five times. The
//! test requires that the videos of another tenant are read, that no accepted video is lost, that
//! memory and disk space stay within their limits, and that a stop leaves nothing behind. It prints
//! the time until a video of the other tenant is read, but makes no assertion about it.
//! `ATTACK_ADDRESSES` sets the number of slow addresses (default 1,000).
mod attackers;
mod site;
mod usage;
mod world;

use attackers::{Hostile, LARGE, padding};
use bytes::Bytes;
use futures::{StreamExt, stream};
use reqwest::Method;
use serde_json::Value;
use site::Site;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testing::MAX_WAIT;
use testing::film::{Codec, Container, Encoding, Film, MovieIndex, repeat};
use world::{HOSTILE, Tenant, World};

/// Number of slow addresses without `ATTACK_ADDRESSES`.
const ADDRESSES: usize = 1_000;
const KILLS: usize = 5;
/// Space on the disk for everything except the files of the hostile tenant, in bytes.
const SMALL_FILES: u64 = 64 << 20;
/// Number of requests that read all accepted videos at the same time.
const AT_ONCE: usize = 8;

/// The films that are sent.
struct Films {
    /// 2 s with two people.
    short: Bytes,
    /// 25 s with seven people.
    standard: Bytes,
    /// 5 minutes.
    long: Bytes,
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

/// Returns everything that is stored of a video.
async fn stored(tenant: &Tenant, video: &str) -> (Value, Value, Value) {
    let video = tenant.get(&format!("/videos/{video}")).await;
    let path = format!("/videos/{}/tracks?limit=1000", video["id"].as_str().unwrap());
    let tracks = tenant.get(&path).await;
    let face = tracks["tracks"][0]["faces"][0]["face_id"].as_str().unwrap();
    let face = tenant.get(&format!("/faces/{face}")).await;
    (video, tracks, face)
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + MAX_WAIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the videos that no longer exist.
async fn lost(tenant: &Tenant, videos: Vec<String>) -> Vec<String> {
    let lost = stream::iter(videos).map(async |id| {
        let answer = tenant.request(Method::GET, &format!("/videos/{id}")).send().await.unwrap();
        (answer.status() != 200).then(|| format!("{id}: {}", answer.status()))
    });
    lost.buffer_unordered(AT_ONCE).filter_map(std::future::ready).collect().await
}

#[testing::needs(video, slow)]
#[testing::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_tenant_that_attacks_with_videos_stops_no_other_while_the_service_is_killed() {
    let addresses = std::env::var("ATTACK_ADDRESSES").map_or(ADDRESSES, |count| count.parse().unwrap());
    let films = Films::encode();
    let (mut world, site) = (World::start().await, Site::start().await);
    let (normal, tenant) = (world.normal.clone(), world.hostile.clone());
    let first = normal.send(variant(&films.short, 0), "sampling=fps=5").await.id;
    let hostile_video = tenant.send(variant(&films.short, 1), "sampling=fps=5").await.id;
    for (tenant, video) in [(&normal, &first), (&tenant, &hostile_video)] {
        tenant.until_read(video).await;
    }
    let before = stored(&normal, &first).await;
    let (_, _, face) = stored(&tenant, &hostile_video).await;
    let hostile = Hostile {
        tenant: tenant.clone(),
        site,
        video: hostile_video,
        face: face["id"].as_str().unwrap().to_owned(),
        film: films.short.clone(),
        long_film: films.long.clone(),
        addresses,
        progress: Arc::default(),
    };

    let started = Instant::now();
    let attacks = hostile.start();
    let (mut accepted, mut requests, mut incomplete) = (vec![first.clone()], 0, 0);
    for kill in 1..=KILLS {
        until("slow addresses", || hostile.progress.addresses() >= kill * addresses / (KILLS + 1)).await;
        // Every other kill interrupts the other tenant too.
        let sending = kill.is_multiple_of(2).then(|| {
            let (sender, film) = (normal.clone(), variant(&films.short, kill + 1));
            tokio::spawn(async move { sender.send(film, "sampling=fps=5").await })
        });
        // If a large file is being written, it is interrupted.
        for _ in 0..200 {
            if !world.incomplete_files().is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        incomplete += tokio::task::block_in_place(|| futures::executor::block_on(world.kill_and_start()));
        if let Some(sending) = sending {
            let sent = sending.await.unwrap();
            requests += sent.requests;
            accepted.push(sent.id);
        }
        println!("{:.0} s: killed and started again", started.elapsed().as_secs_f64());
    }
    until("slow addresses", || hostile.progress.addresses() >= addresses).await;
    attacks.wait_until_each_has_run().await;
    println!("{:.0} s: all addresses were sent", started.elapsed().as_secs_f64());
    let suspects = world.number("select count(*) from jobs where crashes > 1").await;
    for video in &accepted {
        normal.until_read(video).await;
    }
    println!("{:.0} s: the videos of the other tenant were read", started.elapsed().as_secs_f64());

    let sent = Instant::now();
    let last = normal.send(variant(&films.standard, 0), "").await.id;
    normal.until(&last, |video| video["state"] != "queued").await;
    let begun = sent.elapsed();
    let read = normal.until_read(&last).await;
    let ended = sent.elapsed();
    assert!(read["people"].as_i64() > Some(0), "{read:#}");
    accepted.push(last);
    let report = attacks.stop().await;

    let hostile_videos = hostile.progress.accepted();
    println!(
        "{} bytes are read after {:.1} s and until {:.1} s",
        films.standard.len(),
        begun.as_secs_f64(),
        ended.as_secs_f64()
    );
    println!("{} videos of the other tenant were accepted by {requests} requests", accepted.len());
    println!("{} videos of the attackers were accepted; {suspects} jobs were suspects", hostile_videos.len());
    report.lines.iter().for_each(|line| println!("{line}"));
    assert_eq!(report.surprises, Vec::<String>::new(), "responses that an attacker must not get");
    let waiting = world.waiting(HOSTILE).await;
    assert!(
        waiting.0 <= world::MAX_WAITING_VIDEOS && waiting.1 <= world::MAX_WAITING_VIDEO_MB << 20,
        "{waiting:?}"
    );
    assert_eq!(lost(&tenant, hostile_videos).await, Vec::<String>::new());
    assert_eq!(lost(&normal, accepted.clone()).await, Vec::<String>::new());
    let listed = normal.get("/videos?limit=100").await;
    assert_eq!(listed["videos"].as_array().unwrap().len(), accepted.len());
    assert_eq!(stored(&normal, &first).await, before, "the other tenant's data changed");

    world.stop().await;
    let (peaks, unused) = (world.peaks(), world.unused_files().await);
    let limits =
        (world::memory_limit(), world::disk_limit(LARGE as u64) + unused * LARGE as u64 + SMALL_FILES);
    println!(
        "peak memory: {} MB, of the service {} MB; limit {} MB; at most {} decoders",
        peaks.memory / 1_000_000,
        peaks.memory_of_service / 1_000_000,
        limits.0 / 1_000_000,
        peaks.decoders
    );
    println!(
        "peak disk space: {} MB, of copies {} MB; limit {} MB; {incomplete} files were interrupted, {unused} files unused",
        peaks.disk / 1_000_000,
        peaks.unnamed / 1_000_000,
        limits.1 / 1_000_000
    );
    println!("{:.0} s in total", started.elapsed().as_secs_f64());
    assert!(peaks.decoders > 0, "no decoder was measured");
    assert!(peaks.memory < limits.0, "the memory exceeds its limit");
    assert!(peaks.disk < limits.1, "the disk space exceeds its limit");
    assert_eq!(world.incomplete_files(), Vec::<PathBuf>::new(), "files that remain incomplete");
}
