//! Reads, edits and writes ONNX files without a runtime. Each edit converts a [`proto::Model`] to
//! an equivalent one. This module does not decide how sessions use the result.
mod axes;
mod blocks;
pub mod builder;
mod int8;
mod prelu;
pub(crate) mod proto;

pub(crate) use axes::{free_batch, free_canvas, has_fixed_canvas};
pub(crate) use blocks::expand_blocks;
pub(crate) use int8::quantize_products;
pub(crate) use prelu::expand_prelu;

use bytes::Bytes;
use prost::Message;
use proto::{Attribute, Graph, Model, Node, Tensor};
use std::collections::HashSet;

/// Reads a model file; its weights are not copied.
///
/// # Errors
/// Fails with a message if the file is not an ONNX model or has no graph.
pub(crate) fn read(file: Bytes) -> Result<Model, String> {
    let model = Model::decode(file).map_err(|_| "the file is not an ONNX model".to_owned())?;
    if model.graph.is_some() { Ok(model) } else { Err("the file has no graph".to_owned()) }
}

/// Returns the bytes of the model's file.
pub(crate) fn write(model: &Model) -> Vec<u8> {
    model.encode_to_vec()
}

/// Element types of tensors, by their number in the ONNX format.
mod element {
    pub(super) const FLOAT: i32 = 1;
    pub(super) const UINT8: i32 = 2;
    pub(super) const INT8: i32 = 3;
    pub(super) const INT32: i32 = 6;
    pub(super) const INT64: i32 = 7;
}

impl Tensor {
    fn from_floats(name: &str, dims: Vec<i64>, values: &[f32]) -> Self {
        let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self::from_raw(name, element::FLOAT, dims, raw)
    }

    fn from_raw(name: &str, element: i32, dims: Vec<i64>, raw: Vec<u8>) -> Self {
        Self {
            name: Some(name.to_owned()),
            dims,
            data_type: Some(element),
            raw_data: Some(Bytes::from(raw)),
            ..Self::default()
        }
    }

    /// Returns the lengths of the axes; 0 for a length that is negative or too large.
    fn shape(&self) -> Vec<usize> {
        self.dims.iter().map(|&axis| usize::try_from(axis).unwrap_or(0)).collect()
    }

    /// Returns the number of values: the product of the axes.
    fn count(&self) -> usize {
        self.shape().iter().product()
    }

    /// Returns the values of a tensor of 32-bit floats.
    fn floats(&self) -> Result<Vec<f32>, String> {
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
    fn integers(&self) -> Result<Vec<i64>, String> {
        let listed = || self.int32_data.iter().map(|value| i64::from(*value)).collect();
        let values = match (&self.raw_data, self.data_type) {
            (Some(raw), Some(element::INT8)) => raw.iter().map(|byte| i64::from(*byte as i8)).collect(),
            (Some(raw), Some(element::UINT8)) => raw.iter().map(|byte| i64::from(*byte)).collect(),
            (Some(raw), Some(element::INT32)) => {
                raw.as_chunks().0.iter().map(|bytes| i64::from(i32::from_le_bytes(*bytes))).collect()
            }
            (Some(raw), Some(element::INT64)) => {
                raw.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
            }
            (None, Some(element::INT8 | element::UINT8 | element::INT32)) => listed(),
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
    fn constant(&self, name: &str) -> Option<&Tensor> {
        self.initializer.iter().find(|tensor| tensor.name() == name)
    }

    /// Removes unused constants, and keeps as inputs only those that a caller must provide. Old
    /// files list their constants among the inputs; the runtime then cannot fold them in advance.
    fn remove_unused_constants(&mut self) {
        // The bodies of `If` and `Loop` also use values by name; they are not examined here.
        let nested = |node: &Node| node.attribute.iter().any(|a| a.g.is_some() || !a.graphs.is_empty());
        if self.node.iter().any(nested) {
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
    fn new(operator: &str, inputs: &[&str], output: &str) -> Self {
        Self {
            input: inputs.iter().map(|name| (*name).to_owned()).collect(),
            output: vec![output.to_owned()],
            name: Some(output.to_owned()),
            op_type: operator.to_owned(),
            ..Self::default()
        }
    }

    /// Returns whether the node is this operator of the standard set.
    fn is(&self, operator: &str) -> bool {
        self.op_type == operator && matches!(self.domain(), "" | "ai.onnx")
    }

    /// Returns the integer attribute `name`, or `default` if the node does not have it.
    fn integer(&self, name: &str, default: i64) -> i64 {
        let attribute = self.attribute.iter().find(|attribute| attribute.name == name);
        attribute.and_then(|attribute| attribute.i).unwrap_or(default)
    }
}

impl Attribute {
    fn integer(name: &str, value: i64) -> Self {
        Self { name: name.to_owned(), i: Some(value), kind: Some(2), ..Self::default() }
    }

    fn integers(name: &str, values: &[i64]) -> Self {
        Self { name: name.to_owned(), ints: values.to_vec(), kind: Some(7), ..Self::default() }
    }
}
