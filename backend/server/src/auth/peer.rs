//! Who is on the other end, where limits are per caller: a key, or the address where no key is
//! asked for.
use super::Caller;
use axum::http::{Extensions, request::Parts};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use uuid::Uuid;

/// The address that a connection comes from. Of IPv6 the first 64 bits: whoever has one address
/// there has them all. Behind a proxy it is the proxy's, since anybody can write into a header who
/// he is.
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
    /// Returns the address that the listener noted; requests that came through none share one.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        extensions.get().copied().unwrap_or(Self(IpAddr::V4(Ipv4Addr::UNSPECIFIED)))
    }
}

/// Whose share of something a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CallerId {
    Key(Uuid),
    Address(Peer),
}

impl CallerId {
    /// Returns the key of a request, or its address where no key is asked for.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        let key = extensions.get::<Caller>().and_then(Caller::key);
        key.map_or_else(|| Self::Address(Peer::of(extensions)), |key| Self::Key(key.id))
    }
}

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for CallerId {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self::of(&parts.extensions))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_network_of_ipv6_is_one_peer() {
        let peer = |text: &str| Peer::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:1"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_eq!(peer("::ffff:192.0.2.1"), peer("192.0.2.1"));
        assert_ne!(peer("192.0.2.1"), peer("192.0.2.2"));
    }
}
