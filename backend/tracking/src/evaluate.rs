//! Measures how well tracks match the ground truth. Only tests and benchmarks use this module.

use crate::assignment::{Pair, assign};
use std::collections::{BTreeMap, BTreeSet};
use vision::Rect;

/// Minimum IoU at which a predicted box counts as correct, as in MOTChallenge (Milan et al. 2016).
pub const MIN_IOU: f32 = 0.5;

/// A box of an identity: a person in the ground truth, or a predicted track.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The number of the person or of the track.
    pub identity: u64,
    pub at_us: i64,
    pub bbox: Rect,
}

/// The counts of Ristani et al., "Performance Measures and a Data Set for Multi-Target,
/// Multi-Camera Tracking", ECCV Workshops 2016, section 3.1. Each true identity is assigned to at
/// most one predicted identity. The assignment maximises the number of matching boxes in the video.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdentityCounts {
    /// IDTP: predicted boxes that match a box of the assigned identity.
    pub true_positives: usize,
    /// IDFP: the other predicted boxes.
    pub false_positives: usize,
    /// IDFN: true boxes that match no box of the assigned identity.
    pub false_negatives: usize,
}

impl IdentityCounts {
    /// Returns IDF1 = 2 IDTP / (2 IDTP + IDFP + IDFN), 0..1; 1 if there are no boxes.
    pub fn idf1(&self) -> f64 {
        let wrong = self.false_positives + self.false_negatives;
        ratio(2 * self.true_positives, 2 * self.true_positives + wrong)
    }

    /// Returns IDP = IDTP / (IDTP + IDFP), 0..1.
    pub fn precision(&self) -> f64 {
        ratio(self.true_positives, self.true_positives + self.false_positives)
    }

    /// Returns IDR = IDTP / (IDTP + IDFN), 0..1.
    pub fn recall(&self) -> f64 {
        ratio(self.true_positives, self.true_positives + self.false_negatives)
    }
}

/// Counts the matching boxes for the best assignment of identities. Time: O(k^3) for k identities
/// with common boxes.
pub fn identity_counts(truth: &[Sample], predictions: &[Sample], min_iou: f32) -> IdentityCounts {
    let common = common_boxes(truth, predictions, min_iou);
    let to_list = |identities: BTreeSet<u64>| -> Vec<u64> { identities.into_iter().collect() };
    let rows = to_list(common.keys().map(|key| key.0).collect());
    let columns = to_list(common.keys().map(|key| key.1).collect());
    let index_of = |identities: &[u64], identity: u64| identities.partition_point(|id| *id < identity);
    let pair = |(key, count): (&(u64, u64), &usize)| {
        let (row, column) = (index_of(&rows, key.0), index_of(&columns, key.1));
        Pair { row, column, gain: *count as f64 }
    };
    let pairs = common.iter().map(pair).collect();
    let matching: usize = assign(pairs, usize::MAX)
        .into_iter()
        .filter_map(|(row, column)| common.get(&(rows[row], columns[column])))
        .sum();
    IdentityCounts {
        true_positives: matching,
        false_positives: predictions.len() - matching,
        false_negatives: truth.len() - matching,
    }
}

/// Returns the share of true identities that are found: at least `min_share` (0..1) of their boxes
/// match boxes of a single track. The result is 1 if there is no true identity. The measure "mostly
/// tracked" of Li, Huang and Nevatia (CVPR 2009) also counts people with several tracks.
pub fn track_recall(truth: &[Sample], predictions: &[Sample], min_iou: f32, min_share: f64) -> f64 {
    let mut box_counts: BTreeMap<u64, usize> = BTreeMap::new();
    for sample in truth {
        *box_counts.entry(sample.identity).or_default() += 1;
    }
    let common = common_boxes(truth, predictions, min_iou);
    let max_common = |identity: u64| {
        common.range((identity, 0)..=(identity, u64::MAX)).map(|(_, count)| *count).max().unwrap_or(0)
    };
    let is_found =
        |(identity, count): &(&u64, &usize)| max_common(**identity) as f64 >= min_share * **count as f64;
    ratio(box_counts.iter().filter(is_found).count(), box_counts.len())
}

/// Returns the number of common boxes of each true and each predicted identity.
fn common_boxes(truth: &[Sample], predictions: &[Sample], min_iou: f32) -> BTreeMap<(u64, u64), usize> {
    let mut frames: BTreeMap<i64, Vec<&Sample>> = BTreeMap::new();
    for sample in predictions {
        frames.entry(sample.at_us).or_default().push(sample);
    }
    let mut common = BTreeMap::new();
    for true_sample in truth {
        let mut identities = BTreeSet::new();
        for sample in frames.get(&true_sample.at_us).into_iter().flatten() {
            if sample.bbox.iou(&true_sample.bbox) >= min_iou && identities.insert(sample.identity) {
                *common.entry((true_sample.identity, sample.identity)).or_default() += 1;
            }
        }
    }
    common
}

fn ratio(part: usize, total: usize) -> f64 {
    if total == 0 { 1.0 } else { part as f64 / total as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one box of the identity per second, at `x`.
    fn samples(identity: u64, seconds: std::ops::Range<i64>, x: f32) -> Vec<Sample> {
        let bbox = Rect { x, y: 0.0, width: 10.0, height: 10.0 };
        seconds.map(|s| Sample { identity, at_us: s * 1_000_000, bbox }).collect()
    }

    #[test]
    fn counts_identities_of_fragmented_track() {
        // A person is visible for ten seconds, and has tracks of 6 and 4 seconds. One box is false.
        let truth = samples(1, 0..10, 0.0);
        let predictions = [samples(5, 0..6, 1.0), samples(6, 6..10, 0.0), samples(7, 3..4, 90.0)].concat();
        let counts = identity_counts(&truth, &predictions, MIN_IOU);
        let expected = IdentityCounts { true_positives: 6, false_positives: 5, false_negatives: 4 };
        assert_eq!(counts, expected);
        assert_eq!(counts.idf1(), 12.0 / 21.0);
        assert_eq!((counts.precision(), counts.recall()), (6.0 / 11.0, 0.6));
        assert_eq!(track_recall(&truth, &predictions, MIN_IOU, 0.5), 1.0);
        assert_eq!(track_recall(&truth, &predictions, MIN_IOU, 0.7), 0.0);
    }

    #[test]
    fn identity_switch_lowers_idf1_by_shorter_part() {
        let truth = [samples(1, 0..10, 0.0), samples(2, 0..10, 50.0)].concat();
        let predictions =
            [samples(1, 0..6, 0.0), samples(1, 6..10, 50.0), samples(2, 0..6, 50.0), samples(2, 6..10, 0.0)]
                .concat();
        assert_eq!(identity_counts(&truth, &predictions, MIN_IOU).idf1(), 0.6);
        assert_eq!(identity_counts(&truth, &truth, MIN_IOU).idf1(), 1.0);
        assert_eq!(identity_counts(&[], &[], MIN_IOU).idf1(), 1.0);
        assert_eq!(identity_counts(&truth, &[], MIN_IOU).idf1(), 0.0);
    }
}
