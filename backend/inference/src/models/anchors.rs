//! Shared code of anchor-based detectors: identifies outputs by their shapes, and suppresses
//! overlapping faces.
use crate::backend::OutputView;
use vision::Detection;

/// The part of an output that belongs to one item of the batch: `rows` times `columns` values.
#[derive(Clone, Copy, Debug)]
pub struct ItemOutput<'a> {
    /// Number of anchors.
    pub rows: usize,
    /// Number of values per anchor.
    pub columns: usize,
    /// The values, row-major.
    pub data: &'a [f32],
}

/// Returns item `index` of an output `[batch, rows, columns]` or, from models without a batch axis,
/// `[rows, columns]`.
pub fn item_output<'a>(
    output: &OutputView<'a>,
    index: usize,
    batch: usize,
) -> Result<ItemOutput<'a>, String> {
    let (items, rows, columns) = match *output.shape.as_slice() {
        [items, rows, columns] => (items, rows, columns),
        [rows, columns] => (1, rows, columns),
        ref other => return Err(format!("output {} has the shape {other:?}", output.name)),
    };
    if items != batch || index >= items {
        return Err(format!("output {} contains {items} items; the batch has {batch}", output.name));
    }
    let length = rows * columns;
    let data = output
        .data
        .get(index * length..(index + 1) * length)
        .ok_or_else(|| format!("output {} is shorter than its shape {:?}", output.name, output.shape))?;
    Ok(ItemOutput { rows, columns, data })
}

/// Keeps the best [`vision::nms::MAX_CANDIDATES`] faces, then suppresses overlaps.
pub fn suppress(faces: Vec<Detection>, iou: f32) -> Vec<Detection> {
    vision::nms(faces, iou)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn items_come_out_with_and_without_a_batch_axis() {
        let data: Vec<f32> = (0..12_u8).map(f32::from).collect();
        let batched = OutputView { name: "b", shape: vec![2, 3, 2], data: &data, bytes: &[] };
        assert_eq!(item_output(&batched, 1, 2).unwrap().data, &data[6..]);
        let flat = OutputView { name: "f", shape: vec![6, 2], data: &data, bytes: &[] };
        let found = item_output(&flat, 0, 1).unwrap();
        assert_eq!((found.rows, found.columns), (6, 2));
        assert!(item_output(&flat, 0, 2).is_err(), "a model without a batch axis runs items one by one");
        let short = OutputView { name: "s", shape: vec![2, 9, 2], data: &data, bytes: &[] };
        assert!(item_output(&short, 1, 2).unwrap_err().contains("shorter"));
    }
}
