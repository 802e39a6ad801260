//! One spelling per resource.
use url::Url;

/// Parses and normalises: lower-case scheme and host, no default port, no fragment, no dot segments, no tracking parameters.
/// `Err` is a sentence for the caller of the API.
pub fn parse(_text: &str) -> Result<Url, String> {
    todo!()
}

/// Normalises an absolute URL (see `parse`).
pub fn normalise(_url: Url) -> Url {
    todo!()
}

/// `host:port` of the server that answers, lower case; the unit of politeness (scheme included when not https: `http://host:port`).
pub fn host_key(_url: &Url) -> String {
    todo!()
}

/// The reason code when the URL looks like a trap (`url_too_long`, `path_too_deep`, `repeated_segments`, `too_many_parameters`).
pub fn trap(_url: &Url) -> Option<&'static str> {
    todo!()
}
