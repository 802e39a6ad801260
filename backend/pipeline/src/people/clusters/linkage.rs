//! Agglomerative clustering with average linkage on the graph of neighbours.
//!
//! Repeatedly merges the two neighbouring clusters whose faces have the highest mean similarity,
//! until no two neighbours reach the threshold. This is UPGMA (Sokal and Michener 1958). On a
//! sparse graph it is described by Dhulipala et al., "Hierarchical Agglomerative Graph Clustering
//! in Nearly-Linear Time", ICML 2021.
//!
//! The criterion is the mean over all pairs of faces, not the best pair. Two people connected by
//! one misleading image therefore remain separate. Single linkage would merge them.
//!
//! Embeddings have length 1. The mean similarity of all pairs between two clusters is therefore the
//! dot product of their mean embeddings. A cluster is stored as one mean vector and a weight.
//!
//! The parent module determines which faces are neighbours. The crate `store` stores the groups.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, BinaryHeap, HashSet};
use store::people::clusters::{ClusterUnit, Group};
use uuid::Uuid;

/// Returns the groups of units that are the same person; a unit is a subject or a face without a
/// subject. `pairs` are the neighbours as indices of `units`, and `threshold` is the minimum mean
/// similarity, -1..1. The result depends on neither the order of the pairs nor any random state.
///
/// Never merges two enrolled subjects, a subject and a face that a user removed from it, or two
/// faces of one image.
pub(super) fn group(units: &[ClusterUnit], pairs: &[(usize, usize)], threshold: f32) -> Vec<Group> {
    let mut graph = Graph::new(units, threshold);
    for &(a, b) in pairs {
        graph.connect(a, b);
    }
    graph.merge_all();
    let mut merged: Vec<&Cluster> = graph.clusters.iter().flatten().filter(|c| c.members.len() > 1).collect();
    merged.sort_by_key(|cluster| cluster.members.first().copied());
    merged.into_iter().map(|cluster| cluster.group(units)).collect()
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
    fn of(index: usize, unit: &ClusterUnit) -> Self {
        Self {
            members: BTreeSet::from([index]),
            enrolled: unit.enrolled,
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
    fn group(&self, units: &[ClusterUnit]) -> Group {
        let members = || self.members.iter().map(|&index| &units[index]);
        let subject = members()
            .filter_map(|unit| unit.subject.map(|subject| (!unit.enrolled, subject)))
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
struct Candidate(f32, Reverse<usize>, Reverse<usize>);

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1)).then(self.2.cmp(&other.2))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

struct Graph {
    /// A merged cluster gets a new index and its parts become `None`. Candidates that refer to the
    /// parts thereby become invalid.
    clusters: Vec<Option<Cluster>>,
    candidates: BinaryHeap<Candidate>,
    threshold: f32,
}

impl Graph {
    fn new(units: &[ClusterUnit], threshold: f32) -> Self {
        let clusters = units.iter().enumerate().map(|(index, unit)| Some(Cluster::of(index, unit)));
        Self { clusters: clusters.collect(), candidates: BinaryHeap::new(), threshold }
    }

    fn connect(&mut self, a: usize, b: usize) {
        let (a, b) = (a.min(b), a.max(b));
        let (Some(one), Some(other)) = (&self.clusters[a], &self.clusters[b]) else { return };
        // A pair that must not be merged now can never be merged, because the reasons against it
        // only accumulate.
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
            self.candidates.push(Candidate(linkage, Reverse(a), Reverse(b)));
        }
    }

    fn merge_all(&mut self) {
        while let Some(Candidate(_, Reverse(a), Reverse(b))) = self.candidates.pop() {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A face in a separate image. The direction of its embedding is an angle in degrees.
    fn face(id: u128, degrees: f32) -> ClusterUnit {
        let (sin, cos) = degrees.to_radians().sin_cos();
        ClusterUnit {
            subject: None,
            enrolled: false,
            faces: vec![Uuid::from_u128(id)],
            mean: vec![cos, sin],
            weight: 1,
            images: vec![Uuid::from_u128(1_000 + id)],
            refused: Vec::new(),
        }
    }

    fn subject(id: u128, enrolled: bool, degrees: f32) -> ClusterUnit {
        ClusterUnit { subject: Some(Uuid::from_u128(id)), enrolled, ..face(id + 500, degrees) }
    }

    fn all_pairs(units: &[ClusterUnit]) -> Vec<(usize, usize)> {
        (0..units.len()).flat_map(|a| (a + 1..units.len()).map(move |b| (a, b))).collect()
    }

    fn ids(numbers: &[u128]) -> Vec<Uuid> {
        numbers.iter().map(|&number| Uuid::from_u128(number)).collect()
    }

    fn at(units: &[ClusterUnit], threshold: f32) -> Vec<Group> {
        group(units, &all_pairs(units), threshold)
    }

    #[test]
    fn one_odd_picture_between_two_people_does_not_make_them_one() {
        // One person at 0, 10 and 20 degrees, another at 80, 90 and 100, and a face at 50.
        // Neighbours in this chain are at most 30 degrees apart.
        let units: Vec<ClusterUnit> =
            [0.0, 10.0, 20.0, 50.0, 80.0, 90.0, 100.0].iter().zip(1..).map(|(&d, id)| face(id, d)).collect();
        let groups = at(&units, 30.0_f32.to_radians().cos() - 1e-3);
        let faces: Vec<usize> = groups.iter().map(|group| group.faces.len()).collect();
        assert_eq!(groups.len(), 2, "{groups:?}");
        assert!(faces.iter().all(|&n| n == 3), "{groups:?}");
    }

    #[test]
    fn the_order_of_pairs_does_not_matter() {
        let units: Vec<ClusterUnit> = (0..40).map(|i| face(i + 1, (i * i * 37 % 360) as f32)).collect();
        let mut pairs = all_pairs(&units);
        let forward = group(&units, &pairs, 0.9);
        pairs.reverse();
        assert_eq!(group(&units, &pairs, 0.9), forward);
        assert!(forward.len() > 3);
    }

    #[test]
    fn an_enrolled_subject_attracts_clusters_and_faces_and_stays_itself() {
        let units = [subject(9, true, 0.0), subject(2, false, 5.0), face(1, 8.0)];
        let groups = at(&units, 0.9);
        let wanted = Group { subject: Some(Uuid::from_u128(9)), joined: ids(&[2]), faces: ids(&[1]) };
        assert_eq!(groups, [wanted]);
        assert_eq!(at(&[subject(9, true, 0.0), subject(8, true, 1.0)], 0.9), []);
        let oldest = at(&[subject(4, false, 0.0), subject(3, false, 1.0)], 0.9);
        assert_eq!(oldest[0], Group { subject: Some(Uuid::from_u128(3)), joined: ids(&[4]), faces: vec![] });
    }

    #[test]
    fn two_faces_of_one_image_are_two_people() {
        let mut twins = [face(1, 0.0), face(2, 1.0), face(3, 2.0)];
        twins[1].images = twins[0].images.clone();
        let groups = at(&twins, 0.9);
        assert_eq!(groups.len(), 1, "{groups:?}");
        assert_eq!(groups[0].faces, ids(&[2, 3]), "the nearer pair");
    }

    #[test]
    fn what_somebody_refused_is_not_put_together_not_even_through_others() {
        let mut person = subject(9, true, 0.0);
        person.refused = ids(&[1]);
        let groups = at(&[person, face(1, 4.0), face(2, 5.0)], 0.9);
        assert_eq!(groups, [Group { subject: None, joined: vec![], faces: ids(&[1, 2]) }]);
    }

    #[test]
    fn parties_that_are_no_neighbours_are_never_compared() {
        let units = [face(1, 0.0), face(2, 0.0)];
        assert_eq!(group(&units, &[], 0.9), []);
    }
}
