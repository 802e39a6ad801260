//! Assignment of rows to columns with the highest total gain.

use std::collections::BTreeMap;

/// A possible pair. `gain` is finite and positive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pair {
    pub(crate) row: usize,
    pub(crate) column: usize,
    pub(crate) gain: f64,
}

/// Returns pairs in which every row and every column occurs at most once, sorted by row.
///
/// Pairs that share rows or columns, directly or through other pairs, form a group. The total gain
/// of a group is the highest possible if it has at most `exact_group` rows and columns. In a larger
/// group, the pairs are taken by gain, best first. The result does not depend on the order of
/// `pairs`. Time: O(n log n) for n pairs, and O(k^3) for a group of k rows and columns.
pub(crate) fn assign(mut pairs: Vec<Pair>, exact_group: usize) -> Vec<(usize, usize)> {
    pairs.sort_by(|a, b| b.gain.total_cmp(&a.gain).then(a.row.cmp(&b.row)).then(a.column.cmp(&b.column)));
    let mut found = Vec::new();
    for group in groups(&pairs) {
        let rows = distinct(group.iter().map(|pair| pair.row));
        let columns = distinct(group.iter().map(|pair| pair.column));
        if rows.len() == 1 || columns.len() == 1 || rows.len().max(columns.len()) > exact_group {
            greedy(&group, &mut found);
        } else {
            exact(&group, &rows, &columns, &mut found);
        }
    }
    found.sort_unstable();
    found
}

/// Returns the groups of pairs that share rows or columns. Each group keeps the order of `pairs`.
fn groups(pairs: &[Pair]) -> Vec<Vec<Pair>> {
    let rows = distinct(pairs.iter().map(|pair| pair.row));
    let columns = distinct(pairs.iter().map(|pair| pair.column));
    let mut parents: Vec<usize> = (0..rows.len() + columns.len()).collect();
    let node = |pair: &Pair| (index(&rows, pair.row), rows.len() + index(&columns, pair.column));
    for pair in pairs {
        let (row, column) = node(pair);
        let (row, column) = (root(&mut parents, row), root(&mut parents, column));
        parents[row.max(column)] = row.min(column);
    }
    let mut groups: BTreeMap<usize, Vec<Pair>> = BTreeMap::new();
    for pair in pairs {
        groups.entry(root(&mut parents, node(pair).0)).or_default().push(*pair);
    }
    groups.into_values().collect()
}

/// Returns the root of the node's tree, in a forest in which each root is its own parent. Shortens
/// the path to it.
pub(crate) fn root(parents: &mut [usize], mut node: usize) -> usize {
    while parents[node] != node {
        parents[node] = parents[parents[node]];
        node = parents[node];
    }
    node
}

fn distinct(values: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut values: Vec<usize> = values.collect();
    values.sort_unstable();
    values.dedup();
    values
}

/// Returns the position of `value` in `values`, which are sorted and contain it.
fn index(values: &[usize], value: usize) -> usize {
    values.partition_point(|other| *other < value)
}

/// Takes the pairs in their order, and skips those whose row or column is taken.
fn greedy(group: &[Pair], found: &mut Vec<(usize, usize)>) {
    let (mut rows, mut columns) = (std::collections::HashSet::new(), std::collections::HashSet::new());
    for pair in group {
        if !rows.contains(&pair.row) && !columns.contains(&pair.column) {
            rows.insert(pair.row);
            columns.insert(pair.column);
            found.push((pair.row, pair.column));
        }
    }
}

/// Solves a group exactly. Rows and columns without a pair have gain 0, as if they stayed alone.
fn exact(group: &[Pair], rows: &[usize], columns: &[usize], found: &mut Vec<(usize, usize)>) {
    let is_wide = rows.len() <= columns.len();
    let (short, long) = if is_wide { (rows, columns) } else { (columns, rows) };
    let mut costs = vec![vec![0.0; long.len()]; short.len()];
    for pair in group {
        let (row, column) = (index(rows, pair.row), index(columns, pair.column));
        let (i, j) = if is_wide { (row, column) } else { (column, row) };
        costs[i][j] = -pair.gain;
    }
    for (i, j) in hungarian(&costs).into_iter().enumerate() {
        if costs[i][j] < 0.0 {
            found.push(if is_wide { (short[i], long[j]) } else { (long[j], short[i]) });
        }
    }
}

/// Returns the column of each row with the lowest total cost. Requires at least as many columns as
/// rows. This is the Hungarian method (Kuhn 1955) with potentials and shortest augmenting paths
/// (Jonker and Volgenant 1987); rows and columns count from 1, and column 0 is the start of a path.
fn hungarian(costs: &[Vec<f64>]) -> Vec<usize> {
    let (n, m) = (costs.len(), costs.first().map_or(0, Vec::len));
    let (mut of_row, mut of_column) = (vec![0.0; n + 1], vec![0.0; m + 1]);
    let mut row_of = vec![0; m + 1];
    for row in 1..=n {
        row_of[0] = row;
        let (mut lowest, mut before) = (vec![f64::INFINITY; m + 1], vec![0; m + 1]);
        let mut used = vec![false; m + 1];
        let mut column = 0;
        while row_of[column] != 0 {
            used[column] = true;
            let (current, mut step, mut next) = (row_of[column], f64::INFINITY, 0);
            for j in (1..=m).filter(|&j| !used[j]) {
                let reduced = costs[current - 1][j - 1] - of_row[current] - of_column[j];
                if reduced < lowest[j] {
                    (lowest[j], before[j]) = (reduced, column);
                }
                if lowest[j] < step {
                    (step, next) = (lowest[j], j);
                }
            }
            for j in 0..=m {
                if used[j] {
                    of_row[row_of[j]] += step;
                    of_column[j] -= step;
                } else {
                    lowest[j] -= step;
                }
            }
            column = next;
        }
        while column != 0 {
            row_of[column] = row_of[before[column]];
            column = before[column];
        }
    }
    let mut column_of = vec![0; n];
    for j in (1..=m).filter(|&j| row_of[j] != 0) {
        column_of[row_of[j] - 1] = j - 1;
    }
    column_of
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs(list: &[(usize, usize, f64)]) -> Vec<Pair> {
        list.iter().map(|&(row, column, gain)| Pair { row, column, gain }).collect()
    }

    #[test]
    fn exact_assignment_beats_greedy_on_conflicting_pairs() {
        let rivals = pairs(&[(0, 0, 1.0), (0, 1, 0.9), (1, 0, 0.9)]);
        assert_eq!(assign(rivals.clone(), 64), [(0, 1), (1, 0)]);
        assert_eq!(assign(rivals, 0), [(0, 0)]);
        assert!(assign(Vec::new(), 64).is_empty());
    }

    /// Tries every assignment.
    fn best(pairs: &[Pair], row: usize, taken: &mut Vec<usize>) -> f64 {
        if row > 5 {
            return 0.0;
        }
        let mut highest = best(pairs, row + 1, taken);
        for pair in pairs.iter().filter(|pair| pair.row == row) {
            if !taken.contains(&pair.column) {
                taken.push(pair.column);
                highest = highest.max(pair.gain + best(pairs, row + 1, taken));
                taken.pop();
            }
        }
        highest
    }

    proptest! {
        #[test]
        fn assignment_maximises_total_gain(cells in prop::collection::btree_map((0..6usize, 0..5usize), 0.01..1.0f64, 0..20)) {
            let all: Vec<Pair> = cells.iter().map(|(&(row, column), &gain)| Pair { row, column, gain }).collect();
            let total: f64 = assign(all.clone(), 64).iter().map(|key| cells[key]).sum();
            prop_assert!((total - best(&all, 0, &mut Vec::new())).abs() < 1e-9);
            let mut reversed = all.clone();
            reversed.reverse();
            prop_assert_eq!(assign(all, 64), assign(reversed, 64));
        }
    }
}
