//! The messages of the ONNX format (onnx.proto3, version 13 and older) that this program edits.
//!
//! Fields that the program does not use are kept as bytes. Reading and rewriting a file loses only
//! texts for people (`producer_version` and the `doc_string` of each message) and fields newer than
//! this list. The meaning of element types and attribute types is in the parent module.
use bytes::Bytes;
use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Model {
    #[prost(int64, optional, tag = "1")]
    pub(crate) ir_version: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub(crate) producer_name: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(crate) domain: Option<String>,
    #[prost(int64, optional, tag = "5")]
    pub(crate) model_version: Option<i64>,
    #[prost(message, optional, tag = "7")]
    pub(crate) graph: Option<Graph>,
    #[prost(message, repeated, tag = "8")]
    pub(crate) opset_import: Vec<OperatorSet>,
    #[prost(bytes = "bytes", repeated, tag = "14")]
    pub(crate) metadata: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "25")]
    pub(crate) functions: Vec<Bytes>,
}

/// The version of an operator set.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct OperatorSet {
    #[prost(string, optional, tag = "1")]
    pub(crate) domain: Option<String>,
    #[prost(int64, optional, tag = "2")]
    pub(crate) version: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Graph {
    #[prost(message, repeated, tag = "1")]
    pub(crate) node: Vec<Node>,
    #[prost(string, optional, tag = "2")]
    pub(crate) name: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) initializer: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    pub(crate) input: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    pub(crate) output: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "13")]
    pub(crate) value_info: Vec<ValueInfo>,
    #[prost(bytes = "bytes", repeated, tag = "14")]
    pub(crate) quantization_annotation: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "15")]
    pub(crate) sparse_initializer: Vec<Bytes>,
}

/// One operator with its inputs and outputs.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Node {
    #[prost(string, repeated, tag = "1")]
    pub(crate) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) output: Vec<String>,
    #[prost(string, optional, tag = "3")]
    pub(crate) name: Option<String>,
    #[prost(string, tag = "4")]
    pub(crate) op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub(crate) attribute: Vec<Attribute>,
    #[prost(string, optional, tag = "7")]
    pub(crate) domain: Option<String>,
    #[prost(string, optional, tag = "8")]
    pub(crate) overload: Option<String>,
}

/// A constant parameter of an operator.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Attribute {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(float, optional, tag = "2")]
    pub(crate) f: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub(crate) i: Option<i64>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub(crate) s: Option<Bytes>,
    #[prost(message, optional, tag = "5")]
    pub(crate) t: Option<Tensor>,
    #[prost(bytes = "bytes", optional, tag = "6")]
    pub(crate) g: Option<Bytes>,
    #[prost(float, repeated, packed = "false", tag = "7")]
    pub(crate) floats: Vec<f32>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub(crate) ints: Vec<i64>,
    #[prost(bytes = "bytes", repeated, tag = "9")]
    pub(crate) strings: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "10")]
    pub(crate) tensors: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "11")]
    pub(crate) graphs: Vec<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "14")]
    pub(crate) tp: Option<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "15")]
    pub(crate) type_protos: Vec<Bytes>,
    #[prost(int32, optional, tag = "20")]
    pub(crate) kind: Option<i32>,
    #[prost(string, optional, tag = "21")]
    pub(crate) ref_attr_name: Option<String>,
    #[prost(bytes = "bytes", optional, tag = "22")]
    pub(crate) sparse_tensor: Option<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "23")]
    pub(crate) sparse_tensors: Vec<Bytes>,
}

/// A constant array, row-major. Its values are in `raw_data`, little-endian, or in the list of its
/// element type.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Tensor {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub(crate) dims: Vec<i64>,
    #[prost(int32, optional, tag = "2")]
    pub(crate) data_type: Option<i32>,
    #[prost(float, repeated, tag = "4")]
    pub(crate) float_data: Vec<f32>,
    #[prost(int32, repeated, tag = "5")]
    pub(crate) int32_data: Vec<i32>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub(crate) string_data: Vec<Bytes>,
    #[prost(int64, repeated, tag = "7")]
    pub(crate) int64_data: Vec<i64>,
    #[prost(string, optional, tag = "8")]
    pub(crate) name: Option<String>,
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub(crate) raw_data: Option<Bytes>,
    #[prost(double, repeated, tag = "10")]
    pub(crate) double_data: Vec<f64>,
    #[prost(uint64, repeated, tag = "11")]
    pub(crate) uint64_data: Vec<u64>,
    #[prost(bytes = "bytes", repeated, tag = "13")]
    pub(crate) external_data: Vec<Bytes>,
    #[prost(int32, optional, tag = "14")]
    pub(crate) data_location: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ValueInfo {
    #[prost(string, optional, tag = "1")]
    pub(crate) name: Option<String>,
    #[prost(message, optional, tag = "2")]
    pub(crate) kind: Option<ValueType>,
}

/// The type of a value; types other than tensors are kept as bytes.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ValueType {
    #[prost(message, optional, tag = "1")]
    pub(crate) tensor: Option<TensorType>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub(crate) sequence: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub(crate) map: Option<Bytes>,
    #[prost(string, optional, tag = "6")]
    pub(crate) denotation: Option<String>,
    #[prost(bytes = "bytes", optional, tag = "8")]
    pub(crate) sparse_tensor: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub(crate) optional: Option<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorType {
    #[prost(int32, optional, tag = "1")]
    pub(crate) element: Option<i32>,
    #[prost(message, optional, tag = "2")]
    pub(crate) shape: Option<Shape>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Shape {
    #[prost(message, repeated, tag = "1")]
    pub(crate) axes: Vec<Axis>,
}

/// The length of one axis: a number, or a name if any length is allowed.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Axis {
    #[prost(int64, optional, tag = "1")]
    pub(crate) value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub(crate) name: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(crate) denotation: Option<String>,
}
