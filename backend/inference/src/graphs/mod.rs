//! Graphs built in code: the image operations for devices.
//!
//! Each graph computes what `vision` computes on the CPU, step by step. The same filters
//! ([`vision::Taps`]) are its inputs, and levels are rounded where the CPU rounds to bytes. The
//! results are therefore equal, except for the last bit of a float at an exact half.
//!
//! Only element-wise operators, `Gather` and row sums are used, in float32. Providers compute
//! convolutions and matrix products at reduced precision (TF32) by default. No operator reads a
//! shape, so a provider can run the whole graph: CUDA has kernels for all these operators,
//! including those on bytes.
//!
//! An image is the input `frame`, bytes `[1, height, width, 3]` of any size.
mod enhancement;
mod processing;
mod quality;
mod stack;

pub use enhancement::{contrast, enlargement};
pub use processing::{canvas, letterbox_parameters, tensor};
pub use quality::{Row, statistics};
pub use stack::stack;

use crate::onnx::builder::{Attribute, Axis, Element, Graph};
use vision::Taps;

/// A small tensor that is an input of a graph besides the image.
#[derive(Clone, Debug, PartialEq)]
pub enum Parameter {
    /// Positions along an axis.
    Indices {
        shape: Vec<usize>,
        /// Row-major.
        data: Vec<i32>,
    },
    /// Weights and levels.
    Floats {
        shape: Vec<usize>,
        /// Row-major.
        data: Vec<f32>,
    },
}

impl Parameter {
    /// Returns the indices and weights of a filter along rows or columns.
    pub fn filter(taps: Taps, axis: PixelAxis) -> [Self; 2] {
        let Taps { count, length, indices, weights } = taps;
        let spread = match axis {
            PixelAxis::Rows => vec![count, length, 1, 1],
            PixelAxis::Columns => vec![count, length, 1],
        };
        [
            Self::Indices { shape: vec![count, length], data: indices },
            Self::Floats { shape: spread, data: weights },
        ]
    }
}

/// An axis of `[1, height, width, 3]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PixelAxis {
    /// Top to bottom.
    Rows = 1,
    /// Left to right.
    Columns = 2,
}

/// Declares the image input.
fn frame(graph: &mut Graph) -> &'static str {
    let sides = [Axis::Fixed(1), Axis::Free("height"), Axis::Free("width"), Axis::Fixed(3)];
    graph.typed_input(Element::Uint8, "frame", &sides);
    "frame"
}

fn cast(graph: &mut Graph, value: &str, element: Element) -> String {
    graph.add("Cast", &[value], &[("to", Attribute::Integer(element as i64))])
}

fn gather(graph: &mut Graph, value: &str, indices: &str, axis: i64) -> String {
    graph.add("Gather", &[value, indices], &[("axis", Attribute::Integer(axis))])
}

/// Clips to 0..=255 and rounds half up, as the CPU's code does when it converts to bytes.
fn levels(graph: &mut Graph, value: &str) -> String {
    let (low, high, half) = (scalar(graph, 0.0), scalar(graph, 255.0), graph.row(&[0.5]));
    let clipped = graph.add("Clip", &[value, &low, &high], &[]);
    let raised = graph.add("Add", &[&clipped, &half], &[]);
    graph.add("Floor", &[&raised], &[])
}

fn scalar(graph: &mut Graph, value: f32) -> String {
    let name = format!("level_{value}");
    if !graph.has(&name) {
        graph.floats(&name, &[], &[value]);
    }
    name
}

/// Declares the inputs of a filter of `count` taps and applies it; the taps are summed in order.
/// Bytes are converted to floats only after the gather, so a large image is never stored as floats.
fn filtered(graph: &mut Graph, pixels: &str, (name, count): (&str, usize), axis: PixelAxis) -> String {
    let (indices, weights) = (format!("{name}_at"), format!("{name}_weight"));
    let many = Axis::Fixed(count as i64);
    let length = match axis {
        PixelAxis::Rows => Axis::Free("filtered_rows"),
        PixelAxis::Columns => Axis::Free("filtered_columns"),
    };
    graph.typed_input(Element::Int32, &indices, &[many, length]);
    match axis {
        PixelAxis::Rows => graph.input(&weights, &[many, length, Axis::Fixed(1), Axis::Fixed(1)]),
        PixelAxis::Columns => graph.input(&weights, &[many, length, Axis::Fixed(1)]),
    }
    let mut sum: Option<String> = None;
    for tap in 0..count {
        let tap = graph.integer(tap as i64);
        let at = gather(graph, &indices, &tap, 0);
        let weight = gather(graph, &weights, &tap, 0);
        let mut moved = gather(graph, pixels, &at, axis as i64);
        if pixels == "frame" {
            moved = cast(graph, &moved, Element::Float);
        }
        let part = graph.add("Mul", &[&moved, &weight], &[]);
        sum = Some(match sum {
            None => part,
            Some(sum) => graph.add("Add", &[&sum, &part], &[]),
        });
    }
    sum.expect("a filter has at least one tap")
}
