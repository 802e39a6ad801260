//! Identifies the request that the current task processes: its id, its deadline and its caller. The
//! layers in `middleware` set them.
use axum::http::Extensions;
use inference::Requester;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;
use uuid::Uuid;

tokio::task_local! {
    static ID: String;
    static DEADLINE: Instant;
    static CALLER: CallerId;
}

/// Returns the id of the current request, or an empty string outside of a request.
pub(crate) fn id() -> String {
    ID.try_with(Clone::clone).unwrap_or_default()
}

/// Returns the deadline of the current request. Work that has not started by then can be skipped.
pub(crate) fn deadline() -> Option<Instant> {
    DEADLINE.try_with(|deadline| *deadline).ok()
}

pub(crate) async fn with_id<T>(id: String, future: impl Future<Output = T>) -> T {
    ID.scope(id, future).await
}

pub(crate) async fn with_deadline<T>(deadline: Instant, future: impl Future<Output = T>) -> T {
    DEADLINE.scope(deadline, future).await
}

/// The remote address of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteAddress(pub(crate) IpAddr);

/// Identifies the remote address of a connection for limits. IPv6 addresses are truncated to the
/// first 64 bits, because one host usually controls such a network completely. Behind a proxy, the
/// remote address is that of the proxy. Headers are not used, because any caller can forge them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peer(IpAddr);

impl From<IpAddr> for Peer {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
            address => address,
        })
    }
}

impl Peer {
    /// The common address of requests that came through no listener.
    const NONE: Self = Self(IpAddr::V4(Ipv4Addr::UNSPECIFIED));

    /// Returns the address that the listener recorded.
    pub(crate) fn from_extensions(extensions: &Extensions) -> Self {
        extensions.get().copied().unwrap_or(Self::NONE)
    }
}

/// Identifies the caller whose share of a resource a request uses. All keys of one collection use
/// one share, because a caller who may create keys can create many. Each key to all collections is
/// a separate caller. If requests need no key, each address is a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CallerId {
    /// A caller with a key to one collection, identified by the id of the collection.
    Tenant(Uuid),
    /// A caller with a key to all collections, identified by the id of the key.
    Key(Uuid),
    /// A person whom a proxy named, identified by [`Person::id`](crate::auth::Person::id).
    Person(Uuid),
    Address(Peer),
}

impl CallerId {
    /// Returns the caller of the request that this task handles, else the placeholder address.
    pub(crate) fn current() -> Self {
        CALLER.try_with(|caller| *caller).unwrap_or(Self::Address(Peer::NONE))
    }

    pub(crate) async fn scope<T>(self, future: impl Future<Output = T>) -> T {
        CALLER.scope(self, future).await
    }
}

impl From<CallerId> for Requester {
    fn from(caller: CallerId) -> Self {
        Self(match caller {
            CallerId::Tenant(id) | CallerId::Key(id) | CallerId::Person(id) => id.as_u128(),
            CallerId::Address(Peer(IpAddr::V4(address))) => address.to_ipv6_mapped().to_bits(),
            CallerId::Address(Peer(IpAddr::V6(address))) => address.to_bits(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ipv6_network_counts_as_one_peer() {
        let peer = |text: &str| Peer::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:1"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_eq!(peer("::ffff:192.0.2.1"), peer("192.0.2.1"));
        assert_ne!(peer("192.0.2.1"), peer("192.0.2.2"));
    }
}
