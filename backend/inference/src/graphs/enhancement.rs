//! `image_enhancement`: the steps of [`vision::enhance`]. The host computes the percentiles of the
//! contrast stretch from a histogram, which costs less than sending the image. The device receives
//! only the gain and the offset.
use super::{PixelAxis, cast, filtered, frame, levels};
use crate::onnx::builder::{Axis, Element, Graph};
use vision::enhance::{AMOUNT, RADIUS};

/// Builds the graph of the contrast stretch alone. Inputs: image, gain `[1]`, offset `[1]`. Output:
/// `enhanced`, bytes of the same size, equal to the CPU's.
pub fn contrast() -> Vec<u8> {
    let mut graph = Graph::new();
    let stretched = stretch(&mut graph);
    finish(&mut graph, &stretched)
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
    let taller = filtered(&mut graph, &stretched, ("upscale_rows", LANCZOS), PixelAxis::Rows);
    let taller = levels(&mut graph, &taller);
    let larger = filtered(&mut graph, &taller, ("upscale_columns", LANCZOS), PixelAxis::Columns);
    let larger = levels(&mut graph, &larger);

    let blur = 2 * RADIUS + 1;
    let blurred = filtered(&mut graph, &larger, ("blur_columns", blur), PixelAxis::Columns);
    let blurred = filtered(&mut graph, &blurred, ("blur_rows", blur), PixelAxis::Rows);
    let amount = graph.row(&[AMOUNT]);
    let detail = graph.add("Sub", &[&larger, &blurred], &[]);
    let detail = graph.add("Mul", &[&detail, &amount], &[]);
    let sharp = graph.add("Add", &[&larger, &detail], &[]);
    let sharp = levels(&mut graph, &sharp);
    finish(&mut graph, &sharp)
}

fn stretch(graph: &mut Graph) -> String {
    let frame = frame(graph);
    graph.input("gain", &[Axis::Fixed(1)]);
    graph.input("offset", &[Axis::Fixed(1)]);
    let values = cast(graph, frame, Element::Float);
    let scaled = graph.add("Mul", &[&values, "gain"], &[]);
    let moved = graph.add("Add", &[&scaled, "offset"], &[]);
    levels(graph, &moved)
}

fn finish(graph: &mut Graph, value: &str) -> Vec<u8> {
    let bytes = cast(graph, value, Element::Uint8);
    graph.node("Identity", &[&bytes], "enhanced", &[]);
    let sides = [Axis::Fixed(1), Axis::Free("enhanced_height"), Axis::Free("enhanced_width"), Axis::Fixed(3)];
    graph.typed_output(Element::Uint8, "enhanced", &sides);
    graph.encode()
}
