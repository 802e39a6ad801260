//! Scaling and blurring along one axis as a table, so that a device can do exactly what the code here does.

/// A linear filter along one axis: output `i` is the sum over `k < count` of `weights[k * length + i]` times the input at
/// `indices[k * length + i]`. Indices always lie inside the input; what lies outside has weight 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Taps {
    /// Inputs per output.
    pub count: usize,
    /// Outputs.
    pub length: usize,
    /// `count * length` positions.
    pub indices: Vec<i32>,
    /// `count * length` weights.
    pub weights: Vec<f32>,
}

impl Taps {
    /// From a rule that says which input position (it may lie outside) has which weight in tap `k` of output `i`.
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
