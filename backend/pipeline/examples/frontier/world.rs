//! The hosts and crawls of a simulation: drawn from the sizes alone, the same every time.

use std::time::Duration;

/// What is simulated.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    /// Hosts.
    pub(crate) hosts: usize,
    /// Processes that crawl, each with a queue handle of its own.
    pub(crate) processes: usize,
    /// Requests that a process may have under way.
    pub(crate) slots: usize,
    /// Least time between two requests to a host.
    pub(crate) delay: Duration,
    /// Places in a crawl's line over all hosts (`queue::Config::group_window`).
    pub(crate) line: i64,
    /// It ends after so many requests, if it comes to as many.
    pub(crate) requests: usize,
    /// Pages of the largest host; the host of rank r has so many divided by r (Zipf), and at least one.
    pub(crate) largest: usize,
}

impl Sizes {
    /// A simulation of so many hosts, by four processes of 500 slots, with a delay of a second.
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

/// How a host behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Answers within 50 to 550 ms.
    Quick,
    /// Answers after 5 to 15 s.
    Slow,
    /// Lets every connection time out after 5 s.
    Dead,
    /// Answers its first two requests 503 with `Retry-After: 30`.
    Busy,
}

/// A host of a crawl: pages that hang together as a tree in which every page links to ten others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site {
    /// Number of the host; two crawls may have it both.
    pub(crate) host: usize,
    /// Number of the crawl.
    pub(crate) crawl: usize,
    /// Pages.
    pub(crate) pages: usize,
}

/// The crawls' shares of all hosts in thousandths, and when they begin. The last has very few hosts.
pub(crate) const CRAWLS: [(usize, Duration); 4] = [
    (700, Duration::ZERO),
    (280, Duration::ZERO),
    (19, Duration::from_secs(30)),
    (1, Duration::from_secs(60)),
];
/// Of a thousand hosts of the second crawl, so many are the first crawl's, too.
const SHARED: usize = 50;
/// Links to further pages on each page.
pub(crate) const LINKS: usize = 10;

/// A number that is the same for the same input, and looks like chance (SplitMix64, Steele et al. 2014).
pub(crate) fn drawn(seed: usize, salt: u64) -> u64 {
    let mut z = (seed as u64).wrapping_add(salt.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The manner of a host: of a hundred, ninety are quick, five slow, three dead, two busy.
pub(crate) fn manner(host: usize) -> Manner {
    match drawn(host, 1) % 100 {
        0..90 => Manner::Quick,
        90..95 => Manner::Slow,
        95..98 => Manner::Dead,
        _ => Manner::Busy,
    }
}

/// How long the host takes for its `nth` request.
pub(crate) fn latency(host: usize, nth: usize) -> Duration {
    let chance = drawn(host, 100 + nth as u64);
    Duration::from_millis(match manner(host) {
        Manner::Quick | Manner::Busy => 50 + chance % 500,
        Manner::Slow => 5_000 + chance % 10_000,
        Manner::Dead => 5_000,
    })
}

/// The sites of all crawls.
pub(crate) fn sites(sizes: &Sizes) -> Vec<Site> {
    // Ranks are dealt out at random, so that every crawl has hosts of all sizes.
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

/// Children of a page in its site's tree.
pub(crate) fn children(page: usize, pages: usize) -> std::ops::Range<usize> {
    (page * LINKS + 1).min(pages)..(page * LINKS + LINKS + 1).min(pages)
}

/// Links from the root.
pub(crate) fn depth(mut page: usize) -> i32 {
    let mut depth = 0;
    while page > 0 {
        page = (page - 1) / LINKS;
        depth += 1;
    }
    depth
}
