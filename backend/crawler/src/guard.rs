//! Decides which URLs and addresses may be reached.
//!
//! Each request is checked twice. `check_url` checks everything that is known without DNS.
//! `check_address` checks every address of a name at the time of the connection. The fetcher's
//! resolver returns only checked addresses to the socket. Changing the addresses of a name between
//! two look-ups (DNS rebinding) is therefore ineffective.
#[cfg(test)]
mod tests;
use crate::{Config, urls};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use url::{Host, Url};

/// The reason why a URL or an address is forbidden.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    /// The scheme, user name, password, port or host is not allowed.
    #[error("the URL is not allowed: {0}")]
    Url(String),
    /// The host is, or resolves to, a forbidden address. The message omits the address and its
    /// range, so that callers receive no information about the operator's network.
    /// [`Self::full_reason`] returns both.
    #[error("the host of the URL has an IP address that is not allowed")]
    Address {
        address: IpAddr,
        /// The special-purpose range that contains the address.
        range: &'static str,
    },
}

impl GuardError {
    /// Returns the full reason, for the operator's log only.
    pub fn full_reason(&self) -> String {
        match self {
            Self::Url(why) => why.clone(),
            Self::Address { address, range } => format!("{address} ({range})"),
        }
    }
}

/// The reason why [`Guard::resolve`] returned no addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    #[error(transparent)]
    Guard(#[from] GuardError),
    #[error("the host name cannot be resolved: {0}")]
    Lookup(String),
}

/// The addresses that a connection may reach, depending on its port. The resolver receives only a
/// name, so the port is checked earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressScope {
    /// The port is allowed everywhere: the connection may reach public addresses and allowed
    /// private ranges.
    Public,
    /// Any other port: the connection may reach only allowed private ranges.
    AllowedPrivate,
}

/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct Guard(Arc<Rules>);

#[derive(Debug)]
struct Rules {
    allow_private: Vec<ipnet::IpNet>,
    ports: Ports,
}

/// The ports that are allowed on public addresses.
#[derive(Debug)]
enum Ports {
    Listed(Vec<u16>),
    Any,
}

impl Guard {
    pub fn new(config: &Config) -> Self {
        let Config { allow_private, ports, .. } = config.clone();
        Self(Arc::new(Rules { allow_private, ports: Ports::Listed(ports) }))
    }

    /// Returns a guard that allows every port of public addresses and of `allow_private`. It is for
    /// addresses that an operator configured, such as those of cameras.
    pub fn with_any_port(allow_private: Vec<ipnet::IpNet>) -> Self {
        Self(Arc::new(Rules { allow_private, ports: Ports::Any }))
    }

    /// Resolves a host and returns its addresses. A client that connects to no other addresses
    /// needs no further check.
    ///
    /// # Errors
    /// Fails if the host has no address, or one that the guard forbids.
    pub async fn resolve(
        &self,
        host: &Host,
        port: u16,
        lookup: &dyn Lookup,
    ) -> Result<Vec<SocketAddr>, ResolveError> {
        let addresses = match host {
            Host::Ipv4(address) => vec![IpAddr::from(*address)],
            Host::Ipv6(address) => vec![IpAddr::from(*address)],
            Host::Domain(name) => {
                lookup.lookup(name).await.map_err(|e| ResolveError::Lookup(e.to_string()))?
            }
        };
        if addresses.is_empty() {
            return Err(ResolveError::Lookup("it has no IP address".into()));
        }
        let checked = match host {
            Host::Domain(name) => self.check_dns_response(name, addresses, self.address_scope(port)),
            _ => addresses.iter().try_for_each(|a| self.check_address(*a, port)).map(|()| addresses),
        };
        Ok(checked?.into_iter().map(|address| SocketAddr::new(address, port)).collect())
    }

    /// Checks everything that is known without DNS. The `url` crate has already converted every
    /// notation of an IPv4 literal (decimal, octal, hexadecimal, short, full-width) to the address.
    pub fn check_url(&self, url: &Url) -> Result<(), GuardError> {
        let refuse = |why: String| Err(GuardError::Url(why));
        let length = url.as_str().len();
        if length > urls::MAX_PARSED_LENGTH {
            return refuse(format!(
                "it is {length} bytes long; at most {} are allowed",
                urls::MAX_PARSED_LENGTH
            ));
        }
        if !matches!(url.scheme(), "http" | "https") {
            return refuse(format!("the scheme is {:?}; only http and https are allowed", url.scheme()));
        }
        if let Some(why) = urls::credentials_error(url) {
            return refuse(why.into());
        }
        let Some(port) = url.port_or_known_default() else {
            return refuse("it has no port".into());
        };
        match url.host() {
            None => refuse("it has no host".into()),
            Some(Host::Ipv4(address)) => self.check_address(address.into(), port),
            Some(Host::Ipv6(address)) => self.check_address(address.into(), port),
            Some(Host::Domain(_)) => {
                if let Some(why) = urls::host_error(url) {
                    return refuse(why.into());
                }
                // Every port is allowed inside the allowed private ranges. Whether the name
                // resolves to one is known only at connection time.
                if self.address_scope(port) == AddressScope::Public || self.allows_private_ranges() {
                    Ok(())
                } else {
                    Err(self.port_error(port))
                }
            }
        }
    }

    /// Checks an address (resolved or literal) together with the port to connect to.
    pub fn check_address(&self, address: IpAddr, port: u16) -> Result<(), GuardError> {
        self.check_scope(address, self.address_scope(port)).map_err(|error| match error {
            GuardError::Url(_) => self.port_error(port),
            other => other,
        })
    }

    pub(crate) fn address_scope(&self, port: u16) -> AddressScope {
        match &self.0.ports {
            Ports::Listed(ports) if !ports.contains(&port) => AddressScope::AllowedPrivate,
            Ports::Listed(_) | Ports::Any => AddressScope::Public,
        }
    }

    pub(crate) fn allows_private_ranges(&self) -> bool {
        !self.0.allow_private.is_empty()
    }

    /// Checks all addresses of a DNS response; one forbidden address makes the whole response
    /// forbidden. For `localhost`, forbidden addresses are removed instead: an operator who allows
    /// 127.0.0.0/8 may not expect ::1, and only the local system resolves that name.
    fn check_dns_response(
        &self,
        name: &str,
        addresses: Vec<IpAddr>,
        scope: AddressScope,
    ) -> Result<Vec<IpAddr>, GuardError> {
        let check = |address: &IpAddr| self.check_scope(*address, scope);
        if name.trim_end_matches('.').eq_ignore_ascii_case("localhost") {
            let allowed: Vec<IpAddr> = addresses.iter().copied().filter(|a| check(a).is_ok()).collect();
            if !allowed.is_empty() {
                return Ok(allowed);
            }
        }
        addresses.iter().try_for_each(check)?;
        Ok(addresses)
    }

    fn check_scope(&self, address: IpAddr, scope: AddressScope) -> Result<(), GuardError> {
        // The socket connects to the IPv4 address of an IPv4-mapped address.
        if self.0.allow_private.iter().any(|net| net.contains(&address.to_canonical())) {
            return Ok(());
        }
        let range = match address {
            IpAddr::V4(address) => find_range_v4(address),
            IpAddr::V6(address) => find_range_v6(address),
        };
        match (range, scope) {
            (Some(range), _) => Err(GuardError::Address { address, range }),
            (None, AddressScope::Public) => Ok(()),
            (None, AddressScope::AllowedPrivate) => Err(GuardError::Url(
                "its port is open only inside the allowed private ranges, and its address is outside".into(),
            )),
        }
    }

    fn port_error(&self, port: u16) -> GuardError {
        let ports: Vec<String> = match &self.0.ports {
            Ports::Listed(ports) => ports.iter().map(u16::to_string).collect(),
            Ports::Any => vec!["any".into()],
        };
        GuardError::Url(format!("port {port} is not open; allowed: {}", ports.join(", ")))
    }
}

/// The special-purpose IPv4 ranges: first address, prefix length, name.
///
/// Source of both lists: the IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890 and
/// its updates) and multicast (RFC 5771, RFC 4291). One address of a cloud platform is added: it is
/// in public space but reachable only inside that cloud. Each range is listed as a whole, even if
/// the registry marks parts of it as globally reachable (protocol anycast). Web sites do not use
/// those parts.
const SPECIAL_V4_RANGES: &[(Ipv4Addr, u32, &str)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8, "this network"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "private use"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "shared address space"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "loopback"),
    // Cloud metadata services use 169.254.169.254.
    (Ipv4Addr::new(169, 254, 0, 0), 16, "link-local"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "private use"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "protocol assignments"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "documentation"),
    (Ipv4Addr::new(192, 31, 196, 0), 24, "AS112"),
    (Ipv4Addr::new(192, 52, 193, 0), 24, "AMT relay"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "6to4 relay"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "private use"),
    (Ipv4Addr::new(192, 175, 48, 0), 24, "AS112"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "benchmarking"),
    (Ipv4Addr::new(198, 51, 100, 0), 24, "documentation"),
    (Ipv4Addr::new(203, 0, 113, 0), 24, "documentation"),
    (Ipv4Addr::new(168, 63, 129, 16), 32, "cloud platform"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "multicast"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "reserved"),
];

/// The special-purpose IPv6 ranges: first address, prefix length, name. `find_range_v6` forbids all
/// addresses outside 2000::/3. Ranges outside it are listed only for their names.
const SPECIAL_V6_RANGES: &[(Ipv6Addr, u32, &str)] = &[
    (Ipv6Addr::UNSPECIFIED, 128, "unspecified"),
    (Ipv6Addr::LOCALHOST, 128, "loopback"),
    // NAT64 inside one network (RFC 8215). It is forbidden regardless of the IPv4 address that it
    // contains.
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48, "local-use translation"),
    (Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0), 64, "discard only"),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, "Teredo"),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, "protocol assignments"),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, "documentation"),
    (Ipv6Addr::new(0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0), 48, "AS112"),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, "documentation"),
    (Ipv6Addr::new(0x5f00, 0, 0, 0, 0, 0, 0, 0), 16, "segment routing"),
    // Contains the metadata address fd00:ec2::254.
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, "unique local"),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, "link-local"),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, "site-local"),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, "multicast"),
];

/// Returns the name of the special-purpose range that contains the address.
fn find_range_v4(address: Ipv4Addr) -> Option<&'static str> {
    let bits = address.to_bits();
    SPECIAL_V4_RANGES
        .iter()
        .find(|(net, len, _)| (bits ^ net.to_bits()) >> (32 - len) == 0)
        .map(|(_, _, name)| *name)
}

/// Returns the name of the special-purpose range that contains the address, or the IPv4 address
/// embedded in it.
fn find_range_v6(address: Ipv6Addr) -> Option<&'static str> {
    let bits = address.to_bits();
    let range = SPECIAL_V6_RANGES
        .iter()
        .find(|(net, len, _)| (bits ^ net.to_bits()) >> (128 - len) == 0)
        .map(|(_, _, name)| *name);
    if let Some((inner, form, forwards)) = embedded_ipv4(address) {
        // The name of the inner range is more specific. If the inner address is public, the outer
        // form determines the result.
        return find_range_v4(inner).or(if forwards { None } else { range.or(Some(form)) });
    }
    range.or_else(|| (bits >> 125 != 0b001).then_some("not global unicast"))
}

/// Returns the IPv4 address embedded in an IPv6 address, the name of the form, and whether the form
/// is legitimately used to reach public addresses: the socket connects to the inner address of an
/// IPv4-mapped address; gateways translate NAT64 and 6to4.
///
/// The forms are mapped and compatible (RFC 4291), translated (RFC 2765), NAT64 (RFC 6052), 6to4
/// (RFC 3056) and Teredo (RFC 4380, the client's address, stored inverted).
fn embedded_ipv4(address: Ipv6Addr) -> Option<(Ipv4Addr, &'static str, bool)> {
    let v4 = |high: u16, low: u16| Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low));
    Some(match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, a, b] => (v4(a, b), "IPv4-mapped", true),
        [0, 0, 0, 0, 0xffff, 0, a, b] => (v4(a, b), "IPv4-translated", false),
        [0, 0, 0, 0, 0, 0, a, b] if a != 0 => (v4(a, b), "IPv4-compatible", false),
        [0x64, 0xff9b, 0, 0, 0, 0, a, b] => (v4(a, b), "NAT64", true),
        [0x2002, a, b, ..] => (v4(a, b), "6to4", true),
        [0x2001, 0, _, _, _, _, a, b] => (v4(!a, !b), "Teredo", false),
        _ => return None,
    })
}

/// Looks up the addresses of a host name: the system's resolver, or fixed addresses in tests.
#[async_trait::async_trait]
pub trait Lookup: Send + Sync {
    /// Returns all addresses of `name`. The caller treats an empty result as an error.
    async fn lookup(&self, name: &str) -> std::io::Result<Vec<IpAddr>>;
}

/// The resolver of the operating system, including the hosts file and search domains.
pub struct SystemLookup;

#[async_trait::async_trait]
impl Lookup for SystemLookup {
    async fn lookup(&self, name: &str) -> std::io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((name, 0)).await?.map(|a| a.ip()).collect())
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NoAddress(pub(crate) String);

/// Resolves names for the HTTP client. Returns only addresses that the guard allows, and the client
/// connects to no other addresses.
pub(crate) struct VettedResolver {
    pub(crate) guard: Guard,
    pub(crate) lookup: Arc<dyn Lookup>,
    pub(crate) scope: AddressScope,
}

impl Resolve for VettedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (guard, lookup, scope) = (self.guard.clone(), self.lookup.clone(), self.scope);
        Box::pin(async move {
            let name = name.as_str();
            let addresses = match lookup.lookup(name).await {
                Ok(addresses) if addresses.is_empty() => Err(NoAddress(format!("{name} has no IP address"))),
                Ok(addresses) => Ok(addresses),
                Err(error) => Err(NoAddress(format!("{name}: {error}"))),
            }?;
            let checked: Result<Vec<IpAddr>, GuardError> = guard.check_dns_response(name, addresses, scope);
            // The client replaces port 0 with the port of the URL.
            let addresses = checked?.into_iter().map(|ip| SocketAddr::new(ip, 0));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}
