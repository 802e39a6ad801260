//! Normalises URLs, so that each resource has one spelling. Also detects URLs that look like
//! crawler traps, and limits the bytes of the URLs that one document yields.
#[cfg(test)]
mod tests;
use domain::Reason;
use std::borrow::Cow;
use url::{ParseError, Url};

/// Maximum length in bytes of a URL that is read, fetched or stored, both before and after it is
/// normalised. The limit applies to links and images of pages, entries of sitemaps, targets of
/// redirects, seeds, and URLs in API requests.
pub const MAX_PARSED_LENGTH: usize = 8192;
/// Maximum length in bytes of a page's URL that is followed.
pub const MAX_LENGTH: usize = 2048;
/// Maximum length of a host name in characters (RFC 1123).
const MAX_HOST_LENGTH: usize = 253;
/// Maximum number of path segments of a page that is followed.
pub const MAX_SEGMENTS: usize = 20;
/// Maximum number of query parameters of a page that is followed.
pub const MAX_PARAMETERS: usize = 16;
/// Number of consecutive equal runs of one to four segments for which a URL gets the reason
/// `repeated_segments`.
pub const MAX_REPEATS: usize = 3;

/// Query parameters that only identify the source of a visitor or the visit itself. Lower case.
const TRACKING_PARAMETERS: &[&str] = &[
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
    "li_fat_id",
    "mc_cid",
    "mc_eid",
    "mkt_tok",
    "msclkid",
    "oly_anon_id",
    "oly_enc_id",
    "srsltid",
    "ttclid",
    "twclid",
    "vero_id",
    "wbraid",
    "wickedid",
    "yclid",
];

/// Query parameters that contain the id of a session, regardless of their value: Java, PHP,
/// osCommerce and its successors, Zen Cart, ColdFusion. Lower case.
const SESSION_PARAMETERS: &[&str] =
    &["cftoken", "jsessionid", "oscadminid", "oscsid", "phpsessid", "xtcsid", "zenadminid", "zenid"];
/// Query parameters that contain the id of a session if their value looks like one (see
/// [`looks_like_session_id`]). Some servers use these names for other values. Lower case.
const POSSIBLE_SESSION_PARAMETERS: &[&str] = &["sess", "sessid", "session", "session_id", "sessionid", "sid"];
/// Minimum length of the id of a session in characters.
const MIN_SESSION_ID_CHARS: usize = 16;

/// Parses and normalises a URL: lower-case scheme and host, no default port, no fragment, no dot
/// segments, no tracking parameters.
///
/// # Errors
/// Returns a sentence for the API caller that describes the error.
pub fn parse(text: &str) -> Result<Url, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("the URL is empty; an absolute http:// or https:// URL is required".into());
    }
    let too_long = |bytes| format!("the URL is {bytes} bytes long; at most {MAX_PARSED_LENGTH} are allowed");
    if text.len() > MAX_PARSED_LENGTH {
        return Err(too_long(text.len()));
    }
    let redacted = without_credentials(text);
    let url = Url::parse(text).map_err(|error| match error {
        ParseError::RelativeUrlWithoutBase => {
            format!("the URL {redacted:?} has no scheme; it must begin with http:// or https://")
        }
        other => format!("the URL {redacted:?} is not valid: {other}"),
    })?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("the URL {redacted:?} has the wrong scheme; only http and https are allowed"));
    }
    if let Some(why) = host_error(&url) {
        return Err(format!("the URL {redacted:?} is not valid: {why}"));
    }
    // Percent escapes turn one byte into up to three.
    let url = normalise(url);
    if url.as_str().len() > MAX_PARSED_LENGTH {
        return Err(too_long(url.as_str().len()));
    }
    Ok(url)
}

/// Returns the reason if the URL must not be stored or fetched because it contains a user name or a
/// password (RFC 9110 4.2.4). The reason does not contain them.
pub fn credentials_error(url: &Url) -> Option<&'static str> {
    let has_no_credentials = url.username().is_empty() && url.password().is_none();
    (!has_no_credentials).then_some("it contains a user name or a password")
}

/// Replaces everything before the last `@` of the authority, for messages. The text may lack a
/// scheme or have other slashes. An `@` in the path is then also treated as one of the authority.
pub fn without_credentials(text: &str) -> Cow<'_, str> {
    let (start, rest) = match text.split_once("://") {
        Some((scheme, rest)) if !scheme.contains('@') => (text.len() - rest.len(), rest),
        _ => (0, text),
    };
    let end = if start > 0 { rest.find(['/', '?', '#', '\\']) } else { rest.find(['?', '#']) };
    match rest[..end.unwrap_or(rest.len())].rfind('@') {
        Some(index) => format!("{}…{}", &text[..start], &rest[index..]).into(),
        None => text.into(),
    }
}

/// Resolves a URL in a page, a sitemap or a server's response, and normalises it. Returns `None`
/// for a URL that cannot be parsed, is not http or https, contains a user name or a password, or is
/// longer than [`MAX_PARSED_LENGTH`].
pub fn resolve(base: &Url, text: &str) -> Option<Url> {
    let text = text.trim();
    if text.len() > MAX_PARSED_LENGTH {
        return None;
    }
    normalise_checked(join(base, text).ok()?)
}

/// Resolves a URL reference against an http or https URL, as the URL standard defines.
pub(crate) fn join(base: &Url, text: &str) -> Result<Url, ParseError> {
    base.join(&skip_extra_slashes(text))
}

/// Returns `///host/path` as `//host/path`, and any other text unchanged. If the base has a special
/// scheme such as http, the URL standard skips all slashes and backslashes before the host. The
/// crate `url` skips them only if the text has a scheme.
pub(crate) fn skip_extra_slashes(text: &str) -> Cow<'_, str> {
    let start = text.trim_start_matches(|c: char| c <= ' ');
    // The URL standard ignores tabs and line breaks anywhere.
    let rest = start.trim_start_matches(['/', '\\', '\t', '\n', '\r']);
    let slashes = start[..start.len() - rest.len()].bytes().filter(|b| matches!(b, b'/' | b'\\')).count();
    if slashes > 2 { format!("//{rest}").into() } else { text.into() }
}

/// Applies the last step of [`resolve`], for callers that parse the URL themselves.
pub(crate) fn normalise_checked(url: Url) -> Option<Url> {
    // Checked twice: the first check avoids the copy of a long URL, and normalising can lengthen a
    // URL.
    let is_valid =
        |url: &Url| matches!(url.scheme(), "http" | "https") && url.as_str().len() <= MAX_PARSED_LENGTH;
    Some(url).filter(is_valid).filter(|url| credentials_error(url).is_none()).map(normalise).filter(is_valid)
}

/// Returns the reason if the host of a URL is not a valid host name. DNS allows at most 253
/// characters per name and 63 per label (RFC 1123). The URL parser accepts longer ones.
pub fn host_error(url: &Url) -> Option<&'static str> {
    let url::Host::Domain(name) = url.host()? else { return None };
    let trimmed = name.strip_suffix('.').unwrap_or(name);
    if trimmed.is_empty() || trimmed.len() > MAX_HOST_LENGTH {
        return Some("the host name is empty or longer than 253 characters");
    }
    if trimmed.split('.').any(|label| label.is_empty() || label.len() > 63) {
        return Some("a label of the host name is empty or longer than 63 characters");
    }
    None
}

/// Parses and normalises an address that is to be stored, looked up, erased or suppressed. HTTP and
/// HTTPS URLs are parsed by [`parse`]. A file URL gets the spelling of a scan of the file.
///
/// # Errors
/// Returns a sentence for the API caller that describes the error.
pub fn parse_address(text: &str) -> Result<Url, String> {
    let text = text.trim();
    if !text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("file:")) {
        return parse(text);
    }
    let url = Url::parse(text).map_err(|error| format!("the URL {text:?} is not valid: {error}"))?;
    // The conversion to a path normalises the percent escapes. Escaped slashes can create dot
    // segments, which the second parse removes.
    let normalised = url.to_file_path().ok().and_then(|path| Url::from_file_path(path).ok());
    let normalised = normalised.and_then(|url| Url::parse(url.as_str()).ok());
    normalised.ok_or_else(|| format!("the URL {text:?} is not the address of a local file"))
}

/// Normalises an absolute URL (see [`parse`]). The remaining parameters keep their order and their
/// bytes, because servers may sign them.
pub fn normalise(mut url: Url) -> Url {
    url.set_fragment(None);
    if let Some(host) =
        url.domain().and_then(|d| d.ends_with('.').then(|| d.trim_end_matches('.').to_owned()))
    {
        // A trailing root dot does not change the host. A name that consists only of dots stays
        // unchanged; the guard rejects it.
        if !host.is_empty() {
            let _ = url.set_host(Some(&host));
        }
    }
    if let Some(path) = normalise_path(url.path()) {
        url.set_path(&path);
    }
    let is_cold_fusion =
        url.query().is_some_and(|query| query.split('&').any(|p| lowercase_name(p) == "cftoken"));
    retain_parameters(&mut url, |p| {
        !(is_tracking(p) || is_session(p) || is_cold_fusion && lowercase_name(p) == "cfid")
    });
    if url.query() == Some("") {
        url.set_query(None);
    }
    url
}

/// Returns the path with upper-case percent escapes, with unreserved characters unescaped (RFC 3986
/// 6.2.2) and without `;jsessionid=`. Returns `None` if nothing changes. Normalising the result
/// again changes nothing.
fn normalise_path(path: &str) -> Option<String> {
    let mut normalised = unescape_path(path);
    let mut position = 0;
    // A session parameter ends before `/` or `;`. The text on both sides of it therefore cannot
    // join into another session parameter or a percent escape.
    while let Some((start, end)) = find_session(&normalised, position) {
        normalised.replace_range(start..end, "");
        position = start;
    }
    (normalised != path).then_some(normalised)
}

/// Returns the path with upper-case escapes and with unreserved characters unescaped.
fn unescape_path(path: &str) -> String {
    let bytes = path.as_bytes();
    let mut unescaped = String::with_capacity(path.len());
    let mut index = 0;
    while let Some(byte) = bytes.get(index) {
        let Some(value) = percent_escape(&bytes[index..]) else {
            // Paths of parsed URLs are ASCII.
            unescaped.push(char::from(*byte));
            index += 1;
            continue;
        };
        // A decoded dot could create a dot segment. The parser has already handled escaped dots
        // that form a dot segment.
        let unreserved = value.is_ascii_alphanumeric() || matches!(value, b'-' | b'_' | b'~');
        if unreserved && !ends_in_escape(&unescaped) {
            unescaped.push(char::from(value));
        } else {
            unescaped.push_str(&path[index..index + 3].to_ascii_uppercase());
        }
        index += 3;
    }
    unescaped
}

/// Returns whether the text ends in an incomplete percent escape that one more character could
/// complete: `%%36A` must not become `%6A`.
fn ends_in_escape(text: &str) -> bool {
    match text.as_bytes() {
        [.., b'%'] => true,
        [.., b'%', digit] => digit.is_ascii_hexdigit(),
        _ => false,
    }
}

/// Returns start and end of the first `;jsessionid=…` parameter at or after `at` in the path.
fn find_session(path: &str, at: usize) -> Option<(usize, usize)> {
    const NAME: &[u8] = b";jsessionid=";
    let start = at + path.as_bytes()[at..].windows(NAME.len()).position(|w| w.eq_ignore_ascii_case(NAME))?;
    let end = path[start + 1..].find(['/', ';']).map_or(path.len(), |i| start + 1 + i);
    Some((start, end))
}

/// Returns the byte that the percent escape at the start of the text stands for.
pub(crate) fn percent_escape(text: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = *text else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from((digit(high)? << 4) | digit(low)?).ok()
}

/// Returns the name of a query parameter in lower case.
fn lowercase_name(parameter: &str) -> String {
    parameter.split('=').next().unwrap_or_default().to_ascii_lowercase()
}

fn is_tracking(parameter: &str) -> bool {
    let key = lowercase_name(parameter);
    key.starts_with("utm_") || TRACKING_PARAMETERS.binary_search(&key.as_str()).is_ok()
}

fn is_session(parameter: &str) -> bool {
    let key = lowercase_name(parameter);
    let value = parameter.split_once('=').map_or("", |(_, value)| value);
    // The rest of this name depends on the server.
    key.starts_with("aspsessionid")
        || SESSION_PARAMETERS.contains(&key.as_str())
        || (POSSIBLE_SESSION_PARAMETERS.contains(&key.as_str()) && looks_like_session_id(value))
}

/// Returns whether the value of a parameter looks like the id of a session: at least 16 ASCII
/// letters and digits, both of them, and nothing else.
fn looks_like_session_id(value: &str) -> bool {
    let bytes = value.as_bytes();
    bytes.len() >= MIN_SESSION_ID_CHARS
        && bytes.iter().all(u8::is_ascii_alphanumeric)
        && bytes.iter().any(u8::is_ascii_digit)
        && bytes.iter().any(u8::is_ascii_alphabetic)
}

/// The normalisation of a link's trailing slash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrailingSlash {
    /// `/a` and `/a/` are two pages.
    #[default]
    Keep,
    /// `/a/` becomes `/a`.
    Remove,
    /// `/a` becomes `/a/`, unless its last segment contains a dot (`/a.html`).
    Add,
}

/// Additional normalisation of links to pages. These rules are not valid for every server, so the
/// operator chooses them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spelling {
    pub trailing_slash: TrailingSlash,
    /// Names of query parameters that do not select a different page. Case-sensitive.
    pub drop_parameters: Vec<String>,
}

impl Spelling {
    /// Returns the normalised link.
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
            !self.drop_parameters.iter().any(|dropped| dropped == name)
        });
        url
    }
}

/// Keeps the parameters that `keep` accepts, with their order and their bytes.
fn retain_parameters(url: &mut Url, keep: impl Fn(&str) -> bool) {
    let Some(query) = url.query() else { return };
    if query.split('&').all(&keep) {
        return;
    }
    let remaining: Vec<&str> = query.split('&').filter(|p| keep(p)).collect();
    // `?a&` without `a` leaves one empty parameter, which is treated as no query.
    let remaining = Some(remaining.join("&")).filter(|remaining| !remaining.is_empty());
    url.set_query(remaining.as_deref());
}

/// Returns `host:port` of the URL's server in lower case. Delays and permits use this text as the
/// key of the host. For schemes other than https the key includes the scheme: `http://host:port`.
pub fn host_key(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port_or_known_default().unwrap_or_default();
    match url.scheme() {
        "https" => format!("{host}:{port}"),
        scheme => format!("{scheme}://{host}:{port}"),
    }
}

/// Returns the directory of a page for the limit on pages per directory. This is the page's folder
/// or, for a URL with a query, the whole path. Each run of digits becomes one `#`, so that
/// `/calendar/2031/05/` and `/calendar/2031/06/` have the same directory.
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

/// Returns the reason if the URL cannot be fetched (`forbidden_url`) or looks like a trap
/// (`url_too_long`, `path_too_deep`, `repeated_segments`, `too_many_parameters`).
pub fn trap_reason(url: &Url) -> Option<Reason> {
    if host_error(url).is_some() {
        return Some(Reason::ForbiddenUrl);
    }
    if url.as_str().len() > MAX_LENGTH {
        return Some(Reason::UrlTooLong);
    }
    let segments: Vec<&str> = url.path().split('/').filter(|s| !s.is_empty()).collect();
    if segments.len() > MAX_SEGMENTS {
        return Some(Reason::PathTooDeep);
    }
    if has_repetition(&segments) {
        return Some(Reason::RepeatedSegments);
    }
    if url.query().is_some_and(|q| q.split('&').count() > MAX_PARAMETERS) {
        return Some(Reason::TooManyParameters);
    }
    None
}

/// Returns whether a run of one to four segments occurs `MAX_REPEATS` times in a row. Runs of
/// numbers may repeat: `/2011/11/11/11` is a date.
fn has_repetition(segments: &[&str]) -> bool {
    (1..=4).any(|period| {
        segments.windows(period * MAX_REPEATS).any(|window| {
            let (first, rest) = window.split_at(period);
            rest.chunks(period).all(|chunk| chunk == first)
                && first.iter().any(|s| s.bytes().any(|b| !b.is_ascii_digit()))
        })
    })
}

/// Counts bytes up to a limit. A short relative link becomes at least as long as its base. Limits
/// on the number of links and on the length of the document do not limit the total length of the
/// resolved URLs.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    remaining: usize,
}

impl ByteBudget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { remaining: bytes }
    }

    /// Spends `bytes` and returns `true`. If fewer remain, spends nothing and returns `false`.
    pub(crate) fn spend(&mut self, bytes: usize) -> bool {
        let remaining = self.remaining.checked_sub(bytes);
        self.remaining = remaining.unwrap_or(self.remaining);
        remaining.is_some()
    }
}
