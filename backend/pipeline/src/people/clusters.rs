//! Groups the faces of a collection by person: starts a run, executes one step of it, and handles
//! the job that repeats the steps (`cluster_collection`). The statements are in the store.
//!
//! A step is one transaction. It processes a batch of faces that no run has processed, in the order
//! of their ids. The subjects of these faces and of their nearest neighbours, and the faces without
//! a subject, are the units of an agglomerative clustering with average linkage. A killed run
//! continues where it stopped. A later run extends and merges clusters and never splits them.
//!
//! The clustering repeatedly merges the two neighbouring clusters whose faces have the highest mean
//! similarity, until no two neighbours reach the threshold. This is UPGMA (Sokal and Michener
//! 1958). Dhulipala et al. describe it for sparse graphs in "Hierarchical Agglomerative Graph
//! Clustering in Nearly-Linear Time", ICML 2021. The criterion is the mean over all pairs of faces,
//! not the best pair. Two people connected by one misleading image therefore remain separate.
//! Single linkage would merge them.
//!
//! Embeddings have length 1. The mean similarity of all pairs between two clusters is therefore the
//! dot product of their mean embeddings. A cluster is stored as one mean vector and a weight.
use crate::domain::jobs::ClusterJob;
use crate::domain::{ChangeError, TIME_SLICE, TimeSlice, jobs};
use queue::{Claim, ClaimedJob, Handler, Queue, QueueError, RunEnd};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};
use std::time::Duration;
use store::people::clusters::{ClusterScope, ClusterUnit, Clustering, Group};
use store::{Store, StoreError, retried};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Number of faces that one step processes.
const BATCH: i64 = 500;
/// Maximum number of neighbours of a face.
const NEIGHBOURS: i64 = 24;

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
    /// Fails with [`ChangeError`] if the store or the queue fails.
    pub async fn begin(
        &self,
        scope: &ClusterScope,
        threshold: f32,
    ) -> Result<(Clustering, bool), ChangeError> {
        let begun = retried("begin_clustering", || async {
            let mut tx = self.store.begin().await?;
            let begun = self.store.clusters().begin(tx.conn(), scope, threshold).await?;
            let (Ok(id) | Err(id)) = begun;
            self.queue
                .enqueue(tx.conn(), &[ClusterJob { clustering_id: id }.queue_job(scope.collection_id)])
                .await?;
            tx.commit().await?;
            Ok::<_, ChangeError>(begun)
        })
        .await?;
        let (Ok(id) | Err(id)) = begun;
        Ok((self.store.clusters().get(id).await?, begun.is_ok()))
    }
}

enum Step {
    /// The faces up to this one were processed.
    Processed(Uuid),
    NoneLeft,
    /// The run ended, or was deleted with its collection.
    RunEnded,
}

fn scope_of(run: &Clustering) -> ClusterScope {
    ClusterScope { collection_id: run.collection_id, model_id: run.model_id, any_quality: run.any_quality }
}

/// Returns the groups of units that are the same person; a unit is a subject or a face without a
/// subject. `pairs` are the neighbours as indices of `units`, and `threshold` is the minimum mean
/// similarity, -1..1. The result depends on neither the order of the pairs nor any random state.
///
/// Never merges two enrolled subjects, a subject and a face that a user removed from it, or two
/// faces of one image.
fn group_units(units: &[ClusterUnit], pairs: &[(usize, usize)], threshold: f32) -> Vec<Group> {
    let mut graph = Graph::new(units, threshold);
    for &(a, b) in pairs {
        graph.connect(a, b);
    }
    graph.merge_all();
    let mut merged: Vec<&Cluster> = graph.clusters.iter().flatten().filter(|c| c.members.len() > 1).collect();
    merged.sort_by_key(|cluster| cluster.members.first().copied());
    merged.into_iter().map(|cluster| cluster.to_group(units)).collect()
}

/// Units that were merged.
struct Cluster {
    members: BTreeSet<usize>,
    enrolled: bool,
    mean: Vec<f32>,
    weight: f32,
    images: HashSet<Uuid>,
    /// Faces and subjects that the cluster contains; `refused`: those that it must not contain.
    ids: HashSet<Uuid>,
    refused: HashSet<Uuid>,
    neighbours: BTreeSet<usize>,
}

impl Cluster {
    fn new(index: usize, unit: &ClusterUnit) -> Self {
        Self {
            members: BTreeSet::from([index]),
            enrolled: unit.is_enrolled,
            mean: unit.mean.clone(),
            weight: unit.weight as f32,
            images: unit.images.iter().copied().collect(),
            ids: unit.faces.iter().copied().chain(unit.subject).collect(),
            refused: unit.refused.iter().copied().collect(),
            neighbours: BTreeSet::new(),
        }
    }

    fn may_join(&self, other: &Self) -> bool {
        !(self.enrolled && other.enrolled)
            && self.images.is_disjoint(&other.images)
            && self.refused.is_disjoint(&other.ids)
            && other.refused.is_disjoint(&self.ids)
    }

    /// Returns the mean similarity of all pairs of a face of `self` and a face of `other`, -1..1.
    fn linkage(&self, other: &Self) -> f32 {
        self.mean.iter().zip(&other.mean).map(|(a, b)| a * b).sum()
    }

    fn merge(&mut self, other: Self) {
        let weight = self.weight + other.weight;
        for (own, others) in self.mean.iter_mut().zip(&other.mean) {
            *own = (*own * self.weight + others * other.weight) / weight;
        }
        self.weight = weight;
        self.enrolled |= other.enrolled;
        self.members.extend(other.members);
        self.images.extend(other.images);
        self.ids.extend(other.ids);
        self.refused.extend(other.refused);
        self.neighbours.extend(other.neighbours);
    }

    /// Returns the merged group. It keeps the enrolled subject if there is one, or else the subject
    /// with the lowest id, the oldest. A group without a subject becomes a new subject.
    fn to_group(&self, units: &[ClusterUnit]) -> Group {
        let members = || self.members.iter().map(|&index| &units[index]);
        let subject = members()
            .filter_map(|unit| unit.subject.map(|subject| (!unit.is_enrolled, subject)))
            .min()
            .map(|(_, subject)| subject);
        Group {
            subject,
            joined: members().filter_map(|unit| unit.subject).filter(|id| Some(*id) != subject).collect(),
            faces: members()
                .filter(|unit| unit.subject.is_none())
                .flat_map(|unit| unit.faces.clone())
                .collect(),
        }
    }
}

/// Two clusters that may be merged. The order is by linkage, highest first, then by the lower
/// indices, so that ties are always resolved in the same way.
struct MergeCandidate(f32, Reverse<usize>, Reverse<usize>);

impl Ord for MergeCandidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1)).then(self.2.cmp(&other.2))
    }
}

impl PartialOrd for MergeCandidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for MergeCandidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for MergeCandidate {}

struct Graph {
    /// A merged cluster gets a new index and its parts become `None`. Candidates that refer to the
    /// parts thereby become invalid.
    clusters: Vec<Option<Cluster>>,
    candidates: BinaryHeap<MergeCandidate>,
    threshold: f32,
}

impl Graph {
    fn new(units: &[ClusterUnit], threshold: f32) -> Self {
        let clusters = units.iter().enumerate().map(|(index, unit)| Some(Cluster::new(index, unit)));
        Self { clusters: clusters.collect(), candidates: BinaryHeap::new(), threshold }
    }

    fn connect(&mut self, a: usize, b: usize) {
        let (a, b) = (a.min(b), a.max(b));
        let (Some(one), Some(other)) = (&self.clusters[a], &self.clusters[b]) else { return };
        // A pair that must not be merged now can never be merged: merging removes no constraint.
        if a == b || !one.may_join(other) {
            return;
        }
        let linkage = one.linkage(other);
        for (from, to) in [(a, b), (b, a)] {
            if let Some(cluster) = &mut self.clusters[from] {
                cluster.neighbours.insert(to);
            }
        }
        if linkage >= self.threshold {
            self.candidates.push(MergeCandidate(linkage, Reverse(a), Reverse(b)));
        }
    }

    fn merge_all(&mut self) {
        while let Some(MergeCandidate(_, Reverse(a), Reverse(b))) = self.candidates.pop() {
            if self.clusters[a].is_none() || self.clusters[b].is_none() {
                continue;
            }
            let (Some(mut merged), Some(other)) = (self.clusters[a].take(), self.clusters[b].take()) else {
                continue;
            };
            merged.merge(other);
            let neighbours = std::mem::take(&mut merged.neighbours);
            let index = self.clusters.len();
            self.clusters.push(Some(merged));
            for neighbour in neighbours.into_iter().filter(|&n| n != a && n != b) {
                if let Some(cluster) = &mut self.clusters[neighbour] {
                    cluster.neighbours.remove(&a);
                    cluster.neighbours.remove(&b);
                }
                self.connect(neighbour, index);
            }
        }
    }
}

pub(crate) struct ClusterCollection {
    store: Store,
    queue: Queue,
}

#[async_trait::async_trait]
impl Handler for ClusterCollection {
    async fn run(&self, job: ClaimedJob, cancel: CancellationToken) -> RunEnd {
        let payload: ClusterJob = match jobs::parse(&job.payload) {
            Ok(payload) => payload,
            Err(error) => return RunEnd::Discard(error),
        };
        let error = match self.cluster(payload.clustering_id, &job, &cancel).await {
            Ok(outcome) => return outcome,
            Err(ChangeError::Queue(QueueError::Stale(_))) => return RunEnd::Stale,
            // The clustering was deleted with its collection.
            Err(ChangeError::Store(StoreError::NotFound { .. })) => return RunEnd::Done,
            Err(error) => error.to_string(),
        };
        // Each step resets the number of attempts.
        match self.queue.attempt(job.claim).await {
            Ok(attempt) if attempt < job.max_attempts => return RunEnd::Retry(error, None),
            Ok(_) => {}
            Err(QueueError::Stale(_)) => return RunEnd::Stale,
            Err(second_error) => return RunEnd::Retry(format!("{error}; {second_error}"), None),
        }
        match self.record_failure(payload.clustering_id, &error).await {
            Ok(()) => RunEnd::Discard(error),
            Err(second_error) => {
                RunEnd::Discard(format!("{error}; the failure could not be recorded: {second_error}"))
            }
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
    ) -> Result<RunEnd, ChangeError> {
        let claim = job.claim;
        let run = self.store.clusters().get(id).await?;
        let unclustered = self.store.clusters().count_unclustered(&scope_of(&run)).await?;
        if !self.store.clusters().resume(id, unclustered).await? {
            return Ok(RunEnd::Done);
        }
        // A failed build must not be repeated in each claim, so only the first step triggers one.
        let is_first = run.looked == 0 && unclustered > 0;
        if is_first && cancel.run_until_cancelled(self.prepare_index(&run)).await.is_none() {
            return Ok(RunEnd::Snooze(Duration::ZERO));
        }
        // The build can take longer than a time slice. The slice begins after it, so at least one
        // step runs.
        let time_slice = TimeSlice::new(&self.queue, job, TIME_SLICE);
        let mut after = Uuid::nil();
        loop {
            if cancel.is_cancelled() || time_slice.is_over().await {
                // Finished steps are stored, so the next claim continues with the other faces.
                return Ok(RunEnd::Snooze(Duration::ZERO));
            }
            match self.run_step(claim, &run, after).await? {
                Step::Processed(last) => after = last,
                Step::RunEnded => return Ok(RunEnd::Done),
                Step::NoneLeft => break,
            }
        }
        let mut tx = self.store.begin().await?;
        self.queue.complete(tx.conn(), claim).await?;
        self.store.clusters().end(tx.conn(), id, None).await?;
        tx.commit().await?;
        tracing::info!(collection = %run.collection_id, clustering = %id, "faces clustered");
        Ok(RunEnd::Settled)
    }

    /// Builds the index that the steps use, if it is missing. If this fails, the steps compare with
    /// every face, which is much slower.
    async fn prepare_index(&self, run: &Clustering) {
        if let Err(error) = self.store.clusters().prepare_neighbours(&scope_of(run)).await {
            tracing::warn!(%error, clustering = %run.id, "failed to build the search index for a clustering");
        }
    }

    /// Processes the faces after `after` in the order of their ids, and records progress.
    async fn run_step(&self, claim: Claim, run: &Clustering, after: Uuid) -> Result<Step, ChangeError> {
        let store = &self.store;
        let scope = scope_of(run);
        let batch = store.clusters().unclustered_faces(&scope, after, BATCH).await?;
        let Some(&last) = batch.last() else { return Ok(Step::NoneLeft) };
        let pairs = store.clusters().neighbours(&scope, &batch, NEIGHBOURS, run.threshold).await?;
        let involved_faces: BTreeSet<Uuid> =
            pairs.iter().flat_map(|pair| [pair.face, pair.neighbour]).collect();
        let involved_faces: Vec<Uuid> = involved_faces.into_iter().collect();

        let mut tx = store.begin().await?;
        if !store.clusters().lock(tx.conn(), run.id).await? {
            return Ok(Step::RunEnded);
        }
        let units = store.clusters().units(tx.conn(), &scope, &involved_faces).await?;
        let unit_of: HashMap<Uuid, usize> = (units.iter().enumerate())
            .flat_map(|(index, unit)| unit.faces.iter().map(move |face| (*face, index)))
            .collect();
        let pairs: Vec<(usize, usize)> = pairs
            .iter()
            .filter_map(|pair| Some((*unit_of.get(&pair.face)?, *unit_of.get(&pair.neighbour)?)))
            .collect();
        let groups = group_units(&units, &pairs, run.threshold);
        let changes = store.clusters().apply_groups(tx.conn(), run.collection_id, &groups).await?;
        let processed = store.clusters().mark_clustered(tx.conn(), run.collection_id, &batch).await?;
        store.clusters().count_step(tx.conn(), run.id, processed, changes).await?;
        self.queue.record_progress(tx.conn(), claim).await?;
        tx.commit().await?;
        Ok(Step::Processed(last))
    }

    async fn record_failure(&self, id: Uuid, error: &str) -> Result<(), StoreError> {
        let mut tx = self.store.begin().await?;
        self.store.clusters().end(tx.conn(), id, Some(error)).await?;
        tx.commit().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A face in a separate image. The direction of its embedding is an angle in degrees.
    fn face(id: u128, degrees: f32) -> ClusterUnit {
        let (sin, cos) = degrees.to_radians().sin_cos();
        ClusterUnit {
            subject: None,
            is_enrolled: false,
            faces: vec![Uuid::from_u128(id)],
            mean: vec![cos, sin],
            weight: 1,
            images: vec![Uuid::from_u128(1_000 + id)],
            refused: Vec::new(),
        }
    }

    fn subject(id: u128, enrolled: bool, degrees: f32) -> ClusterUnit {
        ClusterUnit { subject: Some(Uuid::from_u128(id)), is_enrolled: enrolled, ..face(id + 500, degrees) }
    }

    fn all_pairs(units: &[ClusterUnit]) -> Vec<(usize, usize)> {
        (0..units.len()).flat_map(|a| (a + 1..units.len()).map(move |b| (a, b))).collect()
    }

    fn ids(numbers: &[u128]) -> Vec<Uuid> {
        numbers.iter().map(|&number| Uuid::from_u128(number)).collect()
    }

    fn group_all(units: &[ClusterUnit], threshold: f32) -> Vec<Group> {
        group_units(units, &all_pairs(units), threshold)
    }

    #[test]
    fn outlier_between_two_people_does_not_merge_them() {
        // One person at 0, 10 and 20 degrees, another at 80, 90 and 100, and a face at 50.
        // Neighbours in this chain are at most 30 degrees apart.
        let units: Vec<ClusterUnit> =
            [0.0, 10.0, 20.0, 50.0, 80.0, 90.0, 100.0].iter().zip(1..).map(|(&d, id)| face(id, d)).collect();
        let groups = group_all(&units, 30.0_f32.to_radians().cos() - 1e-3);
        let faces: Vec<usize> = groups.iter().map(|group| group.faces.len()).collect();
        assert_eq!(groups.len(), 2, "{groups:?}");
        assert!(faces.iter().all(|&n| n == 3), "{groups:?}");
    }

    #[test]
    fn pair_order_does_not_change_groups() {
        let units: Vec<ClusterUnit> = (0..40).map(|i| face(i + 1, (i * i * 37 % 360) as f32)).collect();
        let mut pairs = all_pairs(&units);
        let forward = group_units(&units, &pairs, 0.9);
        pairs.reverse();
        assert_eq!(group_units(&units, &pairs, 0.9), forward);
        assert!(forward.len() > 3);
    }

    #[test]
    fn enrolled_subject_absorbs_clusters_but_not_enrolled_subjects() {
        let units = [subject(9, true, 0.0), subject(2, false, 5.0), face(1, 8.0)];
        let groups = group_all(&units, 0.9);
        let expected = Group { subject: Some(Uuid::from_u128(9)), joined: ids(&[2]), faces: ids(&[1]) };
        assert_eq!(groups, [expected]);
        assert_eq!(group_all(&[subject(9, true, 0.0), subject(8, true, 1.0)], 0.9), []);
        let oldest = group_all(&[subject(4, false, 0.0), subject(3, false, 1.0)], 0.9);
        assert_eq!(oldest[0], Group { subject: Some(Uuid::from_u128(3)), joined: ids(&[4]), faces: vec![] });
    }

    #[test]
    fn faces_of_one_image_are_never_grouped() {
        let mut twins = [face(1, 0.0), face(2, 1.0), face(3, 2.0)];
        twins[1].images = twins[0].images.clone();
        let groups = group_all(&twins, 0.9);
        assert_eq!(groups.len(), 1, "{groups:?}");
        assert_eq!(groups[0].faces, ids(&[2, 3]), "the nearer pair");
    }

    #[test]
    fn refused_face_is_not_grouped_through_other_faces() {
        let mut person = subject(9, true, 0.0);
        person.refused = ids(&[1]);
        let groups = group_all(&[person, face(1, 4.0), face(2, 5.0)], 0.9);
        assert_eq!(groups, [Group { subject: None, joined: vec![], faces: ids(&[1, 2]) }]);
    }

    #[test]
    fn unpaired_faces_are_not_grouped() {
        let units = [face(1, 0.0), face(2, 0.0)];
        assert_eq!(group_units(&units, &[], 0.9), []);
    }
}
