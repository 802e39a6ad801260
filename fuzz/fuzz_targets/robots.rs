//! Reads an arbitrary robots.txt file. Checks that `allows` and `verdict` give the same result for
//! an arbitrary address.
#![no_main]
use crawler::{Robots, urls};
use libfuzzer_sys::fuzz_target;

// The input consists of a URL, a line feed and the robots.txt file.
fuzz_target!(|bytes: &[u8]| {
    let line = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (head, body) = bytes.split_at(line);
    let Ok(url) = urls::parse(&format!("http://site.example/{}", String::from_utf8_lossy(head))) else {
        return;
    };
    let robots = Robots::from_response(200, body, "facecrawl");
    assert_eq!(robots.allows(&url), robots.verdict(&url).allowed);
    for sitemap in robots.sitemaps() {
        assert!(matches!(sitemap.scheme(), "http" | "https"));
    }
});
