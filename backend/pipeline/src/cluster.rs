//! Which faces of a collection are one person: asking for it, and one step of it.
//!
//! Faces nobody has looked at are taken in small batches, in the order of their ids. Their nearest neighbours come from the store's search; whom
//! batch and neighbours show so far, or that they show nobody yet, makes the parties of an agglomerative clustering with average linkage
//! ([`linkage`]). Each batch is one transaction. So memory is bounded by the batch, a killed run goes on where it was, and a later run looks only at
//! new faces: it adds to what is there and never takes it apart.

mod linkage;

use crate::domain::jobs::ClusterJob;
use queue::{Queue, QueueError};
use std::collections::{BTreeSet, HashMap};
use store::clusterings::Clustering;
use store::clusters::ClusterScope;
use store::{Store, StoreError};
use uuid::Uuid;

/// Faces looked at in one step.
const BATCH: i64 = 500;
/// Neighbours of a face that are looked at.
const NEIGHBOURS: i64 = 24;

/// The least mean similarity of clusters that become one, where nobody says another: a face is compared with the whole collection, so what is a
/// rare mistake in a comparison of two would be made for every face here. `margin` is the embedder's.
pub fn default_threshold(match_threshold: f32, margin: f32) -> f32 {
    (match_threshold + margin).min(1.0)
}

/// Why a clustering could not be begun.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The queue failed.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

crate::domain::transient::transient!(ClusterError);

/// Begins clusterings; cheap to clone.
#[derive(Clone)]
pub struct Clusters {
    store: Store,
    queue: Queue,
}

impl Clusters {
    /// On a migrated database.
    pub fn new(store: Store, queue: Queue) -> Self {
        Self { store, queue }
    }

    /// Enters a run and its job in one transaction. When one is under way already, that one is answered (`false`), and its job is made sure of.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub async fn begin(
        &self,
        scope: &ClusterScope,
        threshold: f32,
    ) -> Result<(Clustering, bool), ClusterError> {
        let mut tx = self.store.begin().await?;
        let entered = self.store.begin_clustering(tx.conn(), scope, threshold).await?;
        let (Ok(id) | Err(id)) = entered;
        self.queue.enqueue(tx.conn(), &[ClusterJob { clustering_id: id }.job()]).await?;
        tx.commit().await?;
        Ok((self.store.clustering(id).await?, entered.is_ok()))
    }
}

/// What a step found to do.
pub(crate) enum Step {
    /// Looked at faces up to this one.
    Done(Uuid),
    /// There are none left.
    NoneLeft,
    /// The run has ended, or is gone with its collection.
    Over,
}

/// The scope of a run.
pub(crate) fn scope_of(run: &Clustering) -> ClusterScope {
    ClusterScope { collection_id: run.collection_id, model_id: run.model_id, any_quality: run.any_quality }
}

/// Looks at the next faces after `after`.
pub(crate) async fn step(store: &Store, run: &Clustering, after: Uuid) -> Result<Step, StoreError> {
    let scope = scope_of(run);
    let batch = store.unclustered(&scope, after, BATCH).await?;
    let Some(&last) = batch.last() else { return Ok(Step::NoneLeft) };
    let pairs = store.neighbours(&scope, &batch, NEIGHBOURS, run.threshold).await?;
    let concerned: BTreeSet<Uuid> = pairs.iter().flat_map(|pair| [pair.face, pair.neighbour]).collect();
    let concerned: Vec<Uuid> = concerned.into_iter().collect();

    let mut tx = store.begin().await?;
    if !store.hold_clustering(tx.conn(), run.id).await? {
        return Ok(Step::Over);
    }
    let parties = store.parties(tx.conn(), &scope, &concerned).await?;
    let party_of: HashMap<Uuid, usize> = (parties.iter().enumerate())
        .flat_map(|(index, party)| party.faces.iter().map(move |face| (*face, index)))
        .collect();
    let pairs: Vec<(usize, usize)> = pairs
        .iter()
        .filter_map(|pair| Some((*party_of.get(&pair.face)?, *party_of.get(&pair.neighbour)?)))
        .collect();
    let groups = linkage::group(&parties, &pairs, run.threshold);
    let changes = store.apply_groups(tx.conn(), run.collection_id, &groups).await?;
    let looked = store.mark_clustered(tx.conn(), run.collection_id, &batch).await?;
    store.count_step(tx.conn(), run.id, looked, changes).await?;
    tx.commit().await?;
    Ok(Step::Done(last))
}
