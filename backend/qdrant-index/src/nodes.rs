//! The nodes of a cluster. If a node does not respond, a request goes to the next node.
use crate::InvalidAddress;
use futures::future::join_all;
use qdrant_client::{Qdrant, QdrantError};
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use store::index::engine::EngineError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit of the gRPC client. It is longer than the limits of all callers, so only theirs
/// apply.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time of a request on all nodes together. Some requests run inside a transaction, which
/// Postgres ends after 60 s without a statement.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(40);
/// Time after a failure in which a node gets a request only if no other node responds.
const AVOID_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum time of a request to such a node, if the other nodes also receive the request.
const AVOIDED_TIMEOUT: Duration = Duration::from_millis(500);
/// Number of connections to each node.
const CONNECTIONS_PER_NODE: usize = 2;
/// Codes of gRPC that show that a node is not available: cancelled, unknown, deadline exceeded,
/// resource exhausted, failed precondition, internal, unavailable. The client reports a failed
/// connection as internal.
const NODE_ERRORS: [i32; 7] = [1, 2, 4, 8, 9, 13, 14];
/// The code of gRPC for a collection that does not exist. A node that was restarted may lack a
/// collection that the others have.
const NOT_FOUND: i32 = 5;

pub(crate) struct Nodes {
    nodes: Vec<Node>,
    api_key: Option<String>,
}

struct Node {
    url: String,
    state: Mutex<State>,
}

struct State {
    client: Qdrant,
    /// Time of the last failed request. `None` after a request that succeeded.
    failed_at: Option<Instant>,
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.nodes.iter().map(|node| &node.url)).finish()
    }
}

impl Nodes {
    pub(crate) fn new(urls: &[String], api_key: Option<&str>) -> Result<Self, InvalidAddress> {
        let node = |url: &String| {
            let state = Mutex::new(State { client: new_client(url, api_key)?, failed_at: None });
            Ok(Node { url: url.clone(), state })
        };
        let nodes = urls.iter().map(node).collect::<Result<_, _>>()?;
        Ok(Self { nodes, api_key: api_key.map(str::to_owned) })
    }

    /// Sends a request to a node. Sends it to the next node if this one does not respond within
    /// `timeout`, or if its error is in [`NODE_ERRORS`]. The request must be repeatable, because a
    /// node may have executed it although its response was lost.
    ///
    /// # Errors
    /// Fails if no node responds, or if a node rejects the request.
    pub(crate) async fn call<T, F: Future<Output = Result<T, QdrantError>>>(
        &self,
        timeout: Duration,
        work: impl Fn(Qdrant) -> F,
    ) -> Result<T, EngineError> {
        let started = Instant::now();
        let mut last_error = EngineError("no node is configured".into());
        let (healthy, avoided): (Vec<&Node>, Vec<&Node>) =
            self.nodes.iter().partition(|node| !node.is_avoided());
        for node in healthy.into_iter().chain(avoided) {
            let remaining = TOTAL_TIMEOUT.saturating_sub(started.elapsed()).min(timeout);
            match self.send_to(node, remaining, &work).await {
                Ok(response) => return Ok(response),
                Err(Failure::Request(error)) => return Err(error),
                Err(Failure::Node(error) | Failure::NotFound(error)) => last_error = error,
            }
        }
        Err(last_error)
    }

    /// Sends a request concurrently to every node. Returns the responses. A node that failed in the
    /// last 10 seconds has half a second.
    ///
    /// # Errors
    /// Fails if no node responds, or if one rejects the request.
    pub(crate) async fn call_all<T, F: Future<Output = Result<T, QdrantError>>>(
        &self,
        timeout: Duration,
        work: impl Fn(Qdrant) -> F,
    ) -> Result<Vec<T>, EngineError> {
        let requests = self.nodes.iter().map(|node| {
            let limit = if node.is_avoided() { timeout.min(AVOIDED_TIMEOUT) } else { timeout };
            self.send_to(node, limit, &work)
        });
        let mut responses = Vec::new();
        let mut last_error = EngineError("no node is configured".into());
        for response in join_all(requests).await {
            match response {
                Ok(response) => responses.push(response),
                Err(Failure::Request(error)) => return Err(error),
                Err(Failure::Node(error) | Failure::NotFound(error)) => last_error = error,
            }
        }
        if responses.is_empty() { Err(last_error) } else { Ok(responses) }
    }

    async fn send_to<T, F: Future<Output = Result<T, QdrantError>>>(
        &self,
        node: &Node,
        timeout: Duration,
        work: &impl Fn(Qdrant) -> F,
    ) -> Result<T, Failure> {
        let url = &node.url;
        let request = work(node.state().client.clone());
        let failure = match tokio::time::timeout(timeout, request).await {
            Ok(Ok(response)) => {
                node.state().failed_at = None;
                return Ok(response);
            }
            Ok(Err(error)) => classify(url, &error),
            Err(_) => {
                // The connection may be broken without an error. A new client opens another one.
                if let Ok(client) = new_client(url, self.api_key.as_deref()) {
                    node.state().client = client;
                }
                Failure::Node(EngineError(format!("{url} did not respond within {timeout:?}")))
            }
        };
        if matches!(failure, Failure::Node(_)) {
            node.state().failed_at = Some(Instant::now());
        }
        Err(failure)
    }
}

impl Node {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_avoided(&self) -> bool {
        self.state().failed_at.is_some_and(|failed_at| failed_at.elapsed() < AVOID_INTERVAL)
    }
}

/// Returns a client. It connects when it is first used.
fn new_client(url: &str, api_key: Option<&str>) -> Result<Qdrant, InvalidAddress> {
    let mut config = Qdrant::from_url(url)
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(REQUEST_TIMEOUT)
        .skip_compatibility_check()
        .api_key(api_key);
    config.pool_size = CONNECTIONS_PER_NODE;
    config.build().map_err(|error| InvalidAddress { url: url.to_owned(), reason: error.to_string() })
}

enum Failure {
    /// The node is not available. Another one may be.
    Node(EngineError),
    /// The node lacks the collection. Another one may have it.
    NotFound(EngineError),
    /// The request failed. It would fail on the other nodes too.
    Request(EngineError),
}

fn classify(url: &str, error: &QdrantError) -> Failure {
    match error {
        QdrantError::ResponseError { status } => {
            let text = EngineError(format!("{url}: {}", status.message()));
            match i32::from(status.code()) {
                NOT_FOUND => Failure::NotFound(text),
                code if NODE_ERRORS.contains(&code) => Failure::Node(text),
                _ => Failure::Request(text),
            }
        }
        error => Failure::Request(EngineError(format!("{url}: {error}"))),
    }
}
