//! Decides which pages a crawl includes.
use std::collections::HashMap;
use url::{Host, Url};

/// The scope of a crawl. Pages must be inside the scope; images may be anywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// The hosts and ports of the seeds. `http` and `https` on their default ports are treated as
    /// one host, and so are `www.x` and `x`, because sites redirect between them.
    #[default]
    Host,
    /// The registrable domains of the seeds (public suffix list), on any port. An IP address, or a
    /// name without a registrable domain (`localhost`), is compared as a whole.
    Domain,
    /// URLs on a seed's host whose path starts with the seed's path up to its last slash.
    Prefix,
    /// Hosts on the allow list, and the hosts of the seeds. A leading `*.` covers subdomains;
    /// `host:port` covers one port.
    List,
}

impl Scope {
    pub fn contains(self, seeds: &[Url], allow: &[String], url: &Url) -> bool {
        match self {
            Self::Host => seeds.iter().any(|seed| same_host(seed, url)),
            Self::Domain => seeds.iter().any(|seed| domain(seed).is_some() && domain(seed) == domain(url)),
            Self::Prefix => {
                seeds.iter().any(|seed| same_host(seed, url) && url.path().starts_with(folder(seed.path())))
            }
            Self::List => {
                seeds.iter().any(|seed| same_host(seed, url)) || allow.iter().any(|e| matches_entry(e, url))
            }
        }
    }

    /// Returns the name that `contains` requires to be equal for a seed and a URL.
    fn compared_name(self, url: &Url) -> Option<&str> {
        match self {
            Self::Domain => domain(url),
            Self::Host | Self::Prefix | Self::List => host_without_www(url),
        }
    }
}

/// The seeds of a crawl, by the name that its scope compares.
///
/// A page can have 10,000 links, and a crawl 10,000 seeds. So each link is compared only with the
/// seeds of the same name.
#[derive(Debug)]
pub struct SeedIndex {
    scope: Scope,
    seeds: HashMap<String, Vec<Url>>,
}

impl SeedIndex {
    /// Omits seeds without a host. No URL matches them.
    pub fn new(scope: Scope, seeds: impl IntoIterator<Item = Url>) -> Self {
        let mut by_name: HashMap<String, Vec<Url>> = HashMap::new();
        for seed in seeds {
            if let Some(name) = scope.compared_name(&seed) {
                by_name.entry(name.to_owned()).or_default().push(seed);
            }
        }
        Self { scope, seeds: by_name }
    }

    /// Returns the same as [`Scope::contains`] with all seeds.
    pub fn contains(&self, allow: &[String], url: &Url) -> bool {
        let seeds = self.scope.compared_name(url).and_then(|name| self.seeds.get(name));
        self.scope.contains(seeds.map_or(&[], Vec::as_slice), allow, url)
    }
}

/// Returns the path up to its last slash, inclusive.
fn folder(path: &str) -> &str {
    path.rfind('/').map_or(path, |i| &path[..=i])
}

fn same_host(a: &Url, b: &Url) -> bool {
    // `Url::port` is `None` for the scheme's default port.
    a.port() == b.port() && host_without_www(a).is_some() && host_without_www(a) == host_without_www(b)
}

fn host_without_www(url: &Url) -> Option<&str> {
    let host = url.host_str()?.trim_end_matches('.');
    Some(host.strip_prefix("www.").filter(|rest| rest.contains('.')).unwrap_or(host))
}

fn domain(url: &Url) -> Option<&str> {
    let host = url.host_str()?.trim_end_matches('.');
    match url.host()? {
        Host::Domain(_) => Some(public_suffix::registrable_domain(host).unwrap_or(host)),
        _ => Some(host),
    }
}

/// Returns whether an entry of an allow list matches the host of `url`.
pub(crate) fn matches_entry(entry: &str, url: &Url) -> bool {
    let Some(host) = url.host_str().map(|h| h.trim_end_matches('.')) else { return false };
    let entry = entry.trim();
    let (name, port) = match entry.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() && (!name.contains(':') || name.ends_with(']')) => {
            (name, port.parse::<u16>().ok())
        }
        _ => (entry, None),
    };
    if port.is_some() && port != url.port_or_known_default() {
        return false;
    }
    // Operators write these entries by hand, so they may contain capitals, a root dot, IDN in
    // Unicode, or an IPv6 address without brackets.
    let to_ascii = |name: &str| {
        let name = name.trim_end_matches('.');
        let needs_brackets = name.contains(':') && !name.starts_with('[');
        let name = if needs_brackets { format!("[{name}]") } else { name.to_owned() };
        Host::parse(&name).ok().map(|h| h.to_string())
    };
    match name.strip_prefix("*.") {
        Some(parent) => to_ascii(parent)
            .is_some_and(|parent| host.strip_suffix(&parent).is_some_and(|rest| rest.ends_with('.'))),
        None => to_ascii(name).is_some_and(|name| name == host),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Checks which URLs a crawl of `seed` includes. The lists are separated by spaces.
    #[track_caller]
    fn check(scope: Scope, seed: &str, allow: &str, inside: &str, outside: &str) {
        let seeds = [crate::urls::parse(seed).unwrap()];
        let allow: Vec<String> = allow.split(' ').map(str::to_owned).collect();
        let other = crate::urls::parse("http://seed.invalid:8080/a/").unwrap();
        let index = SeedIndex::new(scope, seeds.iter().cloned().chain([other]));
        for (urls, expected) in [(inside, true), (outside, false)] {
            for text in urls.split_ascii_whitespace() {
                let url = crate::urls::parse(text).unwrap();
                assert_eq!(scope.contains(&seeds, &allow, &url), expected, "{scope:?} {seed} {text}");
                assert_eq!(index.contains(&allow, &url), expected, "{scope:?} {seed} {text}");
            }
        }
    }

    #[test]
    fn host_scope_compares_host_and_port() {
        let inside =
            "http://example.com/ https://example.com/x http://www.example.com/ http://EXAMPLE.com.:80/";
        let outside = "http://blog.example.com/ http://example.com:8080/ http://example.org/";
        check(Scope::Host, "http://example.com/a/b", "", inside, outside);
        check(Scope::Host, "http://127.0.0.1:9000/", "", "http://127.0.0.1:9000/a", "http://127.0.0.1:9001/");
    }

    #[test]
    fn domain_scope_follows_public_suffix_list() {
        let inside = "http://example.co.uk/ https://a.b.example.co.uk:8443/";
        let outside = "http://other.co.uk/ http://co.uk/";
        check(Scope::Domain, "http://shop.example.co.uk/", "", inside, outside);
        check(
            Scope::Domain,
            "http://alice.github.io/",
            "",
            "http://alice.github.io/x",
            "http://bob.github.io/",
        );
        check(Scope::Domain, "http://10.0.0.1/", "", "http://10.0.0.1:81/", "http://11.0.0.1/");
        check(Scope::Domain, "http://localhost/", "", "http://localhost:81/", "http://host/");
    }

    #[test]
    fn prefix_scope_ends_at_last_slash() {
        let inside = "http://example.com/photos/ http://example.com/photos/2024/a";
        let outside = "http://example.com/photosets/ http://example.com/ http://other.com/photos/";
        check(Scope::Prefix, "http://example.com/photos/index.html", "", inside, outside);
    }

    #[test]
    fn list_scope_supports_wildcards_and_ports() {
        let allow = "Example.com *.example.org müller.example one.example:8080 ::1 [::2]:81";
        let inside =
            "http://seed.example/a http://example.com/ https://example.com:444/ http://a.b.example.org/
            http://xn--mller-kva.example/ http://one.example:8080/ http://[::1]/ http://[::2]:81/";
        let outside = "http://www.example.com/ http://example.org/ http://badexample.org/ http://one.example/
            http://[::2]/";
        check(Scope::List, "http://seed.example/", allow, inside, outside);
    }
}
