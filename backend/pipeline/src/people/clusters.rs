//! Groups the faces of a collection by person: starts a run, and executes one step of it. The job
//! that repeats the steps is in `worker::clustering`.
//!
//! A step processes a small batch of faces that no run has processed, in the order of their ids.
//! The store's search returns their nearest neighbours. The subjects of all these faces, and the
//! faces without a subject, are the units of an agglomerative clustering with average linkage
//! ([`linkage`]).
//!
//! Each step is one transaction. Memory is therefore bounded by the batch, and a killed run
//! continues where it stopped. A later run processes only new faces: it extends and merges clusters
//! and never splits them.

mod linkage;

use crate::domain::jobs::ClusterJob;
use queue::{Claim, Queue, QueueError};
use std::collections::{BTreeSet, HashMap};
use store::people::clusters::ClusterScope;
use store::people::clusters::Clustering;
use store::{Store, StoreError, retried};
use uuid::Uuid;

/// Number of faces that one step processes.
const BATCH: i64 = 500;
/// Maximum number of neighbours of a face.
const NEIGHBOURS: i64 = 24;

/// Returns the default for the minimum mean similarity at which clusters are merged. `margin` is
/// that of the embedder. It is higher than the match threshold, because a face is compared with the
/// whole collection. An error that is rare in one comparison would occur for many faces.
pub fn default_threshold(match_threshold: f32, margin: f32) -> f32 {
    (match_threshold + margin).min(1.0)
}

#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Queue(#[from] QueueError),
}

crate::domain::transient::transient!(ClusterError);

/// Starts clusterings. Cloning it is cheap.
#[derive(Clone)]
pub struct Clusters {
    store: Store,
    queue: Queue,
}

impl Clusters {
    /// Creates a `Clusters` value for a migrated database.
    pub fn new(store: Store, queue: Queue) -> Self {
        Self { store, queue }
    }

    /// Inserts a run and its job in one transaction, and returns the run and `true`. If a run is in
    /// progress, returns that run and `false`, and enqueues its job if it has none.
    ///
    /// # Errors
    /// Fails with [`ClusterError`] if the store or the queue fails.
    pub async fn begin(
        &self,
        scope: &ClusterScope,
        threshold: f32,
    ) -> Result<(Clustering, bool), ClusterError> {
        let begun = retried("begin_clustering", || async {
            let mut tx = self.store.begin().await?;
            let begun = self.store.begin_clustering(tx.conn(), scope, threshold).await?;
            let (Ok(id) | Err(id)) = begun;
            self.queue
                .enqueue(tx.conn(), &[ClusterJob { clustering_id: id }.job(scope.collection_id)])
                .await?;
            tx.commit().await?;
            Ok::<_, ClusterError>(begun)
        })
        .await?;
        let (Ok(id) | Err(id)) = begun;
        Ok((self.store.clustering(id).await?, begun.is_ok()))
    }
}

pub(crate) enum Step {
    /// The faces up to this one were processed.
    Done(Uuid),
    NoneLeft,
    /// The run ended, or was deleted with its collection.
    Over,
}

pub(crate) fn scope_of(run: &Clustering) -> ClusterScope {
    ClusterScope { collection_id: run.collection_id, model_id: run.model_id, any_quality: run.any_quality }
}

/// Processes the next batch of faces after `after`, in the order of their ids, and records progress
/// of the job with the claim `claim`.
pub(crate) async fn step(
    store: &Store,
    queue: &Queue,
    claim: Claim,
    run: &Clustering,
    after: Uuid,
) -> Result<Step, ClusterError> {
    let scope = scope_of(run);
    let batch = store.unclustered(&scope, after, BATCH).await?;
    let Some(&last) = batch.last() else { return Ok(Step::NoneLeft) };
    let pairs = store.neighbours(&scope, &batch, NEIGHBOURS, run.threshold).await?;
    let concerned: BTreeSet<Uuid> = pairs.iter().flat_map(|pair| [pair.face, pair.neighbour]).collect();
    let concerned: Vec<Uuid> = concerned.into_iter().collect();

    let mut tx = store.begin().await?;
    if !store.lock_clustering(tx.conn(), run.id).await? {
        return Ok(Step::Over);
    }
    let units = store.cluster_units(tx.conn(), &scope, &concerned).await?;
    let unit_of: HashMap<Uuid, usize> = (units.iter().enumerate())
        .flat_map(|(index, unit)| unit.faces.iter().map(move |face| (*face, index)))
        .collect();
    let pairs: Vec<(usize, usize)> = pairs
        .iter()
        .filter_map(|pair| Some((*unit_of.get(&pair.face)?, *unit_of.get(&pair.neighbour)?)))
        .collect();
    let groups = linkage::group(&units, &pairs, run.threshold);
    let changes = store.apply_groups(tx.conn(), run.collection_id, &groups).await?;
    let processed = store.mark_clustered(tx.conn(), run.collection_id, &batch).await?;
    store.count_step(tx.conn(), run.id, processed, changes).await?;
    queue.record_progress(tx.conn(), claim).await?;
    tx.commit().await?;
    Ok(Step::Done(last))
}
