//! Decides which URLs and addresses may be reached.
//!
//! Each request is checked twice. `check_url` checks everything that is known without DNS.
//! `check_address` checks every address of a name at the time of the connection. The fetcher's
//! resolver returns only checked addresses to the socket. Changing the addresses of a name between
//! two look-ups (DNS rebinding) is therefore ineffective.
mod ranges;
#[cfg(test)]
mod tests;

use crate::{Config, urls};
use std::net::IpAddr;
use std::sync::Arc;
use url::{Host, Url};

/// Why a URL or an address is forbidden.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    /// The scheme, user name, password, port or host is not allowed.
    #[error("the URL is not allowed: {0}")]
    Url(String),
    /// The host is, or resolves to, a forbidden address. The message omits the address and its
    /// range, so that callers receive no information about the operator's network. [`Self::secret`]
    /// returns both.
    #[error("the host of the URL has an IP address that is not allowed")]
    Address {
        address: IpAddr,
        /// The special-purpose range that contains the address.
        range: &'static str,
    },
}

impl GuardError {
    /// Returns the full reason, for the operator's log only.
    pub fn secret(&self) -> String {
        match self {
            Self::Url(why) => why.clone(),
            Self::Address { address, range } => format!("{address} ({range})"),
        }
    }
}

/// Which addresses a connection may reach, depending on its port. The resolver receives only a
/// name, so the port is checked before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressScope {
    /// The port is allowed everywhere: the connection may reach public addresses and allowed
    /// private ranges.
    Public,
    /// Any other port: the connection may reach only allowed private ranges.
    AllowedPrivate,
}

/// The rules of the guard. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Guard {
    rules: Arc<Rules>,
}

#[derive(Debug)]
struct Rules {
    allow_private: Vec<ipnet::IpNet>,
    ports: Vec<u16>,
}

impl Guard {
    pub fn new(config: &Config) -> Self {
        Self {
            rules: Arc::new(Rules {
                allow_private: config.allow_private.clone(),
                ports: config.ports.clone(),
            }),
        }
    }

    /// Checks everything that is known without DNS. The `url` crate has already converted every
    /// spelling of an IPv4 literal (decimal, octal, hexadecimal, short, full-width) to the address.
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

    /// Returns which addresses a connection to this port may reach.
    pub(crate) fn address_scope(&self, port: u16) -> AddressScope {
        if self.rules.ports.contains(&port) { AddressScope::Public } else { AddressScope::AllowedPrivate }
    }

    /// Returns whether the configuration allows any private range.
    pub(crate) fn allows_private_ranges(&self) -> bool {
        !self.rules.allow_private.is_empty()
    }

    /// Returns whether the address is in an allowed private range. An IPv4-mapped address is
    /// treated as the IPv4 address that the socket connects to.
    fn is_allowed_private(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.rules.allow_private.iter().any(|net| net.contains(&address))
    }

    /// Checks all addresses of a DNS answer; one forbidden address makes the whole answer
    /// forbidden. For `localhost`, forbidden addresses are removed instead: an operator who allows
    /// 127.0.0.0/8 may not expect ::1, and only the local system resolves that name.
    pub(crate) fn check_answer(
        &self,
        name: &str,
        answer: Vec<IpAddr>,
        scope: AddressScope,
    ) -> Result<Vec<IpAddr>, GuardError> {
        let check = |address: &IpAddr| self.check_scope(*address, scope);
        if name.trim_end_matches('.').eq_ignore_ascii_case("localhost") {
            let open: Vec<IpAddr> = answer.iter().copied().filter(|a| check(a).is_ok()).collect();
            if !open.is_empty() {
                return Ok(open);
            }
        }
        answer.iter().try_for_each(check)?;
        Ok(answer)
    }

    fn check_scope(&self, address: IpAddr, scope: AddressScope) -> Result<(), GuardError> {
        if self.is_allowed_private(address) {
            return Ok(());
        }
        match (ranges::special(address), scope) {
            (Some(range), _) => Err(GuardError::Address { address, range }),
            (None, AddressScope::Public) => Ok(()),
            (None, AddressScope::AllowedPrivate) => Err(GuardError::Url(
                "its port is open only inside the allowed private ranges, and its address is outside".into(),
            )),
        }
    }

    fn port_error(&self, port: u16) -> GuardError {
        let open: Vec<String> = self.rules.ports.iter().map(u16::to_string).collect();
        GuardError::Url(format!("port {port} is not open; allowed: {}", open.join(", ")))
    }
}
