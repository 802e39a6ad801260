//! Writes ONNX files: just enough of the format's protobuf encoding (onnx.proto3) for small graphs, and no dependency.

use std::collections::BTreeSet;

/// Element types of tensors, by their number in the format.
#[derive(Clone, Copy, Debug)]
pub enum Element {
    /// 32-bit float.
    Float = 1,
    /// Unsigned byte.
    Uint8 = 2,
    /// 32-bit integer.
    Int32 = 6,
    /// 64-bit integer.
    Int64 = 7,
}

/// One axis of a shape.
#[derive(Clone, Copy, Debug)]
pub enum Axis {
    /// A fixed size.
    Fixed(i64),
    /// Any size, under a name.
    Free(&'static str),
}

/// An attribute of a node.
#[derive(Clone, Copy, Debug)]
pub enum Attribute<'a> {
    /// A list of integers.
    Integers(&'a [i64]),
    /// One integer.
    Integer(i64),
}

/// A graph under construction; [`Graph::encode`] gives the bytes of an `.onnx` file.
#[derive(Debug, Default)]
pub struct Graph {
    body: Vec<u8>,
    nodes: usize,
    names: usize,
    constants: BTreeSet<String>,
}

/// Operator set that the graphs use.
const OPSET: u64 = 13;
/// Version of the file format; any runtime that knows the operator set reads it.
const IR_VERSION: u64 = 7;

impl Graph {
    /// An empty graph.
    pub fn new() -> Self {
        let mut graph = Self::default();
        bytes(&mut graph.body, 2, b"graph");
        graph
    }

    /// Declares an input of floats.
    pub fn input(&mut self, name: &str, shape: &[Axis]) {
        self.input_of(Element::Float, name, shape);
    }

    /// Declares an input.
    pub fn input_of(&mut self, element: Element, name: &str, shape: &[Axis]) {
        bytes(&mut self.body, 11, &value_info(name, element, shape));
    }

    /// Declares an output of floats.
    pub fn output(&mut self, name: &str, shape: &[Axis]) {
        self.output_of(Element::Float, name, shape);
    }

    /// Declares an output.
    pub fn output_of(&mut self, element: Element, name: &str, shape: &[Axis]) {
        bytes(&mut self.body, 12, &value_info(name, element, shape));
    }

    /// Adds a constant of floats.
    pub fn floats(&mut self, name: &str, shape: &[i64], values: &[f32]) {
        let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.constant(name, Element::Float, shape, &raw);
    }

    /// Adds a constant of integers.
    pub fn integers(&mut self, name: &str, values: &[i64]) {
        let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.constant(name, Element::Int64, &[values.len() as i64], &raw);
    }

    /// Adds an integer constant without dimensions, and answers its name.
    pub fn integer(&mut self, value: i64) -> String {
        let name = self.fresh();
        self.constant(&name, Element::Int64, &[], &value.to_le_bytes());
        name
    }

    /// Adds a constant row of floats, and answers its name.
    pub fn row(&mut self, values: &[f32]) -> String {
        let name = self.fresh();
        self.floats(&name, &[values.len() as i64], values);
        name
    }

    /// Adds a node, and answers the name of what it computes.
    pub fn add(&mut self, operator: &str, inputs: &[&str], attributes: &[(&str, Attribute<'_>)]) -> String {
        let name = self.fresh();
        self.node(operator, inputs, &name, attributes);
        name
    }

    /// Whether a constant of this name is there.
    pub fn has(&self, name: &str) -> bool {
        self.constants.contains(name)
    }

    fn fresh(&mut self) -> String {
        self.names += 1;
        format!("value_{}", self.names)
    }

    fn constant(&mut self, name: &str, element: Element, shape: &[i64], raw: &[u8]) {
        self.constants.insert(name.to_owned());
        let mut tensor = Vec::new();
        for size in shape {
            integer(&mut tensor, 1, *size as u64);
        }
        integer(&mut tensor, 2, element as u64);
        bytes(&mut tensor, 8, name.as_bytes());
        bytes(&mut tensor, 9, raw);
        bytes(&mut self.body, 5, &tensor);
    }

    /// Adds a node that computes `output`; nodes stand in the order in which they can run.
    pub fn node(
        &mut self,
        operator: &str,
        inputs: &[&str],
        output: &str,
        attributes: &[(&str, Attribute<'_>)],
    ) {
        let mut node = Vec::new();
        for input in inputs {
            bytes(&mut node, 1, input.as_bytes());
        }
        bytes(&mut node, 2, output.as_bytes());
        bytes(&mut node, 3, format!("{operator}_{}", self.nodes).as_bytes());
        bytes(&mut node, 4, operator.as_bytes());
        for (name, value) in attributes {
            let mut attribute = Vec::new();
            bytes(&mut attribute, 1, name.as_bytes());
            match value {
                Attribute::Integers(values) => {
                    for value in *values {
                        integer(&mut attribute, 8, *value as u64);
                    }
                    integer(&mut attribute, 20, 7);
                }
                Attribute::Integer(value) => {
                    integer(&mut attribute, 3, *value as u64);
                    integer(&mut attribute, 20, 2);
                }
            }
            bytes(&mut node, 5, &attribute);
        }
        bytes(&mut self.body, 1, &node);
        self.nodes += 1;
    }

    /// The file.
    pub fn encode(&self) -> Vec<u8> {
        let mut opset = Vec::new();
        bytes(&mut opset, 1, b"");
        integer(&mut opset, 2, OPSET);
        let mut model = Vec::new();
        integer(&mut model, 1, IR_VERSION);
        bytes(&mut model, 2, b"facecrawl");
        bytes(&mut model, 7, &self.body);
        bytes(&mut model, 8, &opset);
        model
    }
}

fn value_info(name: &str, element: Element, shape: &[Axis]) -> Vec<u8> {
    let mut dimensions = Vec::new();
    for axis in shape {
        let mut dimension = Vec::new();
        match axis {
            Axis::Fixed(size) => integer(&mut dimension, 1, *size as u64),
            Axis::Free(name) => bytes(&mut dimension, 2, name.as_bytes()),
        }
        bytes(&mut dimensions, 1, &dimension);
    }
    let mut tensor = Vec::new();
    integer(&mut tensor, 1, element as u64);
    bytes(&mut tensor, 2, &dimensions);
    let mut kind = Vec::new();
    bytes(&mut kind, 1, &tensor);
    let mut info = Vec::new();
    bytes(&mut info, 1, name.as_bytes());
    bytes(&mut info, 2, &kind);
    info
}

/// A field of variable-length integers (wire type 0).
fn integer(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3);
    varint(out, value);
}

/// A field of bytes: strings and messages (wire type 2).
fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
