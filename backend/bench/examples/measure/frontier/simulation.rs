//! Simulates crawls of very many hosts in simulated time. Uses the queue, the partition keys and
//! the per-host permits of the product on a real database.

use super::world::{self, Behaviour, CRAWLS, Ledger, PageOutcome, Site, Sizes};
use bench::Tail;
use crawler::frontier::{self, Yield};
use crawler::pace::{self, Bounds, Pace};
use queue::{Claim, ClaimedJob, NewJob, Queue};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};
use store::Store;
use store::crawls::hosts::{HostPace, PermitDecision};
use testing::TestDatabase;
use testing::clock::VirtualClock;
use time::OffsetDateTime;
use time::macros::datetime;
use uuid::Uuid;

const KIND: &str = "scan_page";
/// Start of the simulated time. The value has no effect on the result.
const START_TIME: OffsetDateTime = datetime!(2030-01-01 00:00 UTC);
/// Minimum step of the simulated time. Events within one step are processed together, as in a
/// process under load.
const TICK: Duration = Duration::from_millis(20);
/// Time between two calls of `Queue::unpark` by a process if a request ended in between.
const UNPARK_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum time between two calls of `Queue::unpark`, and maximum step of the simulated time. It
/// corresponds to the poll interval of a runner.
const POLL: Duration = Duration::from_secs(1);
/// Number of seeds in one transaction.
const SEEDS_PER_TRANSACTION: usize = 5_000;
/// The `Retry-After` value of busy hosts.
const RETRY_AFTER: Duration = Duration::from_secs(30);
/// Maximum delay that the response time of a slow host adds, as in the crate `pipeline`.
const MAX_ADAPTIVE_DELAY: Duration = Duration::from_secs(10);

/// A request that has started and not ended.
struct Request {
    process: usize,
    claim: Claim,
    site: usize,
    page: usize,
    token: i64,
    nth: usize,
}

struct Process {
    queue: Queue,
    free_slots: usize,
    unparked_at: Duration,
    /// Whether a request has ended since the last call of `Queue::unpark`.
    has_ended_request: bool,
}

pub(crate) struct Simulation {
    sizes: Sizes,
    sites: Vec<Site>,
    groups: Vec<Uuid>,
    clock: VirtualClock,
    store: Store,
    processes: Vec<Process>,
    running: HashMap<usize, Request>,
    /// End times of the running requests and their numbers.
    end_times: BinaryHeap<Reverse<(Duration, usize)>>,
    requests: usize,
    claim_rounds: usize,
    now: Duration,
    ledger: Ledger,
    claims_us: Vec<f64>,
}

impl Simulation {
    /// Creates a simulation. No page is enqueued yet.
    pub(crate) async fn prepare(database: &TestDatabase, sizes: Sizes) -> Self {
        let clock = VirtualClock::on(database, START_TIME).await;
        let config = queue::Config { group_window: sizes.job_window, ..queue::Config::default() };
        let queue = || Queue::new(clock.pool().clone(), config.clone());
        let process = || Process {
            queue: queue(),
            free_slots: sizes.slots,
            unparked_at: Duration::ZERO,
            has_ended_request: false,
        };
        let processes = (0..sizes.processes).map(|_| process()).collect();
        let sites = world::create_sites(&sizes);
        Self {
            ledger: Ledger::new(&sizes, &sites),
            groups: CRAWLS.iter().map(|_| Uuid::now_v7()).collect(),
            store: Store::from_pool(clock.pool().clone()),
            processes,
            running: HashMap::new(),
            end_times: BinaryHeap::new(),
            requests: 0,
            claim_rounds: 0,
            now: Duration::ZERO,
            claims_us: Vec::new(),
            clock,
            sites,
            sizes,
        }
    }

    pub(crate) async fn run(mut self) -> Value {
        let started = Instant::now();
        let mut crawls_begun = 0;
        while !self.ledger.is_over(crawls_begun == CRAWLS.len()) {
            while crawls_begun < CRAWLS.len() && CRAWLS[crawls_begun].1 <= self.now {
                self.enqueue_seeds(crawls_begun).await;
                crawls_begun += 1;
            }
            self.finish_requests().await;
            self.unpark_due().await;
            let due = self.claim_jobs().await;
            let next_crawl = CRAWLS.get(crawls_begun).map(|(_, at)| *at);
            let next_end = self.end_times.peek().map(|Reverse((at, _))| *at);
            let next = [next_end, due, next_crawl, Some(self.now + POLL)].into_iter().flatten().min();
            self.now = next.unwrap_or_default().max(self.now + TICK);
            self.clock.set(START_TIME + self.now).await;
        }
        let mut report = self.ledger.report(self.now);
        report["claims"] = json!(self.claims_us.len());
        report["claim_us"] = json!(Tail::of(&self.claims_us));
        report["real_s"] = json!(started.elapsed().as_secs());
        report
    }

    async fn enqueue_seeds(&mut self, crawl: usize) {
        let queue = self.processes[0].queue.clone();
        let roots: Vec<usize> =
            (0..self.sites.len()).filter(|site| self.sites[*site].crawl == crawl).collect();
        for chunk in roots.chunks(SEEDS_PER_TRANSACTION) {
            let jobs: Vec<NewJob> = chunk.iter().map(|site| self.new_job(*site, 0)).collect();
            let mut tx = self.store.begin().await.expect("begin a transaction");
            queue.enqueue(tx.conn(), &jobs).await.expect("enqueue jobs");
            tx.commit().await.expect("commit");
        }
        for site in roots {
            self.ledger.record_discovery(site, self.now, 1);
        }
    }

    fn new_job(&self, site: usize, page: usize) -> NewJob {
        let Site { host, crawl, .. } = self.sites[site];
        let no_yield = Yield::default();
        NewJob {
            priority: frontier::priority(world::depth(page), no_yield, no_yield),
            unique_key: Some(format!("{site}/{page}")),
            group_id: Some(self.groups[crawl]),
            partition_key: Some(host_name(host)),
            ..NewJob::new(KIND, json!({"site": site, "page": page}))
        }
    }

    /// Ends the requests whose end time has passed: releases the permit of the host, and completes
    /// or retries the job.
    async fn finish_requests(&mut self) {
        let mut completed: Vec<Vec<Claim>> = vec![Vec::new(); self.processes.len()];
        while self.end_times.peek().is_some_and(|Reverse((at, _))| *at <= self.now) {
            let Some(Reverse((_, number))) = self.end_times.pop() else { break };
            let Some(request) = self.running.remove(&number) else { continue };
            let host = self.sites[request.site].host;
            let request_end = request_end(host, request.nth);
            let (delay, pause, pace) = self.next_pace(host, request_end).await;
            // The store accepts whole milliseconds.
            let millis = delay.as_millis() as i64;
            let delay = Duration::from_millis(millis.unsigned_abs());
            let name = host_name(host);
            let ended = self.store.hosts().finish_request(&name, request.token, millis, pause, Some(pace));
            ended.await.expect("end a request");
            self.ledger.record_end(host, self.now, delay, pause);
            let process = &mut self.processes[request.process];
            process.free_slots += 1;
            process.has_ended_request = true;
            match request_end {
                pace::RequestEnd::Responded { status: 200, .. } => {
                    let pages = self.sites[request.site].pages;
                    let children = world::children(request.page, pages);
                    self.ledger.record_outcome(request.site, PageOutcome::Fetched);
                    if children.is_empty() {
                        completed[request.process].push(request.claim);
                        continue;
                    }
                    self.ledger.record_discovery(request.site, self.now, children.len());
                    let jobs: Vec<NewJob> = children.map(|page| self.new_job(request.site, page)).collect();
                    let queue = &self.processes[request.process].queue;
                    let mut tx = self.store.begin().await.expect("begin a transaction");
                    queue.complete(tx.conn(), request.claim).await.expect("complete jobs");
                    queue.enqueue(tx.conn(), &jobs).await.expect("enqueue jobs");
                    tx.commit().await.expect("commit");
                }
                _ => {
                    let mut tx = self.store.begin().await.expect("begin a transaction");
                    let failed =
                        process.queue.fail(tx.conn(), request.claim, "no response", false, pause).await;
                    tx.commit().await.expect("commit");
                    if failed.expect("fail a job") == queue::JobState::Discarded {
                        self.ledger.record_outcome(request.site, PageOutcome::GivenUp);
                    }
                }
            }
        }
        for (process, claims) in completed.iter().enumerate() {
            let stale = self.processes[process].queue.complete_many(claims).await.expect("complete jobs");
            assert!(stale.is_empty(), "{stale:?}");
        }
    }

    /// Returns the delay after a response, the pause that the response requests, and the pace that
    /// is stored. This is the rule of `pipeline::worker` for crawls that set no delay.
    async fn next_pace(&self, host: usize, end: pace::RequestEnd) -> (Duration, Option<Duration>, HostPace) {
        let stored = self.store.hosts().pace(&host_name(host)).await.expect("read the host pace");
        let before = Pace {
            delay: Duration::from_millis(stored.pace_ms.unsigned_abs().into()),
            refusals: stored.refusals.unsigned_abs(),
        };
        let (after, pause) =
            before.after(end, Bounds { min_delay: self.sizes.delay, max_delay: MAX_ADAPTIVE_DELAY });
        let pace = HostPace {
            pace_ms: i32::try_from(after.delay.as_millis()).unwrap_or(i32::MAX),
            refusals: i32::try_from(after.refusals).unwrap_or(i32::MAX),
        };
        (after.delay, pause, pace)
    }

    /// Unparks jobs in each process after one of its requests has ended, and at each poll.
    async fn unpark_due(&mut self) {
        for process in &mut self.processes {
            let since = if process.has_ended_request { UNPARK_INTERVAL } else { POLL };
            if process.unparked_at + since <= self.now {
                process.queue.unpark().await.expect("unpark jobs");
                (process.unparked_at, process.has_ended_request) = (self.now, false);
            }
        }
    }

    /// Claims jobs for every process with free slots and acquires their per-host permits. Returns
    /// the time at which the next job is due.
    async fn claim_jobs(&mut self) -> Option<Duration> {
        let kinds = [KIND.to_owned()];
        self.claim_rounds += 1;
        for nth in 0..self.processes.len() {
            // Each call starts with a different process.
            let process = (self.claim_rounds + nth) % self.processes.len();
            let free_slots = self.processes[process].free_slots;
            if free_slots == 0 {
                continue;
            }
            let started = Instant::now();
            let claimed = self.processes[process].queue.claim(&kinds, free_slots as i64, "simulated").await;
            let claimed = claimed.expect("claim jobs");
            self.claims_us.push(started.elapsed().as_secs_f64() * 1e6);
            let has_spare_slots = claimed.len() < free_slots;
            for job in claimed {
                self.start_request(process, job).await;
            }
            if has_spare_slots {
                break;
            }
        }
        if self.free_slots() == 0 {
            return None;
        }
        let due = self.processes[0].queue.next_due(&kinds).await.expect("read the next due time");
        due.map(|due| self.now + due)
    }

    fn free_slots(&self) -> usize {
        self.processes.iter().map(|process| process.free_slots).sum()
    }

    async fn start_request(&mut self, process: usize, job: ClaimedJob) {
        let number = |name: &str| job.payload[name].as_u64().expect("payload field") as usize;
        let (site, page) = (number("site"), number("page"));
        let host = self.sites[site].host;
        match self
            .store
            .hosts()
            .acquire_permit(&host_name(host), self.sizes.delay.as_millis() as i64)
            .await
            .expect("acquire a permit")
        {
            PermitDecision::Wait { wait } => {
                self.ledger.record_wait();
                self.processes[process].queue.snooze(job.claim, wait).await.expect("snooze a job");
            }
            PermitDecision::Granted { token } => {
                let nth = self.ledger.record_start(site, host, self.now);
                let request = Request { process, claim: job.claim, site, page, token, nth };
                self.processes[process].free_slots -= 1;
                self.requests += 1;
                self.running.insert(self.requests, request);
                self.end_times.push(Reverse((self.now + world::latency(host, nth), self.requests)));
            }
        }
    }
}

fn host_name(host: usize) -> String {
    format!("host-{host}.test")
}

fn request_end(host: usize, nth: usize) -> pace::RequestEnd {
    let took = world::latency(host, nth);
    match world::behaviour(host) {
        Behaviour::Dead => pace::RequestEnd::Failed,
        Behaviour::Busy if nth < 2 => {
            pace::RequestEnd::Responded { status: 503, retry_after: Some(RETRY_AFTER), took }
        }
        _ => pace::RequestEnd::Responded { status: 200, retry_after: None, took },
    }
}
