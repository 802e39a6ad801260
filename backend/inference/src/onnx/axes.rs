//! Makes fixed axes dynamic if no operator of the model depends on their length.
//!
//! Only shape information changes: the shapes of inputs and outputs, and targets of `Reshape` that
//! begin with 1. This 1 becomes 0, which means "as in the input". Weights do not change, so
//! embeddings remain comparable. The caller must run the model to verify that it computes each item
//! independently of the others.
use super::proto::{Axis, Graph, Model, Shape, Tensor, ValueInfo, element};
use bytes::Bytes;

/// Returns `model` with a dynamic first axis of its inputs and outputs.
pub(super) fn make_batch_axis_dynamic(mut model: Model) -> Result<Model, String> {
    let graph = model.graph.as_mut().ok_or("the file has no graph")?;
    let constants: Vec<String> = graph.initializer.iter().map(|tensor| tensor.name().to_owned()).collect();
    // Old files list their weights among the inputs.
    let inputs = graph.input.iter_mut().filter(|input| !constants.iter().any(|name| name == input.name()));
    for value in inputs.chain(&mut graph.output) {
        let name = value.name().to_owned();
        let first = axes(value).first_mut().ok_or_else(|| format!("{name} has no axes"))?;
        if first.value.is_some_and(|length| length != 1) {
            return Err(format!("the first axis of {name} is not a batch axis of length 1"));
        }
        *first = dynamic_axis("batch");
    }
    keep_batch_axis_in_reshapes(graph);
    // Shapes inferred for one item are wrong for larger batches; the runtime infers new ones.
    graph.value_info.clear();
    Ok(model)
}

/// Returns `model`, a convolutional detector, with a dynamic height and width of its input and
/// dynamic rows of its outputs. Returns `None` if the first input has no fixed height and width, an
/// input is not `[batch, 3, height, width]`, or an output is not `[batch, rows, columns]`.
pub(super) fn make_canvas_dynamic(mut model: Model) -> Option<Model> {
    let graph = model.graph.as_mut()?;
    for (index, input) in graph.input.iter_mut().enumerate() {
        let [_, _, height, width] = axes(input) else { return None };
        if index == 0 && (height.value.is_none() || width.value.is_none()) {
            return None;
        }
        (*height, *width) = (dynamic_axis("height"), dynamic_axis("width"));
    }
    for output in &mut graph.output {
        let [_, rows, _] = axes(output) else { return None };
        // The axis has no name, because the outputs of different strides have different lengths.
        *rows = Axis::default();
    }
    graph.value_info.clear();
    Some(model)
}

/// Replaces a first value of 1 with 0 in the targets of `Reshape`.
fn keep_batch_axis_in_reshapes(graph: &mut Graph) {
    let reshapes = graph.node.iter().filter(|node| node.is("Reshape"));
    let targets: Vec<String> = reshapes.filter_map(|node| node.input.get(1).cloned()).collect();
    let is_target = |name: &str| targets.iter().any(|target| target == name);
    graph.initializer.iter_mut().filter(|tensor| is_target(tensor.name())).for_each(zero_first_value);
    for node in &mut graph.node {
        if node.is("Constant") && node.output.first().is_some_and(|name| is_target(name)) {
            node.attribute.iter_mut().filter_map(|attribute| attribute.t.as_mut()).for_each(zero_first_value);
        }
    }
}

fn zero_first_value(target: &mut Tensor) {
    if let Ok(mut values) = target.integers()
        && target.data_type == Some(element::INT64)
        && values.first() == Some(&1)
    {
        values[0] = 0;
        target.int64_data.clear();
        target.raw_data = Some(Bytes::from_iter(values.iter().flat_map(|value| value.to_le_bytes())));
    }
}

/// Returns the axes of a tensor; empty if the value is not a tensor or its shape is unknown.
fn axes(value: &mut ValueInfo) -> &mut [Axis] {
    let tensor = value.kind.as_mut().and_then(|kind| kind.tensor.as_mut());
    let shape: Option<&mut Shape> = tensor.and_then(|tensor| tensor.shape.as_mut());
    shape.map_or(&mut [], |shape| shape.axes.as_mut_slice())
}

fn dynamic_axis(name: &str) -> Axis {
    Axis { name: Some(name.to_owned()), ..Axis::default() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::proto::{TensorType, ValueType};
    use super::*;
    use crate::onnx::builder::{Axis::Fixed, Graph as Builder};
    use crate::onnx::{read, tests::run, write};

    /// Returns a model with a fixed batch axis of length 1. Its output is a row with the mean of
    /// each channel of a 4x4 image.
    fn fixed_model() -> Vec<u8> {
        let mut graph = Builder::new();
        graph.add_input("input", &[Fixed(1), Fixed(3), Fixed(4), Fixed(4)]);
        graph.add_named_node("GlobalAveragePool", &["input"], "means", &[]);
        graph.add_integers("row", &[1, -1]);
        graph.add_named_node("Reshape", &["means", "row"], "output", &[]);
        graph.add_output("output", &[Fixed(1), Fixed(3)]);
        graph.encode()
    }

    #[test]
    fn dynamic_batch_axis_returns_one_row_per_item() {
        let dynamic = make_batch_axis_dynamic(read(fixed_model().into()).unwrap()).unwrap();
        let unchanged = make_batch_axis_dynamic(dynamic.clone()).unwrap();
        assert_eq!(unchanged, dynamic, "a dynamic axis does not change");
        let data: Vec<f32> = (0..4).flat_map(|item| vec![item as f32; 48]).collect();
        let (shape, rows) = run(&write(&dynamic), [4, 3, 4, 4], &data);
        assert_eq!(shape, [4, 3]);
        assert_eq!(rows, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0]);
    }

    #[test]
    fn rejects_unsuitable_axes_and_invalid_onnx_files() {
        let axis = Axis { value: Some(3), ..Axis::default() };
        let tensor = TensorType { element: Some(1), shape: Some(Shape { axes: vec![axis] }) };
        let kind = ValueType { tensor: Some(tensor), ..ValueType::default() };
        let graph = Graph {
            input: vec![ValueInfo { name: Some("x".to_owned()), kind: Some(kind) }],
            ..Graph::default()
        };
        let model = Model { graph: Some(graph), ..Model::default() };
        assert_eq!(
            make_batch_axis_dynamic(model.clone()).unwrap_err(),
            "the first axis of x is not a batch axis of length 1"
        );
        assert_eq!(make_canvas_dynamic(model), None, "the input is not an image");

        assert!(read(Bytes::from_static(b"not an ONNX file")).is_err());
        assert_eq!(read(Bytes::new()).unwrap_err(), "the file has no graph");
        // Truncated in the middle of a field.
        assert!(read(Bytes::from_static(&[0x3a, 0x7f, 0x01])).is_err());
    }
}
