//! The pages and the robots.txt of many hosts. `server` serves them.
//!
//! Three quarters of the hosts offer HTTP/2, a third send an `ETag`, and a tenth set a
//! `Crawl-delay`.
use axum::body::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::time::Duration;

/// Every host whose number is a multiple of this sets a `Crawl-delay` of twice the delay.
const CRAWL_DELAY_EVERY: usize = 10;
/// Every host whose number is a multiple of this offers only HTTP/1.1.
const HTTP1_EVERY: usize = 4;
/// Every host whose number is a multiple of this sends an `ETag`, so that its pages are stored for
/// later conditional requests.
const ETAG_EVERY: usize = 3;
/// Number of pages to which each page links below itself.
const FANOUT: usize = 10;
/// Numbers of links to other hosts of the crawl, and to hosts outside it.
const LINKS_TO_HOSTS: usize = 6;
const LINKS_OUTSIDE: usize = 4;
/// Number of different texts, of 10 to 25 KB.
const TEXTS: usize = 16;

/// The contents of all hosts.
pub(crate) struct Sites {
    pub(crate) hosts: usize,
    /// Number of pages of each host.
    pub(crate) pages: usize,
    pub(crate) port: u16,
    /// The crawler's delay.
    pub(crate) delay: Duration,
    /// Compressed ends of pages.
    texts: Vec<Bytes>,
}

impl Sites {
    pub(crate) fn new(hosts: usize, pages: usize, port: u16, delay: Duration) -> Self {
        let texts = (0..TEXTS).map(|number| compress(&text(number)).into()).collect();
        Self { hosts, pages, port, delay, texts }
    }

    pub(crate) fn url(&self, host: usize, page: usize) -> String {
        format!("https://{}:{}{}", name(host), self.port, path(page))
    }

    /// Returns the number of a host by its name.
    pub(crate) fn host(&self, name: &str) -> Option<usize> {
        let host = name.strip_prefix("site")?.strip_suffix(".test")?.parse().ok()?;
        (host < self.hosts).then_some(host)
    }

    /// Returns the delay that applies to a host.
    pub(crate) fn delay_of(&self, host: usize) -> Duration {
        if host.is_multiple_of(CRAWL_DELAY_EVERY) { self.delay * 2 } else { self.delay }
    }

    pub(crate) fn offers_http2(host: usize) -> bool {
        !host.is_multiple_of(HTTP1_EVERY)
    }

    pub(crate) fn etag(host: usize, page: usize) -> Option<String> {
        host.is_multiple_of(ETAG_EVERY).then(|| format!("\"{page}\""))
    }

    /// Returns the number of the page at a path. Only links of these sites are expected.
    pub(crate) fn page(&self, path: &str) -> Option<usize> {
        let page = match path {
            "/" => 0,
            _ => path.split_once("/story-")?.1.strip_suffix(".html")?.parse().ok()?,
        };
        (page < self.pages).then_some(page)
    }

    /// Returns a page in gzip. It has two members, because only its beginning is compressed now.
    pub(crate) fn compressed(&self, host: usize, page: usize) -> Vec<u8> {
        [compress(&self.links(host, page)).as_slice(), &self.texts[(host + page) % TEXTS]].concat()
    }

    pub(crate) fn robots(&self, host: usize) -> String {
        let rules = "User-agent: *\nDisallow: /search\nDisallow: /cart\nDisallow: /*?print=\n";
        match host.is_multiple_of(CRAWL_DELAY_EVERY) {
            true => format!("{rules}Crawl-delay: {}\n", self.delay_of(host).as_secs_f64()),
            false => rules.to_owned(),
        }
    }

    /// Returns the beginning of a page, with its links.
    fn links(&self, host: usize, page: usize) -> String {
        let pages = |numbers: &mut dyn Iterator<Item = usize>| -> String {
            let numbers = numbers.filter(|number| *number < self.pages);
            numbers
                .map(|n| {
                    format!("<li class=\"entry\"><a href=\"{}\">Story {n} of this site</a></li>\n", path(n))
                })
                .collect()
        };
        // Steps that have no common divisor with most numbers of hosts.
        let others: String = (1..=LINKS_TO_HOSTS)
            .map(|n| {
                let other = (host + n * 7919 + page * 104_729) % self.hosts;
                let number = (page * 31 + n * 17) % self.pages;
                format!("<p>More in <a href=\"{}\">another place</a>.</p>\n", self.url(other, number))
            })
            .collect();
        let outside: String = (0..LINKS_OUTSIDE)
            .map(|n| format!("<a class=\"share\" href=\"https://share{n}.example/?page={page}\">Share</a>\n"))
            .collect();
        let scripts = "<script>window.queue = window.queue || []; window.queue.push({kind: \"view\", at: Date.now()});</script>\n";
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Story {page} of site {host}</title>\n\
             <meta name=\"description\" content=\"Story {page}\"><link rel=\"stylesheet\" href=\"/style.css\">\n\
             <link rel=\"canonical\" href=\"{canonical}\">\n{scripts}</head><body>\n<nav><ul>\n{menu}</ul></nav>\n\
             <main><h1>Story {page}</h1>\n<ul class=\"related\">\n{below}</ul>\n{others}{outside}",
            canonical = self.url(host, page),
            menu = pages(&mut (0..12)),
            below = pages(&mut (FANOUT * page + 1..=FANOUT * page + FANOUT)),
        )
    }
}

pub(crate) fn name(host: usize) -> String {
    format!("site{host}.test")
}

fn path(page: usize) -> String {
    if page == 0 { "/".into() } else { format!("/topic-{}/story-{page}.html", page % 8) }
}

fn compress(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()).expect("a Vec can be written")
}

/// Returns the end of a page: 10 to 25 KB of paragraphs.
fn text(number: usize) -> String {
    const SYLLABLES: [&str; 16] = [
        "ba", "cor", "den", "fi", "gal", "hem", "ist", "kor", "lu", "mar", "nov", "per", "quen", "ri", "sol",
        "tur",
    ];
    let mut state = number as u64 + 1;
    let mut random = |below: u64| {
        // Knuth's linear congruential generator; the upper bits are the random ones.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut text = String::new();
    while text.len() < 10_000 + number * 1_000 {
        text.push_str("<p class=\"text\">");
        for word in 0..60 {
            for _ in 0..=random(3) {
                text.push_str(SYLLABLES[random(16) as usize]);
            }
            text.push_str(if word % 20 == 19 { ". " } else { " " });
        }
        text.push_str("<em>&ndash; more</em></p>\n");
    }
    text + "</main><footer>All rights reserved.</footer></body></html>\n"
}
