//! Attacks with connections of slow senders and slow readers, and with floods of keys and of event
//! streams.
use super::{Attacks, PAUSE, Record};
use crate::world::World;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[derive(Clone)]
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    pub(crate) at_once: usize,
    /// Sent in one piece.
    pub(crate) head: Vec<u8>,
    /// Sent one byte at a time, with pauses.
    pub(crate) drip: Vec<u8>,
    /// Number of bytes read at a time, with pauses; 0 reads without pauses.
    pub(crate) read_size: usize,
    pub(crate) allowed: &'static [u16],
}

/// Number of bytes of a response that an attacker reads before it reconnects.
const ENOUGH: usize = 200;

pub(crate) fn request(address: &str, line: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("{line} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n");
    [head.as_bytes(), body].concat()
}

fn attacks(world: &World) -> Vec<Attack> {
    let address = world.address();
    let bearer = |scope: &str| format!("authorization: Bearer {}\r\n", world.hostile_key(scope));
    let plain =
        Attack { name: "", at_once: 1, head: Vec::new(), drip: Vec::new(), read_size: 0, allowed: &[] };
    let json = format!("{}content-type: application/json\r\ncontent-length: 40000000\r\n", bearer("analyze"));
    let picture = testing::picture("throng.jpg");
    let image =
        format!("{}content-type: image/jpeg\r\ncontent-length: {}\r\n", bearer("analyze"), picture.len());
    let long = format!("{}x-filler: {}\r\n", bearer("read"), "f".repeat(400 << 10));
    let foreign = format!(
        "{}content-type: application/json\r\norigin: http://evil.example\r\nsec-fetch-site: cross-site\r\ncontent-length: 2\r\n",
        bearer("erase")
    );
    let unknown = "authorization: Bearer fc_0000000000000000000000000000000000000000000\r\n";
    let events = format!("GET /crawls/{}/events", world.hostile_crawl);
    vec![
        Attack {
            name: "event streams",
            at_once: 30,
            head: request(&address, &events, &bearer("read"), b""),
            // An event stream ends only with the crawl or with the attack.
            read_size: 1,
            allowed: &[200, 429, 503],
            ..plain.clone()
        },
        Attack {
            name: "a head a byte at a time",
            at_once: 40,
            drip: request(&address, "GET /faces", "", b""),
            allowed: &[400, 401, 408],
            ..plain.clone()
        },
        Attack {
            name: "a body a byte at a time",
            at_once: 4,
            head: request(&address, "POST /faces/detect", &json, b""),
            drip: vec![b' '; 100],
            allowed: &[400, 408, 413, 422, 429, 503],
            ..plain.clone()
        },
        Attack {
            name: "a slow reader",
            at_once: 6,
            head: request(&address, "POST /images/enhance", &image, &picture),
            read_size: 2,
            allowed: &[200, 408, 413, 422, 429, 503],
            ..plain.clone()
        },
        Attack {
            name: "unknown keys",
            at_once: 8,
            head: request(&address, "GET /faces", unknown, b""),
            allowed: &[401, 429],
            ..plain.clone()
        },
        Attack {
            name: "a header of 400 KB",
            at_once: 2,
            head: request(&address, "GET /faces", &long, b""),
            allowed: &[400, 431],
            ..plain.clone()
        },
        Attack {
            name: "a foreign page",
            at_once: 1,
            head: request(&address, "POST /erasures", &foreign, b"{}"),
            allowed: &[400, 403, 404, 422, 429],
            ..plain
        },
    ]
}

pub(super) fn start(world: &World, all: &mut Attacks) {
    for attack in attacks(world) {
        let (name, at_once, address, attack) =
            (attack.name, attack.at_once, world.address(), Arc::new(attack));
        all.add(name, at_once, move |record| {
            let (attack, address) = (attack.clone(), address.clone());
            async move { run(&attack, &address, &record).await }
        });
    }
}

/// Runs an attack once and records the response.
pub(crate) async fn run(attack: &Attack, address: &str, record: &Record) {
    let answer = answer(attack, address).await;
    let text = String::from_utf8_lossy(&answer);
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    record.note(attack.name, status, attack.allowed, &text);
}

/// Returns the beginning of the response, or nothing if the connection ended without one.
async fn answer(attack: &Attack, address: &str) -> Vec<u8> {
    let mut answer = Vec::new();
    let Ok(mut stream) = TcpStream::connect(address).await else { return answer };
    if stream.write_all(&attack.head).await.is_ok() {
        for byte in &attack.drip {
            if stream.write_all(&[*byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
    let mut buffer = vec![0; if attack.read_size == 0 { 64 << 10 } else { attack.read_size }];
    while let Ok(read) = stream.read(&mut buffer).await
        && read > 0
        && answer.len() < ENOUGH
    {
        answer.extend_from_slice(&buffer[..read]);
        if attack.read_size > 0 {
            tokio::time::sleep(PAUSE).await;
        }
    }
    answer
}
