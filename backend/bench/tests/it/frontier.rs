//! Tests politeness and fairness of crawls over many hosts, in simulated time. Runs
//! `examples/measure/frontier` at a small size.

#[path = "../../examples/measure/frontier/ledger.rs"]
mod ledger;
#[path = "../../examples/measure/frontier/simulation.rs"]
mod simulation;
#[path = "../../examples/measure/frontier/world.rs"]
mod world;

use serde_json::json;
use simulation::Simulation;
use testing::TestDatabase;
use world::Sizes;

#[testing::needs(slow)]
#[testing::test]
async fn two_thousand_hosts_are_asked_politely_and_none_is_forgotten() {
    let database = TestDatabase::create().await;
    // The ratio of hosts to claimable jobs is that of 80,000 hosts to the 8,192 of a real crawl.
    let sizes = Sizes { line: 200, slots: 25, largest: 200, ..Sizes::of(2_000) };
    let report = Simulation::prepare(&database, sizes).await.run().await;
    for never in ["asked_too_soon", "asked_twice_at_once", "never_asked"] {
        assert_eq!(report[never], json!(0), "{never}: {report:#}");
    }
    let number =
        |name: &str| report[name].as_f64().unwrap_or_else(|| panic!("{name} is missing in {report:#}"));
    assert_eq!(
        number("fetched") + number("given_up"),
        number("pages"),
        "every page has an outcome: {report:#}"
    );
    // Until every host has received a request, no host receives many more requests than its number
    // of claimable jobs.
    assert!(number("as_fair_shares") <= 1.5, "{report:#}");
    // This crawl of two hosts starts after the other crawls have filled their queues.
    let small = &report["crawls"][3]["first_wait"]["max"];
    assert!(small.as_f64().is_some_and(|seconds| seconds < 5.0), "{report:#}");
}
