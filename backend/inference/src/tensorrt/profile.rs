//! The shapes an engine takes.
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
    /// For batches of 1 to `most` items of `item` (`[channels, height, width]`). The engine is tuned to the batch that the mode
    /// is about; the smaller buckets lie within the range.
    pub fn new(input: &str, item: [usize; 3], most: usize, mode: PerformanceMode) -> Self {
        let of = |items: usize| [items, item[0], item[1], item[2]];
        let most = most.max(1);
        let best = match mode {
            PerformanceMode::Latency => 1,
            PerformanceMode::Throughput => most,
        };
        Self { input: input.to_owned(), min: of(1), best: of(best), max: of(most) }
    }

    /// Whether the engine takes `shape`.
    pub fn holds(&self, shape: [usize; 4]) -> bool {
        (0..4).all(|axis| (self.min[axis]..=self.max[axis]).contains(&shape[axis]))
    }

    /// Smallest, best and largest as the provider spells them: `input:1x3x640x640`.
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
