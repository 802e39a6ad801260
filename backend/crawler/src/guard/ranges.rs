//! Lists the special-purpose address ranges.
//!
//! Source: the IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890 and its updates) and
//! multicast (RFC 5771, RFC 4291). One address of a cloud platform is added: it is in public space
//! but reachable only inside that cloud. Each range is listed as a whole, even if the registry
//! marks parts of it as globally reachable (protocol anycast). Web sites do not use those parts.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// (first address, prefix length, name)
const V4: &[(Ipv4Addr, u32, &str)] = &[
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

/// (first address, prefix length, name). `special_v6` forbids all addresses outside 2000::/3.
/// Ranges outside it are listed only for their names.
const V6: &[(Ipv6Addr, u32, &str)] = &[
    (Ipv6Addr::UNSPECIFIED, 128, "unspecified"),
    (Ipv6Addr::LOCALHOST, 128, "loopback"),
    // NAT64 inside one network (RFC 8215). It is forbidden whatever IPv4 address it contains.
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

/// Returns the name of the special-purpose range that contains the address, or the IPv4 address
/// embedded in it.
pub(super) fn special(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(v4) => special_v4(v4),
        IpAddr::V6(v6) => special_v6(v6),
    }
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    let bits = address.to_bits();
    V4.iter().find(|(net, len, _)| (bits ^ net.to_bits()) >> (32 - len) == 0).map(|(_, _, name)| *name)
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    let bits = address.to_bits();
    let listed =
        V6.iter().find(|(net, len, _)| (bits ^ net.to_bits()) >> (128 - len) == 0).map(|(_, _, name)| *name);
    if let Some(form) = embedded(address) {
        // The name of the inner range is more specific. If the inner address is public, the outer
        // form determines the result.
        return special_v4(form.address).or(if form.forwards { None } else { listed.or(Some(form.name)) });
    }
    listed.or_else(|| (bits >> 125 != 0b001).then_some("not global unicast"))
}

pub(super) struct Embedded {
    pub(super) address: Ipv4Addr,
    /// Name of the form.
    pub(super) name: &'static str,
    /// Whether the form is legitimately used to reach public addresses. The socket connects to the
    /// inner address of an IPv4-mapped address; gateways translate NAT64 and 6to4.
    pub(super) forwards: bool,
}

/// Returns the IPv4 address embedded in an IPv6 address, if any. The forms are mapped and
/// compatible (RFC 4291), translated (RFC 2765), NAT64 (RFC 6052), 6to4 (RFC 3056) and Teredo (RFC
/// 4380, the client's address, stored inverted).
pub(super) fn embedded(address: Ipv6Addr) -> Option<Embedded> {
    let s = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low));
    let form = |address, name, forwards| Some(Embedded { address, name, forwards });
    match s {
        [0, 0, 0, 0, 0, 0xffff, a, b] => form(v4(a, b), "IPv4-mapped", true),
        [0, 0, 0, 0, 0xffff, 0, a, b] => form(v4(a, b), "IPv4-translated", false),
        [0, 0, 0, 0, 0, 0, a, b] if a != 0 => form(v4(a, b), "IPv4-compatible", false),
        [0x64, 0xff9b, 0, 0, 0, 0, a, b] => form(v4(a, b), "NAT64", true),
        [0x2002, a, b, ..] => form(v4(a, b), "6to4", true),
        [0x2001, 0, _, _, _, _, a, b] => form(v4(!a, !b), "Teredo", false),
        _ => None,
    }
}

#[cfg(test)]
pub(super) fn v4_table() -> impl Iterator<Item = (Ipv4Addr, u32)> {
    V4.iter().map(|(net, len, _)| (*net, *len))
}
