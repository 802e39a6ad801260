//! Decides which tracks of one video show the same person.
//!
//! Repeatedly merges the two groups of tracks whose best shots have the highest mean similarity,
//! until no two groups reach the threshold. This is average linkage (UPGMA, Sokal and Michener
//! 1958). The criterion is the mean over all pairs of shots and not the best pair, so that one
//! misleading shot does not connect two people. The crate `pipeline` clusters subjects similarly.
use crate::assignment::find_root;
use crate::similarity::{dot, write_dot_products};
use crate::track::Track;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

/// Maximum number of tracks of one video.
pub const MAX_TRACKS: usize = 20_000;

/// Maximum number of rounds. In practice, two or three rounds are sufficient.
const MAX_ROUNDS: usize = 16;
/// Maximum number of similarities per edge in a round, which bounds the time.
const MAX_EVALUATIONS_PER_EDGE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} tracks are too many, at most {MAX_TRACKS} are allowed")]
pub struct TooManyTracks(pub usize);

/// The time in microseconds in which a track was visible, and the embeddings of its best shots.
#[derive(Clone, Debug)]
pub struct Appearance {
    pub started_us: i64,
    pub ended_us: i64,
    /// The embeddings, of length 1 and all of the same model.
    pub embeddings: Vec<Arc<[f32]>>,
}

impl<P> From<&Track<P>> for Appearance {
    fn from(track: &Track<P>) -> Self {
        let embeddings = track.best_shots.iter().filter_map(|shot| shot.embedding.clone()).collect();
        Self { started_us: track.started_us, ended_us: track.ended_us, embeddings }
    }
}

/// Returns the number of the person of each appearance, in the same order; `None` if there is no
/// usable embedding. People are numbered from 0 in the order of their first appearance.
///
/// `threshold` is the minimum mean similarity of two groups, -1..1: the match threshold of the
/// model plus its margin for clusters. Two tracks whose times overlap are never the same person.
/// The result does not depend on the order of the appearances.
///
/// Time of a round: O(n² d) for n tracks and embeddings of d numbers. Memory: O(n d).
///
/// # Errors
/// Fails for more than [`MAX_TRACKS`] tracks.
pub fn number_people(appearances: &[Appearance], threshold: f32) -> Result<Vec<Option<u32>>, TooManyTracks> {
    if appearances.len() > MAX_TRACKS {
        return Err(TooManyTracks(appearances.len()));
    }
    let mut groups = single_track_groups(appearances);
    for _ in 0..MAX_ROUNDS {
        let Some(merged) = merge_round(&groups, threshold) else { break };
        groups = merged;
    }
    let mut numbers = vec![None; appearances.len()];
    for (number, group) in (0..).zip(&groups) {
        for &member in &group.members {
            numbers[member] = Some(number);
        }
    }
    Ok(numbers)
}

/// Tracks that show one person.
#[derive(Clone)]
struct Group {
    members: Vec<usize>,
    /// The mean of all embeddings. The dot product of two means is the mean similarity.
    mean: Vec<f32>,
    /// The number of embeddings.
    weight: f32,
    /// The start and end of each track. The tracks do not overlap.
    times: BTreeMap<i64, i64>,
}

impl Group {
    /// Returns whether a track of one group and a track of the other are visible at the same time.
    fn overlaps(&self, other: &Self) -> bool {
        let (a, b) = if self.times.len() <= other.times.len() { (self, other) } else { (other, self) };
        a.times.iter().any(|(start, end)| {
            b.times.range(..=end).next_back().is_some_and(|(_, other_end)| other_end >= start)
        })
    }

    fn merge(&mut self, other: Self) {
        let weight = self.weight + other.weight;
        for (value, other_value) in self.mean.iter_mut().zip(&other.mean) {
            *value = (*value * self.weight + other_value * other.weight) / weight;
        }
        self.weight = weight;
        self.members.extend(other.members);
        self.times.extend(other.times);
    }
}

/// Returns a group for each appearance with an embedding, by time. Ignores embeddings that are not
/// finite or whose length differs from that of the first one.
fn single_track_groups(appearances: &[Appearance]) -> Vec<Group> {
    let mut order: Vec<usize> = (0..appearances.len()).collect();
    order.sort_by(|&a, &b| {
        let (first, second) = (&appearances[a], &appearances[b]);
        let key = |appearance: &Appearance| (appearance.started_us, appearance.ended_us);
        let numbers = |appearance: &Appearance| -> Vec<u32> {
            appearance.embeddings.iter().flat_map(|e| e.iter().map(|value| value.to_bits())).collect()
        };
        key(first).cmp(&key(second)).then_with(|| numbers(first).cmp(&numbers(second)))
    });
    let mut length = None;
    let mut groups = Vec::new();
    for member in order {
        let appearance = &appearances[member];
        let mut usable_embeddings = appearance.embeddings.iter().filter(|e| {
            !e.is_empty()
                && e.iter().all(|value| value.is_finite())
                && e.len() == *length.get_or_insert(e.len())
        });
        let Some(first) = usable_embeddings.next() else { continue };
        let (mut mean, mut weight) = (first.to_vec(), 1.0);
        for embedding in usable_embeddings {
            mean.iter_mut().zip(embedding.iter()).for_each(|(sum, value)| *sum += value);
            weight += 1.0;
        }
        mean.iter_mut().for_each(|sum| *sum /= weight);
        let (start, end) = (appearance.started_us, appearance.ended_us.max(appearance.started_us));
        groups.push(Group { members: vec![member], mean, weight, times: BTreeMap::from([(start, end)]) });
    }
    groups
}

/// Merges groups along the edges of the graph of nearest neighbours. Returns the groups by their
/// first tracks; `None` if no groups were merged.
fn merge_round(groups: &[Group], threshold: f32) -> Option<Vec<Group>> {
    let length = groups.first()?.mean.len();
    let means: Vec<f32> = groups.iter().flat_map(|group| group.mean.iter().copied()).collect();
    let edges = nearest_edges(&means, length, threshold, |a, b| !groups[a].overlaps(&groups[b]));
    let mut merged: Vec<Option<Group>> = groups.iter().cloned().map(Some).collect();
    let mut parents: Vec<usize> = (0..groups.len()).collect();
    let mut heap = BinaryHeap::from(edges);
    let mut has_merged = false;
    let mut evaluations = heap.len() * MAX_EVALUATIONS_PER_EDGE;
    while let Some(edge) = heap.pop().filter(|_| evaluations > 0) {
        evaluations -= 1;
        let (a, b) = (find_root(&mut parents, edge.a), find_root(&mut parents, edge.b));
        let (low, high) = (a.min(b), a.max(b));
        let (Some(first), Some(second)) = (&merged[low], &merged[high]) else { continue };
        if low == high {
            continue;
        }
        // Merging never increases the similarity to another group above that of the better part.
        // Therefore, an outdated edge reaches the top of the heap in time to be corrected.
        let similarity = dot(&first.mean, &second.mean);
        if similarity < threshold {
            continue;
        }
        if similarity < edge.similarity {
            heap.push(Edge { similarity, a: low, b: high });
            continue;
        }
        if first.overlaps(second) {
            continue;
        }
        if let (Some(other), Some(group)) = (merged[high].take(), merged[low].as_mut()) {
            group.merge(other);
            parents[high] = low;
            has_merged = true;
        }
    }
    has_merged.then(|| merged.into_iter().flatten().collect())
}

/// Maximum number of neighbours of a row, which bounds the memory. Later rounds find the others.
const MAX_NEIGHBOURS: usize = 16;
/// Number of rows in a block. Two blocks are compared at a time, so that they remain in the
/// processor's cache.
const BLOCK_ROWS: usize = 64;

/// Two rows and their similarity. Edges are ordered by similarity, then by descending rows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Edge {
    similarity: f32,
    a: usize,
    b: usize,
}

impl Eq for Edge {}

impl Ord for Edge {
    fn cmp(&self, other: &Self) -> Ordering {
        self.similarity.total_cmp(&other.similarity).then((other.a, other.b).cmp(&(self.a, self.b)))
    }
}

impl PartialOrd for Edge {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Returns the edges from each row to its nearest neighbours. Each edge has a similarity of at
/// least `threshold`, and `is_allowed` returned true for it. `rows` contains rows of `length`
/// numbers. An edge can occur twice.
fn nearest_edges(
    rows: &[f32],
    length: usize,
    threshold: f32,
    is_allowed: impl Fn(usize, usize) -> bool,
) -> Vec<Edge> {
    let mut lists: Vec<Vec<Edge>> = vec![Vec::new(); rows.len() / length];
    let mut similarities = Vec::with_capacity(BLOCK_ROWS * BLOCK_ROWS);
    let blocks: Vec<&[f32]> = rows.chunks(BLOCK_ROWS * length).collect();
    for (i, first) in blocks.iter().enumerate() {
        for (j, second) in blocks.iter().enumerate().skip(i) {
            write_dot_products(first, second, length, &mut similarities);
            let width = second.len() / length;
            for (k, &similarity) in similarities.iter().enumerate() {
                let (a, b) = (i * BLOCK_ROWS + k / width, j * BLOCK_ROWS + k % width);
                let is_match = a < b && similarity >= threshold;
                let edge = Edge { similarity, a, b };
                if is_match && (accepts(&lists[a], &edge) || accepts(&lists[b], &edge)) && is_allowed(a, b) {
                    insert_edge(&mut lists[a], edge);
                    insert_edge(&mut lists[b], edge);
                }
            }
        }
    }
    lists.concat()
}

fn accepts(list: &[Edge], edge: &Edge) -> bool {
    list.len() < MAX_NEIGHBOURS || list.last().is_some_and(|last| edge > last)
}

/// Inserts an edge in a list that is sorted with the best edge first.
fn insert_edge(list: &mut Vec<Edge>, edge: Edge) {
    if accepts(list, &edge) {
        list.truncate(MAX_NEIGHBOURS - 1);
        list.insert(list.partition_point(|candidate| *candidate > edge), edge);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn finds_every_pair_above_threshold_for_each_row() {
        // Vectors at 0, 10, 20 ... degrees: the similarity of adjacent ones is the cosine of 10.
        let rows: Vec<f32> = (0..150)
            .map(|i| (i as f32 * 10.0).to_radians())
            .flat_map(|angle| [angle.cos(), angle.sin()])
            .collect();
        let edges = nearest_edges(&rows[..36], 2, 0.98, |_, _| true);
        let mut pairs: Vec<_> = edges.iter().map(|edge| (edge.a, edge.b)).collect();
        pairs.sort_unstable();
        let expected: Vec<_> = (0..17).flat_map(|i| [(i, i + 1); 2]).collect();
        assert_eq!(pairs, expected);
        assert!(nearest_edges(&rows, 2, 0.98, |_, _| false).is_empty());
        assert!(nearest_edges(&rows, 2, -1.0, |_, _| true).len() == 150 * MAX_NEIGHBOURS);
    }

    /// Returns an embedding of a person with a deviation.
    fn face(person: usize, deviation: f32) -> Arc<[f32]> {
        let mut values = vec![0.0; 4];
        values[person] = (1.0 - deviation * deviation).sqrt();
        values[3] = deviation;
        Arc::from(values)
    }

    fn appearance(started_us: i64, ended_us: i64, embeddings: Vec<Arc<[f32]>>) -> Appearance {
        Appearance { started_us, ended_us, embeddings }
    }

    #[test]
    fn tracks_of_one_person_get_same_number() {
        let appearances = [
            appearance(500, 900, vec![face(1, 0.2)]),
            appearance(0, 100, vec![face(0, 0.1), face(0, -0.1)]),
            appearance(200, 400, vec![face(0, 0.3)]),
            appearance(600, 700, vec![]),
            appearance(1000, 1100, vec![face(1, 0.0)]),
        ];
        assert_eq!(number_people(&appearances, 0.5).unwrap(), [Some(1), Some(0), Some(0), None, Some(1)]);
    }

    #[test]
    fn simultaneous_tracks_get_different_numbers() {
        let twins = [appearance(0, 100, vec![face(0, 0.0)]), appearance(100, 200, vec![face(0, 0.0)])];
        assert_eq!(number_people(&twins, 0.5).unwrap(), [Some(0), Some(1)]);
        // The third track is similar to both, but gets the number of only one of them.
        let three = [twins[0].clone(), twins[1].clone(), appearance(300, 400, vec![face(0, 0.0)])];
        let numbers = number_people(&three, 0.5).unwrap();
        assert_eq!(numbers.iter().flatten().max(), Some(&1));
    }

    #[test]
    fn one_misleading_shot_does_not_merge_people() {
        let ambiguous: Arc<[f32]> = Arc::from([0.5f32.sqrt(), 0.5f32.sqrt(), 0.0, 0.0]);
        let appearances = [
            appearance(0, 100, vec![face(0, 0.0), face(0, 0.1), ambiguous.clone()]),
            appearance(200, 300, vec![face(1, 0.0), face(1, 0.1), ambiguous]),
        ];
        assert_eq!(number_people(&appearances, 0.5).unwrap(), [Some(0), Some(1)]);
    }

    #[test]
    fn ignores_unusable_embeddings_and_rejects_too_many_tracks() {
        let unusable = [
            appearance(0, 1, vec![Arc::from([f32::NAN; 4]), Arc::from([])]),
            appearance(2, 3, vec![face(0, 0.0)]),
            appearance(4, 5, vec![Arc::from([1.0f32, 0.0])]),
            appearance(9, 6, vec![face(0, 0.0)]),
        ];
        assert_eq!(number_people(&unusable, 0.5).unwrap(), [None, Some(0), None, Some(0)]);
        assert_eq!(number_people(&[], 0.5).unwrap(), []);
        let many = vec![appearance(0, 1, vec![]); MAX_TRACKS + 1];
        assert_eq!(number_people(&many, 0.5), Err(TooManyTracks(MAX_TRACKS + 1)));
    }

    #[test]
    fn tracks_beyond_neighbour_limit_form_one_person() {
        let appearances: Vec<_> =
            (0..700).map(|i| appearance(i * 10, i * 10 + 5, vec![face(0, (i % 7) as f32 * 0.05)])).collect();
        assert!(number_people(&appearances, 0.5).unwrap().iter().all(|number| *number == Some(0)));
    }

    proptest! {
        #[test]
        fn person_numbering_rules_hold_in_any_order(
            list in prop::collection::vec((0..3usize, -0.6..0.6f32, 0..400i64, 1..60i64), 0..40),
            rotation in 0..40usize,
        ) {
            let appearances: Vec<_> = list.iter().map(|&(p, d, start, length)| appearance(start, start + length, vec![face(p, d)])).collect();
            let numbers = number_people(&appearances, 0.6).unwrap();
            for (i, a) in appearances.iter().enumerate() {
                for (j, b) in appearances.iter().enumerate().skip(i + 1) {
                    let is_simultaneous = a.started_us <= b.ended_us && b.started_us <= a.ended_us;
                    prop_assert!(!(is_simultaneous && numbers[i] == numbers[j]));
                }
            }
            let rotation = rotation % appearances.len().max(1);
            let (mut rotated, mut expected) = (appearances.clone(), numbers.clone());
            rotated.rotate_left(rotation);
            expected.rotate_left(rotation);
            prop_assert_eq!(number_people(&rotated, 0.6).unwrap(), expected);
        }
    }
}
