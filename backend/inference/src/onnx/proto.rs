//! The messages of the ONNX format (onnx.proto3, version 13 and older) that this program edits.
//!
//! Fields that the program does not use are kept as bytes. Reading and rewriting a file loses only
//! texts for people (`producer_version` and the `doc_string` of each message) and fields newer than
//! this list. The rewrites of models are in the modules beside this one.
use bytes::Bytes;
use prost::Message;
use std::collections::HashSet;

/// Defines messages: for each field its name, its type, and its type and number in the format.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty = ($($format:tt)*),)* })*) => {
        $($(#[$doc])* #[derive(Clone, PartialEq, Message)]
        pub(crate) struct $name {
            $(#[prost($($format)*)] pub(crate) $field: $kind,)*
        })*
    };
}

messages! {
    Model {
        ir_version: Option<i64> = (int64, optional, tag = "1"),
        producer_name: Option<String> = (string, optional, tag = "2"),
        domain: Option<String> = (string, optional, tag = "4"),
        model_version: Option<i64> = (int64, optional, tag = "5"),
        graph: Option<Graph> = (message, optional, tag = "7"),
        opset_import: Vec<OperatorSet> = (message, repeated, tag = "8"),
        metadata: Vec<Bytes> = (bytes = "bytes", repeated, tag = "14"),
        functions: Vec<Bytes> = (bytes = "bytes", repeated, tag = "25"),
    }

    /// The version of an operator set.
    OperatorSet {
        domain: Option<String> = (string, optional, tag = "1"),
        version: Option<i64> = (int64, optional, tag = "2"),
    }

    Graph {
        node: Vec<Node> = (message, repeated, tag = "1"),
        name: Option<String> = (string, optional, tag = "2"),
        initializer: Vec<Tensor> = (message, repeated, tag = "5"),
        input: Vec<ValueInfo> = (message, repeated, tag = "11"),
        output: Vec<ValueInfo> = (message, repeated, tag = "12"),
        value_info: Vec<ValueInfo> = (message, repeated, tag = "13"),
        quantization_annotation: Vec<Bytes> = (bytes = "bytes", repeated, tag = "14"),
        sparse_initializer: Vec<Bytes> = (bytes = "bytes", repeated, tag = "15"),
    }

    /// One operator with its inputs and outputs.
    Node {
        input: Vec<String> = (string, repeated, tag = "1"),
        output: Vec<String> = (string, repeated, tag = "2"),
        name: Option<String> = (string, optional, tag = "3"),
        op_type: String = (string, tag = "4"),
        attribute: Vec<Attribute> = (message, repeated, tag = "5"),
        domain: Option<String> = (string, optional, tag = "7"),
        overload: Option<String> = (string, optional, tag = "8"),
    }

    /// A constant parameter of an operator.
    Attribute {
        name: String = (string, tag = "1"),
        f: Option<f32> = (float, optional, tag = "2"),
        i: Option<i64> = (int64, optional, tag = "3"),
        s: Option<Bytes> = (bytes = "bytes", optional, tag = "4"),
        t: Option<Tensor> = (message, optional, tag = "5"),
        g: Option<Bytes> = (bytes = "bytes", optional, tag = "6"),
        floats: Vec<f32> = (float, repeated, packed = "false", tag = "7"),
        ints: Vec<i64> = (int64, repeated, packed = "false", tag = "8"),
        strings: Vec<Bytes> = (bytes = "bytes", repeated, tag = "9"),
        tensors: Vec<Bytes> = (bytes = "bytes", repeated, tag = "10"),
        graphs: Vec<Bytes> = (bytes = "bytes", repeated, tag = "11"),
        tp: Option<Bytes> = (bytes = "bytes", optional, tag = "14"),
        type_protos: Vec<Bytes> = (bytes = "bytes", repeated, tag = "15"),
        kind: Option<i32> = (int32, optional, tag = "20"),
        ref_attr_name: Option<String> = (string, optional, tag = "21"),
        sparse_tensor: Option<Bytes> = (bytes = "bytes", optional, tag = "22"),
        sparse_tensors: Vec<Bytes> = (bytes = "bytes", repeated, tag = "23"),
    }

    /// A constant array, row-major. Its values are in `raw_data`, little-endian, or in the list of
    /// its element type.
    Tensor {
        dims: Vec<i64> = (int64, repeated, packed = "false", tag = "1"),
        data_type: Option<i32> = (int32, optional, tag = "2"),
        float_data: Vec<f32> = (float, repeated, tag = "4"),
        int32_data: Vec<i32> = (int32, repeated, tag = "5"),
        string_data: Vec<Bytes> = (bytes = "bytes", repeated, tag = "6"),
        int64_data: Vec<i64> = (int64, repeated, tag = "7"),
        name: Option<String> = (string, optional, tag = "8"),
        raw_data: Option<Bytes> = (bytes = "bytes", optional, tag = "9"),
        double_data: Vec<f64> = (double, repeated, tag = "10"),
        uint64_data: Vec<u64> = (uint64, repeated, tag = "11"),
        external_data: Vec<Bytes> = (bytes = "bytes", repeated, tag = "13"),
        data_location: Option<i32> = (int32, optional, tag = "14"),
    }

    ValueInfo {
        name: Option<String> = (string, optional, tag = "1"),
        kind: Option<ValueType> = (message, optional, tag = "2"),
    }

    /// The type of a value; types other than tensors are kept as bytes.
    ValueType {
        tensor: Option<TensorType> = (message, optional, tag = "1"),
        sequence: Option<Bytes> = (bytes = "bytes", optional, tag = "4"),
        map: Option<Bytes> = (bytes = "bytes", optional, tag = "5"),
        denotation: Option<String> = (string, optional, tag = "6"),
        sparse_tensor: Option<Bytes> = (bytes = "bytes", optional, tag = "8"),
        optional: Option<Bytes> = (bytes = "bytes", optional, tag = "9"),
    }

    TensorType {
        element: Option<i32> = (int32, optional, tag = "1"),
        shape: Option<Shape> = (message, optional, tag = "2"),
    }

    Shape {
        axes: Vec<Axis> = (message, repeated, tag = "1"),
    }

    /// The length of one axis: a number, or a name if any length is allowed.
    Axis {
        value: Option<i64> = (int64, optional, tag = "1"),
        name: Option<String> = (string, optional, tag = "2"),
        denotation: Option<String> = (string, optional, tag = "3"),
    }
}

/// Element types of tensors, by their number in the ONNX format.
pub(super) mod element {
    pub(crate) const FLOAT: i32 = 1;
    pub(crate) const UINT8: i32 = 2;
    pub(crate) const INT8: i32 = 3;
    pub(crate) const INT32: i32 = 6;
    pub(crate) const INT64: i32 = 7;
}

impl Tensor {
    pub(super) fn from_floats(name: &str, dims: Vec<i64>, values: &[f32]) -> Self {
        let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self::from_raw(name, element::FLOAT, dims, raw)
    }

    pub(super) fn from_raw(name: &str, element: i32, dims: Vec<i64>, raw: Vec<u8>) -> Self {
        Self {
            name: Some(name.to_owned()),
            dims,
            data_type: Some(element),
            raw_data: Some(Bytes::from(raw)),
            ..Self::default()
        }
    }

    /// Returns the lengths of the axes; 0 for a length that is negative or too large.
    pub(super) fn shape(&self) -> Vec<usize> {
        self.dims.iter().map(|&axis| usize::try_from(axis).unwrap_or(0)).collect()
    }

    /// Returns the number of values: the product of the axes.
    pub(super) fn count(&self) -> usize {
        self.shape().iter().product()
    }

    /// Returns the values of a tensor of 32-bit floats.
    pub(super) fn floats(&self) -> Result<Vec<f32>, String> {
        let values = match (&self.raw_data, self.data_type) {
            (Some(raw), Some(element::FLOAT)) => {
                raw.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
            }
            (None, Some(element::FLOAT)) => self.float_data.clone(),
            _ => return Err(self.content_error("32-bit floats")),
        };
        self.check_count(values)
    }

    /// Returns the values of a tensor of integers of 8, 32 or 64 bits.
    pub(super) fn integers(&self) -> Result<Vec<i64>, String> {
        let int32_values = || self.int32_data.iter().map(|value| i64::from(*value)).collect();
        let values = match (&self.raw_data, self.data_type) {
            (Some(raw), Some(element::INT8)) => raw.iter().map(|byte| i64::from(*byte as i8)).collect(),
            (Some(raw), Some(element::UINT8)) => raw.iter().map(|byte| i64::from(*byte)).collect(),
            (Some(raw), Some(element::INT32)) => {
                raw.as_chunks().0.iter().map(|bytes| i64::from(i32::from_le_bytes(*bytes))).collect()
            }
            (Some(raw), Some(element::INT64)) => {
                raw.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
            }
            (None, Some(element::INT8 | element::UINT8 | element::INT32)) => int32_values(),
            (None, Some(element::INT64)) => self.int64_data.clone(),
            _ => return Err(self.content_error("integers")),
        };
        self.check_count(values)
    }

    fn check_count<T>(&self, values: Vec<T>) -> Result<Vec<T>, String> {
        if values.len() == self.count() {
            Ok(values)
        } else {
            Err(self.content_error("as many values as its axes define"))
        }
    }

    fn content_error(&self, expected: &str) -> String {
        format!("the tensor {} does not contain {expected}", self.name())
    }
}

impl Graph {
    pub(super) fn constant(&self, name: &str) -> Option<&Tensor> {
        self.initializer.iter().find(|tensor| tensor.name() == name)
    }

    /// Removes unused constants, and keeps as inputs only those that a caller must provide. Old
    /// files list their constants among the inputs; the runtime then cannot fold them in advance.
    pub(super) fn remove_unused_constants(&mut self) {
        // The bodies of `If` and `Loop` also use values by name; they are not examined here.
        let has_subgraph = |node: &Node| node.attribute.iter().any(|a| a.g.is_some() || !a.graphs.is_empty());
        if self.node.iter().any(has_subgraph) {
            return;
        }
        let nodes = self.node.iter().flat_map(|node| node.input.iter().map(String::as_str));
        let used: HashSet<&str> = nodes.chain(self.output.iter().map(|output| output.name())).collect();
        self.initializer.retain(|tensor| used.contains(tensor.name()));
        let constants: HashSet<&str> = self.initializer.iter().map(|tensor| tensor.name()).collect();
        self.input.retain(|input| used.contains(input.name()) && !constants.contains(input.name()));
    }
}

impl Node {
    /// Returns a node of the standard operator set with one output.
    pub(super) fn new(operator: &str, inputs: &[&str], output: &str) -> Self {
        Self {
            input: inputs.iter().map(|name| (*name).to_owned()).collect(),
            output: vec![output.to_owned()],
            name: Some(output.to_owned()),
            op_type: operator.to_owned(),
            ..Self::default()
        }
    }

    /// Returns whether the node is this operator of the standard set.
    pub(super) fn is(&self, operator: &str) -> bool {
        self.op_type == operator && matches!(self.domain(), "" | "ai.onnx")
    }

    pub(super) fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attribute.iter().find(|attribute| attribute.name == name)
    }

    /// Returns the integer attribute `name`, or `default` if the node does not have it.
    pub(super) fn integer(&self, name: &str, default: i64) -> i64 {
        self.attribute(name).and_then(|attribute| attribute.i).unwrap_or(default)
    }
}

impl Attribute {
    pub(super) fn integer(name: &str, value: i64) -> Self {
        Self { name: name.to_owned(), i: Some(value), kind: Some(2), ..Self::default() }
    }

    pub(super) fn integers(name: &str, values: &[i64]) -> Self {
        Self { name: name.to_owned(), ints: values.to_vec(), kind: Some(7), ..Self::default() }
    }
}
