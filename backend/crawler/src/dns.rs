//! Resolves host names to addresses that passed the guard.
use crate::guard::{AddressScope, Guard, GuardError};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Looks up the addresses of a host name: the system's resolver, or scripted answers in tests.
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
            let answer = match lookup.lookup(name).await {
                Ok(answer) if answer.is_empty() => Err(NoAddress(format!("{name} has no IP address"))),
                Ok(answer) => Ok(answer),
                Err(error) => Err(NoAddress(format!("{name}: {error}"))),
            }?;
            let vetted: Result<Vec<IpAddr>, GuardError> = guard.check_answer(name, answer, scope);
            // The client replaces port 0 with the port of the URL.
            let addresses = vetted?.into_iter().map(|ip| SocketAddr::new(ip, 0));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}
