//! `image_processing`: draws an image onto the detector's canvas. The results correspond to those
//! of [`vision::Letterbox::draw`] and [`crate::models::PixelWriter`].
use super::{Parameter, PixelAxis, cast, filtered, frame, gather, levels};
use crate::manifest::{Channels, PixelInput};
use crate::onnx::builder::{Attribute, Axis, Element, Graph};
use vision::{AxisTaps, Frame, Letterbox};

/// Builds the graph of the canvas. Inputs: image, rows' filter, columns' filter
/// ([`vision::Letterbox::taps`]). Output: `canvas`, bytes `[1, height, width, 3]`. The result
/// differs by at most one grey level from the CPU's canvas, which rounds exact halves in integers.
pub fn canvas() -> Vec<u8> {
    let mut graph = Graph::new();
    let drawn = draw(&mut graph);
    let bytes = cast(&mut graph, &drawn, Element::Uint8);
    graph.node("Identity", &[&bytes], "canvas", &[]);
    let sides = [Axis::Fixed(1), Axis::Free("canvas_height"), Axis::Free("canvas_width"), Axis::Fixed(3)];
    graph.typed_output(Element::Uint8, "canvas", &sides);
    graph.encode()
}

/// Builds the graph that computes the input tensor of the model from the same inputs. Output:
/// `tensor`, floats `[1, 3, height, width]`, `(level - mean) / std` in the model's channel order.
pub fn tensor(input: &PixelInput) -> Vec<u8> {
    let mut graph = Graph::new();
    let mut drawn = draw(&mut graph);
    if input.channels == Channels::Bgr {
        graph.integers("planes", &[2, 1, 0]);
        drawn = gather(&mut graph, &drawn, "planes", 3);
    }
    // As in `PixelWriter`, the manifest lists mean and std in the order of the planes.
    let scale = graph.row(&[0, 1, 2].map(|plane| 1.0 / input.std[plane]));
    let offset = graph.row(&[0, 1, 2].map(|plane| -input.mean[plane] / input.std[plane]));
    let scaled = graph.add("Mul", &[&drawn, &scale], &[]);
    let moved = graph.add("Add", &[&scaled, &offset], &[]);
    graph.node("Transpose", &[&moved], "tensor", &[("perm", Attribute::Integers(&[0, 3, 1, 2]))]);
    let sides = [Axis::Fixed(1), Axis::Fixed(3), Axis::Free("canvas_height"), Axis::Free("canvas_width")];
    graph.output("tensor", &sides);
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
    let frame = frame(graph);
    let rows = filtered(graph, frame, ("rows", 2), PixelAxis::Rows);
    let drawn = filtered(graph, &rows, ("columns", 2), PixelAxis::Columns);
    levels(graph, &drawn)
}
