use crate::track::Shot;

/// The candidates for the best shots of one open track. Holds at most twice as many candidates as
/// are wanted, because each holds pixels. The first result is always the best observation of the
/// track. The others are the best of the candidates that were still held.
#[derive(Clone, Debug)]
pub(crate) struct BestShots<P> {
    candidates: Vec<Shot<P>>,
    wanted: usize,
    gap_us: i64,
}

impl<P> BestShots<P> {
    /// Keeps the `wanted` best shots, at least `gap_us` microseconds apart.
    pub(crate) fn new(wanted: usize, gap_us: i64) -> Self {
        Self { candidates: Vec::new(), wanted, gap_us }
    }

    /// Adds a candidate. It must be later than the previous one.
    pub(crate) fn push(&mut self, shot: Shot<P>) {
        if self.wanted == 0 {
            return;
        }
        self.candidates.push(shot);
        if self.candidates.len() > 2 * self.wanted {
            let chosen = self.choose();
            // The worst of those that would not be chosen now; of equal ones, the latest.
            let worst =
                (0..self.candidates.len()).filter(|i| !chosen.contains(i)).min_by(|&a, &b| self.better(b, a));
            if let Some(worst) = worst {
                self.candidates.remove(worst);
            }
        }
    }

    /// Returns the best shots, the best quality first.
    pub(crate) fn finish(self) -> Vec<Shot<P>> {
        let chosen = self.choose();
        let mut shots: Vec<Option<Shot<P>>> = self.candidates.into_iter().map(Some).collect();
        chosen.into_iter().filter_map(|i| shots.get_mut(i).and_then(Option::take)).collect()
    }

    /// Returns the indices of the best candidates, best first: the best one, then each time the
    /// best one that is far enough from those before.
    fn choose(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.candidates.len()).collect();
        order.sort_by(|&a, &b| self.better(a, b));
        let mut chosen: Vec<usize> = Vec::with_capacity(self.wanted);
        for i in order {
            let at = self.candidates[i].at_us;
            let is_far =
                |other: &usize| at.abs_diff(self.candidates[*other].at_us) >= self.gap_us.unsigned_abs();
            if chosen.len() < self.wanted && chosen.iter().all(is_far) {
                chosen.push(i);
            }
        }
        chosen
    }

    /// Orders the better quality first, then the earlier time.
    fn better(&self, a: usize, b: usize) -> std::cmp::Ordering {
        let (first, second) = (&self.candidates[a], &self.candidates[b]);
        second.quality.total_cmp(&first.quality).then(first.at_us.cmp(&second.at_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vision::Rect;

    fn best(list: &[(i64, f32)]) -> Vec<(i64, f32)> {
        let mut shots = BestShots::new(3, 500);
        for &(at_us, quality) in list {
            shots.push(Shot {
                at_us,
                bbox: Rect::default(),
                score: 0.9,
                quality,
                embedding: None,
                payload: (),
            });
        }
        assert!(shots.candidates.len() <= 6);
        shots.finish().iter().map(|shot| (shot.at_us, shot.quality)).collect()
    }

    #[test]
    fn the_best_are_kept_with_distance() {
        assert_eq!(best(&[(0, 0.5), (100, 0.9), (200, 0.8), (700, 0.3)]), [(100, 0.9), (700, 0.3)]);
        // The second hides the first until the third hides the second.
        assert_eq!(best(&[(0, 0.5), (400, 0.6), (800, 0.7)]), [(800, 0.7), (0, 0.5)]);
        assert!(best(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn the_first_is_the_best_and_all_are_apart(qualities in prop::collection::vec(0.0..1.0f32, 1..80)) {
            let list: Vec<_> = qualities.iter().enumerate().map(|(i, q)| (i as i64 * 120, *q)).collect();
            let found = best(&list);
            prop_assert_eq!(found[0].1, qualities.iter().copied().fold(0.0, f32::max));
            for (i, a) in found.iter().enumerate() {
                prop_assert!(found[i + 1..].iter().all(|b| a.0.abs_diff(b.0) >= 500 && a.1 >= b.1));
            }
        }
    }
}
