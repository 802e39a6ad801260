//! Builds small graphs for the image operations on devices and for the fixture models of the tests.
use super::proto::{self, Model, Node, OperatorSet, Tensor, ValueInfo, element};
use super::proto::{Shape, TensorType, ValueType};

#[derive(Clone, Copy, Debug)]
pub enum Element {
    Float = element::FLOAT as isize,
    Uint8 = element::UINT8 as isize,
    Int32 = element::INT32 as isize,
    Int64 = element::INT64 as isize,
}

#[derive(Clone, Copy, Debug)]
pub enum Axis {
    Fixed(i64),
    /// An axis of any length, with a name.
    Dynamic(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub enum Attribute<'a> {
    Integers(&'a [i64]),
    Integer(i64),
}

/// A graph under construction; [`Graph::encode`] returns the bytes of an `.onnx` file.
#[derive(Debug, Default)]
pub struct Graph {
    graph: proto::Graph,
    name_count: usize,
}

/// Operator set of the graphs.
const OPSET: i64 = 13;
/// Version of the file format. Every runtime that supports the operator set can read it.
const IR_VERSION: i64 = 7;

impl Graph {
    pub fn new() -> Self {
        Self { graph: proto::Graph { name: Some("graph".to_owned()), ..Default::default() }, name_count: 0 }
    }

    /// Declares an input of floats.
    pub fn add_input(&mut self, name: &str, shape: &[Axis]) {
        self.add_typed_input(Element::Float, name, shape);
    }

    pub fn add_typed_input(&mut self, element: Element, name: &str, shape: &[Axis]) {
        self.graph.input.push(value_info(name, element, shape));
    }

    /// Declares an output of floats.
    pub fn add_output(&mut self, name: &str, shape: &[Axis]) {
        self.add_typed_output(Element::Float, name, shape);
    }

    pub fn add_typed_output(&mut self, element: Element, name: &str, shape: &[Axis]) {
        self.graph.output.push(value_info(name, element, shape));
    }

    /// Adds a constant of floats.
    pub fn add_floats(&mut self, name: &str, shape: &[i64], values: &[f32]) {
        self.graph.initializer.push(Tensor::from_floats(name, shape.to_vec(), values));
    }

    /// Adds a constant of integers.
    pub fn add_integers(&mut self, name: &str, values: &[i64]) {
        self.add_constant(name, &[values.len() as i64], values);
    }

    /// Adds a scalar integer constant, and returns its name.
    pub fn add_integer(&mut self, value: i64) -> String {
        let name = self.unique_name();
        self.add_constant(&name, &[], &[value]);
        name
    }

    /// Adds a constant row of floats, and returns its name.
    pub fn add_row(&mut self, values: &[f32]) -> String {
        let name = self.unique_name();
        self.add_floats(&name, &[values.len() as i64], values);
        name
    }

    /// Adds a node, and returns the name of its output.
    pub fn add_node(
        &mut self,
        operator: &str,
        inputs: &[&str],
        attributes: &[(&str, Attribute<'_>)],
    ) -> String {
        let name = self.unique_name();
        self.add_named_node(operator, inputs, &name, attributes);
        name
    }

    /// Returns whether a constant of this name exists.
    pub fn has_constant(&self, name: &str) -> bool {
        self.graph.constant(name).is_some()
    }

    fn unique_name(&mut self) -> String {
        self.name_count += 1;
        format!("value_{}", self.name_count)
    }

    fn add_constant(&mut self, name: &str, shape: &[i64], values: &[i64]) {
        let raw = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.graph.initializer.push(Tensor::from_raw(name, element::INT64, shape.to_vec(), raw));
    }

    /// Adds a node that computes `output`. Nodes must be added in topological order.
    pub fn add_named_node(
        &mut self,
        operator: &str,
        inputs: &[&str],
        output: &str,
        attributes: &[(&str, Attribute<'_>)],
    ) {
        let attribute = |(name, value): &(&str, Attribute<'_>)| match value {
            Attribute::Integers(values) => proto::Attribute::integers(name, values),
            Attribute::Integer(value) => proto::Attribute::integer(name, *value),
        };
        let mut node = Node::new(operator, inputs, output);
        node.name = Some(format!("{operator}_{}", self.graph.node.len()));
        node.attribute = attributes.iter().map(attribute).collect();
        self.graph.node.push(node);
    }

    pub fn encode(&self) -> Vec<u8> {
        let opset = OperatorSet { domain: Some(String::new()), version: Some(OPSET) };
        super::write(&Model {
            ir_version: Some(IR_VERSION),
            producer_name: Some("facecrawl".to_owned()),
            graph: Some(self.graph.clone()),
            opset_import: vec![opset],
            ..Model::default()
        })
    }
}

fn value_info(name: &str, element: Element, shape: &[Axis]) -> ValueInfo {
    let axis = |axis: &Axis| match axis {
        Axis::Fixed(size) => proto::Axis { value: Some(*size), ..Default::default() },
        Axis::Dynamic(name) => proto::Axis { name: Some((*name).to_owned()), ..Default::default() },
    };
    let shape = Shape { axes: shape.iter().map(axis).collect() };
    let tensor = TensorType { element: Some(element as i32), shape: Some(shape) };
    let kind = ValueType { tensor: Some(tensor), ..Default::default() };
    ValueInfo { name: Some(name.to_owned()), kind: Some(kind) }
}
