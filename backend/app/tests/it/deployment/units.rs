//! Checks the systemd units and the example configurations of proxies.
use crate::deployment::{accepts, read};
use app::config::variables;

const SERVICES: [&str; 2] = ["deploy/facecrawl.service", "deploy/facecrawl-worker@.service"];

fn values<'a>(unit: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    unit.lines().filter_map(move |line| line.strip_prefix(key)?.strip_prefix('='))
}

#[test]
fn services_start_commands_and_set_variables_that_the_program_has() {
    let names: Vec<&str> = variables().iter().map(|variable| variable.name).collect();
    for service in SERVICES {
        let unit = read(service);
        let command: Vec<&str> = values(&unit, "ExecStart").next().unwrap().split(' ').collect();
        assert!(command[0].ends_with("/facecrawl"), "{service}");
        accepts(&command[1..]).unwrap();
        for assignment in values(&unit, "Environment").flat_map(|line| line.split(' ')) {
            let (name, _) = assignment.split_once('=').unwrap();
            assert!(names.contains(&name), "{service}: {name}");
        }
        let drain = unit.split("DRAIN_SECONDS=").nth(1).unwrap().lines().next().unwrap();
        let stop = values(&unit, "TimeoutStopSec").next().unwrap();
        assert!(
            drain.parse::<u32>().unwrap() < stop.parse::<u32>().unwrap(),
            "{service}: stopped before it has drained"
        );
    }
}

#[test]
fn services_are_unprivileged_and_see_little_of_the_system() {
    for service in SERVICES {
        let unit = read(service);
        for line in [
            "DynamicUser=yes",
            "NoNewPrivileges=yes",
            "CapabilityBoundingSet=",
            "ProtectSystem=strict",
            "ProtectHome=yes",
            "PrivateTmp=yes",
            "PrivateDevices=yes",
            "SystemCallFilter=@system-service",
            "UMask=0077",
        ] {
            assert!(unit.lines().any(|found| found == line), "{service} has no line {line}");
        }
    }
    let port =
        read(".env.example").lines().find_map(|line| line.strip_prefix("#PORT=").map(str::to_owned)).unwrap();
    assert_eq!(
        values(&read("deploy/facecrawl.socket"), "ListenStream").next(),
        Some(format!("127.0.0.1:{port}").as_str())
    );
}

#[test]
fn proxies_let_the_largest_body_through_and_wait_longer_than_the_service_works() {
    let number = |text: &str, before: &str| -> u64 {
        let rest = text.split(before).nth(1).unwrap_or_else(|| panic!("{before} is missing")).trim_start();
        rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
    };
    let config = server::Config::default();
    let largest = config.batch_limit.max(config.single_body_limit()) as u64;
    let (answer, idle) = (config.request_timeout.as_secs(), config.connection_idle.as_secs());
    let (caddy, nginx) = (read("deploy/Caddyfile"), read("deploy/nginx.conf"));
    assert!(number(&caddy, "max_size") * 1_000_000 > largest);
    assert!(number(&nginx, "client_max_body_size") << 20 > largest);
    let of_videos = |text: &str, before: &str| text[text.find(before).unwrap()..].to_owned();
    let video = server::Config::default().max_video_bytes;
    assert!(number(&of_videos(&caddy, "request_body @videos"), "max_size") * 1_000_000 > video);
    let nginx_videos = of_videos(&nginx, "location = /videos {");
    assert!(number(&nginx_videos, "client_max_body_size") << 20 > video);
    assert!(nginx_videos.contains("proxy_request_buffering off"));
    assert!(
        number(&caddy, "response_header_timeout") > answer && number(&nginx, "proxy_read_timeout") > answer
    );
    assert!(number(&caddy, "\t\t\tkeepalive") < idle && number(&nginx, "\n    keepalive_timeout") < idle);
    // Proxies do not buffer events.
    assert!(caddy.contains("flush_interval -1") && nginx.contains("proxy_buffering off"));
}
