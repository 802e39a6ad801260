//! Attacks one service in many ways at once, while normal callers use it.
//!
//! The normal load runs first without and then alongside the attacks, with the same number of
//! requests each time. The test requires that no normal request fails and that no attacker receives
//! a response that is not allowed. The data of the normal tenant must not change. The test prints
//! the latencies, their ratio and the peak memory, but makes no assertion about them.
//! `ATTACK_REQUESTS` sets the number of requests of the normal load (default 60) for a longer
//! measurement. `ATTACKS` selects the attacks whose names contain its value. The module `videos`
//! contains another test with other attacks.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]
mod attackers;
#[path = "../common/mod.rs"]
mod common;
mod site;
mod videos;
mod world;

use testing::MAX_WAIT;
use world::{Load, World};

#[testing::needs(slow)]
#[testing::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_attacks_fail_no_normal_request() {
    let requests = std::env::var("ATTACK_REQUESTS").map_or(60, |count| count.parse().unwrap());
    let world = World::start().await;
    let before = world.normal_data().await;
    assert!(before.faces > 0, "the normal tenant has no face");

    let load = Load::new(&world);
    let baseline = load.run(requests).await;
    let baseline_peak = world.service.peak_memory();
    let attacks = attackers::start(&world);
    // The comparison starts when every attacker has received a response or its connection has
    // ended.
    attacks.wait_for_first_results().await;
    let attacked = load.run(requests).await;
    let report = attacks.stop().await;

    println!("without attacks: {baseline}");
    println!("during attacks:  {attacked}");
    println!("p99 ratio: {:.2}", attacked.p99().as_secs_f64() / baseline.p99().as_secs_f64());
    let peaks = [baseline_peak, world.service.peak_memory()].map(|bytes| bytes >> 20);
    println!("peak resident memory: without attacks {} MiB, with attacks {} MiB", peaks[0], peaks[1]);
    for line in &report.lines {
        println!("{line}");
    }
    assert_eq!(report.unexpected, Vec::<String>::new(), "responses that an attacker must not get");
    assert_eq!((baseline.failures, attacked.failures), (Vec::new(), Vec::new()), "normal requests failed");
    assert_eq!(world.normal_data().await, before, "the normal tenant's data changed");
    // The service still responds, and it stops on request.
    world.stop(MAX_WAIT).await;
}
