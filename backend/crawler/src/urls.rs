//! One spelling per resource.
use url::Url;

/// The longest URL that is read at all, in bytes.
pub const MAX_PARSED_LENGTH: usize = 8192;
/// The longest URL of a page that is followed, in bytes; longer ones are `url_too_long`.
pub const MAX_LENGTH: usize = 2048;
/// The most path segments of a page that is followed; deeper ones are `path_too_deep`.
pub const MAX_SEGMENTS: usize = 20;
/// The most query parameters of a page that is followed; more are `too_many_parameters`.
pub const MAX_PARAMETERS: usize = 16;
/// How often a run of up to four segments may follow itself before it is `repeated_segments`.
pub const MAX_REPEATS: usize = 3;

/// Query parameters that only tell the server where a visitor came from, or which visit this is. Lower case.
const TRACKING: &[&str] = &[
    "_ga",
    "_gl",
    "_hsenc",
    "_hsmi",
    "dclid",
    "fbclid",
    "gad_source",
    "gbraid",
    "gclid",
    "gclsrc",
    "igshid",
    "jsessionid",
    "li_fat_id",
    "mc_cid",
    "mc_eid",
    "mkt_tok",
    "msclkid",
    "oly_anon_id",
    "oly_enc_id",
    "phpsessid",
    "srsltid",
    "ttclid",
    "twclid",
    "vero_id",
    "wbraid",
    "wickedid",
    "yclid",
];

/// Parses and normalises: lower-case scheme and host, no default port, no fragment, no dot segments, no tracking parameters.
/// `Err` is a sentence for the caller of the API.
pub fn parse(text: &str) -> Result<Url, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("the URL is empty; an absolute http:// or https:// URL is needed".into());
    }
    if text.len() > MAX_PARSED_LENGTH {
        return Err(format!("the URL is {} bytes long; at most {MAX_PARSED_LENGTH} are allowed", text.len()));
    }
    let url = Url::parse(text).map_err(|error| match error {
        url::ParseError::RelativeUrlWithoutBase => {
            format!("the URL {text:?} has no scheme; write http:// or https:// before it")
        }
        other => format!("the URL {text:?} is not valid: {other}"),
    })?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!(
            "the URL {text:?} has the scheme {:?}; only http and https are allowed",
            url.scheme()
        ));
    }
    Ok(normalise(url))
}

/// Parses and normalises an address under which something is stored, looked up, erased or kept out: http and https URLs as [`parse`] does,
/// and file URLs as a scan of that file writes them. `Err` is a sentence for the caller of the API.
pub fn address(text: &str) -> Result<Url, String> {
    let text = text.trim();
    if !text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("file:")) {
        return parse(text);
    }
    let url = Url::parse(text).map_err(|error| format!("the URL {text:?} is not valid: {error}"))?;
    // One spelling of percent escapes: that of the path itself.
    let spelled = url.to_file_path().ok().and_then(|path| Url::from_file_path(path).ok());
    Ok(spelled.unwrap_or(url))
}

/// Normalises an absolute URL (see `parse`). The order of the parameters that stay is kept, and so are their bytes: servers may
/// sign them.
pub fn normalise(mut url: Url) -> Url {
    url.set_fragment(None);
    if let Some(bare) =
        url.domain().and_then(|d| d.ends_with('.').then(|| d.trim_end_matches('.').to_owned()))
    {
        // The root dot names the same host. A name that is only dots stays, for the guard to refuse.
        if !bare.is_empty() {
            let _ = url.set_host(Some(&bare));
        }
    }
    if let Some(path) = normal_path(url.path()) {
        url.set_path(&path);
    }
    if url.query() == Some("") {
        url.set_query(None);
    }
    retain_parameters(&mut url, |p| !is_tracking(p));
    url
}

/// Upper-case percent escapes, unreserved characters unescaped (RFC 3986 6.2.2), no `;jsessionid=`; `None` when nothing changes.
fn normal_path(path: &str) -> Option<String> {
    let session = find_session(path);
    if session.is_none() && !path.contains('%') {
        return None;
    }
    let bytes = path.as_bytes();
    let mut out = String::with_capacity(path.len());
    let mut at = 0;
    while at < bytes.len() {
        if let Some((from, to)) = session
            && at == from
        {
            at = to;
            continue;
        }
        match bytes[at..] {
            [b'%', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let value = (hex_value(high) << 4) | hex_value(low);
                // A decoded dot could turn a segment into a dot segment; the parser has already treated those that were.
                if value.is_ascii_alphanumeric() || matches!(value, b'-' | b'_' | b'~') {
                    out.push(char::from(value));
                } else {
                    out.push('%');
                    out.push(char::from(high.to_ascii_uppercase()));
                    out.push(char::from(low.to_ascii_uppercase()));
                }
                at += 3;
            }
            // Paths of parsed URLs are ASCII.
            [byte, ..] => {
                out.push(char::from(byte));
                at += 1;
            }
            [] => break,
        }
    }
    (out != path).then_some(out)
}

/// Where a `;jsessionid=…` parameter lies in the path.
fn find_session(path: &str) -> Option<(usize, usize)> {
    const NAME: &[u8] = b";jsessionid=";
    let from = path.as_bytes().windows(NAME.len()).position(|w| w.eq_ignore_ascii_case(NAME))?;
    let to = path[from + 1..].find(['/', ';']).map_or(path.len(), |i| from + 1 + i);
    Some((from, to))
}

/// The value of an ASCII hexadecimal digit.
pub(crate) fn hex_value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

fn is_tracking(parameter: &str) -> bool {
    let key = parameter.split('=').next().unwrap_or_default().to_ascii_lowercase();
    key.starts_with("utm_") || TRACKING.binary_search(&key.as_str()).is_ok()
}

/// What a link does with the last slash of its path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrailingSlash {
    /// `/a` and `/a/` are two pages.
    #[default]
    Keep,
    /// `/a/` is `/a`.
    Remove,
    /// `/a` is `/a/`, unless it ends like a file (`/a.html`).
    Add,
}

/// How links to pages are spelled beyond `normalise`: rules that do not hold for every server, so the operator chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spelling {
    /// The last slash.
    pub trailing_slash: TrailingSlash,
    /// Names of query parameters that make no other page; capitals count.
    pub drop_parameters: Vec<String>,
}

impl Spelling {
    /// The link as it is followed.
    pub fn apply(&self, mut url: Url) -> Url {
        let path = url.path();
        let last = path.rsplit('/').next().unwrap_or_default();
        let path = match self.trailing_slash {
            TrailingSlash::Remove if last.is_empty() && path.len() > 1 => {
                Some(path.trim_end_matches('/').to_owned())
            }
            TrailingSlash::Add if !last.is_empty() && !last.contains('.') => Some(format!("{path}/")),
            _ => None,
        };
        if let Some(path) = path {
            url.set_path(&path);
        }
        retain_parameters(&mut url, |p| {
            let name = p.split('=').next().unwrap_or_default();
            !self.drop_parameters.iter().any(|drop| drop == name)
        });
        url
    }
}

/// Keeps the order and the bytes of the parameters that stay.
fn retain_parameters(url: &mut Url, keep: impl Fn(&str) -> bool) {
    let Some(query) = url.query() else { return };
    if query.split('&').all(&keep) {
        return;
    }
    let kept: Vec<&str> = query.split('&').filter(|p| keep(p)).collect();
    let kept = (!kept.is_empty()).then(|| kept.join("&"));
    url.set_query(kept.as_deref());
}

/// `host:port` of the server that answers, lower case; the unit of politeness (scheme included when not https: `http://host:port`).
pub fn host_key(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port_or_known_default().unwrap_or_default();
    match url.scheme() {
        "https" => format!("{host}:{port}"),
        scheme => format!("{scheme}://{host}:{port}"),
    }
}

/// The directory that a page counts in when a crawl bounds pages per directory: its folder, or the whole path where a query makes the
/// page. Runs of digits count as one, so that `/calendar/2031/05/` and `/calendar/2031/06/` are one directory.
pub fn directory(url: &Url) -> String {
    let path = match url.query() {
        Some(_) => url.path(),
        None => url.path().rsplit_once('/').map_or("", |(folder, _)| folder),
    };
    let mut name = String::with_capacity(path.len());
    for c in path.chars() {
        match c {
            '0'..='9' if name.ends_with('#') => {}
            '0'..='9' => name.push('#'),
            c => name.push(c),
        }
    }
    format!("{}{name}{}", host_key(url), if url.query().is_some() { "?" } else { "/" })
}

/// The reason code when the URL looks like a trap (`url_too_long`, `path_too_deep`, `repeated_segments`, `too_many_parameters`).
pub fn trap(url: &Url) -> Option<&'static str> {
    if url.as_str().len() > MAX_LENGTH {
        return Some("url_too_long");
    }
    let segments: Vec<&str> = url.path().split('/').filter(|s| !s.is_empty()).collect();
    if segments.len() > MAX_SEGMENTS {
        return Some("path_too_deep");
    }
    if repeats(&segments) {
        return Some("repeated_segments");
    }
    if url.query().is_some_and(|q| q.split('&').count() > MAX_PARAMETERS) {
        return Some("too_many_parameters");
    }
    None
}

/// Whether a run of one to four segments follows itself `MAX_REPEATS` times. Numbers may repeat: `/2011/11/11/11` is a date.
fn repeats(segments: &[&str]) -> bool {
    (1..=4).any(|period| {
        segments.windows(period * MAX_REPEATS).any(|window| {
            let (first, rest) = window.split_at(period);
            rest.chunks(period).all(|chunk| chunk == first)
                && first.iter().any(|s| s.bytes().any(|b| !b.is_ascii_digit()))
        })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn norm(text: &str) -> String {
        parse(text).unwrap().to_string()
    }

    #[test]
    fn one_spelling_per_resource() {
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
            ("  http://example.com/ \n", "http://example.com/"),
            ("http://example.com\\a\\b", "http://example.com/a/b"),
        ] {
            assert_eq!(norm(text), expected, "{text}");
        }
    }

    #[test]
    fn an_address_of_a_file_is_spelled_as_a_scan_does() {
        for (text, expected) in [
            (" FILE:///album/%61%20b.jpg", "file:///album/a%20b.jpg"),
            ("file://localhost/album/d;jsessionid=1.jpg", "file:///album/d;jsessionid=1.jpg"),
            ("HTTP://Example.com/a?utm_source=x", "http://example.com/a"),
        ] {
            assert_eq!(address(text).unwrap().as_str(), expected, "{text}");
        }
        assert!(address("ftp://example.com/").unwrap_err().contains("only http and https"));
    }

    #[test]
    fn a_bad_url_is_explained() {
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
        assert!(
            parse(&format!("http://example.com/{}", "a".repeat(9000))).unwrap_err().contains("at most 8192")
        );
    }

    #[test]
    fn the_operator_chooses_the_spelling_of_links() {
        let spell = |trailing_slash, text: &str| {
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
            assert_eq!(spell(TrailingSlash::Keep, text), kept);
            assert_eq!(spell(TrailingSlash::Remove, text), removed);
            assert_eq!(spell(TrailingSlash::Add, text), added);
        }
        let url = parse("http://example.com/a/?b=2&a=1").unwrap();
        assert_eq!(Spelling::default().apply(url.clone()), url);
    }

    #[test]
    fn tracking_names_are_sorted_for_the_search() {
        assert!(TRACKING.is_sorted());
    }

    #[test]
    fn host_keys_tell_servers_apart() {
        let key = |t: &str| host_key(&parse(t).unwrap());
        assert_eq!(key("https://Example.com/a"), "example.com:443");
        assert_eq!(key("https://example.com:8443/a"), "example.com:8443");
        assert_eq!(key("http://example.com/a"), "http://example.com:80");
        assert_eq!(key("http://[::1]:8080/"), "http://[::1]:8080");
    }

    #[test]
    fn pages_that_differ_in_numbers_or_queries_share_a_directory() {
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
    fn traps_are_named() {
        let trap = |path: &str| trap(&parse(&format!("http://example.com{path}")).unwrap());
        assert_eq!(trap("/a/b/c?x=1"), None);
        assert_eq!(trap("/2011/11/11/11/photo.html"), None);
        assert_eq!(trap("/a/a/b/b/a"), None);
        assert_eq!(trap("/x/x/x"), Some("repeated_segments"));
        assert_eq!(trap("/en/de/en/de/en/de"), Some("repeated_segments"));
        assert_eq!(trap("/p/a/b/c/d/a/b/c/d/a/b/c/d"), Some("repeated_segments"));
        let deep: String = (0..21).map(|i| format!("/{i}")).collect();
        assert_eq!(trap(&deep), Some("path_too_deep"));
        assert_eq!(trap(&format!("/{}", "a".repeat(2048))), Some("url_too_long"));
        let many: Vec<String> = (0..17).map(|i| format!("p{i}=1")).collect();
        assert_eq!(trap(&format!("/?{}", many.join("&"))), Some("too_many_parameters"));
    }

    proptest! {
        #[test]
        fn normalising_twice_changes_nothing(path in "[a-zA-Z0-9%./;=?&~ -]{0,40}") {
            if let Ok(once) = parse(&format!("http://example.com/{path}")) {
                prop_assert_eq!(normalise(once.clone()), once);
            }
        }
    }
}
