//! The hosts and crawls of a simulation. They are computed from [`Sizes`] alone and are the same in
//! every run.

use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    pub(crate) hosts: usize,
    /// Number of crawling processes. Each has its own queue handle.
    pub(crate) processes: usize,
    /// Maximum number of simultaneous requests of a process.
    pub(crate) slots: usize,
    /// Minimum time between two requests to a host.
    pub(crate) delay: Duration,
    /// Maximum number of claimable jobs of a crawl over all hosts (`queue::Config::group_window`).
    pub(crate) line: i64,
    /// Maximum number of requests, at which the simulation ends.
    pub(crate) requests: usize,
    /// Number of pages of the largest host. The host of rank r has this number divided by r (Zipf),
    /// and at least one.
    pub(crate) largest: usize,
}

impl Sizes {
    /// Returns the size for a number of hosts: four processes with 500 slots each and a delay of
    /// one second.
    pub(crate) fn of(hosts: usize) -> Self {
        Self {
            hosts,
            processes: 4,
            slots: 500,
            delay: Duration::from_secs(1),
            line: queue::Config::default().group_window,
            requests: usize::MAX,
            largest: (hosts / 50).clamp(100, 5_000),
        }
    }
}

/// The behaviour of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
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
const SHARED: usize = 50;
/// Number of links to further pages on each page.
pub(crate) const LINKS: usize = 10;

/// Returns a pseudorandom number that depends on the input only (SplitMix64, Steele et al. 2014).
pub(crate) fn drawn(seed: usize, salt: u64) -> u64 {
    let mut z = (seed as u64).wrapping_add(salt.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns the behaviour of a host: 90% are quick, 5% slow, 3% dead, 2% busy.
pub(crate) fn manner(host: usize) -> Manner {
    match drawn(host, 1) % 100 {
        0..90 => Manner::Quick,
        90..95 => Manner::Slow,
        95..98 => Manner::Dead,
        _ => Manner::Busy,
    }
}

pub(crate) fn latency(host: usize, nth: usize) -> Duration {
    let chance = drawn(host, 100 + nth as u64);
    Duration::from_millis(match manner(host) {
        Manner::Quick | Manner::Busy => 50 + chance % 500,
        Manner::Slow => 5_000 + chance % 10_000,
        Manner::Dead => 5_000,
    })
}

pub(crate) fn sites(sizes: &Sizes) -> Vec<Site> {
    // Ranks are assigned at random, so that every crawl has hosts of all sizes.
    let mut ranks: Vec<usize> = (1..=sizes.hosts).collect();
    ranks.sort_by_key(|rank| drawn(*rank, 2));
    let mut sites = Vec::with_capacity(sizes.hosts);
    let (mut host, mut first) = (0, 0..0);
    for (crawl, (share, _)) in CRAWLS.iter().enumerate() {
        let own = (sizes.hosts * share / 1000).max(2).min(sizes.hosts - host);
        for nth in 0..own {
            let shared = crawl == 1 && nth % 1000 < SHARED;
            let host_of = if shared { drawn(nth, 3) as usize % first.len() } else { host + nth };
            sites.push(Site { host: host_of, crawl, pages: (sizes.largest / ranks[host + nth]).max(1) });
        }
        if crawl == 0 {
            first = host..host + own;
        }
        host += own;
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
