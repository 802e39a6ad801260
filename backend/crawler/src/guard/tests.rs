#![allow(clippy::unwrap_used)]
use super::*;
use proptest::prelude::*;

fn guard() -> Guard {
    Guard::new(&Config::default())
}

fn guard_with_ranges(nets: &[&str]) -> Guard {
    Guard::new(&Config {
        allow_private: nets.iter().map(|net| net.parse().unwrap()).collect(),
        ..Config::default()
    })
}

/// Returns `ok`, `url`, the name of the range, or `syntax` for a URL that cannot be parsed.
fn check(guard: &Guard, text: &str) -> String {
    match Url::parse(text) {
        Err(_) => "syntax".into(),
        Ok(url) => match guard.check_url(&url) {
            Ok(()) => "ok".into(),
            Err(GuardError::Url(_)) => "url".into(),
            Err(GuardError::Address { range, .. }) => range.into(),
        },
    }
}

#[test]
fn guard_checks_urls_without_dns() {
    let guard = guard();
    for (text, expected) in [
        ("http://example.com/", "ok"),
        ("https://example.com/", "ok"),
        ("https://example.com:443/", "ok"),
        ("http://example.com:443/", "ok"),
        ("http://93.184.215.14/", "ok"),
        ("http://[2606:2800:21f:cb07:6820:80da:af6b:8b2c]/", "ok"),
        ("http://example.com./", "ok"),
        ("http://müller.example/", "ok"),
        // Schemes
        ("ftp://example.com/", "url"),
        ("file:///etc/passwd", "url"),
        ("gopher://example.com/", "url"),
        ("data:text/html,x", "url"),
        ("javascript:alert(1)", "url"),
        ("ws://example.com/", "url"),
        // Userinfo
        ("http://user@example.com/", "url"),
        ("http://user:secret@example.com/", "url"),
        ("http://:secret@example.com/", "url"),
        ("http://example.com@127.0.0.1/", "url"),
        ("http://93.184.215.14\\@127.0.0.1/", "ok"),
        // Ports
        ("http://example.com:22/", "url"),
        ("http://example.com:8080/", "url"),
        ("http://93.184.215.14:6379/", "url"),
        ("http://example.com:0/", "url"),
        ("http://example.com:65536/", "syntax"),
        // Invalid host names
        ("http://./", "url"),
        ("http://a..b/", "url"),
        ("http://%00/", "syntax"),
        ("http:///", "syntax"),
        // IPv4 in every notation
        ("http://127.0.0.1/", "loopback"),
        ("http://127.0.0.1./", "loopback"),
        ("http://127.1/", "loopback"),
        ("http://127.0.1/", "loopback"),
        ("http://2130706433/", "loopback"),
        ("http://017700000001/", "loopback"),
        ("http://0x7f000001/", "loopback"),
        ("http://0x7f.1/", "loopback"),
        ("http://0177.0.0.0x1/", "loopback"),
        ("http://0x7f.0x0.0x0.0x1/", "loopback"),
        ("http://0177.0000.0000.0001/", "loopback"),
        ("http://%31%32%37.0.0.1/", "loopback"),
        ("http://127。0。0。1/", "loopback"),
        ("http://１２７.0.0.1/", "loopback"),
        ("http://①②⑦.⓪.⓪.①/", "loopback"),
        ("http://127.0.0.1:80/", "loopback"),
        ("http://0/", "this network"),
        ("http://0.0.0.0/", "this network"),
        ("http://10.1.2.3/", "private use"),
        ("http://012.1.2.3/", "private use"),
        ("http://172.16.0.1/", "private use"),
        ("http://172.31.255.255/", "private use"),
        ("http://172.32.0.1/", "ok"),
        ("http://192.168.1.1/", "private use"),
        ("http://3232235777/", "private use"),
        ("http://100.64.0.1/", "shared address space"),
        ("http://100.100.100.200/", "shared address space"),
        ("http://169.254.169.254/latest/meta-data/", "link-local"),
        ("http://0xa9fea9fe/", "link-local"),
        ("http://2852039166/", "link-local"),
        ("http://168.63.129.16/", "cloud platform"),
        ("http://192.0.0.192/", "protocol assignments"),
        ("http://192.0.2.1/", "documentation"),
        ("http://192.88.99.1/", "6to4 relay"),
        ("http://198.18.0.1/", "benchmarking"),
        ("http://198.19.255.255/", "benchmarking"),
        ("http://224.0.0.1/", "multicast"),
        ("http://240.0.0.1/", "reserved"),
        ("http://255.255.255.255/", "reserved"),
        ("http://256.0.0.1/", "syntax"),
        ("http://127.0.0.1.1/", "syntax"),
        ("http://0x1ffffffff/", "syntax"),
        // IPv6
        ("http://[::1]/", "loopback"),
        ("http://[0:0:0:0:0:0:0:1]/", "loopback"),
        ("http://[::]/", "unspecified"),
        ("http://[fe80::1]/", "link-local"),
        ("http://[fe80::1%25eth0]/", "syntax"),
        ("http://[fe80::1%eth0]/", "syntax"),
        ("http://[fec0::1]/", "site-local"),
        ("http://[fc00::1]/", "unique local"),
        ("http://[fd00:ec2::254]/", "unique local"),
        ("http://[ff02::1]/", "multicast"),
        ("http://[100::1]/", "discard only"),
        ("http://[2001:db8::1]/", "documentation"),
        ("http://[3fff::1]/", "documentation"),
        ("http://[5f00::1]/", "segment routing"),
        ("http://[2001:10::1]/", "protocol assignments"),
        ("http://[4000::1]/", "not global unicast"),
        // IPv4 inside IPv6
        ("http://[::ffff:127.0.0.1]/", "loopback"),
        ("http://[::ffff:7f00:1]/", "loopback"),
        ("http://[0:0:0:0:0:ffff:7f00:1]/", "loopback"),
        ("http://[::ffff:93.184.215.14]/", "ok"),
        ("http://[::ffff:0:127.0.0.1]/", "loopback"),
        ("http://[::ffff:0:93.184.215.14]/", "IPv4-translated"),
        ("http://[::127.0.0.1]/", "loopback"),
        ("http://[::93.184.215.14]/", "IPv4-compatible"),
        ("http://[64:ff9b::127.0.0.1]/", "loopback"),
        ("http://[64:ff9b::169.254.169.254]/", "link-local"),
        ("http://[64:ff9b::93.184.215.14]/", "ok"),
        ("http://[64:ff9b:1:7f00:0:100::]/", "local-use translation"),
        ("http://[64:ff9b:1::10.0.0.1]/", "local-use translation"),
        ("http://[64:ff9b:1:5db8:d7:e00:5db8:d70e]/", "local-use translation"),
        ("http://[2002:7f00:1::]/", "loopback"),
        ("http://[2002:c0a8:101::1]/", "private use"),
        ("http://[2002:5db8:d70e::1]/", "ok"),
        ("http://[2002:a9fe:a9fe::1]/", "link-local"),
        ("http://[2002:a01:203:5::1]/", "private use"),
        ("http://[64:ff9b::10.1.2.3]/", "private use"),
        ("http://[64:ff9b::c0a8:101]/", "private use"),
        ("http://[64:ff9b::100.64.0.1]/", "shared address space"),
        // Names in other scripts, and the addresses that they normalise to
        ("http://bücher.example/", "ok"),
        ("http://xn--bcher-kva.example/", "ok"),
        ("http://BÜCHER.example/", "ok"),
        ("http://ｅｘａｍｐｌｅ.com/", "ok"),
        ("http://example。com/", "ok"),
        ("http://xn--/", "syntax"),
        ("http://xn--a/", "syntax"),
        ("http://xn--0.example/", "syntax"),
        ("http://１０．１．２．３/", "private use"),
        ("http://127｡0｡0｡1/", "loopback"),
        ("http://１２７．１/", "loopback"),
        ("http://0ⅹ7f.1/", "loopback"),
        ("http://²¹³⁰⁷⁰⁶⁴³³/", "loopback"),
        ("http://𝟏𝟐𝟕.𝟎.𝟎.𝟏/", "loopback"),
        ("http://⑯⑨.②⑤④.⑯⑨.②⑤④/", "link-local"),
        ("http://127.0.0\u{ad}.1/", "loopback"),
        ("http://127.0\u{200b}.0.1/", "loopback"),
        ("http://[：：1]/", "syntax"),
        // Zones
        ("http://[fe80::1%251]/", "syntax"),
        ("http://[::1%25lo]/", "syntax"),
        ("http://[fe80::1%25]/", "syntax"),
        // Trailing dots
        ("http://0x7f.1./", "loopback"),
        ("http://2130706433./", "loopback"),
        ("http://１２７.0.0.1。/", "loopback"),
        ("http://example.com../", "url"),
        ("http://[::1]./", "syntax"),
        ("http://[2001:0:5db8:d70e::f5fe:fdfc]/", "private use"),
        ("http://[2001:0:a00:1::a247:28f1]/", "Teredo"),
        // Teredo inverts the bits of the client's address: 80ff:fffe is 127.0.0.1
        ("http://[2001:0:5db8:d70e::80ff:fffe]/", "loopback"),
        ("http://[2001:0:5db8:d70e::a247:28f1]/", "Teredo"),
    ] {
        assert_eq!(check(&guard, text), expected, "{text}");
    }
}

#[test]
fn allowed_private_ranges_permit_any_port() {
    let guard = guard_with_ranges(&["127.0.0.0/8", "fd12::/16"]);
    for (text, expected) in [
        ("http://127.0.0.1/", "ok"),
        ("http://127.0.0.1:54321/", "ok"),
        ("http://2130706433:8080/", "ok"),
        ("http://[::ffff:127.0.0.1]:8080/", "ok"),
        ("http://[fd12::1]:9000/", "ok"),
        // A gateway would translate these addresses. They do not lead to the loopback interface of
        // this machine.
        ("http://[64:ff9b::127.0.0.1]/", "loopback"),
        ("http://[2002:7f00:1::]/", "loopback"),
        ("http://[::1]/", "loopback"),
        ("http://[fd13::1]/", "unique local"),
        ("http://10.0.0.1/", "private use"),
        ("http://169.254.169.254/", "link-local"),
        ("http://93.184.215.14/", "ok"),
        ("http://93.184.215.14:8080/", "url"),
        // A name is not resolved yet.
        ("http://localhost:8080/", "ok"),
        ("http://user@127.0.0.1/", "url"),
    ] {
        assert_eq!(check(&guard, text), expected, "{text}");
    }
}

#[test]
fn allowed_ports_are_configurable() {
    let guard = Guard::new(&Config { ports: vec![8443], ..Config::default() });
    assert_eq!(check(&guard, "https://example.com:8443/"), "ok");
    assert_eq!(check(&guard, "https://example.com/"), "url");
    let error = guard.check_url(&Url::parse("http://example.com:81/").unwrap()).unwrap_err();
    assert!(error.to_string().contains("port 81 is not open; allowed: 8443"), "{error}");
}

#[test]
fn rejects_dns_response_with_any_forbidden_address() {
    let public: IpAddr = "93.184.215.14".parse().unwrap();
    let loopback: IpAddr = "127.0.0.1".parse().unwrap();
    let v6_loopback: IpAddr = "::1".parse().unwrap();
    let default_guard = guard();
    assert!(default_guard.check_dns_response("a.example", vec![public], AddressScope::Public).is_ok());
    let parse = |text: &str| -> IpAddr { text.parse().unwrap() };
    for addresses in [
        vec![public, loopback],
        vec![loopback, public],
        vec![public, v6_loopback],
        vec![public, parse("::ffff:127.0.0.1")],
        vec![public, parse("64:ff9b::7f00:1")],
        vec![public, public, parse("2002:7f00:1::")],
        vec![parse("2001:0:5db8:d70e::80ff:fffe"), public],
    ] {
        assert!(matches!(
            default_guard.check_dns_response("a.example", addresses, AddressScope::Public),
            Err(GuardError::Address { range: "loopback", .. })
        ));
    }
    let local_guard = guard_with_ranges(&["127.0.0.0/8"]);
    // On a port that is open only in the allowed private ranges, other addresses are rejected.
    assert!(
        local_guard.check_dns_response("a.example", vec![loopback], AddressScope::AllowedPrivate).is_ok()
    );
    assert!(local_guard.check_dns_response("a.example", vec![public], AddressScope::AllowedPrivate).is_err());
    // Only `localhost` is filtered.
    assert!(
        local_guard
            .check_dns_response("a.example", vec![v6_loopback, loopback], AddressScope::Public)
            .is_err()
    );
    let check_localhost = |guard: &Guard| {
        guard.check_dns_response("localhost", vec![v6_loopback, loopback], AddressScope::Public)
    };
    assert_eq!(check_localhost(&local_guard).unwrap(), vec![loopback]);
    assert!(check_localhost(&default_guard).is_err());
}

/// Generates addresses of the special-purpose IPv4 ranges.
fn special_v4() -> impl Strategy<Value = Ipv4Addr> {
    (proptest::sample::select(SPECIAL_V4_RANGES), any::<u32>()).prop_map(|((net, len, _), host)| {
        let host_bits = host & u32::MAX.checked_shr(len).unwrap_or(0);
        Ipv4Addr::from_bits(net.to_bits() | host_bits)
    })
}

proptest! {
    #[test]
    fn rejects_special_ipv4_addresses_in_every_encoding(address in special_v4(), random_bits in any::<u64>()) {
        let [a, b, c, d] = address.octets();
        let high = (u16::from(a) << 8) | u16::from(b);
        let low = (u16::from(c) << 8) | u16::from(d);
        let guard = guard();
        let random = |shift: u32| (random_bits >> shift) as u16;
        for form in [
            address.to_ipv6_mapped(),
            Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low),
            Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, high, low),
            Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
            Ipv6Addr::new(0x64, 0xff9b, 1, random(0), random(16), random(32), high, low),
            Ipv6Addr::new(0x64, 0xff9b, 1, high, u16::from(c), u16::from(d) << 8, random(0), random(16)),
            Ipv6Addr::new(0x2002, high, low, random(0), random(16), random(32), random(48), 1),
            Ipv6Addr::new(0x2001, 0, random(0), random(16), random(32), random(48), !high, !low),
        ] {
            prop_assert!(guard.check_address(form.into(), 80).is_err(), "{form} for {address}");
        }
        prop_assert!(guard.check_address(address.into(), 80).is_err());
        // Host names with one number or octal parts are IPv4 addresses too.
        for host in [address.to_bits().to_string(), format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"), format!("{:#x}", address.to_bits())] {
            let url = Url::parse(&format!("http://{host}/")).unwrap();
            prop_assert!(guard.check_url(&url).is_err(), "{host}");
        }
    }

    #[test]
    fn rejects_ipv6_outside_global_unicast(bits in any::<u128>()) {
        let address = Ipv6Addr::from_bits(bits);
        let is_allowed = guard().check_address(address.into(), 80).is_ok();
        prop_assert!(!is_allowed || bits >> 125 == 1, "{address}");
    }
}

#[tokio::test]
async fn guard_for_any_port_checks_every_address_of_a_host() {
    struct Fixed(&'static [&'static str]);
    #[async_trait::async_trait]
    impl Lookup for Fixed {
        async fn lookup(&self, _name: &str) -> std::io::Result<Vec<IpAddr>> {
            Ok(self.0.iter().map(|text| text.parse().unwrap()).collect())
        }
    }
    let guard = Guard::with_any_port(vec!["10.1.0.0/16".parse().unwrap()]);
    let name = Host::Domain("camera.example".to_owned());
    let resolve = async |addresses| guard.resolve(&name, 8554, &Fixed(addresses)).await;
    assert_eq!(
        resolve(&["93.184.215.14", "10.1.2.3"]).await.unwrap(),
        ["93.184.215.14:8554".parse().unwrap(), "10.1.2.3:8554".parse().unwrap()]
    );
    // One forbidden address makes the whole answer forbidden.
    for addresses in [&["93.184.215.14", "10.2.0.1"][..], &["169.254.169.254"], &["::1"]] {
        assert!(matches!(resolve(addresses).await, Err(ResolveError::Guard(GuardError::Address { .. }))));
    }
    assert!(matches!(resolve(&[]).await, Err(ResolveError::Lookup(_))));
    let literal = Host::Ipv4([127, 0, 0, 1].into());
    assert!(matches!(guard.resolve(&literal, 554, &Fixed(&[])).await, Err(ResolveError::Guard(_))));
    assert_eq!(check(&guard, "http://93.184.215.14:8080/"), "ok");
    assert_eq!(check(&guard, "http://10.1.0.1:8080/"), "ok");
    assert_eq!(check(&guard, "http://10.2.0.1/"), "private use");
}
