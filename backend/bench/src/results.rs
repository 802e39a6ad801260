//! Holds the results of all measurements.
use crate::{BenchTarget, ImageSize, SideReport};
use std::collections::BTreeMap;

/// The results by operation, size and side.
pub type Results = BTreeMap<String, BTreeMap<String, BTreeMap<String, SideReport>>>;

/// Returns the results of every operation, size and side in the order of the documentation, not in
/// alphabetical order.
pub fn ordered(results: &Results) -> Vec<(&str, &str, &str, &SideReport)> {
    let rank = |names: &[&str], name: &str| names.iter().position(|n| *n == name).unwrap_or(names.len());
    let operations = BenchTarget::ALL.map(BenchTarget::name);
    let sizes = ImageSize::ALL.map(ImageSize::name);
    let mut all = Vec::new();
    for (operation, of_size) in results {
        for (size, of_side) in of_size {
            all.extend(
                of_side
                    .iter()
                    .map(|(side, report)| (operation.as_str(), size.as_str(), side.as_str(), report)),
            );
        }
    }
    all.sort_by_key(|(operation, size, side, _)| (rank(&operations, operation), rank(&sizes, size), *side));
    all
}
