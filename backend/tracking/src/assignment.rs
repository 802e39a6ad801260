//! Assigns rows to columns with the highest total gain.

use std::collections::BTreeMap;

/// A possible pair. `gain` is finite and positive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pair {
    pub(crate) row: usize,
    pub(crate) column: usize,
    pub(crate) gain: f64,
}

/// Selects pairs so that every row and every column occurs at most once, and returns them by row.
///
/// Pairs that share rows or columns, directly or through other pairs, form a group. The total gain
/// of a group is the maximum if it has at most `max_exact_group` rows and columns. In a larger
/// group, pairs are selected by gain, best first. The result does not depend on the order of
/// `pairs`. Time: O(n log n) for n pairs, and O(k^3) for a group of k rows and columns.
pub(crate) fn assign(mut pairs: Vec<Pair>, max_exact_group: usize) -> Vec<(usize, usize)> {
    pairs.sort_by(|a, b| b.gain.total_cmp(&a.gain).then(a.row.cmp(&b.row)).then(a.column.cmp(&b.column)));
    let mut assignment = Vec::new();
    for group in connected_groups(&pairs) {
        let rows = sorted_distinct(group.iter().map(|pair| pair.row));
        let columns = sorted_distinct(group.iter().map(|pair| pair.column));
        if rows.len() == 1 || columns.len() == 1 || rows.len().max(columns.len()) > max_exact_group {
            assign_greedily(&group, &mut assignment);
        } else {
            assign_exactly(&group, &rows, &columns, &mut assignment);
        }
    }
    assignment.sort_unstable();
    assignment
}

/// Returns the groups of pairs that share rows or columns. Each group keeps the order of `pairs`.
fn connected_groups(pairs: &[Pair]) -> Vec<Vec<Pair>> {
    let rows = sorted_distinct(pairs.iter().map(|pair| pair.row));
    let columns = sorted_distinct(pairs.iter().map(|pair| pair.column));
    let mut parents: Vec<usize> = (0..rows.len() + columns.len()).collect();
    let nodes = |pair: &Pair| (index_of(&rows, pair.row), rows.len() + index_of(&columns, pair.column));
    for pair in pairs {
        let (row, column) = nodes(pair);
        let (row, column) = (find_root(&mut parents, row), find_root(&mut parents, column));
        parents[row.max(column)] = row.min(column);
    }
    let mut groups: BTreeMap<usize, Vec<Pair>> = BTreeMap::new();
    for pair in pairs {
        groups.entry(find_root(&mut parents, nodes(pair).0)).or_default().push(*pair);
    }
    groups.into_values().collect()
}

/// Returns the root of the node in a union-find forest, and shortens the path to it.
pub(crate) fn find_root(parents: &mut [usize], mut node: usize) -> usize {
    while parents[node] != node {
        parents[node] = parents[parents[node]];
        node = parents[node];
    }
    node
}

fn sorted_distinct(values: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut values: Vec<usize> = values.collect();
    values.sort_unstable();
    values.dedup();
    values
}

/// Returns the position of `value` in `values`, which must be sorted and contain it.
fn index_of(values: &[usize], value: usize) -> usize {
    values.partition_point(|element| *element < value)
}

/// Selects pairs in order, and skips those whose row or column is already assigned.
fn assign_greedily(group: &[Pair], assignment: &mut Vec<(usize, usize)>) {
    let (mut rows, mut columns) = (std::collections::HashSet::new(), std::collections::HashSet::new());
    for pair in group {
        if !rows.contains(&pair.row) && !columns.contains(&pair.column) {
            rows.insert(pair.row);
            columns.insert(pair.column);
            assignment.push((pair.row, pair.column));
        }
    }
}

/// Selects the pairs with the maximum total gain.
fn assign_exactly(group: &[Pair], rows: &[usize], columns: &[usize], assignment: &mut Vec<(usize, usize)>) {
    let is_wide = rows.len() <= columns.len();
    let (short, long) = if is_wide { (rows, columns) } else { (columns, rows) };
    let mut costs = vec![vec![0.0; long.len()]; short.len()];
    for pair in group {
        let (row, column) = (index_of(rows, pair.row), index_of(columns, pair.column));
        let (i, j) = if is_wide { (row, column) } else { (column, row) };
        costs[i][j] = -pair.gain;
    }
    for (i, j) in solve_hungarian(&costs).into_iter().enumerate() {
        if costs[i][j] < 0.0 {
            assignment.push(if is_wide { (short[i], long[j]) } else { (long[j], short[i]) });
        }
    }
}

/// Returns the column of each row in the assignment with the lowest total cost. Requires at least
/// as many columns as rows. This is the Hungarian method (Kuhn 1955) with potentials and shortest
/// augmenting paths (Jonker and Volgenant 1987). Rows and columns are numbered from 1; column 0 is
/// the start of a path.
fn solve_hungarian(costs: &[Vec<f64>]) -> Vec<usize> {
    let (row_count, column_count) = (costs.len(), costs.first().map_or(0, Vec::len));
    let (mut row_potentials, mut column_potentials) = (vec![0.0; row_count + 1], vec![0.0; column_count + 1]);
    let mut matched_rows = vec![0; column_count + 1];
    for row in 1..=row_count {
        matched_rows[0] = row;
        let mut min_costs = vec![f64::INFINITY; column_count + 1];
        let (mut previous, mut is_visited) = (vec![0; column_count + 1], vec![false; column_count + 1]);
        let mut column = 0;
        while matched_rows[column] != 0 {
            is_visited[column] = true;
            let (current, mut step, mut next) = (matched_rows[column], f64::INFINITY, 0);
            for j in (1..=column_count).filter(|&j| !is_visited[j]) {
                let reduced = costs[current - 1][j - 1] - row_potentials[current] - column_potentials[j];
                if reduced < min_costs[j] {
                    (min_costs[j], previous[j]) = (reduced, column);
                }
                if min_costs[j] < step {
                    (step, next) = (min_costs[j], j);
                }
            }
            for j in 0..=column_count {
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
    let mut columns = vec![0; row_count];
    for j in (1..=column_count).filter(|&j| matched_rows[j] != 0) {
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

    /// Returns the maximum total gain by trying every assignment.
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
