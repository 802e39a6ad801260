//! The graph of nearest neighbours, by comparing all pairs.

use crate::similarity::products;
use std::cmp::Ordering;

/// Number of neighbours of each row. It bounds the memory; further rounds find the rest.
const NEIGHBOURS: usize = 16;
/// Number of rows that are compared at a time, so that they stay in the cache of the processor.
const TILE: usize = 64;

/// Two rows and their similarity. The order is by similarity, then by rows, the lowest last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Edge {
    pub(super) similarity: f32,
    pub(super) a: usize,
    pub(super) b: usize,
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

/// Returns the edges from each row to its nearest neighbours, of those with a similarity of at
/// least `threshold` that are `allowed`. `rows` holds rows of `length` numbers. An edge can occur
/// twice.
pub(super) fn nearest(
    rows: &[f32],
    length: usize,
    threshold: f32,
    allowed: impl Fn(usize, usize) -> bool,
) -> Vec<Edge> {
    let mut lists: Vec<Vec<Edge>> = vec![Vec::new(); rows.len() / length];
    let mut similarities = Vec::with_capacity(TILE * TILE);
    let tiles: Vec<&[f32]> = rows.chunks(TILE * length).collect();
    for (i, above) in tiles.iter().enumerate() {
        for (j, below) in tiles.iter().enumerate().skip(i) {
            products(above, below, length, &mut similarities);
            let width = below.len() / length;
            for (k, &similarity) in similarities.iter().enumerate() {
                let (a, b) = (i * TILE + k / width, j * TILE + k % width);
                let is_new = a < b && similarity >= threshold;
                let edge = Edge { similarity, a, b };
                if is_new && (is_wanted(&lists[a], &edge) || is_wanted(&lists[b], &edge)) && allowed(a, b) {
                    insert(&mut lists[a], edge);
                    insert(&mut lists[b], edge);
                }
            }
        }
    }
    lists.concat()
}

fn is_wanted(list: &[Edge], edge: &Edge) -> bool {
    list.len() < NEIGHBOURS || list.last().is_some_and(|last| edge > last)
}

/// Inserts an edge in a list, which is sorted with the best first.
fn insert(list: &mut Vec<Edge>, edge: Edge) {
    if is_wanted(list, &edge) {
        list.truncate(NEIGHBOURS - 1);
        list.insert(list.partition_point(|other| *other > edge), edge);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_above_the_threshold_is_found_once_for_each_row() {
        // Angles of 0, 10, 20 ... degrees: neighbours have a similarity of cos 10.
        let rows: Vec<f32> = (0..150)
            .map(|i| (i as f32 * 10.0).to_radians())
            .flat_map(|angle| [angle.cos(), angle.sin()])
            .collect();
        let found = nearest(&rows[..36], 2, 0.98, |_, _| true);
        let mut pairs: Vec<_> = found.iter().map(|edge| (edge.a, edge.b)).collect();
        pairs.sort_unstable();
        let expected: Vec<_> = (0..17).flat_map(|i| [(i, i + 1); 2]).collect();
        assert_eq!(pairs, expected);
        assert!(nearest(&rows, 2, 0.98, |_, _| false).is_empty());
        assert!(nearest(&rows, 2, -1.0, |_, _| true).len() == 150 * NEIGHBOURS);
    }
}
