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
/// group, pairs are selected by gain, best first. The result does not depend on the order of
/// `pairs`. Time: O(n log n) for n pairs, and O(k^3) for a group of k rows and columns.
pub(crate) fn assign(mut pairs: Vec<Pair>, exact_group: usize) -> Vec<(usize, usize)> {
    pairs.sort_by(|a, b| b.gain.total_cmp(&a.gain).then(a.row.cmp(&b.row)).then(a.column.cmp(&b.column)));
    let mut assignment = Vec::new();
    for group in groups(&pairs) {
        let rows = distinct(group.iter().map(|pair| pair.row));
        let columns = distinct(group.iter().map(|pair| pair.column));
        if rows.len() == 1 || columns.len() == 1 || rows.len().max(columns.len()) > exact_group {
            greedy(&group, &mut assignment);
        } else {
            exact(&group, &rows, &columns, &mut assignment);
        }
    }
    assignment.sort_unstable();
    assignment
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
    values.partition_point(|element| *element < value)
}

/// Selects pairs in their order, and skips those whose row or column is already assigned.
fn greedy(group: &[Pair], assignment: &mut Vec<(usize, usize)>) {
    let (mut rows, mut columns) = (std::collections::HashSet::new(), std::collections::HashSet::new());
    for pair in group {
        if !rows.contains(&pair.row) && !columns.contains(&pair.column) {
            rows.insert(pair.row);
            columns.insert(pair.column);
            assignment.push((pair.row, pair.column));
        }
    }
}

/// Solves a group exactly. Rows and columns without a pair have gain 0.
fn exact(group: &[Pair], rows: &[usize], columns: &[usize], assignment: &mut Vec<(usize, usize)>) {
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
            assignment.push(if is_wide { (short[i], long[j]) } else { (long[j], short[i]) });
        }
    }
}

/// Returns the column of each row with the lowest total cost. Requires at least as many columns as
/// rows. This is the Hungarian method (Kuhn 1955) with potentials and shortest augmenting paths
/// (Jonker and Volgenant 1987); rows and columns count from 1, and column 0 is the start of a path.
fn hungarian(costs: &[Vec<f64>]) -> Vec<usize> {
    let (n, m) = (costs.len(), costs.first().map_or(0, Vec::len));
    let (mut row_potentials, mut column_potentials) = (vec![0.0; n + 1], vec![0.0; m + 1]);
    let mut matched_rows = vec![0; m + 1];
    for row in 1..=n {
        matched_rows[0] = row;
        let (mut min_costs, mut previous) = (vec![f64::INFINITY; m + 1], vec![0; m + 1]);
        let mut is_visited = vec![false; m + 1];
        let mut column = 0;
        while matched_rows[column] != 0 {
            is_visited[column] = true;
            let (current, mut step, mut next) = (matched_rows[column], f64::INFINITY, 0);
            for j in (1..=m).filter(|&j| !is_visited[j]) {
                let reduced = costs[current - 1][j - 1] - row_potentials[current] - column_potentials[j];
                if reduced < min_costs[j] {
                    (min_costs[j], previous[j]) = (reduced, column);
                }
                if min_costs[j] < step {
                    (step, next) = (min_costs[j], j);
                }
            }
            for j in 0..=m {
                if is_visited[j] {
                    row_potentials[matched_rows[j]] += step;
                    column_potentials[j] -= step;
                } else {
                    min_costs[j] -= step;
                }
            }
            column = next;
        }
        while column != 0 {
            matched_rows[column] = matched_rows[previous[column]];
            column = previous[column];
        }
    }
    let mut columns = vec![0; n];
    for j in (1..=m).filter(|&j| matched_rows[j] != 0) {
        columns[matched_rows[j] - 1] = j - 1;
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs(entries: &[(usize, usize, f64)]) -> Vec<Pair> {
        entries.iter().map(|&(row, column, gain)| Pair { row, column, gain }).collect()
    }

    #[test]
    fn exact_assignment_beats_greedy_on_conflicting_pairs() {
        let conflicting = pairs(&[(0, 0, 1.0), (0, 1, 0.9), (1, 0, 0.9)]);
        assert_eq!(assign(conflicting.clone(), 64), [(0, 1), (1, 0)]);
        assert_eq!(assign(conflicting, 0), [(0, 0)]);
        assert!(assign(Vec::new(), 64).is_empty());
    }

    /// Tries every assignment.
    fn max_gain(pairs: &[Pair], row: usize, used_columns: &mut Vec<usize>) -> f64 {
        if row > 5 {
            return 0.0;
        }
        let mut highest = max_gain(pairs, row + 1, used_columns);
        for pair in pairs.iter().filter(|pair| pair.row == row) {
            if !used_columns.contains(&pair.column) {
                used_columns.push(pair.column);
                highest = highest.max(pair.gain + max_gain(pairs, row + 1, used_columns));
                used_columns.pop();
            }
        }
        highest
    }

    proptest! {
        #[test]
        fn assignment_maximises_total_gain(cells in prop::collection::btree_map((0..6usize, 0..5usize), 0.01..1.0f64, 0..20)) {
            let input: Vec<Pair> = cells.iter().map(|(&(row, column), &gain)| Pair { row, column, gain }).collect();
            let total: f64 = assign(input.clone(), 64).iter().map(|key| cells[key]).sum();
            prop_assert!((total - max_gain(&input, 0, &mut Vec::new())).abs() < 1e-9);
            let mut reversed = input.clone();
            reversed.reverse();
            prop_assert_eq!(assign(input, 64), assign(reversed, 64));
        }
    }
}
