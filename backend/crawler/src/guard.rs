//! Which URLs and addresses may be reached.
use crate::Config;
use std::net::IpAddr;
use std::sync::Arc;
use url::Url;

/// Why a URL or an address is forbidden.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    /// Scheme, userinfo, port, or a host that is no host.
    #[error("the URL is not allowed: {0}")]
    Url(String),
    /// The host is, or resolves to, a forbidden address.
    #[error("the address {address} ({range}) is not allowed")]
    Address {
        /// The address.
        address: IpAddr,
        /// The special-purpose range it lies in.
        range: &'static str,
    },
}

/// The rules; cheap to clone.
#[derive(Clone)]
pub struct Guard {
    _config: Arc<Config>,
}

impl Guard {
    /// The rules of a configuration.
    pub fn new(_config: &Config) -> Self {
        todo!()
    }
    /// Everything that can be said without DNS.
    pub fn check_url(&self, _url: &Url) -> Result<(), GuardError> {
        todo!()
    }
    /// An address that a name resolved to (or a literal), with the port to connect to.
    pub fn check_address(&self, _address: IpAddr, _port: u16) -> Result<(), GuardError> {
        todo!()
    }
}
