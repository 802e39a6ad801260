//! Defines the hosts and crawls of a simulation, and records its events. The hosts are computed
//! from [`Sizes`] alone and are the same in every run. Nothing here uses the product code, so that
//! politeness and fairness are measured independently.
use bench::Tail;
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Clone, Debug, Default)]
pub(crate) struct Sizes {
    pub(crate) hosts: usize,
    /// Number of crawling processes. Each has its own queue handle.
    pub(crate) processes: usize,
    /// Maximum number of simultaneous requests of a process.
    pub(crate) slots: usize,
    /// Minimum time between two requests to a host.
    pub(crate) delay: Duration,
    /// Maximum number of claimable jobs of a crawl over all hosts (`queue::Config::group_window`).
    pub(crate) job_window: i64,
    /// Maximum number of requests, at which the simulation ends.
    pub(crate) requests: usize,
    /// Number of pages of the largest host. The host of rank r has this number divided by r (Zipf),
    /// and at least one.
    pub(crate) largest: usize,
}

impl Sizes {
    /// Returns the size for a number of hosts: four processes with 500 slots each and a delay of
    /// one second.
    pub(crate) fn for_hosts(hosts: usize) -> Self {
        Self {
            hosts,
            processes: 4,
            slots: 500,
            delay: Duration::from_secs(1),
            job_window: queue::Config::default().group_window,
            requests: usize::MAX,
            largest: (hosts / 50).clamp(100, 5_000),
        }
    }
}

/// The behaviour of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Responds within 50 to 550 ms.
    Quick,
    /// Responds after 5 to 15 s.
    Slow,
    /// Every connection times out after 5 s.
    Dead,
    /// Responds to its first two requests with 503 and `Retry-After: 30`.
    Busy,
}

/// A host in one crawl. Its pages form a tree in which every page links to ten others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site {
    /// Number of the host. Two crawls can share a host.
    pub(crate) host: usize,
    pub(crate) crawl: usize,
    pub(crate) pages: usize,
}

/// Each crawl's share of all hosts, in thousandths, and its start time. The last crawl has very few
/// hosts.
pub(crate) const CRAWLS: [(usize, Duration); 4] = [
    (700, Duration::ZERO),
    (280, Duration::ZERO),
    (19, Duration::from_secs(30)),
    (1, Duration::from_secs(60)),
];
/// Number of hosts per thousand of the second crawl that also belong to the first crawl.
const SHARED_PER_THOUSAND: usize = 50;
/// Number of links to further pages on each page.
pub(crate) const LINKS: usize = 10;

/// Returns a pseudorandom number that depends on the input only (SplitMix64, Steele et al. 2014).
pub(crate) fn hash(seed: usize, salt: u64) -> u64 {
    let mut z = (seed as u64).wrapping_add(salt.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns the behaviour of a host: 90% are quick, 5% slow, 3% dead, 2% busy.
pub(crate) fn behaviour(host: usize) -> Behaviour {
    match hash(host, 1) % 100 {
        0..90 => Behaviour::Quick,
        90..95 => Behaviour::Slow,
        95..98 => Behaviour::Dead,
        _ => Behaviour::Busy,
    }
}

pub(crate) fn latency(host: usize, nth: usize) -> Duration {
    let random = hash(host, 100 + nth as u64);
    Duration::from_millis(match behaviour(host) {
        Behaviour::Quick | Behaviour::Busy => 50 + random % 500,
        Behaviour::Slow => 5_000 + random % 10_000,
        Behaviour::Dead => 5_000,
    })
}

pub(crate) fn create_sites(sizes: &Sizes) -> Vec<Site> {
    // Ranks are assigned at random, so that every crawl has hosts of all sizes.
    let mut ranks: Vec<usize> = (1..=sizes.hosts).collect();
    ranks.sort_by_key(|rank| hash(*rank, 2));
    let mut sites = Vec::with_capacity(sizes.hosts);
    let (mut host, mut first_crawl) = (0, 0..0);
    for (crawl, (share, _)) in CRAWLS.iter().enumerate() {
        let host_count = (sizes.hosts * share / 1000).max(2).min(sizes.hosts - host);
        for nth in 0..host_count {
            let is_shared = crawl == 1 && nth % 1000 < SHARED_PER_THOUSAND;
            let host_number = if is_shared { hash(nth, 3) as usize % first_crawl.len() } else { host + nth };
            sites.push(Site { host: host_number, crawl, pages: (sizes.largest / ranks[host + nth]).max(1) });
        }
        if crawl == 0 {
            first_crawl = host..host + host_count;
        }
        host += host_count;
    }
    sites
}

/// Returns the children of a page in the tree of its site.
pub(crate) fn children(page: usize, pages: usize) -> std::ops::Range<usize> {
    (page * LINKS + 1).min(pages)..(page * LINKS + LINKS + 1).min(pages)
}

/// Returns the number of links between the root and the page.
pub(crate) fn depth(mut page: usize) -> i32 {
    let mut depth = 0;
    while page > 0 {
        page = (page - 1) / LINKS;
        depth += 1;
    }
    depth
}

/// Number of places of a partition key in a crowded queue (see the crate `queue`). This is the
/// maximum number of requests to a host before every other host has received a request.
const PLACES_PER_HOST: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageOutcome {
    Fetched,
    /// The page failed and has no attempts left.
    GivenUp,
}

#[derive(Clone, Default)]
struct Host {
    has_request: bool,
    requests: usize,
    /// The host accepts no request before this time.
    closed_until: Duration,
    /// Number of pages of the host, in all crawls, that wait or run.
    pages: usize,
    /// Time from which a request to the host is allowed.
    ready_at: Duration,
}

#[derive(Clone, Copy, Default)]
struct SiteTimes {
    discovered_at: Duration,
    /// Number of requests that had started before the site was found.
    preceding_requests: usize,
    first_request_at: Option<Duration>,
}

#[derive(Default)]
pub(crate) struct Ledger {
    sites: Vec<Site>,
    sizes: Sizes,
    site_times: Vec<SiteTimes>,
    hosts: Vec<Host>,
    waiting: usize,
    fetched: usize,
    given_up: usize,
    requests: usize,
    waits: usize,
    early_requests: usize,
    simultaneous_requests: usize,
    /// For hosts of [`Behaviour::Quick`], the seconds from the moment when a request was allowed to
    /// the start of the next request.
    idle_seconds: Vec<f64>,
    pages: usize,
    /// Maximum number of requests that started between the discovery of a site and the first
    /// request to that site.
    max_requests_ahead: usize,
}

impl Ledger {
    pub(crate) fn new(sizes: &Sizes, sites: &[Site]) -> Self {
        Self {
            site_times: vec![SiteTimes::default(); sites.len()],
            hosts: vec![Host::default(); sizes.hosts],
            sites: sites.to_vec(),
            sizes: sizes.clone(),
            ..Self::default()
        }
    }

    /// Returns whether the simulation is over: all crawls have begun (`all_begun`) and no page
    /// waits or runs, or the maximum number of requests is reached.
    pub(crate) fn is_over(&self, all_begun: bool) -> bool {
        (all_begun && self.waiting == 0) || self.requests >= self.sizes.requests
    }

    pub(crate) fn record_discovery(&mut self, site: usize, now: Duration, pages: usize) {
        let host = &mut self.hosts[self.sites[site].host];
        if host.pages == 0 {
            host.ready_at = host.closed_until.max(now);
        }
        host.pages += pages;
        self.waiting += pages;
        self.pages += pages;
        if self.site_times[site].first_request_at.is_none() {
            self.site_times[site] =
                SiteTimes { discovered_at: now, preceding_requests: self.requests, first_request_at: None };
        }
    }

    /// Records the start of a request. Returns its index at this host, from 0.
    pub(crate) fn record_start(&mut self, site: usize, host: usize, now: Duration) -> usize {
        let nth = self.hosts[host].requests;
        let site_times = &mut self.site_times[site];
        if site_times.first_request_at.is_none() {
            site_times.first_request_at = Some(now);
            self.max_requests_ahead =
                self.max_requests_ahead.max(self.requests - site_times.preceding_requests);
        }
        let is_quick = behaviour(host) == Behaviour::Quick;
        let host = &mut self.hosts[host];
        self.simultaneous_requests += usize::from(host.has_request);
        self.early_requests += usize::from(now < host.closed_until);
        if is_quick {
            self.idle_seconds.push(now.saturating_sub(host.ready_at).as_secs_f64());
        }
        host.has_request = true;
        host.requests += 1;
        self.requests += 1;
        nth
    }

    /// Records the end of a request. No further request to the host may start for `delay` or
    /// `pause`, whichever is longer.
    pub(crate) fn record_end(
        &mut self,
        host: usize,
        now: Duration,
        delay: Duration,
        pause: Option<Duration>,
    ) {
        let pause = pause.unwrap_or_default().max(delay);
        let host = &mut self.hosts[host];
        host.has_request = false;
        host.closed_until = now + pause;
        host.ready_at = now + pause;
    }

    pub(crate) fn record_outcome(&mut self, site: usize, outcome: PageOutcome) {
        match outcome {
            PageOutcome::Fetched => self.fetched += 1,
            PageOutcome::GivenUp => self.given_up += 1,
        }
        self.waiting -= 1;
        self.hosts[self.sites[site].host].pages -= 1;
    }

    /// Records that a job was claimed before its host allowed a request.
    pub(crate) fn record_wait(&mut self) {
        self.waits += 1;
    }

    /// Returns the report. Times are in simulated seconds unless the name specifies another unit.
    pub(crate) fn report(self, now: Duration) -> Value {
        let fair_share: usize = self.sites.iter().map(|site| site.pages.min(PLACES_PER_HOST)).sum();
        let crawls: Vec<Value> = (0..CRAWLS.len()).map(|crawl| self.crawl_report(crawl)).collect();
        json!({
            "hosts": self.sizes.hosts, "sites": self.sites.len(), "pages": self.pages,
            "slots": self.sizes.slots * self.sizes.processes, "delay_ms": self.sizes.delay.as_millis() as u64,
            "fetched": self.fetched, "given_up": self.given_up, "requests": self.requests,
            "never_asked": self.site_times.iter().filter(|site_times| site_times.first_request_at.is_none()).count(),
            "asked_too_soon": self.early_requests, "asked_twice_at_once": self.simultaneous_requests,
            "waits_per_request": ratio(self.waits, self.requests),
            "virtual_s": now.as_secs(),
            "most_requests_before_a_sites_first": self.max_requests_ahead,
            "as_fair_shares": ratio(self.max_requests_ahead, fair_share),
            "quick_host_ready_to_asked": Tail::of(&self.idle_seconds),
            "crawls": crawls,
        })
    }

    fn crawl_report(&self, crawl: usize) -> Value {
        let own_sites = || self.sites.iter().zip(&self.site_times).filter(|(site, _)| site.crawl == crawl);
        let wait = |times: &SiteTimes| Some((times.first_request_at? - times.discovered_at).as_secs_f64());
        let waits: Vec<f64> = own_sites().filter_map(|(_, times)| wait(times)).collect();
        json!({
            "sites": own_sites().count(), "pages": own_sites().map(|(site, _)| site.pages).sum::<usize>(),
            "begins_at": CRAWLS[crawl].1.as_secs(), "first_wait": Tail::of(&waits),
        })
    }
}

fn ratio(a: usize, b: usize) -> f64 {
    (a as f64 / b.max(1) as f64 * 1e3).round() / 1e3
}
