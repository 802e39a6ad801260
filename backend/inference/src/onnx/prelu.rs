//! Replaces `PRelu` with operators for which ONNX Runtime's own kernels are fast.
//!
//! The runtime's `PRelu` kernel processes one value at a time and does not use the blocked layout
//! of the surrounding convolutions. The kernel takes half of the time that SFace needs. With one
//! slope `a` for each channel, `PRelu(x) = a * x + (1 - a) * Relu(x)`. The runtime computes a
//! product with one factor for each channel as a convolution in the blocked layout, and fuses the
//! following `Relu` and sum. If no slope exceeds 1, `Relu((1 - a) * x)` equals `(1 - a) * Relu(x)`
//! and saves a pass. The result differs only in the last bits. Other runtimes have a fast `PRelu`,
//! so models for these runtimes keep it.
use super::proto::{Graph, Model, Node, Tensor};

/// The first opset in which the operators used here broadcast shapes without attributes.
const OLDEST_OPSET: i64 = 7;

/// Returns `model` without the `PRelu`s with one slope for each channel; `None` if it has none.
pub(crate) fn expand_prelu(mut model: Model) -> Option<Model> {
    let opset = model.opset_import.iter().find(|set| matches!(set.domain(), "" | "ai.onnx"))?;
    if opset.version() < OLDEST_OPSET {
        return None;
    }
    let graph = model.graph.as_mut()?;
    let mut changed = false;
    for node in std::mem::take(&mut graph.node) {
        match slopes(graph, &node) {
            Some(slopes) => {
                changed = true;
                expand(graph, &node, &slopes);
            }
            None => graph.node.push(node),
        }
    }
    graph.remove_unused_constants();
    changed.then_some(model)
}

/// Returns the slopes of a `PRelu` on images, one per channel: a constant of `[channels, 1, 1]`.
fn slopes(graph: &Graph, node: &Node) -> Option<Vec<f32>> {
    let [_, slope] = node.input.as_slice() else { return None };
    let tensor = graph.constant(slope).filter(|_| node.is("PRelu"))?;
    match tensor.dims.as_slice() {
        [_, 1, 1] | [1, _, 1, 1] => tensor.floats().ok(),
        _ => None,
    }
}

/// Adds the nodes that replace `node`.
fn expand(graph: &mut Graph, node: &Node, slopes: &[f32]) {
    let (input, output) = (&node.input[0], &node.output[0]);
    let name = |part: &str| format!("{output}/prelu/{part}");
    let [slope, rest, linear, inner, positive] = ["slope", "rest", "linear", "inner", "positive"].map(name);
    let constant =
        |name: &str, values: &[f32]| Tensor::from_floats(name, vec![values.len() as i64, 1, 1], values);
    let others: Vec<f32> = slopes.iter().map(|slope| 1.0 - slope).collect();
    graph.initializer.extend([constant(&slope, slopes), constant(&rest, &others)]);
    graph.node.push(Node::new("Mul", &[input, &slope], &linear));
    if others.iter().all(|factor| *factor >= 0.0) {
        graph.node.push(Node::new("Mul", &[input, &rest], &inner));
        graph.node.push(Node::new("Relu", &[&inner], &positive));
    } else {
        graph.node.push(Node::new("Relu", &[input], &inner));
        graph.node.push(Node::new("Mul", &[&inner, &rest], &positive));
    }
    graph.node.push(Node::new("Add", &[&linear, &positive], output));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::backend::{Backend, BatchView, OnnxModel, Placement};
    use crate::onnx::builder::{Axis, Graph};
    use crate::onnx::{expand_prelu, read, write};

    /// Returns a model with one `PRelu` over three channels.
    fn model(slope: &[i64], values: &[f32; 3]) -> Vec<u8> {
        let mut graph = Graph::new();
        graph.input("input", &[Axis::Fixed(1), Axis::Fixed(3), Axis::Fixed(5), Axis::Fixed(7)]);
        graph.floats("slope", slope, values);
        graph.node("PRelu", &["input", "slope"], "output", &[]);
        graph.output("output", &[Axis::Fixed(1), Axis::Fixed(3), Axis::Fixed(5), Axis::Fixed(7)]);
        graph.encode()
    }

    fn run(model: &[u8], data: &[f32]) -> Vec<f32> {
        let runtime = crate::runtime::Runtime::load(Some(&testing::library())).unwrap();
        let mut session = OnnxModel::load(&runtime, model, &Placement::CPU).unwrap();
        let mut values = Vec::new();
        let batch = BatchView { shape: [1, 3, 5, 7], data };
        session.run(batch, &mut |outputs| values = outputs[0].data.to_vec()).unwrap();
        values
    }

    #[test]
    fn the_written_out_form_computes_the_same() {
        // Slopes below 0, between 0 and 1, and in the second case above 1.
        for slopes in [[-0.5, 0.25, 1.0], [-0.5, 0.25, 1.5]] {
            let model = model(&[3, 1, 1], &slopes);
            let expanded = expand_prelu(read(model.clone().into()).unwrap()).unwrap();
            let graph = expanded.graph.as_ref().unwrap();
            assert!(graph.node.iter().all(|node| node.op_type != "PRelu"));
            let data: Vec<f32> = (0..105).map(|i| (i as f32 - 52.0) * 0.37).collect();
            let (wanted, found) = (run(&model, &data), run(&write(&expanded), &data));
            for (wanted, found) in wanted.iter().zip(&found) {
                assert!((wanted - found).abs() <= 1e-5 * wanted.abs().max(1.0), "{wanted} {found}");
            }
            assert_ne!(wanted, data, "the slopes matter");
        }
    }

    #[test]
    fn slopes_along_another_axis_stay() {
        // `[3]` applies to the width axis.
        assert!(expand_prelu(read(model(&[3], &[0.1; 3]).into()).unwrap()).is_none());
    }
}
