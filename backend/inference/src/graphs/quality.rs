//! `quality_checks`: grey-level sums per row of an image. The sums over all rows equal
//! [`vision::quality::grey_statistics`].
use super::{cast, frame, gather, scalar};
use crate::onnx::builder::{Attribute, Axis, Element, Graph};

/// The rows of the output; each contains one value per row of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// Sum of grey levels.
    Grey = 0,
    /// Sum of squared distances from the row's mean.
    Spread = 1,
    /// Sum of the Laplacian.
    Laplacian = 2,
    /// Sum of the squares of the Laplacian.
    LaplacianSquares = 3,
    /// Sum of squared Sobel gradients.
    Gradient = 4,
    /// Number of pixels with a level of at most 5 or at least 250.
    Clipped = 5,
}

impl Row {
    pub const COUNT: usize = 6;
}

/// Builds the graph of the statistics. Inputs: image, the rows above and below each row (`[height]`
/// each), the columns left and right of each column (`[width]` each). Neighbours are reflected at
/// the border (reflect-101). Output: `sums`, floats `[6, height]` in the order of [`Row`].
///
/// A float32 sum over a whole image would lose precision. Over one row it keeps six digits, and the
/// host adds the rows in 64 bits. Grey levels, Laplacian and gradients are whole numbers below 2²⁴
/// and therefore exact.
pub fn statistics() -> Vec<u8> {
    let mut graph = Graph::new();
    let frame = frame(&mut graph);
    for (name, side) in [("above", "height"), ("below", "height"), ("left", "width"), ("right", "width")] {
        graph.typed_input(Element::Int32, name, &[Axis::Free(side)]);
    }
    let g = &mut graph;
    let grey = grey(g, frame);
    let (above, below) = (gather(g, &grey, "above", 1), gather(g, &grey, "below", 1));
    let (left, right) = (gather(g, &grey, "left", 2), gather(g, &grey, "right", 2));
    let two = g.row(&[2.0]);

    let vertical = g.add("Add", &[&above, &below], &[]);
    let horizontal = g.add("Add", &[&left, &right], &[]);
    let around = g.add("Add", &[&vertical, &horizontal], &[]);
    let four = g.row(&[4.0]);
    let middle = g.add("Mul", &[&grey, &four], &[]);
    let laplacian = g.add("Sub", &[&around, &middle], &[]);

    // Sobel is separable: smooth along one axis, difference along the other.
    let twice = g.add("Mul", &[&grey, &two], &[]);
    let smooth = g.add("Add", &[&vertical, &twice], &[]);
    let (a, b) = (gather(g, &smooth, "right", 2), gather(g, &smooth, "left", 2));
    let across = g.add("Sub", &[&a, &b], &[]);
    let step = g.add("Sub", &[&below, &above], &[]);
    let (a, b) = (gather(g, &step, "left", 2), gather(g, &step, "right", 2));
    let sides = g.add("Add", &[&a, &b], &[]);
    let twice = g.add("Mul", &[&step, &two], &[]);
    let down = g.add("Add", &[&sides, &twice], &[]);
    let (across, down) = (square(g, &across), square(g, &down));
    let gradient = g.add("Add", &[&across, &down], &[]);

    let axes = [("axes", Attribute::Integers(&[2])), ("keepdims", Attribute::Integer(1))];
    let mean = g.add("ReduceMean", &[&grey], &axes);
    let apart = g.add("Sub", &[&grey, &mean], &[]);
    let spread = square(g, &apart);
    let squares = square(g, &laplacian);
    let clipped = clipped(g, &grey);

    g.integers("columns", &[2]);
    let rows = [&grey, &spread, &laplacian, &squares, &gradient, &clipped];
    let sums =
        rows.map(|value| g.add("ReduceSum", &[value, "columns"], &[("keepdims", Attribute::Integer(0))]));
    let sums: Vec<&str> = sums.iter().map(String::as_str).collect();
    g.node("Concat", &sums, "sums", &[("axis", Attribute::Integer(0))]);
    g.output("sums", &[Axis::Fixed(Row::COUNT as i64), Axis::Free("height")]);
    graph.encode()
}

/// Computes grey levels `[1, height, width]`, exact: BT.601 in 15-bit fixed point, rounded half up,
/// as OpenCV and `vision` do.
fn grey(graph: &mut Graph, frame: &str) -> String {
    let mut sum = graph.row(&[f32::from(1u16 << 14)]);
    for (channel, weight) in [9798.0, 19235.0, 3735.0].into_iter().enumerate() {
        let channel = graph.integer(channel as i64);
        let bytes = gather(graph, frame, &channel, 3);
        let values = cast(graph, &bytes, Element::Float);
        let weight = graph.row(&[weight]);
        let part = graph.add("Mul", &[&values, &weight], &[]);
        sum = graph.add("Add", &[&sum, &part], &[]);
    }
    let shift = graph.row(&[1.0 / f32::from(1u16 << 15)]);
    let shifted = graph.add("Mul", &[&sum, &shift], &[]);
    graph.add("Floor", &[&shifted], &[])
}

/// Returns 1 for whole levels of at most 5 or at least 250, and 0 for all others.
fn clipped(graph: &mut Graph, grey: &str) -> String {
    let (low, high) = (scalar(graph, 0.0), scalar(graph, 1.0));
    let (six, edge) = (graph.row(&[6.0]), graph.row(&[249.0]));
    let dark = graph.add("Sub", &[&six, grey], &[]);
    let dark = graph.add("Clip", &[&dark, &low, &high], &[]);
    let light = graph.add("Sub", &[grey, &edge], &[]);
    let light = graph.add("Clip", &[&light, &low, &high], &[]);
    graph.add("Add", &[&dark, &light], &[])
}

fn square(graph: &mut Graph, value: &str) -> String {
    graph.add("Mul", &[value, value], &[])
}
