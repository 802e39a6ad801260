//! The nodes of a cluster. A call goes to one node, and to the next one if it does not answer.
use crate::InvalidAddress;
use qdrant_client::{Qdrant, QdrantError};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use store::vector_engine::EngineError;

/// Maximum time to connect to a node.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time of a request, for the client. The callers have shorter limits.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of connections to each node.
const CONNECTIONS: usize = 2;
/// Codes of gRPC with which another node may answer: cancelled, unknown, deadline exceeded,
/// internal, unavailable. The client reports a failed connection as internal.
const OF_NODE: [i32; 5] = [1, 2, 4, 13, 14];

/// The nodes, and the one that answered last.
pub(crate) struct Nodes {
    nodes: Vec<(String, Qdrant)>,
    preferred: AtomicUsize,
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.nodes.iter().map(|(url, _)| url)).finish()
    }
}

impl Nodes {
    pub(crate) fn new(urls: &[String], api_key: Option<&str>) -> Result<Self, InvalidAddress> {
        let node = |url: &String| {
            let invalid = |reason: String| InvalidAddress { url: url.clone(), reason };
            let builder = Qdrant::from_url(url)
                .connect_timeout(CONNECT_TIMEOUT)
                .timeout(REQUEST_TIMEOUT)
                .keep_alive_while_idle()
                .skip_compatibility_check()
                .api_key(api_key);
            let mut config = builder;
            config.pool_size = CONNECTIONS;
            let client = config.build().map_err(|error| invalid(error.to_string()))?;
            Ok((url.clone(), client))
        };
        let nodes: Vec<_> = urls.iter().map(node).collect::<Result<_, _>>()?;
        Ok(Self { nodes, preferred: AtomicUsize::new(0) })
    }

    /// Runs `work` on the node that answered last; if it does not answer within `timeout`, on the
    /// others. Work that changes something must be repeatable, because a node may have done it
    /// although its answer was lost.
    pub(crate) async fn call<T, F: Future<Output = Result<T, QdrantError>>>(
        &self,
        timeout: Duration,
        work: impl Fn(Qdrant) -> F,
    ) -> Result<T, EngineError> {
        let first = self.preferred.load(Ordering::Relaxed);
        let mut failed = EngineError("no node is configured".into());
        for at in 0..self.nodes.len() {
            let at = (first + at) % self.nodes.len();
            match self.ask(at, timeout, &work).await {
                Ok(answer) => {
                    self.preferred.store(at, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(Failure::Request(error)) => return Err(error),
                Err(Failure::Node(error)) => failed = error,
            }
        }
        Err(failed)
    }

    /// Runs `work` on every node, one after the other. Returns the answers of the nodes that answer.
    /// Fails if no node does.
    pub(crate) async fn each<T, F: Future<Output = Result<T, QdrantError>>>(
        &self,
        timeout: Duration,
        work: impl Fn(Qdrant) -> F,
    ) -> Result<Vec<T>, EngineError> {
        let mut answers = Vec::new();
        let mut failed = EngineError("no node is configured".into());
        for at in 0..self.nodes.len() {
            match self.ask(at, timeout, &work).await {
                Ok(answer) => answers.push(answer),
                Err(Failure::Request(error)) => return Err(error),
                Err(Failure::Node(error)) => failed = error,
            }
        }
        if answers.is_empty() { Err(failed) } else { Ok(answers) }
    }

    async fn ask<T, F: Future<Output = Result<T, QdrantError>>>(
        &self,
        at: usize,
        timeout: Duration,
        work: &impl Fn(Qdrant) -> F,
    ) -> Result<T, Failure> {
        let (url, client) = &self.nodes[at];
        match tokio::time::timeout(timeout, work(client.clone())).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(failure(url, &error)),
            Err(_) => Err(Failure::Node(EngineError(format!("{url} did not answer within {timeout:?}")))),
        }
    }
}

/// Why a node did not do its work.
enum Failure {
    /// The node is not available. Another one may be.
    Node(EngineError),
    /// The request failed. It would fail on the other nodes too.
    Request(EngineError),
}

fn failure(url: &str, error: &QdrantError) -> Failure {
    match error {
        QdrantError::ResponseError { status } => {
            let text = EngineError(format!("{url}: {}", status.message()));
            match OF_NODE.contains(&i32::from(status.code())) {
                true => Failure::Node(text),
                false => Failure::Request(text),
            }
        }
        error => Failure::Request(EngineError(format!("{url}: {error}"))),
    }
}
