//! The range of shapes that an engine accepts.
use crate::PerformanceMode;
use std::fmt;

/// Smallest, best and largest `[items, channels, height, width]` of a model's input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    input: String,
    min: [usize; 4],
    best: [usize; 4],
    max: [usize; 4],
}

impl Profile {
    /// Creates the profile for batches of 1 to `max_batch` items of `item` (`[channels, height,
    /// width]`). The engine is tuned to one item for latency and to `max_batch` items for
    /// throughput. It also accepts all smaller batch sizes.
    pub fn new(input: &str, item: [usize; 3], max_batch: usize, mode: PerformanceMode) -> Self {
        let shape = |items: usize| [items, item[0], item[1], item[2]];
        let max_batch = max_batch.max(1);
        let best = match mode {
            PerformanceMode::Latency => 1,
            PerformanceMode::Throughput => max_batch,
        };
        Self { input: input.to_owned(), min: shape(1), best: shape(best), max: shape(max_batch) }
    }

    pub fn contains(&self, shape: [usize; 4]) -> bool {
        (0..4).all(|axis| (self.min[axis]..=self.max[axis]).contains(&shape[axis]))
    }

    /// Returns smallest, best and largest in the provider's syntax: `input:1x3x640x640`.
    pub fn ranges(&self) -> [String; 3] {
        [self.min, self.best, self.max]
            .map(|shape| format!("{}:{}", self.input, shape.map(|d| d.to_string()).join("x")))
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [min, best, max] = self.ranges();
        write!(f, "min {min} opt {best} max {max}")
    }
}
