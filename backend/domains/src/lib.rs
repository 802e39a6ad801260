//! The registrable domain of a host name. Nothing else: the list's 4,000 generic functions are compiled in the crate that calls them, and
//! this crate has its own optimisation level for them.

/// Returns the public suffix of `host` and the label before it: `example.co.uk` for `www.example.co.uk`. Returns `None` when `host` is
/// itself a public suffix. `host` is in lower case, in Punycode and without a trailing dot.
pub fn registrable(host: &str) -> Option<&str> {
    psl::domain_str(host)
}

#[cfg(test)]
mod tests {
    use super::registrable;

    #[test]
    fn the_label_before_the_public_suffix_belongs_to_the_domain() {
        for (host, domain) in [
            ("www.example.com", Some("example.com")),
            ("a.b.example.co.uk", Some("example.co.uk")),
            ("example.com", Some("example.com")),
            // A suffix of the list's private part.
            ("user.github.io", Some("user.github.io")),
            // A wildcard rule and its exception.
            ("www.city.kobe.jp", Some("city.kobe.jp")),
            ("a.b.c.kobe.jp", Some("b.c.kobe.jp")),
            // A top-level domain that the list does not have.
            ("host.lan", Some("host.lan")),
            ("co.uk", None),
            ("localhost", None),
        ] {
            assert_eq!(registrable(host), domain, "{host}");
        }
    }
}
