//! Converts weights stored as INT8 blocks to FP32.
//!
//! Files with block-quantised weights (OpenCV Zoo's `int8bq`) store every weight as an integer.
//! Each block of values has a scale and a zero point: `w = (q - zero_point) * scale` (ONNX operator
//! `DequantizeLinear`, opset 21). ONNX Runtime 1.31 rejects these files: their biases have one
//! scale for all values and also a `block_size`, which the operator does not allow. The FP32 values
//! are the same on every machine.
use super::proto::{Graph, Model, Node, Tensor};

/// Returns `model` with FP32 constants in place of each `DequantizeLinear` of constants and the
/// `Reshape` that follows it. Fails with a message that names the node or tensor with an
/// unsupported layout.
pub(super) fn expand_blocks(mut model: Model) -> Result<Model, String> {
    let graph = model.graph.as_mut().ok_or("the file has no graph")?;
    let mut expanded: Vec<Tensor> = Vec::new();
    let mut remaining_nodes = Vec::with_capacity(graph.node.len());
    for node in std::mem::take(&mut graph.node) {
        let source = expanded.iter().find(|tensor| tensor.name() == input(&node, 0));
        if node.is("DequantizeLinear") {
            expanded.push(dequantize(graph, &node)?);
        } else if let (true, Some(source)) = (node.is("Reshape"), source) {
            expanded.push(reshape(graph, &node, source)?);
        } else {
            remaining_nodes.push(node);
        }
    }
    if expanded.is_empty() {
        return Err("the file has no weights in blocks".to_owned());
    }
    graph.node = remaining_nodes;
    graph.initializer.extend(expanded);
    graph.remove_unused_constants();
    Ok(model)
}

fn input(node: &Node, index: usize) -> &str {
    node.input.get(index).map_or("", String::as_str)
}

fn output(node: &Node) -> &str {
    node.output.first().map_or("", String::as_str)
}

/// Computes the tensor of a `DequantizeLinear` of constants.
fn dequantize(graph: &Graph, node: &Node) -> Result<Tensor, String> {
    let error = |reason: &str| format!("{}: {reason}", output(node));
    let operand = |index: usize| {
        graph.constant(input(node, index)).ok_or_else(|| error("an operand is not a constant"))
    };
    let quantized = operand(0)?;
    let (values, scales, zero_points) =
        (quantized.integers()?, operand(1)?.floats()?, operand(2)?.integers()?);
    if scales.len() != zero_points.len() {
        return Err(error("it must have one zero point for each scale"));
    }
    let blocks = Blocks::new(quantized, node, scales.len())
        .ok_or_else(|| error("the blocks do not match the shape"))?;
    Ok(Tensor::from_floats(
        output(node),
        quantized.dims.clone(),
        &blocks.dequantize(&values, &scales, &zero_points),
    ))
}

/// The mapping from values to scales: each group of `size` neighbours along one axis has one scale.
/// The last group may be shorter.
struct Blocks {
    /// Length of the axis in values.
    length: usize,
    /// Distance in values between neighbours on the axis.
    inner: usize,
    size: usize,
}

impl Blocks {
    /// Returns `None` if tensor, attributes and number of scales are inconsistent.
    fn new(tensor: &Tensor, node: &Node, scales: usize) -> Option<Self> {
        // The lengths are at least 1, because an empty tensor can have a scale too.
        if scales == 1 {
            let count = tensor.count().max(1);
            return Some(Self { length: count, inner: 1, size: count });
        }
        let dims = tensor.shape();
        let axis = usize::try_from(node.integer("axis", 1)).ok()?;
        let size = usize::try_from(node.integer("block_size", 0)).ok().filter(|size| *size > 0)?;
        let length = *dims.get(axis)?;
        let inner: usize = dims[axis + 1..].iter().product();
        let outer: usize = dims[..axis].iter().product();
        let is_consistent = outer * length.div_ceil(size) * inner == scales;
        is_consistent.then_some(Self { length: length.max(1), inner: inner.max(1), size })
    }

    /// Returns the values as FP32, row-major like `values`.
    fn dequantize(&self, values: &[i64], scales: &[f32], zero_points: &[i64]) -> Vec<f32> {
        let mut floats = Vec::with_capacity(values.len());
        let planes = values.chunks_exact(self.length * self.inner);
        let blocks = planes.flat_map(|plane| plane.chunks(self.size * self.inner));
        let parameters = scales.chunks_exact(self.inner).zip(zero_points.chunks_exact(self.inner));
        for (block, (scales, zero_points)) in blocks.zip(parameters) {
            for row in block.chunks_exact(self.inner) {
                let row = row.iter().zip(scales.iter().zip(zero_points));
                floats.extend(row.map(|(value, (scale, zero_point))| (value - zero_point) as f32 * scale));
            }
        }
        floats
    }
}

/// Returns `tensor` with the shape in the node's second input, which is a constant.
fn reshape(graph: &Graph, node: &Node, tensor: &Tensor) -> Result<Tensor, String> {
    let error = |reason: &str| format!("{}: {reason}", output(node));
    let target = graph.constant(input(node, 1)).ok_or_else(|| error("its shape is not a constant"))?;
    let reshaped = Tensor { name: Some(output(node).to_owned()), dims: target.integers()?, ..tensor.clone() };
    if reshaped.count() == tensor.count() { Ok(reshaped) } else { Err(error("its shape does not match")) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::proto::{Attribute, ValueInfo};
    use super::*;

    fn integers(name: &str, dims: &[i64], values: &[i8]) -> Tensor {
        let raw = values.iter().map(|value| *value as u8).collect();
        Tensor::from_raw(name, super::super::proto::element::INT8, dims.to_vec(), raw)
    }

    fn node(operator: &str, inputs: &[&str], output: &str, attributes: &[(&str, i64)]) -> Node {
        let attribute = attributes.iter().map(|(name, value)| Attribute::integer(name, *value)).collect();
        Node { attribute, ..Node::new(operator, inputs, output) }
    }

    /// Returns a model whose `Add` uses a `[2, 5]` weight, in blocks of two along the second axis,
    /// reshaped to `[5, 2]`.
    fn model(scales: &[f32]) -> Model {
        let named = |name: &str| ValueInfo { name: Some(name.to_owned()), kind: None };
        let shape: Vec<u8> = [5_i64, 2].iter().flat_map(|side| side.to_le_bytes()).collect();
        let graph = Graph {
            node: vec![
                node("DequantizeLinear", &["q", "s", "z"], "w", &[("axis", 1), ("block_size", 2)]),
                node("Reshape", &["w", "shape"], "weight", &[]),
                node("Add", &["x", "weight"], "y", &[]),
            ],
            initializer: vec![
                integers("q", &[2, 5], &[1, 2, 3, 4, 5, -1, -2, -3, -4, -5]),
                Tensor::from_floats("s", vec![2, 3], scales),
                integers("z", &[2, 3], &[0, 1, 0, 0, 0, -1]),
                Tensor::from_raw("shape", super::super::proto::element::INT64, vec![2], shape),
            ],
            input: ["x", "q", "s", "z", "shape", "left_over"].map(named).to_vec(),
            output: vec![named("y")],
            ..Graph::default()
        };
        Model { graph: Some(graph), ..Model::default() }
    }

    #[test]
    fn expands_int8_blocks_with_scales_and_zero_points() {
        let model = expand_blocks(model(&[1.0, 10.0, 100.0, 0.5, 2.0, 3.0])).unwrap();
        let graph = model.graph.unwrap();
        let operators: Vec<&str> = graph.node.iter().map(|node| node.op_type.as_str()).collect();
        assert_eq!(operators, ["Add"]);
        let names: Vec<&str> = graph.initializer.iter().map(Tensor::name).collect();
        assert_eq!(names, ["weight"]);
        assert_eq!(graph.input.iter().map(ValueInfo::name).collect::<Vec<_>>(), ["x"]);
        let weight = &graph.initializer[0];
        assert_eq!(weight.dims, [5, 2]);
        assert_eq!(weight.floats().unwrap(), [1.0, 2.0, 20.0, 30.0, 500.0, -0.5, -1.0, -6.0, -8.0, -12.0]);
    }

    #[test]
    fn expands_empty_tensor_to_empty_tensor() {
        for scales in [vec![], vec![1.0]] {
            let mut empty = model(&scales);
            let graph = empty.graph.as_mut().unwrap();
            let count = scales.len();
            graph.node.truncate(1);
            graph.node.push(node("Add", &["x", "w"], "y", &[]));
            graph.initializer[0] = integers("q", &[2, 0], &[]);
            graph.initializer[1] = Tensor::from_floats("s", vec![count as i64], &scales);
            graph.initializer[2] = integers("z", &[count as i64], &vec![0; count]);
            let expanded = expand_blocks(empty).unwrap().graph.unwrap();
            assert_eq!(expanded.initializer[0].floats().unwrap(), [] as [f32; 0]);
        }
    }

    #[test]
    fn invalid_int8_block_layout_error_names_tensor() {
        let mut invalid = model(&[1.0; 6]);
        invalid.graph.as_mut().unwrap().initializer[1] = Tensor::from_floats("s", vec![2], &[1.0, 1.0]);
        assert_eq!(expand_blocks(invalid).unwrap_err(), "w: it must have one zero point for each scale");
        let mut wrong_size = model(&[1.0; 6]);
        wrong_size.graph.as_mut().unwrap().node[0].attribute[1].i = Some(3);
        assert_eq!(expand_blocks(wrong_size).unwrap_err(), "w: the blocks do not match the shape");
        let mut computed = model(&[1.0; 6]);
        computed.graph.as_mut().unwrap().initializer.remove(0);
        assert_eq!(expand_blocks(computed).unwrap_err(), "w: an operand is not a constant");
        assert!(expand_blocks(Model { graph: Some(Graph::default()), ..Model::default() }).is_err());
    }
}
