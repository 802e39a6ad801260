//! Computes the distribution of measured values.
use serde::Serialize;

/// The distribution of measured values, such as times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub mean: f64,
    /// The median; for an even number of values, the mean of the two in the middle.
    pub median: f64,
    /// The smallest value that at least 95 % of the values do not exceed (nearest rank).
    pub p95: f64,
    pub min: f64,
    pub max: f64,
    /// The standard deviation of the sample (n - 1); 0 for a single value.
    pub stdev: f64,
}

impl Spread {
    /// Computes the distribution. Returns `None` if there are no values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let count = sorted.len();
        let mean = sorted.iter().sum::<f64>() / count as f64;
        let median = f64::midpoint(sorted[(count - 1) / 2], sorted[count / 2]);
        let p95 = sorted[(count * 95).div_ceil(100) - 1];
        let squares: f64 = sorted.iter().map(|value| (value - mean).powi(2)).sum();
        let stdev = if count > 1 { (squares / (count - 1) as f64).sqrt() } else { 0.0 };
        Some(Self { mean, median, p95, min, max, stdev })
    }
}

/// The slowest part of measured values, such as the latencies of requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tail {
    /// The median (nearest rank).
    pub p50: f64,
    /// The smallest value that at least 99 % of the values do not exceed (nearest rank).
    pub p99: f64,
    pub max: f64,
}

impl Tail {
    /// Computes the percentiles. Returns `None` if there are no values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let rank = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100) - 1];
        Some(Self { max: *sorted.last()?, p50: rank(50), p99: rank(99) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_statistics_match_known_values() {
        assert_eq!(Spread::of(&[]), None);
        let one = Spread::of(&[3.0]).expect("a value");
        assert_eq!(
            (one.mean, one.median, one.p95, one.min, one.max, one.stdev),
            (3.0, 3.0, 3.0, 3.0, 3.0, 0.0)
        );
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let spread = Spread::of(&hundred).expect("values");
        assert_eq!(
            (spread.mean, spread.median, spread.p95, spread.min, spread.max),
            (50.5, 50.5, 95.0, 1.0, 100.0)
        );
        assert!((spread.stdev - 29.011).abs() < 0.001);
        assert_eq!(Tail::of(&hundred), Some(Tail { p50: 50.0, p99: 99.0, max: 100.0 }));
        assert_eq!(Tail::of(&[]), None);
    }
}
