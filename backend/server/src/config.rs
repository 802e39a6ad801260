//! What the operator chose for the API.
use crate::hosts::PublicHost;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Who may call the API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auth {
    /// Everyone who can reach the port may use it.
    #[default]
    None,
    /// Holders of a key, each as far as its scopes and its collection go.
    Keys,
}

/// Limits and manners of the HTTP API.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who may call.
    pub auth: Auth,
    /// The address that the service listens on. Without keys, a request may name it as its host.
    pub listen: IpAddr,
    /// Further hosts that a request may name where no key is asked for, besides loopback names and
    /// `listen`.
    pub public_hosts: Vec<PublicHost>,
    /// Most rows that one call may delete without the confirmation token of a dry run.
    pub confirm_above: u64,
    /// Longest accepted image, in bytes of the file.
    pub image_limit: usize,
    /// Longest accepted body of a batch, in bytes.
    pub batch_limit: usize,
    /// Longest accepted JSON body that carries no image, in bytes.
    pub json_limit: usize,
    /// Bytes of bodies that are held at once, and as many again of images that are fetched for callers.
    pub body_budget: u64,
    /// Bytes of enhanced pictures that are held at once, until they have been read.
    pub answer_budget: u64,
    /// Most images in one batch.
    pub batch_images: usize,
    /// Images of one batch that are analysed at a time.
    pub batch_concurrency: usize,
    /// Analyses admitted at a time, running and waiting; one more is answered 429.
    pub max_analyses: usize,
    /// From the head of a request to the head of its answer; longer is answered 503 `timeout`.
    pub request_timeout: Duration,
    /// Time between two looks at a crawl whose events are followed.
    pub events_interval: Duration,
    /// Streams of events that one caller (a key, or an address without keys) may have open.
    pub max_streams: usize,
    /// Origins whose pages may call the API from a browser; empty is none.
    pub allow_origins: Vec<String>,
    /// Similarity from which `/faces/compare` says `match`, and below which search leaves a face out; `None` is the embedder's own.
    pub match_threshold: Option<f32>,
    /// How long a shutdown waits for accepted requests.
    pub drain: Duration,
    /// How long a connection may take to send the head of a request, and may stay open between two requests.
    pub connection_idle: Duration,
    /// How long a connection may go without writing, while there is something to write.
    pub write_stall: Duration,
    /// Connections open at a time; one more waits until another is closed.
    pub max_connections: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            auth: Auth::None,
            listen: IpAddr::V4(Ipv4Addr::LOCALHOST),
            public_hosts: Vec::new(),
            confirm_above: 100,
            image_limit: 25 << 20,
            batch_limit: 100 << 20,
            json_limit: 4 << 20,
            body_budget: 512 << 20,
            answer_budget: 512 << 20,
            batch_images: 64,
            batch_concurrency: 8,
            max_analyses: 256,
            request_timeout: Duration::from_secs(60),
            events_interval: Duration::from_millis(500),
            max_streams: 32,
            allow_origins: Vec::new(),
            match_threshold: None,
            drain: Duration::from_secs(20),
            connection_idle: Duration::from_secs(75),
            write_stall: Duration::from_secs(60),
            max_connections: 512,
        }
    }
}

impl Config {
    /// Longest accepted body of `count` multipart images: one image may fill its limit, two may too; a larger number shares the batch's limit.
    pub fn parts_limit(&self, count: usize) -> usize {
        const FRAMING: usize = 64 << 10;
        let batch = self.batch_limit.max(2 * self.image_limit) + FRAMING;
        (self.image_limit + FRAMING).saturating_mul(count).min(batch)
    }

    /// Longest accepted body that carries one image: the file as base64 in JSON, or with the seams of a multipart body.
    pub fn single_body_limit(&self) -> usize {
        self.image_limit / 3 * 4 + (64 << 10)
    }
}
