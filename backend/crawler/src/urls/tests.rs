#![allow(clippy::unwrap_used)]
use super::*;
use proptest::prelude::*;

fn normalise_text(text: &str) -> String {
    parse(text).unwrap().to_string()
}

#[test]
fn normalises_urls_to_one_spelling() {
    for (text, expected) in [
        ("HTTP://Example.COM:80/", "http://example.com/"),
        ("https://example.com:443/a", "https://example.com/a"),
        ("http://example.com:8080", "http://example.com:8080/"),
        ("http://example.com/a/../b/./c", "http://example.com/b/c"),
        ("http://example.com/%2e%2e/a", "http://example.com/a"),
        ("http://example.com/a#part", "http://example.com/a"),
        ("http://example.com/a?", "http://example.com/a"),
        ("http://example.com./a", "http://example.com/a"),
        ("http://example.com/a b/ü?q=a b", "http://example.com/a%20b/%C3%BC?q=a%20b"),
        ("http://example.com/%7ejoe/%c3%bc/%2f", "http://example.com/~joe/%C3%BC/%2F"),
        ("http://müller.example/", "http://xn--mller-kva.example/"),
        ("http://example.com/?utm_source=x&b=2&a=1&gclid=7&FBCLID=9", "http://example.com/?b=2&a=1"),
        ("http://example.com/?utm_source=x", "http://example.com/"),
        ("http://example.com/?b=%2d&a", "http://example.com/?b=%2d&a"),
        ("http://example.com/a;JSESSIONID=0F?x=1", "http://example.com/a?x=1"),
        ("http://example.com/p.jpg?utm_source=a&", "http://example.com/p.jpg"),
        ("http://example.com/p.jpg?&utm_source=a&&b", "http://example.com/p.jpg?&&b"),
        ("http://example.com/a;jsessionid=1;jsessionid=2", "http://example.com/a"),
        ("http://example.com/a;jsessionid=1;b=2;JSESSIONID=3/c", "http://example.com/a;b=2/c"),
        ("http://example.com/a;jsessionid=1;jsessionid=2/b;jsession%69d=3", "http://example.com/a/b"),
        ("http://example.com/a;%6Asessionid=1", "http://example.com/a"),
        // Servers do not decode these escapes to "j".
        ("http://example.com/%%36A%3%36A%%41", "http://example.com/%%36A%3%36A%%41"),
        ("  http://example.com/ \n", "http://example.com/"),
        ("http://example.com\\a\\b", "http://example.com/a/b"),
    ] {
        assert_eq!(normalise_text(text), expected, "{text}");
    }
}

#[test]
fn removes_session_parameters() {
    const ID: &str = "3f2a9c0b7e6d5148";
    for (query, rest) in [
        ("PHPSESSID=1&id=2", "?id=2"),
        ("osCsid=abc&id=2", "?id=2"),
        ("zenid=abc", ""),
        ("XTCsid=abc", ""),
        ("JSESSIONID=0F", ""),
        ("ASPSESSIONIDQQABCDEF=X&id=2", "?id=2"),
        ("CFID=12&id=2&CFTOKEN=34", "?id=2"),
        ("sid=3f2a9c0b7e6d5148", ""),
        ("id=2&SID=3f2a9c0b7e6d5148", "?id=2"),
        ("sessionId=3F2A9C0B7E6D5148aaaa", ""),
        // These values select a page.
        ("CFID=12", "?CFID=12"),
        ("sid=27", "?sid=27"),
        ("sid=1234567890123456", "?sid=1234567890123456"),
        ("sid=internationalisation", "?sid=internationalisation"),
        ("session=summer-2024-workshop", "?session=summer-2024-workshop"),
        // Image servers use `s` for a signature.
        ("s=3f2a9c0b7e6d51483f2a9c0b7e6d5148", "?s=3f2a9c0b7e6d51483f2a9c0b7e6d5148"),
        ("assid=3f2a9c0b7e6d5148", "?assid=3f2a9c0b7e6d5148"),
        ("sid", "?sid"),
    ] {
        assert_eq!(
            normalise_text(&format!("http://example.com/?{query}")),
            format!("http://example.com/{rest}")
        );
    }
    let page = |id: &str| normalise_text(&format!("http://example.com/p?osCsid={id}&sid={id}"));
    assert_eq!(page(ID), page("ffffffffffff0000"));
}

#[test]
fn rejects_urls_with_credentials_without_showing_them() {
    let error = |text: &str| credentials_error(&Url::parse(text).unwrap());
    for text in ["http://ada:secret@example.com/", "https://ada@example.com/", "http://:secret@example.com/"]
    {
        assert!(error(text).is_some_and(|reason| !reason.contains("secret")), "{text}");
        assert_eq!(resolve(&Url::parse("http://example.com/").unwrap(), text), None, "{text}");
    }
    for text in ["http://example.com/a@b", "http://example.com/?user:pass@host"] {
        assert_eq!(error(text), None, "{text}");
    }
    for text in [
        "ftp://ada:secret@example.com/",
        "http://ada:secret@exa mple.com/",
        "http://ada:s@secret@[::1/",
        "ada:secret@example.com/",
        "ada:secret@example.com/#http://example.org/",
        "//ada:secret@exa mple.com/",
        "http:ada:secret@exa mple.com/",
        r"http:\\ada:secret@[::1/",
    ] {
        let error = parse(text).unwrap_err();
        assert!(!error.contains("secret") && !error.contains("ada"), "{error}");
    }
}

#[test]
fn file_addresses_use_scan_spelling() {
    for (text, expected) in [
        (" FILE:///album/%61%20b.jpg", "file:///album/a%20b.jpg"),
        ("file://localhost/album/d;jsessionid=1.jpg", "file:///album/d;jsessionid=1.jpg"),
        ("file:///album/a%2F%2e%2e%2Fb.jpg", "file:///album/b.jpg"),
        ("HTTP://Example.com/a?utm_source=x", "http://example.com/a"),
    ] {
        assert_eq!(parse_address(text).unwrap().as_str(), expected, "{text}");
    }
    assert!(parse_address("ftp://example.com/").unwrap_err().contains("only http and https"));
}

#[test]
fn rejects_file_urls_of_other_machines() {
    for text in ["file://host/album/a.jpg", "file://host//c:/a.jpg"] {
        assert!(parse_address(text).unwrap_err().contains("is not the address of a local file"), "{text}");
    }
}

#[test]
fn invalid_url_error_contains_cause() {
    for (text, part) in [
        ("", "empty"),
        ("example.com/a", "has no scheme"),
        ("/a", "has no scheme"),
        ("ftp://example.com/", "only http and https"),
        ("example.com:8080/a", "only http and https"),
        ("http://", "not valid"),
        ("http://[::1", "not valid"),
        ("http://exa mple.com/", "not valid"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
    assert!(parse(&format!("http://example.com/{}", "a".repeat(9000))).unwrap_err().contains("at most 8192"));
}

#[test]
fn applies_configured_spelling_to_links() {
    let apply = |trailing_slash, text: &str| {
        let spelling = Spelling { trailing_slash, drop_parameters: vec!["sort".into(), "view".into()] };
        spelling.apply(parse(text).unwrap()).to_string().replace("http://example.com", "")
    };
    for (text, kept, removed, added) in [
        ("http://example.com", "/", "/", "/"),
        ("http://example.com/a/", "/a/", "/a", "/a/"),
        ("http://example.com/a", "/a", "/a", "/a/"),
        ("http://example.com/a//?x=1", "/a//?x=1", "/a?x=1", "/a//?x=1"),
        ("http://example.com/a.html", "/a.html", "/a.html", "/a.html"),
        (
            "http://example.com/a.html?sort=up&view&Sort=1&sorted=2",
            "/a.html?Sort=1&sorted=2",
            "/a.html?Sort=1&sorted=2",
            "/a.html?Sort=1&sorted=2",
        ),
        ("http://example.com/?view=list", "/", "/", "/"),
    ] {
        assert_eq!(apply(TrailingSlash::Keep, text), kept);
        assert_eq!(apply(TrailingSlash::Remove, text), removed);
        assert_eq!(apply(TrailingSlash::Add, text), added);
    }
    let url = parse("http://example.com/a/?b=2&a=1").unwrap();
    assert_eq!(Spelling::default().apply(url.clone()), url);
}

#[test]
fn tracking_parameter_names_are_sorted() {
    assert!(TRACKING_PARAMETERS.is_sorted());
}

#[test]
fn host_key_distinguishes_scheme_and_port() {
    let key = |text: &str| host_key(&parse(text).unwrap());
    assert_eq!(key("https://Example.com/a"), "example.com:443");
    assert_eq!(key("https://example.com:8443/a"), "example.com:8443");
    assert_eq!(key("http://example.com/a"), "http://example.com:80");
    assert_eq!(key("http://[::1]:8080/"), "http://[::1]:8080");
}

#[test]
fn directory_ignores_numbers_and_query_values() {
    let name = |path: &str| directory(&parse(&format!("http://example.com{path}")).unwrap());
    assert_eq!(name("/"), "http://example.com:80/");
    assert_eq!(name("/a/b.html"), "http://example.com:80/a/");
    assert_eq!(name("/calendar/2031/05/"), "http://example.com:80/calendar/#/#/");
    assert_eq!(name("/calendar/2031/06/1"), name("/calendar/2032/12/31"));
    assert_eq!(name("/list?page=1"), "http://example.com:80/list?");
    assert_eq!(name("/list?page=1&view=2"), name("/list?sort=up"));
    assert_ne!(name("/list"), name("/list?page=1"));
    assert_ne!(name("/v1/a"), name("/w1/a"));
}

#[test]
fn rejects_host_names_over_dns_length_limits() {
    let label = "a".repeat(63);
    let host = |last: usize| format!("http://{label}.{label}.{label}.{}/", "b".repeat(last));
    assert!(parse(&host(61)).is_ok(), "253 characters");
    assert!(parse(&host(62)).unwrap_err().contains("longer than 253"));
    assert!(parse(&format!("http://{label}a.test/")).unwrap_err().contains("longer than 63"));
    assert!(parse("http://127.0.0.1/").is_ok() && parse("http://[::1]/").is_ok());
    assert_eq!(trap_reason(&Url::parse(&host(62)).unwrap()), Some(Reason::ForbiddenUrl));
}

#[test]
fn rejects_urls_over_length_limit_after_escaping() {
    let url = |umlauts: usize| format!("http://example.com/{}", "ü".repeat(umlauts));
    assert!(parse(&url(1_360)).is_ok());
    assert!(parse(&url(1_370)).unwrap_err().contains("8239 bytes long; at most 8192"));
}

#[test]
fn skips_extra_slashes_before_host() {
    let base = Url::parse("https://site.example/a/b").unwrap();
    let resolve = |text: &str| resolve(&base, text).map(String::from);
    for (text, expected) in [
        ("//host.example/c", "https://host.example/c"),
        ("///host.example/c", "https://host.example/c"),
        ("/////host.example//c", "https://host.example//c"),
        ("//\\host.example/c", "https://host.example/c"),
        ("\\/\\host.example/c", "https://host.example/c"),
        (" /\t/\n/\rhost.example/c", "https://host.example/c"),
        ("http:///host.example/c", "http://host.example/c"),
        ("https:///host.example/c", "https://host.example/c"),
        ("/c///d", "https://site.example/c///d"),
        ("/\t/host.example/c", "https://host.example/c"),
        ("c///d", "https://site.example/a/c///d"),
    ] {
        assert_eq!(resolve(text).as_deref(), Some(expected), "{text:?}");
    }
    assert_eq!(resolve("///"), None);
}

#[test]
fn crawler_traps_are_reported_with_reason() {
    let trap_reason = |path: &str| trap_reason(&parse(&format!("http://example.com{path}")).unwrap());
    assert_eq!(trap_reason("/a/b/c?x=1"), None);
    assert_eq!(trap_reason("/2011/11/11/11/photo.html"), None);
    assert_eq!(trap_reason("/a/a/b/b/a"), None);
    assert_eq!(trap_reason("/x/x/x"), Some(Reason::RepeatedSegments));
    assert_eq!(trap_reason("/en/de/en/de/en/de"), Some(Reason::RepeatedSegments));
    assert_eq!(trap_reason("/p/a/b/c/d/a/b/c/d/a/b/c/d"), Some(Reason::RepeatedSegments));
    let deep: String = (0..21).map(|i| format!("/{i}")).collect();
    assert_eq!(trap_reason(&deep), Some(Reason::PathTooDeep));
    assert_eq!(trap_reason(&format!("/{}", "a".repeat(2048))), Some(Reason::UrlTooLong));
    let parameters: Vec<String> = (0..17).map(|i| format!("p{i}=1")).collect();
    assert_eq!(trap_reason(&format!("/?{}", parameters.join("&"))), Some(Reason::TooManyParameters));
}

/// Matches URL parts that normalisation removes or changes.
const PARTS: &str = "(;jsessionid=[a-z0-9]{0,2}|utm_a=1|gclid|%[0-9a-zA-Z]{0,2}|%6a|[?&;/.=a%]){0,12}";

proptest! {
    /// Compares with an absolute URL, in which the parser skips the slashes.
    #[test]
    fn extra_slashes_resolve_as_after_scheme(slashes in "[/\\\\\t\n]{2,8}", rest in "[a-z0-9.:@/?#\\\\]{0,12}") {
        let base = Url::parse("http://site.example/a/b").unwrap();
        let count = slashes.chars().filter(|c| matches!(c, '/' | '\\')).count();
        let text = format!("{slashes}{rest}");
        if count >= 2 {
            prop_assert_eq!(resolve(&base, &text), resolve(&base, &format!("http:{text}")));
        }
    }

    #[test]
    fn removing_url_parts_is_idempotent(path in PARTS) {
        if let Ok(url) = parse(&format!("http://example.com/{path}")) {
            prop_assert_eq!(parse_address(url.as_str()).ok(), Some(url));
        }
    }

    #[test]
    fn url_normalisation_is_idempotent(path in "([a-zA-Z0-9%./;=?&~ -]|%[2-7][0-9a-f]|;jsessionid=|utm_a=){0,40}") {
        if let Ok(url) = parse(&format!("http://example.com/{path}")) {
            prop_assert_eq!(normalise(url.clone()), url);
        }
    }
}
