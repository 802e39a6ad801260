#![allow(clippy::unwrap_used)]
use super::*;
use proptest::prelude::*;

fn robots(text: &str) -> Robots {
    Robots::from_response(200, text.as_bytes(), "facecrawl")
}

fn allows(robots: &Robots, path: &str) -> bool {
    robots.allows(&Url::parse(&format!("http://example.com{path}")).unwrap())
}

#[track_caller]
fn check(text: &str, allowed: &[&str], denied: &[&str]) {
    let robots = robots(text);
    for path in allowed {
        assert!(allows(&robots, path), "{path} should be allowed by\n{text}");
    }
    for path in denied {
        assert!(!allows(&robots, path), "{path} should be denied by\n{text}");
    }
}

/// RFC 9309 5.1
const SIMPLE: &str = "\
User-Agent: *
Disallow: *.gif$
Disallow: /example/
Allow: /publications/

User-Agent: foobot
Disallow:/
Allow:/example/page.html
Allow:/example/allowed.gif

User-Agent: barbot
User-Agent: bazbot
Disallow: /example/page.html

User-Agent: quxbot
";

#[test]
fn applies_rfc_9309_simple_example() {
    let decisions = |agent: &str| {
        let robots = Robots::from_response(200, SIMPLE.as_bytes(), agent);
        ["/", "/a.gif", "/a.gif?x", "/example/page.html", "/example/allowed.gif", "/publications/x"]
            .map(|path| allows(&robots, path))
    };
    assert_eq!(decisions("otherbot"), [true, false, true, false, false, true]);
    assert_eq!(decisions("foobot"), [false, false, false, true, true, false]);
    assert_eq!(decisions("barbot"), [true, true, true, false, true, true]);
    assert_eq!(decisions("BazBot"), [true, true, true, false, true, true]);
    // A group without rules allows everything; the group for all agents does not apply.
    assert_eq!(decisions("quxbot"), [true; 6]);
}

#[test]
fn longest_robots_rule_applies_as_in_rfc_9309() {
    // 5.2
    check(
        "User-Agent: facecrawl\nAllow: /example/page/\nDisallow: /example/page/disallowed.gif\n",
        &["/example/page/", "/example/page/a.gif", "/"],
        &["/example/page/disallowed.gif"],
    );
    // 2.2.2: the longest match takes precedence; for equal lengths, `Allow` does.
    check(
        "User-agent: *\nDisallow: /example/page\nAllow: /example/page\nDisallow: /a\nAllow: /a/b",
        &["/example/page", "/a/b/c"],
        &["/a", "/a/c"],
    );
}

#[test]
fn matches_percent_escapes_as_in_rfc_9309() {
    // 2.2.2: the table of encoded and plain forms.
    check(
        "User-agent: *\nDisallow: /foo/bar?baz=quz\nDisallow: /foo/bar?baz=https://foo.bar\nDisallow: /foo/bar/\u{30c4}\n\
         Disallow: /foo/bar/%62%61%7A",
        &["/foo/bar", "/foo/bar/", "/foo/bar/BAZ"],
        &[
            "/foo/bar?baz=quz",
            "/foo/bar?baz=https://foo.bar",
            "/foo/bar/%E3%83%84",
            "/foo/bar/%e3%83%84",
            "/foo/bar/\u{30c4}",
            "/foo/bar/baz",
            "/foo/bar/%62%61%7a",
        ],
    );
    check("User-agent: *\nDisallow: /a%3cd.html", &["/a<d"], &["/a%3Cd.html", "/a%3cd.html", "/a<d.html"]);
    // A reserved character and its escape are different.
    check("User-agent: *\nDisallow: /a%2Fb", &["/a/b"], &["/a%2fb"]);
}

#[test]
fn matches_special_characters_as_in_rfc_9309() {
    // 2.2.3
    check(
        "User-agent: *\nAllow: /this/path/exactly$\nDisallow: /this/",
        &["/this/path/exactly"],
        &["/this/path/exactly/not", "/this/path"],
    );
    check(
        "User-agent: *\nDisallow: /this/*/exactly",
        &["/this/exactly", "/this"],
        &["/this/path/exactly", "/this/and/that/exactly/too"],
    );
    // Escaped special characters match only themselves.
    check(
        "User-agent: *\nDisallow: /path/file-with-a-%2A.html",
        &["/path/file-with-a-b.html"],
        &["/path/file-with-a-*.html", "/path/file-with-a-%2A.html"],
    );
    check("User-agent: *\nDisallow: /path/foo-%24", &["/path/foo-"], &["/path/foo-$", "/path/foo-$x"]);
    check("User-agent: *\nDisallow: /fo$o", &["/fo"], &["/fo$o"]);
    check("User-agent: *\nDisallow: /*.php$", &["/a.php?x", "/a.php5", "/"], &["/a.php", "/a/b.php"]);
    check("User-agent: *\nDisallow: /**a***b", &["/a"], &["/ab", "/xayb"]);
    check("User-agent: *\nDisallow: *", &[], &["/", "/a"]);
    check("User-agent: *\nDisallow: /$", &["/a"], &["/"]);
    // Comments, and a value that is only a comment.
    check("User-agent: * # all\nDisallow: /a # b\nDisallow: # nothing", &["/"], &["/a", "/a/b"]);
}

#[test]
fn robots_rules_come_from_matching_groups() {
    // Groups for one agent are combined. Names ignore case and may include a version.
    check(
        "user-agent: FaceCrawl/1.0\ndisallow: /a\n\nUSER-AGENT: *\nDISALLOW: /\n\nUser-agent: x\nUser-agent: facecrawl\nDisallow: /b",
        &["/", "/c"],
        &["/a", "/b"],
    );
    // A part of the agent's name does not match.
    check("User-agent: facecrawler\nDisallow: /\nUser-agent: face\nDisallow: /", &["/"], &[]);
    // Rules before any group, unknown lines inside the list of names, and a sitemap in between.
    check(
        "Disallow: /\nUser-agent: a\nSitemap: http://example.com/s.xml\nHost: x\n\nUser-agent: facecrawl\nDisallow: /b",
        &["/"],
        &["/b"],
    );
    // Crawl-delay ends the list of names.
    check("User-agent: *\nCrawl-delay: 5\nUser-agent: badbot\nDisallow: /", &["/"], &[]);
    // Line ends of every kind, a byte order mark, no final line end, spaces around.
    check(
        "\u{feff}User-agent: *\rDisallow: /a\r\n  Disallow  :  /b  \n\n\nDisallow:/c",
        &["/"],
        &["/a", "/b", "/c"],
    );
    // The content is not a robots.txt.
    check("<!DOCTYPE html><html><body>Not found</body></html>", &["/"], &[]);
    check("", &["/"], &[]);
    check("User-agent: *\nDisallow: private/", &["/public"], &["/private/x"]);
    // The path of robots.txt itself.
    check("User-agent: *\nDisallow: /", &["/robots.txt"], &["/", "/robots.txt?x"]);
}

#[test]
fn robots_txt_status_decides_access() {
    let body = b"User-agent: *\nDisallow: /a";
    let decisions = |status| {
        let robots = Robots::from_response(status, body, "facecrawl");
        (allows(&robots, "/a"), allows(&robots, "/b"))
    };
    for status in [200, 204, 206] {
        assert_eq!(decisions(status), (false, true), "{status}");
    }
    for status in [301, 307, 400, 401, 403, 404, 410, 451] {
        assert_eq!(decisions(status), (true, true), "{status}");
    }
    for status in [0, 429, 500, 502, 503, 599] {
        assert_eq!(decisions(status), (false, false), "{status}");
    }
}

#[test]
fn crawl_delay_is_bounded() {
    let delay = |line: &str| robots(&format!("User-agent: *\n{line}\nDisallow: /x")).crawl_delay();
    assert_eq!(delay("Crawl-delay: 2"), Some(Duration::from_secs(2)));
    assert_eq!(delay("crawl-DELAY: 0.5"), Some(Duration::from_millis(500)));
    assert_eq!(delay("Crawl-delay: 0"), Some(Duration::ZERO));
    assert_eq!(delay("Crawl-delay: 1\nCrawl-delay: 3"), Some(Duration::from_secs(3)));
    for large in ["86400", "1e300", "inf"] {
        assert_eq!(delay(&format!("Crawl-delay: {large}")), Some(MAX_CRAWL_DELAY), "{large}");
    }
    for invalid in ["-1", "NaN", "soon", ""] {
        assert_eq!(delay(&format!("Crawl-delay: {invalid}")), None, "{invalid}");
    }
    // Delays for other agents do not apply. The group for this agent replaces the group for all
    // agents.
    let text = "User-agent: *\nCrawl-delay: 9\n\nUser-agent: facecrawl\nDisallow: /x\n\nUser-agent: b\nCrawl-delay: 7";
    assert_eq!(robots(text).crawl_delay(), None);
}

#[test]
fn robots_sitemaps_are_absolute_and_unique() {
    let text = "Sitemap: http://example.com/a.xml\nUser-agent: other\nsitemap: https://cdn.example.com/b.xml.gz#x\n\
                Sitemap: /relative.xml\nSitemap: ftp://example.com/c.xml\nSitemap: http://example.com/a.xml\n";
    let sitemaps: Vec<String> = robots(text).sitemaps().into_iter().map(String::from).collect();
    assert_eq!(sitemaps, ["http://example.com/a.xml", "https://cdn.example.com/b.xml.gz"]);
}

#[test]
fn ignores_robots_lines_cut_by_byte_limit() {
    let mut text = String::from("User-agent: *\nDisallow: /first\n");
    while text.len() < MAX_BYTES - 10 {
        text.push_str("# filler\n");
    }
    text.truncate(MAX_BYTES - 12);
    // The limit is directly after "Disallow: /".
    text.push_str("\nDisallow: /cut\nDisallow: /after\n");
    assert!(text.as_bytes()[..MAX_BYTES].ends_with(b"Disallow: /"));
    check(&text, &["/", "/cut", "/after"], &["/first"]);
}

#[test]
fn matches_pattern_with_many_wildcards() {
    let text = format!("User-agent: *\nDisallow: /{}$", "*a".repeat(200));
    let path = format!("/{}b", "a".repeat(2000));
    check(&text, &[&path], &[]);
}

#[test]
fn truncates_long_disallow_and_ignores_long_allow() {
    let value = |bytes: usize| format!("/*{}b", "a".repeat(bytes - 3));
    let path = format!("/{}", "a".repeat(3000));
    // A value that fits is read to its last byte.
    check(&format!("User-agent: *\nDisallow: {}", value(2048)), &["/a", &path], &[&format!("{path}b")]);
    check(&format!("User-agent: *\nDisallow: {}", value(2049)), &["/a"], &[&path]);
    check(&format!("User-agent: *\nDisallow: {}", value(200_000)), &["/a"], &[&path]);
    let allow = |bytes: usize| format!("User-agent: *\nDisallow: /\nAllow: /{}", "a".repeat(bytes - 1));
    check(&allow(2048), &[&path], &["/a"]);
    check(&allow(2049), &[], &[&path, "/a"]);
    // An escape that the limit would truncate is omitted. The `$` at the end is omitted too.
    let partial = format!("User-agent: *\nDisallow: /{}%C3%A4x$", "a".repeat(2045));
    check(&partial, &["/a"], &[&format!("/{}zzz", "a".repeat(2045))]);
}

#[test]
fn disallows_host_with_too_many_rules() {
    let rules = |count: usize| {
        let lines: String = (0..count).map(|n| format!("Disallow: /{n}x\n")).collect();
        format!("User-agent: *\n{lines}")
    };
    check(&rules(MAX_RULES), &["/", "/robots.txt"], &["/9999x"]);
    check(&rules(MAX_RULES + 1), &[], &["/", "/9999x", "/10000x"]);
    // An `Allow` beyond the limit is only omitted. Groups for other agents have no effect.
    check(&format!("{}Allow: /77x\n", rules(MAX_RULES)), &["/"], &["/77x"]);
    check(&format!("User-agent: facecrawl\nDisallow: /a\n\n{}", rules(20_000)), &["/"], &["/a"]);
}

#[test]
fn robots_check_takes_bounded_steps() {
    let path = |bytes: usize| format!("/{}", "a".repeat(bytes - 1));
    let decide = |text: &str, path: &str| {
        robots(text).verdict(&Url::parse(&format!("http://example.com{path}")).unwrap())
    };
    // The cost of one rule is the sum of the lengths of pattern and path, not their product,
    // wherever the stars are.
    for pattern in [
        format!("/*{}b", "a".repeat(2000)),
        format!("/{}b$", "*a".repeat(1000)),
        format!("/*{}*b*c*d", "*a".repeat(500)),
    ] {
        let verdict = decide(&format!("User-agent: *\nDisallow: {pattern}"), &path(8000));
        assert!(verdict.allowed && verdict.steps <= 2 * (pattern.len() + 8000), "{verdict:?}");
    }
    // With the maximum number of rules, the search ends at its step limit and disallows the path.
    let lines: String = (0..MAX_RULES).map(|n| format!("Disallow: /*{n}*aaaaaaaaaaab\n")).collect();
    let expensive = format!("User-agent: *\n{lines}");
    assert!(expensive.len() < MAX_BYTES);
    let verdict = decide(&expensive, &path(8000));
    assert!(!verdict.allowed && verdict.steps <= MAX_STEPS, "{verdict:?}");
    // An ordinary path stays within the limit. Without stars in the rules, every path does.
    assert!(decide(&expensive, "/albums/2024/summer/portrait.html").allowed);
    let lines: String = (0..7_000).map(|n| format!("Disallow: /{}{n}\n", "a".repeat(55))).collect();
    let verdict = decide(&format!("User-agent: *\n{lines}"), &path(8000));
    assert!(verdict.allowed && verdict.steps > 350_000 && verdict.steps <= MAX_STEPS, "{verdict:?}");
}

/// Returns the decision of the other parser. The text must be in the subset that both parsers
/// support: one named group, plain ASCII without escapes.
fn other_parser_allows(text: &str, path: &str) -> bool {
    texting_robots::Robot::new("facecrawl", text.as_bytes())
        .unwrap()
        .allowed(&format!("http://example.com{path}"))
}

proptest! {
    #[test]
    fn robots_decision_agrees_with_second_parser(
        rules in prop::collection::vec((any::<bool>(), "/[ab/*]{0,6}"), 0..8),
        agent in prop::sample::select(vec!["*", "facecrawl", "FaceCrawl", "otherbot"]),
        path in "/[ab/]{0,8}",
    ) {
        let mut text = format!("User-agent: {agent}\n");
        for (allow, pattern) in &rules {
            text.push_str(&format!("{}: {pattern}\n", if *allow { "Allow" } else { "Disallow" }));
        }
        // The other parser counts every star of a run in the pattern's length; this parser counts
        // one.
        prop_assume!(!text.contains("**"));
        prop_assert_eq!(allows(&robots(&text), &path), other_parser_allows(&text, &path), "{} on\n{}", path, text);
    }

    #[test]
    fn parsing_arbitrary_robots_txt_does_not_panic(body in prop::collection::vec(any::<u8>(), 0..400)) {
        let robots = Robots::from_response(200, &body, "facecrawl");
        allows(&robots, "/a?b=c");
    }
}
