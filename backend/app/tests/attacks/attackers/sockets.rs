//! Attacks by connections: slow senders, slow readers, floods of keys and of event streams.
use super::Record;
use crate::world::World;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How a connection behaves.
#[derive(Clone)]
struct Attack {
    name: &'static str,
    at_once: usize,
    /// Sent at once.
    head: Vec<u8>,
    /// Sent a byte at a time, with pauses.
    drip: Vec<u8>,
    /// Bytes read at a time, with pauses; 0 reads without pauses.
    sip: usize,
    allowed: &'static [u16],
}

/// How much of an answer an attacker takes before it starts anew, in bytes.
const ENOUGH: usize = 200;

/// Between two bytes that are sent or sips that are taken.
const PAUSE: Duration = Duration::from_millis(50);

fn request(address: &str, line: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("{line} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n");
    [head.as_bytes(), body].concat()
}

fn attacks(world: &World) -> Vec<Attack> {
    let address = world.address();
    let bearer = |scope: &str| format!("authorization: Bearer {}\r\n", world.hostile_key(scope));
    let plain = Attack { name: "", at_once: 1, head: Vec::new(), drip: Vec::new(), sip: 0, allowed: &[] };
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
            // Nothing but the end of the crawl or of the attack ends a stream.
            sip: 1,
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
            sip: 2,
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

/// Starts every attack; returns their number.
pub(crate) fn start(
    world: &World,
    record: &Arc<Record>,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> usize {
    let attacks = attacks(world);
    let count = attacks.len();
    for attack in attacks {
        for _ in 0..attack.at_once {
            let (attack, record, stop, address) =
                (attack.clone(), record.clone(), stop.clone(), world.address());
            tasks.spawn(async move {
                while !stop.is_cancelled() {
                    tokio::select! {
                        () = stop.cancelled() => return,
                        answer = strike(&attack, &address) => {
                            let text = String::from_utf8_lossy(&answer);
                            let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
                            record.note(attack.name, status, attack.allowed, &text);
                            // An attacker whom the machine serves at once would take the test's own processor time.
                            tokio::time::sleep(PAUSE).await;
                        }
                    }
                }
            });
        }
    }
    count
}

/// The beginning of the answer; empty when the connection ended without one.
async fn strike(attack: &Attack, address: &str) -> Vec<u8> {
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
    let mut sip = vec![0; if attack.sip == 0 { 64 << 10 } else { attack.sip }];
    while let Ok(read) = stream.read(&mut sip).await
        && read > 0
        && answer.len() < ENOUGH
    {
        answer.extend_from_slice(&sip[..read]);
        if attack.sip > 0 {
            tokio::time::sleep(PAUSE).await;
        }
    }
    answer
}
