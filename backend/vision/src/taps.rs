//! Filters along one axis as tables, so that a device can compute the same as this crate.

/// A linear filter along one axis. Output `i` is the sum over `k < count` of `weights[k * length +
/// i]` times the input at `indices[k * length + i]`. Indices are always inside the input; positions
/// outside have weight 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Taps {
    /// Number of inputs per output.
    pub count: usize,
    /// Number of outputs.
    pub length: usize,
    /// `count * length` input positions.
    pub indices: Vec<i32>,
    /// `count * length` weights.
    pub weights: Vec<f32>,
}

impl Taps {
    /// Builds a filter from `rule`, which returns the input position (possibly outside) and the
    /// weight of tap `k` of output `i`.
    pub(crate) fn new(
        (from, length): (u32, usize),
        count: usize,
        rule: impl Fn(usize, usize) -> (i64, f64),
    ) -> Self {
        let last = i64::from(from.max(1)) - 1;
        let mut taps = Self { count, length, indices: Vec::new(), weights: Vec::new() };
        for k in 0..count {
            for i in 0..length {
                let (at, weight) = rule(k, i);
                taps.indices.push(at.clamp(0, last) as i32);
                taps.weights.push(weight as f32);
            }
        }
        taps
    }
}
