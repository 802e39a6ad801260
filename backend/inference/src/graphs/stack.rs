//! Joins tensors of single images into one batch, on the device that holds them.
use crate::onnx::builder::{Attribute, Axis, Graph};

/// Builds the graph that joins `count` tensors `item_0`, `item_1`, … of `[1, 3, height, width]`
/// into `batch`, `[count, 3, height, width]`.
pub fn stack(count: usize) -> Vec<u8> {
    let mut graph = Graph::new();
    let sides = |items| [items, Axis::Fixed(3), Axis::Free("height"), Axis::Free("width")];
    let names: Vec<String> = (0..count).map(|item| format!("item_{item}")).collect();
    for name in &names {
        graph.input(name, &sides(Axis::Fixed(1)));
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    graph.node("Concat", &names, "batch", &[("axis", Attribute::Integer(0))]);
    graph.output("batch", &sides(Axis::Fixed(count as i64)));
    graph.encode()
}
