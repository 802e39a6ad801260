//! Rewrites operators for ONNX Runtime's own kernels on the CPU: `PRelu` as operators with fast
//! kernels, and large matrix products in 8 bits.
use super::proto::{Attribute, Graph, Model, Node, OperatorSet, Tensor, element};

/// The first opset in which the operators of this module broadcast shapes without attributes.
const MIN_OPSET: i64 = 7;

/// Replaces each `PRelu` with one slope for each channel; returns `None` if `model` has none.
///
/// The runtime's `PRelu` kernel processes one value at a time and does not use the blocked layout
/// of the surrounding convolutions. The kernel takes half of the time that SFace needs. With one
/// slope `a` for each channel, `PRelu(x) = a * x + (1 - a) * Relu(x)`. The runtime computes a
/// product with one factor for each channel as a convolution in the blocked layout, and fuses the
/// following `Relu` and sum. If no slope exceeds 1, `Relu((1 - a) * x)` equals `(1 - a) * Relu(x)`
/// and saves a pass. The result differs only in the last bits. Other runtimes have a fast `PRelu`,
/// so models for these runtimes keep it.
pub(super) fn expand_prelu(mut model: Model) -> Option<Model> {
    let opset = model.opset_import.iter().find(|set| matches!(set.domain(), "" | "ai.onnx"))?;
    if opset.version() < MIN_OPSET {
        return None;
    }
    let graph = model.graph.as_mut()?;
    let mut is_changed = false;
    for node in std::mem::take(&mut graph.node) {
        match slopes(graph, &node) {
            Some(slopes) => {
                is_changed = true;
                expand(graph, &node, &slopes);
            }
            None => graph.node.push(node),
        }
    }
    graph.remove_unused_constants();
    is_changed.then_some(model)
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
    let complements: Vec<f32> = slopes.iter().map(|slope| 1.0 - slope).collect();
    graph.initializer.extend([constant(&slope, slopes), constant(&rest, &complements)]);
    graph.node.push(Node::new("Mul", &[input, &slope], &linear));
    if complements.iter().all(|factor| *factor >= 0.0) {
        graph.node.push(Node::new("Mul", &[input, &rest], &inner));
        graph.node.push(Node::new("Relu", &[&inner], &positive));
    } else {
        graph.node.push(Node::new("Relu", &[input], &inner));
        graph.node.push(Node::new("Mul", &[&inner, &rest], &positive));
    }
    graph.node.push(Node::new("Add", &[&linear, &positive], output));
}

/// Minimum number of inputs of an INT8 product. Smaller products gain little speed and lose the
/// most accuracy.
const MIN_INPUTS: usize = 256;
/// Number of columns that are quantised at a time.
const COLUMN_GROUP: usize = 16;
/// Domain of the runtime's own operators.
const DOMAIN: &str = "com.microsoft";

/// Returns `model` with its large matrix products in INT8; `None` if it has none. These are
/// pointwise convolutions and dense layers. The form is for processors with instructions for 8-bit
/// products.
///
/// Weights become signed bytes with one scale for each output: `w = q * scale`, `scale = max |w| /
/// 127`. At run time, activations become unsigned bytes that are scaled to the range of the current
/// item (ONNX Runtime's operator `com.microsoft.DynamicQuantizeMatMul`). No table of ranges is
/// needed; fixed ranges are less accurate (docs/reference/ACCURACY.md). The items of one batch
/// would share a range, so this form is for single items. All other operators stay FP32.
///
/// The product requires the channels as its last axis. The runtime merges the transpositions around
/// it with the layout change that its blocked convolutions need in any case.
pub(super) fn quantize_products(mut model: Model) -> Option<Model> {
    let graph = model.graph.as_mut()?;
    let mut is_changed = false;
    for node in std::mem::take(&mut graph.node) {
        let weights = Weights::from_node(graph, &node).filter(|weights| weights.inputs >= MIN_INPUTS);
        is_changed |= weights.is_some();
        match weights {
            Some(weights) if node.is("Conv") => quantize_convolution(graph, &node, &weights),
            Some(weights) => quantize_dense(graph, &node, &weights),
            None => graph.node.push(node),
        }
    }
    graph.remove_unused_constants();
    if !model.opset_import.iter().any(|set| set.domain() == DOMAIN) {
        model.opset_import.push(OperatorSet { domain: Some(DOMAIN.to_owned()), version: Some(1) });
    }
    is_changed.then_some(model)
}

/// Weights of a layer that mixes channels, row-major `[outputs, inputs]`.
struct Weights {
    outputs: usize,
    inputs: usize,
    values: Vec<f32>,
}

impl Weights {
    /// Returns the weights of a 1x1 convolution with stride 1 over all channels, or of a dense
    /// layer `x * transposed(w)`. Returns `None` for other nodes.
    fn from_node(graph: &Graph, node: &Node) -> Option<Self> {
        let weight = graph.constant(node.input.get(1)?)?;
        let (outputs, inputs) = match *weight.shape() {
            [outputs, inputs, 1, 1] if is_pointwise(node) => (outputs, inputs),
            [outputs, inputs] if is_dense(node) => (outputs, inputs),
            _ => return None,
        };
        Some(Self { outputs, inputs, values: weight.floats().ok()? })
    }
}

fn is_pointwise(node: &Node) -> bool {
    let all_equal = |name: &str, value: i64| {
        node.attribute(name).is_none_or(|attribute| attribute.ints.iter().all(|number| *number == value))
    };
    node.is("Conv") && node.integer("group", 1) == 1 && all_equal("strides", 1) && all_equal("pads", 0)
}

fn is_dense(node: &Node) -> bool {
    let factor = |name: &str| node.attribute(name).and_then(|attribute| attribute.f).unwrap_or(1.0);
    node.is("Gemm")
        && node.integer("transB", 0) == 1
        && node.integer("transA", 0) == 0
        && factor("alpha") == 1.0
        && factor("beta") == 1.0
}

/// Adds the quantised weights and their scales, and returns their names.
fn add_quantized_weights(graph: &mut Graph, weights: &Weights, output: &str) -> [String; 2] {
    let Weights { outputs, inputs, values } = weights;
    let mut bytes = vec![0_u8; values.len()];
    let scales: Vec<f32> = values.chunks_exact(*inputs).map(|row| max_absolute(row) / 127.0).collect();
    // The bytes are transposed. Each pass over the columns writes neighbouring bytes.
    for (group, rows) in values.chunks(inputs * COLUMN_GROUP).enumerate() {
        let first_column = group * COLUMN_GROUP;
        for (row, bytes) in bytes.chunks_exact_mut(*outputs).enumerate() {
            let columns = rows[row..].iter().step_by(*inputs).zip(&scales[first_column..]);
            for (byte, (value, scale)) in bytes[first_column..].iter_mut().zip(columns) {
                *byte = round_to_byte(value / scale);
            }
        }
    }
    let names = ["weight", "scale"].map(|part| format!("{output}/int8/{part}"));
    let (rows, columns) = (*inputs as i64, *outputs as i64);
    graph.initializer.push(Tensor::from_raw(&names[0], element::INT8, vec![rows, columns], bytes));
    graph.initializer.push(Tensor::from_floats(&names[1], vec![columns], &scales));
    names
}

/// Returns the largest absolute value of a row, at least 1e-12. Maxima of separate lanes compile to
/// vector instructions.
fn max_absolute(row: &[f32]) -> f32 {
    let mut lanes = [1e-12_f32; 8];
    for values in row.chunks(8) {
        for (lane, value) in lanes.iter_mut().zip(values) {
            *lane = lane.max(value.abs());
        }
    }
    lanes.into_iter().fold(0.0, f32::max)
}

/// Rounds a number from -127 to 127 to the nearest signed byte, ties to even. The sum has no bits
/// for fractions, so the addition rounds the number without a library call.
fn round_to_byte(value: f32) -> u8 {
    const WITHOUT_FRACTION: f32 = 1.5 * (1 << 23) as f32;
    (value + WITHOUT_FRACTION).to_bits() as u8
}

fn product_node(inputs: &[&str], output: &str) -> Node {
    Node { domain: Some(DOMAIN.to_owned()), ..Node::new("DynamicQuantizeMatMul", inputs, output) }
}

fn quantize_dense(graph: &mut Graph, node: &Node, weights: &Weights) {
    let output = &node.output[0];
    let [weight, scale] = add_quantized_weights(graph, weights, output);
    let mut inputs = vec![node.input[0].as_str(), &weight, &scale];
    if let Some(bias) = node.input.get(2) {
        // The empty name omits the zero points.
        inputs.extend(["", bias.as_str()]);
    }
    graph.node.push(product_node(&inputs, output));
}

fn quantize_convolution(graph: &mut Graph, node: &Node, weights: &Weights) {
    let output = &node.output[0];
    let [weight, scale] = add_quantized_weights(graph, weights, output);
    let name = |part: &str| format!("{output}/int8/{part}");
    let [last, mixed, first, one] = ["last", "mixed", "first", "one"].map(name);
    let transposed = |from: &str, to: &str, order: [i64; 4]| {
        let attribute = vec![Attribute::integers("perm", &order)];
        Node { attribute, ..Node::new("Transpose", &[from], to) }
    };
    graph.node.push(transposed(&node.input[0], &last, [0, 2, 3, 1]));
    graph.node.push(product_node(&[&last, &weight, &scale], &mixed));
    graph.node.push(transposed(&mixed, &first, [0, 3, 1, 2]));
    // A depthwise 1x1 convolution converts the result back to the blocked layout. It adds the bias,
    // and the runtime fuses a normalisation that follows.
    let channels = weights.outputs as i64;
    graph.initializer.push(Tensor::from_floats(&one, vec![channels, 1, 1, 1], &vec![1.0; weights.outputs]));
    let mut inputs = vec![first.as_str(), one.as_str()];
    inputs.extend(node.input.get(2).map(String::as_str));
    let mut bias_node = Node::new("Conv", &inputs, output);
    bias_node.attribute =
        vec![Attribute::integers("kernel_shape", &[1, 1]), Attribute::integer("group", channels)];
    graph.node.push(bias_node);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::onnx::builder::Attribute::{Integer, Integers};
    use crate::onnx::builder::{Axis::Fixed, Graph as Builder};
    use crate::onnx::{read, tests::run, write};

    /// Returns a model with one `PRelu` over three channels.
    fn prelu_model(slope: &[i64], values: &[f32; 3]) -> Vec<u8> {
        let mut graph = Builder::new();
        let sides = [Fixed(1), Fixed(3), Fixed(5), Fixed(7)];
        graph.add_input("input", &sides);
        graph.add_floats("slope", slope, values);
        graph.add_named_node("PRelu", &["input", "slope"], "output", &[]);
        graph.add_output("output", &sides);
        graph.encode()
    }

    #[test]
    fn expanded_prelu_computes_same_values() {
        // Slopes below 0, between 0 and 1, and in the second case above 1.
        for slopes in [[-0.5, 0.25, 1.0], [-0.5, 0.25, 1.5]] {
            let model = prelu_model(&[3, 1, 1], &slopes);
            let expanded = expand_prelu(read(model.clone().into()).unwrap()).unwrap();
            let graph = expanded.graph.as_ref().unwrap();
            assert!(graph.node.iter().all(|node| node.op_type != "PRelu"));
            let shape = [1, 3, 5, 7];
            let data: Vec<f32> = (0..105).map(|i| (i as f32 - 52.0) * 0.37).collect();
            let (expected, actual) = (run(&model, shape, &data).1, run(&write(&expanded), shape, &data).1);
            for (a, b) in expected.iter().zip(&actual) {
                assert!((a - b).abs() <= 1e-5 * a.abs().max(1.0), "{a} {b}");
            }
            assert_ne!(expected, data, "the slopes change the values");
        }
    }

    #[test]
    fn keeps_prelu_with_slopes_along_other_axis() {
        // `[3]` applies to the width axis.
        assert!(expand_prelu(read(prelu_model(&[3], &[0.1; 3]).into()).unwrap()).is_none());
    }

    /// Builds a model with two convolutions and a dense layer. The first convolution has 3 inputs
    /// and 256 outputs. The second one is a 1x1 convolution with bias and 8 outputs.
    fn products_model(step: i64) -> Vec<u8> {
        let mut graph = Builder::new();
        let side = 6;
        graph.add_input("input", &[Fixed(1), Fixed(3), Fixed(side), Fixed(side)]);
        // Neighbouring values have different signs. Processors without instructions for 8-bit
        // products add two neighbouring products in 16 bits, and the sum of two large products of
        // one sign would saturate. The negative values are smaller, so that sums do not cancel out.
        let wave = |count: usize, speed: f32| {
            let base = |i| if i % 2 == 0 { 1.0 } else { -0.4 };
            (0..count).map(|i| base(i) + 0.3 * (i as f32 * speed).sin()).collect::<Vec<f32>>()
        };
        graph.add_floats("widen", &[256, 3, 1, 1], &wave(768, 0.7));
        graph.add_floats("mix", &[8, 256, 1, 1], &wave(2048, 1.3));
        graph.add_floats("bias", &[8], &wave(8, 2.1));
        graph.add_named_node("Conv", &["input", "widen"], "wide", &[]);
        let strides = ("strides", Integers(&[step, step]));
        graph.add_named_node("Conv", &["wide", "mix", "bias"], "mixed", &[strides]);
        let pixels = 8 * (6 / step) * (6 / step);
        graph.add_integers("row", &[1, pixels]);
        graph.add_named_node("Reshape", &["mixed", "row"], "flat", &[]);
        graph.add_floats("dense", &[16, pixels], &wave(16 * pixels as usize, 0.9));
        graph.add_floats("shift", &[16], &wave(16, 1.7));
        graph.add_named_node("Gemm", &["flat", "dense", "shift"], "output", &[("transB", Integer(1))]);
        graph.add_output("output", &[Fixed(1), Fixed(16)]);
        graph.encode()
    }

    fn operators(model: &Model) -> Vec<&str> {
        model.graph.as_ref().unwrap().node.iter().map(|node| node.op_type.as_str()).collect()
    }

    #[test]
    fn quantises_large_products_with_small_error() {
        let model = products_model(1);
        let quantized = quantize_products(read(model.clone().into()).unwrap()).unwrap();
        // The first convolution has only three channels and remains unchanged.
        let product = "DynamicQuantizeMatMul";
        let expected = ["Conv", "Transpose", product, "Transpose", "Conv", "Reshape", product];
        assert_eq!(operators(&quantized), expected);
        let shape = [1, 3, 6, 6];
        let data: Vec<f32> = (0..108).map(|i| ((i * 37) % 101) as f32).collect();
        let (expected, actual) = (run(&model, shape, &data).1, run(&write(&quantized), shape, &data).1);
        let length = |values: &[f32]| values.iter().map(|value| value * value).sum::<f32>().sqrt();
        let errors: Vec<f32> = expected.iter().zip(&actual).map(|(a, b)| a - b).collect();
        assert_eq!(expected.len(), actual.len());
        assert!(length(&errors) < 0.03 * length(&expected), "{} of {}", length(&errors), length(&expected));
        assert!(length(&errors) > 0.0, "the products are computed in INT8");
    }

    #[test]
    fn rounds_weights_to_nearest_quantisation_step() {
        // More columns than are quantised at a time, and values between two steps.
        let (outputs, inputs) = (COLUMN_GROUP + 3, 256);
        let value = |i: usize| if i.is_multiple_of(7) { 63.5 } else { ((i * 89) % 255) as f32 - 127.0 };
        let values: Vec<f32> = (0..outputs * inputs).map(|i| value(i) * (i / inputs + 1) as f32).collect();
        let mut graph = Graph::default();
        add_quantized_weights(&mut graph, &Weights { outputs, inputs, values: values.clone() }, "y");
        let [bytes, scales] = &graph.initializer[..] else { panic!("two constants") };
        let (bytes, scales) = (bytes.integers().unwrap(), scales.floats().unwrap());
        for (at, value) in values.iter().enumerate() {
            let (output, input) = (at / inputs, at % inputs);
            let expected = (value / scales[output]).round_ties_even();
            assert_eq!(bytes[input * outputs + output] as f32, expected, "{output}, {input}");
        }
    }

    #[test]
    fn quantisation_skips_strided_convolutions_and_small_layers() {
        // With a stride of 2 the dense layer has 72 inputs.
        assert!(quantize_products(read(products_model(2).into()).unwrap()).is_none());
    }
}
