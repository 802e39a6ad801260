//! Runs the normal load, which is the daily requests of a tenant, and measures the latency of each
//! response.
use crate::common::service::client;
use crate::world::World;
use futures::{StreamExt, stream};
use reqwest::{Client, RequestBuilder};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

const CALLERS: usize = 3;

/// The requests of the normal tenant.
pub(crate) struct Load {
    client: Client,
    base: String,
    key: String,
    picture: Vec<u8>,
    face: String,
}

pub(crate) struct Latencies {
    sorted: Vec<Duration>,
    /// Latencies of each kind of request, sorted.
    kinds: BTreeMap<&'static str, Vec<Duration>>,
    /// The requests that failed, with the reason.
    pub(crate) failures: Vec<String>,
}

impl Load {
    pub(crate) fn of(world: &World) -> Self {
        Self {
            client: client(),
            base: world.base().to_owned(),
            key: world.normal.clone(),
            picture: testing::picture("ada.jpg"),
            face: world.faces[0].clone(),
        }
    }

    /// Returns request number `number`: health, lists, search and detection alternate.
    fn request(&self, number: usize) -> (&'static str, RequestBuilder) {
        let at = |path: &str| format!("{}{path}", self.base);
        let (what, request) = match number % 5 {
            0 => ("live", self.client.get(at("/health/live"))),
            1 => ("faces", self.client.get(at("/faces?limit=20"))),
            2 => {
                let picture = self.client.post(at("/faces/detect")).body(self.picture.clone());
                ("detect", picture.header("content-type", "image/jpeg"))
            }
            3 => ("search", self.client.post(at("/faces/search")).json(&json!({"face_id": self.face}))),
            _ => ("face", self.client.get(at(&format!("/faces/{}", self.face)))),
        };
        (what, request.bearer_auth(&self.key))
    }

    pub(crate) async fn run(&self, requests: usize) -> Latencies {
        let answers = stream::iter(0..requests).map(|number| async move {
            let (what, request) = self.request(number);
            let begun = Instant::now();
            let failure = match request.send().await {
                Ok(answer) if answer.status() == 200 => match answer.bytes().await {
                    Ok(_) => None,
                    Err(error) => Some(format!("{what}: {error}")),
                },
                Ok(answer) => {
                    let status = answer.status();
                    Some(format!("{what}: {status} {}", answer.text().await.unwrap_or_default()))
                }
                Err(error) => Some(format!("{what}: {error:?}")),
            };
            (what, begun.elapsed(), failure)
        });
        let answers: Vec<_> = answers.buffer_unordered(CALLERS).collect().await;
        let mut kinds: BTreeMap<_, Vec<Duration>> = BTreeMap::new();
        for (what, took, _) in &answers {
            kinds.entry(*what).or_default().push(*took);
        }
        let mut sorted: Vec<Duration> = kinds.values().flatten().copied().collect();
        sorted.sort_unstable();
        kinds.values_mut().for_each(|kind| kind.sort_unstable());
        let failures = answers.into_iter().filter_map(|(_, _, failure)| failure).collect();
        Latencies { sorted, kinds, failures }
    }
}

fn quantile(sorted: &[Duration], share: f64) -> Duration {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

impl Latencies {
    pub(crate) fn p99(&self) -> Duration {
        quantile(&self.sorted, 0.99)
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |f: &mut fmt::Formatter<'_>, what: &str, sorted: &[Duration]| {
            let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|share| quantile(sorted, share).as_millis());
            write!(f, "{} {what}, p50 {p50} ms, p95 {p95} ms, p99 {p99} ms", sorted.len())
        };
        show(f, "requests", &self.sorted)?;
        self.kinds.iter().try_for_each(|(kind, sorted)| {
            f.write_str("\n        ")?;
            show(f, kind, sorted)
        })
    }
}
