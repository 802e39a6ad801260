//! Parses and compares the host names of the `Host` header and of a page's origin, for
//! `middleware::access`.
//!
//! In a DNS rebinding attack, a foreign page uses its own name, which resolves to this service. The
//! browser sends that name in `Host`. The request is rejected because the name is on no list.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use url::{Host, Url};

/// A host as written in the `Host` header and in origins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostName {
    Address(IpAddr),
    /// A name in lower case, without the trailing dot.
    Name(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Authority {
    pub(crate) host: HostName,
    pub(crate) port: Option<u16>,
}

/// A host that the operator allows, without a port (`faces.example.org`) or with one
/// (`faces.example.org:8443`), or `*` for any host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicHost(Option<Authority>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a host name or an IP address, with or without a port, or *")]
pub struct InvalidPublicHost;

impl HostName {
    fn parse(text: &str) -> Option<Self> {
        if let Some(inner) = text.strip_prefix('[') {
            let address: Ipv6Addr = inner.strip_suffix(']')?.parse().ok()?;
            return Some(Self::Address(IpAddr::V6(address).to_canonical()));
        }
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Some(Self::Address(address.into()));
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        (!name.is_empty() && name.len() <= 253 && name.bytes().all(is_valid)).then_some(Self::Name(name))
    }

    /// Returns whether the host is this machine. RFC 6761 reserves the name `localhost` and its
    /// subdomains, so no DNS query is needed.
    fn is_loopback(&self) -> bool {
        match self {
            Self::Address(address) => address.is_loopback(),
            Self::Name(name) => name == "localhost" || name.ends_with(".localhost"),
        }
    }
}

impl Authority {
    /// Parses the value of a `Host` header. Returns `None` if the value is not a host.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        // The colons of an IPv6 address are inside brackets.
        let (host, port) = match text.rfind(':').filter(|index| !text[*index..].contains(']')) {
            Some(index) => (&text[..index], &text[index + 1..]),
            None => (text, ""),
        };
        let port = match port {
            "" => None,
            digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => Some(digits.parse().ok()?),
            _ => return None,
        };
        HostName::parse(host).map(|host| Self { host, port })
    }

    /// Returns whether the `Host` header of a request may contain this host.
    pub(crate) fn is_allowed(&self, listen: IpAddr, public_hosts: &[PublicHost]) -> bool {
        let listen = listen.to_canonical();
        let is_listen_address = match self.host {
            // DNS rebinding requires a name, so a request with an address cannot be an attack. If
            // the service listens on all addresses, every address is allowed.
            HostName::Address(address) => listen.is_unspecified() || address == listen,
            HostName::Name(_) => false,
        };
        self.host.is_loopback() || is_listen_address || public_hosts.iter().any(|rule| rule.covers(self))
    }

    /// Returns whether a page of this origin was served by this host. The scheme is not compared,
    /// because TLS may end at a proxy in front of the service.
    pub(crate) fn is_origin(&self, origin: &Origin) -> bool {
        self.host == origin.host && self.port.map_or(origin.is_default_port, |port| port == origin.port)
    }
}

impl PublicHost {
    fn covers(&self, authority: &Authority) -> bool {
        self.0.as_ref().is_none_or(|rule| {
            rule.host == authority.host && rule.port.is_none_or(|port| authority.port == Some(port))
        })
    }

    /// Returns whether a page of this origin is a page of this service. The rule `*` matches no
    /// origin.
    pub(crate) fn is_origin(&self, origin: &Origin) -> bool {
        self.0.as_ref().is_some_and(|rule| rule.is_origin(origin))
    }
}

impl FromStr for PublicHost {
    type Err = InvalidPublicHost;

    fn from_str(text: &str) -> Result<Self, InvalidPublicHost> {
        match text {
            "*" => Ok(Self(None)),
            text => Authority::parse(text).map(|rule| Self(Some(rule))).ok_or(InvalidPublicHost),
        }
    }
}

/// The origin of a page: scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The text in the form of `ALLOW_ORIGINS`.
    pub(crate) text: String,
    host: HostName,
    port: u16,
    is_default_port: bool,
}

impl Origin {
    /// Parses the value of an `Origin` header. Returns `None` for `null` and for anything that is
    /// not an http or https origin.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
        let serialized = url.origin().ascii_serialization();
        // The value of an `Origin` header has neither a path nor a user.
        if !serialized.eq_ignore_ascii_case(text) {
            return None;
        }
        let host = match url.host()? {
            Host::Domain(name) => HostName::parse(name)?,
            Host::Ipv4(address) => HostName::Address(address.into()),
            Host::Ipv6(address) => HostName::Address(IpAddr::V6(address).to_canonical()),
        };
        let is_default_port = url.port().is_none();
        Some(Self { text: serialized, host, port: url.port_or_known_default()?, is_default_port })
    }
}
