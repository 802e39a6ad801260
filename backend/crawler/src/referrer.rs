//! Determines the `Referer` of a request, as the standard Referrer Policy defines it (W3C).
use serde::de::value::StrDeserializer;
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, Ipv6Addr};
use url::{Host, Url};

/// Maximum length in bytes of a URL that is sent. For a longer URL, only the origin is sent.
const MAX_BYTES: usize = 4096;

/// The part of a page's URL that its requests reveal. Stricter policies come first and compare as
/// smaller values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReferrerPolicy {
    NoReferrer,
    SameOrigin,
    StrictOrigin,
    Origin,
    /// The policy of a page that has none.
    #[default]
    StrictOriginWhenCrossOrigin,
    OriginWhenCrossOrigin,
    NoReferrerWhenDowngrade,
    UnsafeUrl,
}

impl ReferrerPolicy {
    /// Parses the value of an attribute `referrerpolicy`. Returns `None` for an empty or unknown
    /// value.
    pub fn parse(text: &str) -> Option<Self> {
        let name = text.to_ascii_lowercase();
        Self::deserialize(StrDeserializer::<serde::de::value::Error>::new(&name)).ok()
    }

    /// Returns the stricter of two policies. `None` counts as the default.
    pub(crate) fn stricter(first: Option<Self>, second: Option<Self>) -> Option<Self> {
        let strictness = |policy: &Option<Self>| (policy.unwrap_or_default(), policy.is_none());
        [first, second].into_iter().min_by_key(strictness).flatten()
    }

    /// Parses the content of `<meta name=referrer>`, which may be an older name of a policy.
    pub(crate) fn parse_meta(content: &str) -> Option<Self> {
        match content.to_ascii_lowercase().as_str() {
            "never" => Some(Self::NoReferrer),
            "default" => Some(Self::default()),
            "always" => Some(Self::UnsafeUrl),
            "origin-when-crossorigin" => Some(Self::OriginWhenCrossOrigin),
            content => Self::parse(content),
        }
    }

    /// Parses the values of the header `Referrer-Policy`. The last known policy applies: a server
    /// can list an older policy first for clients that do not know the newer one.
    pub(crate) fn parse_header<'a>(values: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let tokens = values.into_iter().flat_map(|value| value.split(','));
        tokens.filter_map(|token| Self::parse(token.trim())).last()
    }
}

/// The page that caused a request, and its policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Referrer {
    url: Url,
    policy: ReferrerPolicy,
}

impl Referrer {
    /// Returns the referrer for a request to `target` that `page` causes. `None` if the policy
    /// forbids it. It contains no more of the page's URL than `target` may receive.
    pub fn new(page: &Url, policy: ReferrerPolicy, target: &Url) -> Option<Self> {
        if !matches!(page.scheme(), "http" | "https") {
            return None;
        }
        let mut url = page.clone();
        url.set_fragment(None);
        // Both can fail only for URLs without a host.
        url.set_username("").ok()?;
        url.set_password(None).ok()?;
        Self { url, policy }.for_target(target)
    }

    /// Returns the referrer that a request to `target` may send, reduced by the policy.
    pub(crate) fn for_target(self, target: &Url) -> Option<Self> {
        let is_same_origin = self.url.origin() == target.origin();
        let is_downgrade = is_trustworthy(&self.url) && !is_trustworthy(target);
        let sends_path = match self.policy {
            ReferrerPolicy::NoReferrer => return None,
            ReferrerPolicy::NoReferrerWhenDowngrade | ReferrerPolicy::StrictOrigin if is_downgrade => {
                return None;
            }
            ReferrerPolicy::SameOrigin if !is_same_origin => return None,
            ReferrerPolicy::StrictOriginWhenCrossOrigin if is_downgrade && !is_same_origin => return None,
            ReferrerPolicy::NoReferrerWhenDowngrade
            | ReferrerPolicy::SameOrigin
            | ReferrerPolicy::UnsafeUrl => true,
            ReferrerPolicy::Origin | ReferrerPolicy::StrictOrigin => false,
            ReferrerPolicy::OriginWhenCrossOrigin | ReferrerPolicy::StrictOriginWhenCrossOrigin => {
                is_same_origin
            }
        };
        let Self { mut url, policy } = self;
        if !sends_path || url.as_str().len() > MAX_BYTES {
            url.set_path("");
            url.set_query(None);
        }
        Some(Self { url, policy })
    }

    /// Applies the policy of a response that redirects.
    pub(crate) fn after_redirect(self, policy: Option<ReferrerPolicy>) -> Self {
        Self { policy: policy.unwrap_or(self.policy), ..self }
    }

    /// Returns the value of the header `Referer`.
    pub fn as_str(&self) -> &str {
        self.url.as_str()
    }
}

/// Returns whether requests to this URL are protected from eavesdroppers (Secure Contexts, W3C).
fn is_trustworthy(url: &Url) -> bool {
    url.scheme() == "https"
        || match url.host() {
            Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
            Some(Host::Ipv4(address)) => Ipv4Addr::is_loopback(&address),
            Some(Host::Ipv6(address)) => Ipv6Addr::is_loopback(&address),
            None => false,
        }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const PAGE: &str = "https://user:secret@site.example/a/b?c#d";
    const FULL: Option<&str> = Some("https://site.example/a/b?c");
    const ORIGIN: Option<&str> = Some("https://site.example/");

    fn referer(page: &str, policy: ReferrerPolicy, target: &str) -> Option<String> {
        let referrer = Referrer::new(&Url::parse(page).unwrap(), policy, &Url::parse(target).unwrap());
        referrer.map(|referrer| referrer.as_str().to_owned())
    }

    #[test]
    fn referrer_policies_follow_standard() {
        use ReferrerPolicy::*;
        // To the same origin, to another one, and without encryption.
        for (policy, expected) in [
            (NoReferrer, [None, None, None]),
            (NoReferrerWhenDowngrade, [FULL, FULL, None]),
            (SameOrigin, [FULL, None, None]),
            (Origin, [ORIGIN, ORIGIN, ORIGIN]),
            (StrictOrigin, [ORIGIN, ORIGIN, None]),
            (OriginWhenCrossOrigin, [FULL, ORIGIN, ORIGIN]),
            (StrictOriginWhenCrossOrigin, [FULL, ORIGIN, None]),
            (UnsafeUrl, [FULL, FULL, FULL]),
        ] {
            let targets =
                ["https://site.example/i.jpg", "https://cdn.example/i.jpg", "http://site.example/i.jpg"];
            let actual = targets.map(|target| referer(PAGE, policy, target));
            assert_eq!(actual.each_ref().map(Option::as_deref), expected, "{policy:?}");
            // Names of policies are the same in attributes and in stored jobs.
            let name = serde_json::to_value(policy).unwrap();
            assert_eq!(ReferrerPolicy::parse(name.as_str().unwrap()), Some(policy));
        }
    }

    #[test]
    fn requests_to_loopback_are_not_downgrades() {
        let policy = ReferrerPolicy::default();
        for host in ["127.0.0.1:81", "[::1]", "localhost", "a.localhost"] {
            assert_eq!(referer(PAGE, policy, &format!("http://{host}/")).as_deref(), ORIGIN, "{host}");
        }
        for host in ["128.0.0.1", "[::2]", "notlocalhost"] {
            assert_eq!(referer(PAGE, policy, &format!("http://{host}/")), None, "{host}");
        }
    }

    #[test]
    fn long_urls_send_origin_and_file_urls_nothing() {
        let page = format!("https://site.example/{}", "a".repeat(4_100));
        let target = "https://site.example/i.jpg";
        assert_eq!(referer(&page, ReferrerPolicy::UnsafeUrl, target).as_deref(), ORIGIN);
        assert_eq!(referer("file:///home/a.html", ReferrerPolicy::UnsafeUrl, target), None);
    }

    #[test]
    fn redirect_reveals_no_more_than_previous_request() {
        let url = |text: &str| Url::parse(text).unwrap();
        let (site, cdn) = (url("https://site.example/i.jpg"), url("https://cdn.example/i.jpg"));
        let page = url("https://site.example/a");
        let first = Referrer::new(&page, ReferrerPolicy::default(), &cdn).unwrap();
        let next = first.after_redirect(Some(ReferrerPolicy::UnsafeUrl)).for_target(&site).unwrap();
        assert_eq!(next.as_str(), "https://site.example/");
        let first = Referrer::new(&page, ReferrerPolicy::UnsafeUrl, &site).unwrap();
        assert_eq!(first.after_redirect(Some(ReferrerPolicy::SameOrigin)).for_target(&cdn), None);
    }

    #[test]
    fn parses_referrer_policies_in_headers_and_meta_tags() {
        let header = |values: &[&str]| ReferrerPolicy::parse_header(values.iter().copied());
        let (origin, none) = (Some(ReferrerPolicy::Origin), Some(ReferrerPolicy::NoReferrer));
        assert_eq!(header(&["no-referrer, Origin , future-policy,"]), origin);
        assert_eq!(header(&["origin", "no-referrer"]), none);
        assert_eq!(header(&["", "never"]), None);
        assert_eq!(ReferrerPolicy::parse_meta("NEVER"), none);
        assert_eq!(ReferrerPolicy::parse_meta("origin"), origin);
        assert_eq!(ReferrerPolicy::parse_meta("always"), Some(ReferrerPolicy::UnsafeUrl));
        assert_eq!(ReferrerPolicy::parse_meta("default"), Some(ReferrerPolicy::default()));
        assert_eq!(ReferrerPolicy::parse_meta(""), None);
    }
}
