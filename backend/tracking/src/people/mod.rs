//! Which tracks of one video show the same person.
//!
//! Repeatedly merges the two groups of tracks whose best shots have the highest mean similarity,
//! until no two groups reach the threshold. This is average linkage (UPGMA, Sokal and Michener
//! 1958). The criterion is the mean over all pairs of shots, not the best pair, so that one
//! misleading shot does not connect two people. The crate `pipeline` clusters subjects likewise.

mod nearest;

use crate::assignment::root;
use crate::similarity::dot;
use crate::track::Track;
use nearest::{Edge, nearest};
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

/// Maximum number of tracks of one video.
pub const MAX_TRACKS: usize = 20_000;

/// Maximum number of rounds. In practice, the second or third round merges nothing.
const MAX_ROUNDS: usize = 16;
/// Maximum number of similarities that a round computes for each edge. It bounds the time.
const EVALUATIONS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} tracks are too many, at most {MAX_TRACKS} are allowed")]
pub struct TooManyTracks(pub usize);

/// When a track was visible, and the embeddings of its best shots.
#[derive(Clone, Debug)]
pub struct Appearance {
    /// Time of the first observation in microseconds.
    pub started_us: i64,
    /// Time of the last observation in microseconds.
    pub ended_us: i64,
    /// The embeddings, of length 1 and all of the same model.
    pub embeddings: Vec<Arc<[f32]>>,
}

impl<P> From<&Track<P>> for Appearance {
    fn from(track: &Track<P>) -> Self {
        let embeddings = track.best.iter().filter_map(|shot| shot.embedding.clone()).collect();
        Self { started_us: track.started_us, ended_us: track.ended_us, embeddings }
    }
}

/// Returns the number of the person of each appearance, in the same order; `None` if there is no
/// embedding. Numbers count from 0, by the time at which a person is first seen.
///
/// `threshold` is the minimum mean similarity of two groups, -1..1: the match threshold of the
/// model plus its margin for clusters. Two tracks whose times overlap are never the same person.
/// The result does not depend on the order of the appearances.
///
/// Time: O(n² d) for n tracks and embeddings of d numbers. At most 15 more rounds follow, on the
/// groups, until nothing merges. Memory: O(n d).
///
/// # Errors
/// Fails for more than [`MAX_TRACKS`] tracks.
pub fn number_people(appearances: &[Appearance], threshold: f32) -> Result<Vec<Option<u32>>, TooManyTracks> {
    if appearances.len() > MAX_TRACKS {
        return Err(TooManyTracks(appearances.len()));
    }
    let mut groups = singles(appearances);
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

/// Tracks that are one person.
#[derive(Clone)]
struct Group {
    members: Vec<usize>,
    /// The mean of all embeddings, and their number. The dot product of two means is the mean
    /// similarity of all pairs.
    mean: Vec<f32>,
    weight: f32,
    /// The start and end of each track, which do not overlap.
    times: BTreeMap<i64, i64>,
}

impl Group {
    /// Returns whether a track of one group and a track of the other are visible at the same time.
    fn overlaps(&self, other: &Self) -> bool {
        let (few, many) = if self.times.len() <= other.times.len() { (self, other) } else { (other, self) };
        few.times.iter().any(|(start, end)| {
            many.times.range(..=end).next_back().is_some_and(|(_, other_end)| other_end >= start)
        })
    }

    fn merge(&mut self, other: Self) {
        let weight = self.weight + other.weight;
        for (own, others) in self.mean.iter_mut().zip(&other.mean) {
            *own = (*own * self.weight + others * other.weight) / weight;
        }
        self.weight = weight;
        self.members.extend(other.members);
        self.times.extend(other.times);
    }
}

/// Returns a group for each appearance with an embedding, by time. Embeddings that are not finite,
/// or whose length is not that of the first one, are left out.
fn singles(appearances: &[Appearance]) -> Vec<Group> {
    let mut order: Vec<usize> = (0..appearances.len()).collect();
    order.sort_by(|&a, &b| {
        let (first, second) = (&appearances[a], &appearances[b]);
        let key = |one: &Appearance| (one.started_us, one.ended_us);
        let numbers = |one: &Appearance| -> Vec<u32> {
            one.embeddings.iter().flat_map(|e| e.iter().map(|value| value.to_bits())).collect()
        };
        key(first).cmp(&key(second)).then_with(|| numbers(first).cmp(&numbers(second)))
    });
    let mut length = None;
    let mut groups = Vec::new();
    for member in order {
        let appearance = &appearances[member];
        let mut usable = appearance.embeddings.iter().filter(|e| {
            !e.is_empty()
                && e.iter().all(|value| value.is_finite())
                && e.len() == *length.get_or_insert(e.len())
        });
        let Some(first) = usable.next() else { continue };
        let (mut mean, mut weight) = (first.to_vec(), 1.0);
        for embedding in usable {
            mean.iter_mut().zip(embedding.iter()).for_each(|(sum, value)| *sum += value);
            weight += 1.0;
        }
        mean.iter_mut().for_each(|sum| *sum /= weight);
        let (start, end) = (appearance.started_us, appearance.ended_us.max(appearance.started_us));
        groups.push(Group { members: vec![member], mean, weight, times: BTreeMap::from([(start, end)]) });
    }
    groups
}

/// Merges groups along the edges of the graph of nearest neighbours. Returns the groups, each at
/// the place of its first track; `None` if nothing merged.
fn merge_round(groups: &[Group], threshold: f32) -> Option<Vec<Group>> {
    let length = groups.first()?.mean.len();
    let means: Vec<f32> = groups.iter().flat_map(|group| group.mean.iter().copied()).collect();
    let edges = nearest(&means, length, threshold, |a, b| !groups[a].overlaps(&groups[b]));
    let mut places: Vec<Option<Group>> = groups.iter().cloned().map(Some).collect();
    let mut parents: Vec<usize> = (0..groups.len()).collect();
    let mut heap = BinaryHeap::from(edges);
    let mut has_merged = false;
    let mut evaluations = heap.len() * EVALUATIONS;
    while let Some(edge) = heap.pop().filter(|_| evaluations > 0) {
        evaluations -= 1;
        let (a, b) = (root(&mut parents, edge.a), root(&mut parents, edge.b));
        let (low, high) = (a.min(b), a.max(b));
        let (Some(first), Some(second)) = (&places[low], &places[high]) else { continue };
        if low == high {
            continue;
        }
        // The similarity of merged groups is never above that of the better part, so an edge with
        // an old value is at the top of the heap early enough to be corrected.
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
        if let (Some(other), Some(group)) = (places[high].take(), places[low].as_mut()) {
            group.merge(other);
            parents[high] = low;
            has_merged = true;
        }
    }
    has_merged.then(|| places.into_iter().flatten().collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
