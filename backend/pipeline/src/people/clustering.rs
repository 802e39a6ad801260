//! Handles `cluster_collection`: runs a clustering in steps, which are in the module `cluster`.

use crate::domain::jobs::{self, ClusterJob};
use crate::domain::turn::{TURN, Turn};
use crate::people::clusters::{ClusterError, Step, scope_of, step};
use queue::{ClaimedJob, Handler, Outcome, Queue, QueueError};
use std::time::Duration;
use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub(crate) struct ClusterCollection {
    store: Store,
    queue: Queue,
}

#[async_trait::async_trait]
impl Handler for ClusterCollection {
    async fn run(&self, job: ClaimedJob, cancel: CancellationToken) -> Outcome {
        let payload: ClusterJob = match jobs::read(&job.payload) {
            Ok(payload) => payload,
            Err(error) => return Outcome::Discard(error),
        };
        let error = match self.cluster(payload.clustering_id, &job, &cancel).await {
            Ok(outcome) => return outcome,
            Err(ClusterError::Queue(QueueError::Stale(_))) => return Outcome::Stale,
            // The clustering was deleted with its collection.
            Err(ClusterError::Store(StoreError::NotFound { .. })) => return Outcome::Done,
            Err(error) => error.to_string(),
        };
        // Each step resets the number of attempts.
        match self.queue.attempt(job.claim).await {
            Ok(attempt) if attempt < job.max_attempts => return Outcome::Retry(error, None),
            Ok(_) => {}
            Err(QueueError::Stale(_)) => return Outcome::Stale,
            Err(also) => return Outcome::Retry(format!("{error}; {also}"), None),
        }
        match self.give_up(payload.clustering_id, &error).await {
            Ok(()) => Outcome::Discard(error),
            Err(also) => Outcome::Discard(format!("{error}; the failure could not be recorded: {also}")),
        }
    }
}

impl ClusterCollection {
    pub(crate) fn new(store: Store, queue: Queue) -> Self {
        Self { store, queue }
    }

    async fn cluster(
        &self,
        id: Uuid,
        job: &ClaimedJob,
        cancel: &CancellationToken,
    ) -> Result<Outcome, ClusterError> {
        let (claim, turn) = (job.claim, Turn::of(&self.queue, job, TURN));
        let run = self.store.clustering(id).await?;
        let left = self.store.count_unclustered(&scope_of(&run)).await?;
        if !self.store.resume_clustering(id, left).await? {
            return Ok(Outcome::Done);
        }
        let mut after = Uuid::nil();
        loop {
            if cancel.is_cancelled() || turn.is_over().await {
                // Finished steps are stored, so the next claim continues with the other faces.
                return Ok(Outcome::Snooze(Duration::ZERO));
            }
            match step(&self.store, &self.queue, claim, &run, after).await? {
                Step::Done(last) => after = last,
                Step::Over => return Ok(Outcome::Done),
                Step::NoneLeft => break,
            }
        }
        let mut tx = self.store.begin().await?;
        self.queue.complete(tx.conn(), claim).await?;
        self.store.end_clustering(tx.conn(), id, None).await?;
        tx.commit().await?;
        tracing::info!(collection = %run.collection_id, clustering = %id, "faces clustered");
        Ok(Outcome::Settled)
    }

    async fn give_up(&self, id: Uuid, error: &str) -> Result<(), StoreError> {
        let mut tx = self.store.begin().await?;
        self.store.end_clustering(tx.conn(), id, Some(error)).await?;
        tx.commit().await
    }
}
