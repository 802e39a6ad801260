//! Tests the measurements with models without weights, and the simulation of crawls over many hosts
//! (`examples/measure/frontier`) and the server of many hosts (`examples/measure/serve_hosts`) at a
//! small size.
#[path = "../../examples/measure/serve_hosts/server.rs"]
mod server;
#[path = "../../examples/measure/frontier/simulation.rs"]
mod simulation;
#[path = "../../examples/measure/serve_hosts/site.rs"]
mod site;
#[path = "../../examples/measure/frontier/world.rs"]
mod world;

use bench::{
    BatchSearch, BenchImages, BenchTarget, Counters, Device, Plan, Process, Side, SideReport, compute_gain,
    draw_svg, measure,
};
use crawler::fetch::{AnyHop, Kind};
use crawler::{Fetcher, Request, Robots, Roots, Scope, SeedIndex, extract_page};
use inference::{Engine, Manifest, Operation, ResolvedPack};
use pipeline::Analyzer;
use serde_json::json;
use server::Server;
use simulation::Simulation;
use site::Sites;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;
use testing::{TestDatabase, draw_face, fixture_pack};
use tokio::net::TcpListener;
use url::Url;
use vision::{Frame, Limits};
use world::Sizes;

/// Returns a side whose engine uses models without weights.
fn side() -> Side {
    let folder = tempfile::tempdir().unwrap();
    let fixture = fixture_pack(folder.path());
    let manifest = Manifest::parse(&fixture.manifest()).unwrap();
    let pack = ResolvedPack::verify(manifest.pack("fixture").unwrap(), &fixture.directory).unwrap();
    let config = inference::Config { dylib_path: Some(testing::library()), ..inference::Config::default() };
    let engine = Engine::start(&config, &pack).unwrap();
    // The fixture's detector finds faces only at the scale of the whole image.
    let analysis = pipeline::Config { passes: pipeline::Passes::Single, ..pipeline::Config::default() };
    Side { gpu: false, analyzer: Analyzer::new(engine, analysis) }
}

fn process() -> Process {
    let cpu_seconds = || Some(1.0);
    Process { cores: 2, cpu_seconds, children_cpu_seconds: cpu_seconds, counters: Counters::default() }
}

/// Returns a PNG with `faces` faces that the fixture's detector finds.
fn drawing(faces: u32) -> Vec<u8> {
    let mut frame = Frame::filled(640, 480, [70, 80, 60]);
    let mut drawing = testing::fixture_models::Canvas::from_raw(640, 480, frame.data().to_vec()).unwrap();
    for number in 0..faces {
        draw_face(&mut drawing, 2 + 4 * number, 3, number);
    }
    frame.data_mut().copy_from_slice(&drawing);
    vision::encode::png(&frame)
}

fn plan(targets: &[BenchTarget]) -> Plan {
    Plan { targets: targets.to_vec(), batch_size: 4, iterations: 3, warmup: 1 }
}

fn images(files: &[&[u8]]) -> BenchImages {
    BenchImages::of(files.iter().map(|file| file.to_vec().into()).collect(), &Limits::default())
}

#[testing::test(flavor = "multi_thread")]
async fn measures_every_operation_under_documented_name() {
    let side = side();
    let files = [drawing(2), drawing(1)];
    let images = images(&[&files[0], &files[1]]);
    let mut measured = Vec::new();
    let results =
        measure(&plan(&BenchTarget::ALL), std::slice::from_ref(&side), &[images], &process(), |name| {
            measured.push(name.to_owned())
        })
        .await
        .unwrap();
    assert_eq!(measured.len(), 6);
    let json = serde_json::to_value(&results).unwrap();
    for target in BenchTarget::ALL {
        let result = &json[target.name()]["original"]["gpu_false"];
        assert_eq!((&result["success_rate"], &result["images"]), (&1.0.into(), &12.into()), "{result}");
        let (time, throughput) =
            (result["mean_time_ms"].as_f64().unwrap(), result["mean_throughput"].as_f64().unwrap());
        assert!(time > 0.0 && (time * throughput / 1000.0 - 1.0).abs() < 1e-6, "{result}");
        for figure in ["median_time_ms", "p95_time_ms", "min_time_ms", "max_time_ms", "stdev_time_ms"] {
            assert!(result[figure].is_number(), "{figure}: {result}");
        }
        for operation in target.operations() {
            assert_eq!(result["device"][operation.name()]["effective"], "cpu", "{result}");
        }
        assert_eq!((&result["on_gpu"], &result["fell_back"]), (&"none".into(), &false.into()));
        assert!(result["bottleneck"]["why"].is_string(), "{result}");
    }
    let pipeline = &json["pipeline"]["original"]["gpu_false"];
    assert_eq!(pipeline["faces"], 18, "images with two faces and with one face alternate");
    for stage in ["decode", "letterbox", "detect", "align", "quality", "embed", "queue"] {
        assert!(pipeline["stages"][stage].is_number(), "{stage}: {pipeline}");
    }
    assert_eq!(json["face_embedding"]["original"]["gpu_false"]["unit"], "face");
}

#[testing::test(flavor = "multi_thread")]
async fn failed_images_lower_success_rate_with_reason() {
    let side = side();
    let valid = drawing(1);
    let files = images(&[&valid, b"no image", &valid, &valid]);
    let operations = [BenchTarget::Pipeline, BenchTarget::Operation(Operation::QualityChecks)];
    let sides = std::slice::from_ref(&side);
    let results = measure(&plan(&operations), sides, &[files], &process(), |_| ()).await.unwrap();
    for operation in operations {
        let result = &results[operation.name()]["original"]["gpu_false"];
        assert_eq!((result.success_rate, result.images, result.failed), (0.75, 9, 3));
        assert_eq!(result.errors.values().sum::<usize>(), 3, "{:?}", result.errors);
        assert!(result.errors.keys().all(|reason| reason.contains("image")), "{:?}", result.errors);
    }
    let broken = images(&[b"no image"]);
    let error = measure(&plan(&operations), sides, &[broken], &process(), |_| ()).await;
    assert!(error.unwrap_err().to_string().contains("none of the images can be used"));
}

#[testing::test(flavor = "multi_thread")]
async fn batch_search_stops_at_first_failed_batch() {
    let side = side();
    let file = drawing(1);
    let (plan, images, process) =
        (plan(&[BenchTarget::Operation(Operation::QualityChecks)]), images(&[&file]), process());
    let search = BatchSearch {
        plan: &plan,
        images: &images,
        process: &process,
        gpu: false,
        largest: 8,
        memory_limit: 0.0,
    };
    let start =
        async |batch: usize| Ok(if batch < 4 { Ok(side.clone()) } else { Err("out of memory".to_owned()) });
    let report = search.run(start).await.unwrap();
    assert_eq!((report.operation, report.side), ("quality_checks", "gpu_false"));
    let steps: Vec<_> = report.found.steps.iter().map(|step| (step.batch, step.reason.as_deref())).collect();
    assert_eq!(steps, [(1, None), (2, None), (4, Some("out of memory"))]);
    assert!(report.found.recommended_batch.is_some_and(|batch| batch < 4), "{report:?}");
}

/// Returns a side's report with the given time and the effective device of detection.
fn report(time: f64, effective: &str) -> SideReport {
    let fell_back = effective == "cpu";
    let reason = fell_back.then(|| "no driver".to_owned());
    let device = Device { requested: "cuda".into(), effective: effective.into(), reason, fell_back };
    SideReport {
        mean_time_ms: Some(time),
        mean_throughput: 1000.0 / time,
        device: BTreeMap::from([("face_detection", device)]),
        on_gpu: if fell_back { "none" } else { "all" },
        fell_back,
        ..SideReport::default()
    }
}

#[test]
fn gain_is_relative_to_cpu_and_absent_after_fallback() {
    let result = compute_gain(&report(78.5, "cpu"), &report(45.2, "cuda:0"));
    assert!((result.time_improvement_percent.unwrap() - 42.4).abs() < 0.05, "{result:?}");
    assert!((result.throughput_improvement_percent.unwrap() - 73.7).abs() < 0.05, "{result:?}");
    let after_fallback = compute_gain(&report(78.5, "cpu"), &report(45.2, "cpu"));
    assert_eq!(
        (after_fallback.time_improvement_percent, after_fallback.throughput_improvement_percent),
        (None, None)
    );
    assert!(after_fallback.note.unwrap().contains("no driver"));
    let failing = SideReport { runtime_fallbacks: 3, ..report(45.2, "cuda:0") };
    assert_eq!(compute_gain(&report(78.5, "cpu"), &failing).time_improvement_percent, None);
}

#[test]
fn svg_plot_is_well_formed_with_all_bars() {
    let sides = BTreeMap::from([
        ("gpu_false".to_owned(), report(40.0, "cpu")),
        ("gpu_true".to_owned(), report(10.0, "cuda:0")),
    ]);
    let sizes = BTreeMap::from([("medium".to_owned(), sides)]);
    let drawn = draw_svg(&BTreeMap::from([("face_detection".to_owned(), sizes)]), "a < b & \"c\"");
    assert_eq!(drawn.matches("<rect").count(), 3, "the background and two bars");
    assert!(
        drawn.contains(">25.0<")
            && drawn.contains(">100.0<")
            && drawn.contains("a &lt; b &amp; &quot;c&quot;")
    );
    // Every opened tag is closed, in order.
    let mut open = Vec::new();
    for tag in drawn.split('<').skip(1).map(|rest| rest.split_once('>').unwrap().0) {
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().unwrap());
        }
    }
    assert!(open.is_empty());
}

#[testing::needs(slow)]
#[testing::test]
async fn simulated_crawl_keeps_host_delays_without_losing_pages() {
    let database = TestDatabase::create().await;
    // The ratio of hosts to claimable jobs is that of 80,000 hosts to the 8,192 of a real crawl.
    let sizes = Sizes { job_window: 200, slots: 25, largest: 200, ..Sizes::for_hosts(2_000) };
    let report = Simulation::prepare(&database, sizes).await.run().await;
    for count in ["asked_too_soon", "asked_twice_at_once", "never_asked"] {
        assert_eq!(report[count], json!(0), "{count}: {report:#}");
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

/// Resolves every name to 127.0.0.1.
struct Loopback;

#[async_trait::async_trait]
impl crawler::guard::Lookup for Loopback {
    async fn lookup(&self, _: &str) -> std::io::Result<Vec<IpAddr>> {
        Ok(vec![Ipv4Addr::LOCALHOST.into()])
    }
}

#[tokio::test]
async fn server_of_many_hosts_serves_linked_pages_and_counts_early_requests() {
    let (hosts, pages, delay) = (12, 30, Duration::from_millis(1));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sites = Sites::new(hosts, pages, listener.local_addr().unwrap().port(), delay);
    let seeds: Vec<String> = (0..hosts).map(|host| sites.url(host, 0)).collect();
    let (server, authority) = Server::new(sites, Duration::ZERO).unwrap();
    let server = Arc::new(server);
    tokio::spawn(server.clone().serve(listener));
    let config = crawler::Config {
        allow_private: vec!["127.0.0.1/32".parse().unwrap()],
        extra_roots: Roots::from_pem(authority.as_bytes()).unwrap(),
        ..crawler::Config::default()
    };
    let fetcher = Fetcher::with_lookup(&config, Arc::new(Loopback));
    let fetch =
        async |url: &Url, kind| fetcher.fetch(Request::new(url.clone(), kind), &AnyHop).await.unwrap();

    let mut queue: VecDeque<Url> = seeds.iter().map(|seed| seed.parse().unwrap()).collect();
    let robots_url = queue[0].join("/robots.txt").unwrap();
    let robots = fetch(&robots_url, Kind::Robots).await;
    let robots = Robots::from_response(robots.status, &robots.body, fetcher.agent());
    assert_eq!(robots.crawl_delay(), Some(delay * 2));
    let index = SeedIndex::new(Scope::Host, queue.clone());
    let mut visited: HashSet<Url> = queue.iter().cloned().collect();
    while let Some(url) = queue.pop_front() {
        let reply = fetch(&url, Kind::Page).await;
        assert!((12_000..40_000).contains(&reply.body.len()), "{url}: {} bytes", reply.body.len());
        let page = extract_page(&reply.body, &url, reply.content_type.as_deref(), fetcher.agent(), None);
        assert!(page.images.is_empty() && robots.allows(&url), "{url}");
        let inside = page.links.into_iter().map(|link| link.url).filter(|link| index.contains(&[], link));
        queue.extend(inside.filter(|link| visited.insert(link.clone())));
    }
    assert_eq!(visited.len(), hosts * pages, "every page is linked");
    // Immediate repetition comes earlier than the delay.
    for _ in 0..20 {
        fetch(&robots_url, Kind::Robots).await;
    }
    let report = server.report();
    assert_eq!((&report["pages"], &report["other_requests"]), (&json!(hosts * pages), &json!(21)));
    assert_eq!((&report["delays"][0]["hosts"], &report["delays"][1]["hosts"]), (&json!(10), &json!(2)));
    assert!(report["delays"][1]["violations"].as_u64().unwrap() > 0, "{report}");
}
