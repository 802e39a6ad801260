//! Builds the graphs of the image operations for devices. The module `image_operations` writes
//! their inputs and reads their outputs.
//!
//! Each graph performs the same steps as `vision` on the CPU. Its inputs are the same filters
//! ([`vision::Taps`]), and it rounds levels where the CPU rounds to bytes. The results are
//! therefore equal, except for the last bit of a float at an exact half.
//!
//! Only element-wise operators, `Gather` and row sums are used, in float32. Providers compute
//! convolutions and matrix products at reduced precision (TF32) by default. No operator reads a
//! shape, so a provider can run the whole graph: CUDA has kernels for all these operators,
//! including those on bytes.
//!
//! An image is the input `frame`, bytes `[1, height, width, 3]` of any size.
use crate::manifest::{Channels, PixelInput};
use crate::onnx::builder::{Attribute, Axis, Element, Graph};
use vision::enhance::{BLUR_RADIUS, UNSHARP_AMOUNT};
use vision::{AxisTaps, Frame, Letterbox, Taps};

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
        let weights_shape = match axis {
            PixelAxis::Rows => vec![count, length, 1, 1],
            PixelAxis::Columns => vec![count, length, 1],
        };
        [
            Self::Indices { shape: vec![count, length], data: indices },
            Self::Floats { shape: weights_shape, data: weights },
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

fn add_image_input(graph: &mut Graph) -> &'static str {
    let sides = [Axis::Fixed(1), Axis::Dynamic("height"), Axis::Dynamic("width"), Axis::Fixed(3)];
    graph.add_typed_input(Element::Uint8, "frame", &sides);
    "frame"
}

fn cast(graph: &mut Graph, value: &str, element: Element) -> String {
    graph.add_node("Cast", &[value], &[("to", Attribute::Integer(element as i64))])
}

fn gather(graph: &mut Graph, value: &str, indices: &str, axis: i64) -> String {
    graph.add_node("Gather", &[value, indices], &[("axis", Attribute::Integer(axis))])
}

/// Clips to 0..=255 and rounds half up, as the CPU's code does when it converts to bytes.
fn round_to_levels(graph: &mut Graph, value: &str) -> String {
    let (low, high, half) = (level_constant(graph, 0.0), level_constant(graph, 255.0), graph.add_row(&[0.5]));
    let clipped = graph.add_node("Clip", &[value, &low, &high], &[]);
    let shifted = graph.add_node("Add", &[&clipped, &half], &[]);
    graph.add_node("Floor", &[&shifted], &[])
}

fn level_constant(graph: &mut Graph, value: f32) -> String {
    let name = format!("level_{value}");
    if !graph.has_constant(&name) {
        graph.add_floats(&name, &[], &[value]);
    }
    name
}

/// Declares the inputs of a filter with `count` taps and applies it. The taps are added in order.
/// Bytes are converted to floats only after the gather, so a large image is never stored as floats.
fn apply_filter(graph: &mut Graph, pixels: &str, (name, count): (&str, usize), axis: PixelAxis) -> String {
    let (indices, weights) = (format!("{name}_at"), format!("{name}_weight"));
    let tap_count = Axis::Fixed(count as i64);
    let length = match axis {
        PixelAxis::Rows => Axis::Dynamic("filtered_rows"),
        PixelAxis::Columns => Axis::Dynamic("filtered_columns"),
    };
    graph.add_typed_input(Element::Int32, &indices, &[tap_count, length]);
    match axis {
        PixelAxis::Rows => graph.add_input(&weights, &[tap_count, length, Axis::Fixed(1), Axis::Fixed(1)]),
        PixelAxis::Columns => graph.add_input(&weights, &[tap_count, length, Axis::Fixed(1)]),
    }
    let mut sum: Option<String> = None;
    for tap in 0..count {
        let tap = graph.add_integer(tap as i64);
        let positions = gather(graph, &indices, &tap, 0);
        let weight = gather(graph, &weights, &tap, 0);
        let mut pixels_at_tap = gather(graph, pixels, &positions, axis as i64);
        if pixels == "frame" {
            pixels_at_tap = cast(graph, &pixels_at_tap, Element::Float);
        }
        let product = graph.add_node("Mul", &[&pixels_at_tap, &weight], &[]);
        sum = Some(match sum {
            None => product,
            Some(sum) => graph.add_node("Add", &[&sum, &product], &[]),
        });
    }
    sum.expect("a filter has at least one tap")
}

/// Builds the graph of the canvas. Inputs: image, rows' filter, columns' filter
/// ([`vision::Letterbox::taps`]). Output: `canvas`, bytes `[1, height, width, 3]`. The result
/// differs by at most one grey level from the CPU's canvas, which rounds exact halves in integers.
pub fn canvas() -> Vec<u8> {
    let mut graph = Graph::new();
    let drawn = draw(&mut graph);
    encode_image(&mut graph, &drawn, "canvas")
}

/// Builds the graph that computes the input tensor of the model from the same inputs. Output:
/// `tensor`, floats `[1, 3, height, width]`, `(level - mean) / std` in the model's channel order.
pub fn tensor(input: &PixelInput) -> Vec<u8> {
    let mut graph = Graph::new();
    let mut canvas = draw(&mut graph);
    if input.channels == Channels::Bgr {
        graph.add_integers("planes", &[2, 1, 0]);
        canvas = gather(&mut graph, &canvas, "planes", 3);
    }
    // As in `PixelWriter`, the manifest lists mean and std in the order of the planes.
    let scale = graph.add_row(&[0, 1, 2].map(|plane| 1.0 / input.std[plane]));
    let offset = graph.add_row(&[0, 1, 2].map(|plane| -input.mean[plane] / input.std[plane]));
    let scaled = graph.add_node("Mul", &[&canvas, &scale], &[]);
    let shifted = graph.add_node("Add", &[&scaled, &offset], &[]);
    graph.add_named_node("Transpose", &[&shifted], "tensor", &[("perm", Attribute::Integers(&[0, 3, 1, 2]))]);
    let sides =
        [Axis::Fixed(1), Axis::Fixed(3), Axis::Dynamic("canvas_height"), Axis::Dynamic("canvas_width")];
    graph.add_output("tensor", &sides);
    graph.encode()
}

/// Returns the inputs of both graphs other than the image.
pub fn letterbox_parameters(frame: &Frame, letterbox: &Letterbox) -> Vec<Parameter> {
    let AxisTaps { columns, rows } = letterbox.taps((frame.width(), frame.height()));
    let mut parameters = Vec::from(Parameter::filter(rows, PixelAxis::Rows));
    parameters.extend(Parameter::filter(columns, PixelAxis::Columns));
    parameters
}

fn draw(graph: &mut Graph) -> String {
    let frame = add_image_input(graph);
    let rows = apply_filter(graph, frame, ("rows", 2), PixelAxis::Rows);
    let canvas = apply_filter(graph, &rows, ("columns", 2), PixelAxis::Columns);
    round_to_levels(graph, &canvas)
}

/// Builds the graph that joins `count` tensors `item_0`, `item_1`, … of `[1, 3, height, width]`
/// into `batch`, `[count, 3, height, width]`.
pub fn stack(count: usize) -> Vec<u8> {
    let mut graph = Graph::new();
    let sides = |items| [items, Axis::Fixed(3), Axis::Dynamic("height"), Axis::Dynamic("width")];
    let names: Vec<String> = (0..count).map(|item| format!("item_{item}")).collect();
    for name in &names {
        graph.add_input(name, &sides(Axis::Fixed(1)));
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    graph.add_named_node("Concat", &names, "batch", &[("axis", Attribute::Integer(0))]);
    graph.add_output("batch", &sides(Axis::Fixed(count as i64)));
    graph.encode()
}

/// Builds the graph of the contrast stretch alone. Inputs: image, gain `[1]`, offset `[1]`. Output:
/// `enhanced`, bytes of the same size, equal to the CPU's.
///
/// The host computes the percentiles of the stretch from a histogram, which costs less than sending
/// the image. The device receives only the gain and the offset.
pub fn contrast() -> Vec<u8> {
    let mut graph = Graph::new();
    let stretched = stretch(&mut graph);
    encode_image(&mut graph, &stretched, "enhanced")
}

/// Builds the graph of stretch, upscale and unsharp mask. Inputs: image, gain `[1]`, offset `[1]`,
/// the upscale's rows and columns ([`vision::enhance::Plan::upscale_taps`]), the blur's columns and
/// rows ([`vision::enhance::Plan::blur_taps`]). Output: `enhanced`, bytes.
///
/// The result differs by at most four grey levels from the CPU's image, and far less on average.
/// The fixed-point weights of the CPU's Lanczos filter can change one rounding between columns and
/// rows and one afterwards. The unsharp mask amplifies these two to at most four levels.
pub fn enlargement() -> Vec<u8> {
    const LANCZOS: usize = 6;
    let mut graph = Graph::new();
    let stretched = stretch(&mut graph);
    let taller = apply_filter(&mut graph, &stretched, ("upscale_rows", LANCZOS), PixelAxis::Rows);
    let taller = round_to_levels(&mut graph, &taller);
    let larger = apply_filter(&mut graph, &taller, ("upscale_columns", LANCZOS), PixelAxis::Columns);
    let larger = round_to_levels(&mut graph, &larger);

    let blur = 2 * BLUR_RADIUS + 1;
    let blurred = apply_filter(&mut graph, &larger, ("blur_columns", blur), PixelAxis::Columns);
    let blurred = apply_filter(&mut graph, &blurred, ("blur_rows", blur), PixelAxis::Rows);
    let amount = graph.add_row(&[UNSHARP_AMOUNT]);
    let detail = graph.add_node("Sub", &[&larger, &blurred], &[]);
    let detail = graph.add_node("Mul", &[&detail, &amount], &[]);
    let sharp = graph.add_node("Add", &[&larger, &detail], &[]);
    let sharp = round_to_levels(&mut graph, &sharp);
    encode_image(&mut graph, &sharp, "enhanced")
}

fn stretch(graph: &mut Graph) -> String {
    let frame = add_image_input(graph);
    graph.add_input("gain", &[Axis::Fixed(1)]);
    graph.add_input("offset", &[Axis::Fixed(1)]);
    let values = cast(graph, frame, Element::Float);
    let scaled = graph.add_node("Mul", &[&values, "gain"], &[]);
    let shifted = graph.add_node("Add", &[&scaled, "offset"], &[]);
    round_to_levels(graph, &shifted)
}

/// Declares whole levels as the image `output` and encodes the graph.
fn encode_image(graph: &mut Graph, levels: &str, output: &str) -> Vec<u8> {
    graph.add_named_node("Cast", &[levels], output, &[("to", Attribute::Integer(Element::Uint8 as i64))]);
    let sides =
        [Axis::Fixed(1), Axis::Dynamic("output_height"), Axis::Dynamic("output_width"), Axis::Fixed(3)];
    graph.add_typed_output(Element::Uint8, output, &sides);
    graph.encode()
}

/// The sums that the graph of the statistics computes for each row of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSum {
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

impl RowSum {
    pub const COUNT: usize = 6;
}

/// Builds the graph of the statistics. Inputs: image, the rows above and below each row (`[height]`
/// each), the columns left and right of each column (`[width]` each). Neighbours are reflected at
/// the border (reflect-101). Output: `sums`, floats `[6, height]` in the order of [`RowSum`].
///
/// A float32 sum over a whole image would lose precision. Over one row it keeps six digits, and the
/// host adds the rows in 64 bits. Grey levels, Laplacian and gradients are whole numbers below 2²⁴
/// and therefore exact.
pub fn statistics() -> Vec<u8> {
    let graph = &mut Graph::new();
    let frame = add_image_input(graph);
    for (name, side) in [("above", "height"), ("below", "height"), ("left", "width"), ("right", "width")] {
        graph.add_typed_input(Element::Int32, name, &[Axis::Dynamic(side)]);
    }
    let grey = grey(graph, frame);
    let (above, below) = (gather(graph, &grey, "above", 1), gather(graph, &grey, "below", 1));
    let (left, right) = (gather(graph, &grey, "left", 2), gather(graph, &grey, "right", 2));
    let two = graph.add_row(&[2.0]);

    let vertical = graph.add_node("Add", &[&above, &below], &[]);
    let horizontal = graph.add_node("Add", &[&left, &right], &[]);
    let neighbours = graph.add_node("Add", &[&vertical, &horizontal], &[]);
    let four = graph.add_row(&[4.0]);
    let middle = graph.add_node("Mul", &[&grey, &four], &[]);
    let laplacian = graph.add_node("Sub", &[&neighbours, &middle], &[]);

    // Sobel is separable: smooth along one axis, difference along the other.
    let doubled = graph.add_node("Mul", &[&grey, &two], &[]);
    let smooth = graph.add_node("Add", &[&vertical, &doubled], &[]);
    let (a, b) = (gather(graph, &smooth, "right", 2), gather(graph, &smooth, "left", 2));
    let horizontal_gradient = graph.add_node("Sub", &[&a, &b], &[]);
    let step = graph.add_node("Sub", &[&below, &above], &[]);
    let (a, b) = (gather(graph, &step, "left", 2), gather(graph, &step, "right", 2));
    let sides = graph.add_node("Add", &[&a, &b], &[]);
    let doubled = graph.add_node("Mul", &[&step, &two], &[]);
    let vertical_gradient = graph.add_node("Add", &[&sides, &doubled], &[]);
    let squares = [square(graph, &horizontal_gradient), square(graph, &vertical_gradient)];
    let gradient = graph.add_node("Add", &[&squares[0], &squares[1]], &[]);

    let axes = [("axes", Attribute::Integers(&[2])), ("keepdims", Attribute::Integer(1))];
    let mean = graph.add_node("ReduceMean", &[&grey], &axes);
    let deviation = graph.add_node("Sub", &[&grey, &mean], &[]);
    let spread = square(graph, &deviation);
    let laplacian_squares = square(graph, &laplacian);
    let clipped = clipped_pixels(graph, &grey);

    graph.add_integers("columns", &[2]);
    let rows = [&grey, &spread, &laplacian, &laplacian_squares, &gradient, &clipped];
    let sums = rows.map(|value| {
        graph.add_node("ReduceSum", &[value, "columns"], &[("keepdims", Attribute::Integer(0))])
    });
    let sums: Vec<&str> = sums.iter().map(String::as_str).collect();
    graph.add_named_node("Concat", &sums, "sums", &[("axis", Attribute::Integer(0))]);
    graph.add_output("sums", &[Axis::Fixed(RowSum::COUNT as i64), Axis::Dynamic("height")]);
    graph.encode()
}

/// Computes grey levels `[1, height, width]`, exact: BT.601 in 15-bit fixed point, rounded half up,
/// as OpenCV and `vision` do.
fn grey(graph: &mut Graph, frame: &str) -> String {
    let mut sum = graph.add_row(&[f32::from(1u16 << 14)]);
    for (channel, weight) in [9798.0, 19235.0, 3735.0].into_iter().enumerate() {
        let channel = graph.add_integer(channel as i64);
        let bytes = gather(graph, frame, &channel, 3);
        let values = cast(graph, &bytes, Element::Float);
        let weight = graph.add_row(&[weight]);
        let product = graph.add_node("Mul", &[&values, &weight], &[]);
        sum = graph.add_node("Add", &[&sum, &product], &[]);
    }
    let shift = graph.add_row(&[1.0 / f32::from(1u16 << 15)]);
    let shifted = graph.add_node("Mul", &[&sum, &shift], &[]);
    graph.add_node("Floor", &[&shifted], &[])
}

/// Returns 1 for whole levels of at most 5 or at least 250, and 0 for all others.
fn clipped_pixels(graph: &mut Graph, grey: &str) -> String {
    let (low, high) = (level_constant(graph, 0.0), level_constant(graph, 1.0));
    let (dark_limit, light_limit) = (graph.add_row(&[6.0]), graph.add_row(&[249.0]));
    let dark = graph.add_node("Sub", &[&dark_limit, grey], &[]);
    let dark = graph.add_node("Clip", &[&dark, &low, &high], &[]);
    let light = graph.add_node("Sub", &[grey, &light_limit], &[]);
    let light = graph.add_node("Clip", &[&light, &low, &high], &[]);
    graph.add_node("Add", &[&dark, &light], &[])
}

fn square(graph: &mut Graph, value: &str) -> String {
    graph.add_node("Mul", &[value, value], &[])
}
