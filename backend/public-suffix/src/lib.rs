//! Returns the registrable domain of a host name.
//!
//! A separate crate, because the 4,000 generic functions of the public suffix list are compiled in
//! the crate that calls them. This crate has its own optimisation level for them.

/// Returns the public suffix of `host` and the label before it: `example.co.uk` for
/// `www.example.co.uk`. Returns `None` if `host` is itself a public suffix.
///
/// `host` must be in lower case, in Punycode and without a trailing dot.
pub fn registrable_domain(host: &str) -> Option<&str> {
    psl::domain_str(host)
}

#[cfg(test)]
mod tests {
    use super::registrable_domain;

    #[test]
    fn registrable_domain_includes_label_before_public_suffix() {
        for (host, domain) in [
            ("www.example.com", Some("example.com")),
            ("a.b.example.co.uk", Some("example.co.uk")),
            ("example.com", Some("example.com")),
            // A suffix in the private part of the list.
            ("user.github.io", Some("user.github.io")),
            // A wildcard rule and its exception.
            ("www.city.kobe.jp", Some("city.kobe.jp")),
            ("a.b.c.kobe.jp", Some("b.c.kobe.jp")),
            // A top-level domain that is not in the list.
            ("host.lan", Some("host.lan")),
            ("co.uk", None),
            ("localhost", None),
        ] {
            assert_eq!(registrable_domain(host), domain, "{host}");
        }
    }
}
