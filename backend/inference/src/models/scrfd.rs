//! Decodes the outputs of SCRFD (Guo et al., "Sample and Computation Redistribution for Efficient
//! Face Detection", 2021). The decoding is that of InsightFace.
//!
//! Exports differ in the names and the order of the outputs and in the batch axis. They have 1 or 2
//! anchors per cell, 3 or 5 levels, and landmarks or none. The number of outputs is 6, 9, 10 or 15.
//! The shapes identify the outputs: scores have one column, distances four, landmarks ten. A level
//! with a smaller stride has more rows.
use crate::backend::{ItemOutput, Outputs};
use vision::{Detection, Landmarks, Point, Rect};

/// Pixels per cell of each level.
const STRIDES: [usize; 5] = [8, 16, 32, 64, 128];
/// Possible numbers of outputs of an export.
pub(super) const OUTPUTS: [usize; 4] = [6, 9, 10, 15];

/// Landmarks for models without landmarks, as fractions of the face's box: the mean over faces
/// found by SCRFD 2.5G. A chip that is aligned by them is only approximately upright.
const MEAN_LANDMARKS: [[f32; 2]; 5] =
    [[0.277, 0.371], [0.716, 0.369], [0.495, 0.566], [0.314, 0.733], [0.685, 0.731]];

/// Returns whether an export with this many outputs has landmarks.
pub(super) fn has_landmarks(outputs: usize) -> bool {
    outputs == 9 || outputs == 15
}

/// Returns the alignment of a canvas in pixels. Both sides must be multiples of it.
pub(super) fn alignment(outputs: usize) -> usize {
    if outputs >= 10 { 128 } else { 32 }
}

/// Returns the scores, distances and landmarks of one item, levels ordered by stride.
fn group_outputs(outputs: Outputs<'_>) -> Result<[Vec<ItemOutput<'_>>; 3], String> {
    let mut groups = [const { Vec::new() }; 3];
    for output in outputs.views {
        let item = output.item(outputs.index, outputs.batch)?;
        let group = [1, 4, 10].iter().position(|columns| *columns == item.columns).ok_or_else(|| {
            format!("output {} has {} columns; 1, 4 or 10 are known", output.name, item.columns)
        })?;
        groups[group].push(item);
    }
    for group in &mut groups {
        group.sort_by_key(|item| std::cmp::Reverse(item.rows));
    }
    match groups.each_ref().map(Vec::len) {
        [3, 3, 0 | 3] | [5, 5, 0 | 5] => Ok(groups),
        [levels, distances, landmarks] => Err(format!(
            "{levels} score, {distances} distance and {landmarks} landmark outputs do not make SCRFD's 3 or 5 levels"
        )),
    }
}

/// Returns the faces with `det_score >= min_score` on a canvas of `width` x `height` pixels, before
/// suppression of overlaps.
pub(super) fn decode(
    outputs: Outputs<'_>,
    (width, height): (usize, usize),
    min_score: f32,
) -> Result<Vec<Detection>, String> {
    let [scores, distances, landmarks] = group_outputs(outputs)?;
    let mut faces = Vec::new();
    for ((level, scores), stride) in scores.into_iter().enumerate().zip(STRIDES) {
        let columns = width / stride;
        let cells = columns * (height / stride);
        let anchors = scores.rows.checked_div(cells).unwrap_or(0);
        if !(1..=2).contains(&anchors) || anchors * cells != scores.rows {
            return Err(format!("{} scores at stride {stride} do not fit {cells} cells", scores.rows));
        }
        let (distances, landmarks) = (distances[level], landmarks.get(level));
        if distances.rows != scores.rows || landmarks.is_some_and(|l| l.rows != scores.rows) {
            return Err(format!("the outputs of stride {stride} differ in length"));
        }
        let size = stride as f32;
        for (row, score) in scores.data.iter().enumerate() {
            if score.is_nan() || *score < min_score {
                continue;
            }
            let cell = row / anchors;
            let centre = Point { x: (cell % columns) as f32 * size, y: (cell / columns) as f32 * size };
            let distance = &distances.data[row * 4..row * 4 + 4];
            let (left, top) = (centre.x - distance[0] * size, centre.y - distance[1] * size);
            let bbox = Rect {
                x: left,
                y: top,
                width: (centre.x + distance[2] * size - left).max(0.0),
                height: (centre.y + distance[3] * size - top).max(0.0),
            };
            let landmarks = match landmarks {
                Some(offsets) => decode_landmarks(centre, &offsets.data[row * 10..row * 10 + 10], size),
                None => mean_landmarks(bbox),
            };
            faces.push(Detection { bbox, det_score: score.min(1.0), landmarks });
        }
    }
    Ok(faces)
}

fn decode_landmarks(centre: Point, offsets: &[f32], size: f32) -> Landmarks {
    std::array::from_fn(|i| Point {
        x: centre.x + offsets[2 * i] * size,
        y: centre.y + offsets[2 * i + 1] * size,
    })
}

fn mean_landmarks(bbox: Rect) -> Landmarks {
    MEAN_LANDMARKS.map(|[x, y]| Point { x: bbox.x + x * bbox.width, y: bbox.y + y * bbox.height })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::backend::OutputView;
    use crate::models::tests::{one_item, views};

    type Export = Vec<(Vec<usize>, Vec<f32>)>;

    /// Returns the outputs of an export with a face at stride 16, row 1, column 2, last anchor.
    fn export(levels: usize, anchors: usize, landmarks: bool, batch_axis: bool) -> Export {
        let mut outputs = Vec::new();
        let groups: &[usize] = if landmarks { &[10, 1, 4] } else { &[4, 1] };
        for columns in groups {
            for stride in STRIDES.into_iter().take(levels).rev() {
                let rows = (256 / stride) * (128 / stride) * anchors;
                let mut data = vec![0.0; rows * columns];
                if stride == 16 {
                    let row = (16 + 2) * anchors + anchors - 1;
                    for (i, value) in data[row * columns..(row + 1) * columns].iter_mut().enumerate() {
                        *value = match columns {
                            1 => 0.75,
                            4 => 1.0 + i as f32,
                            _ => 0.25 * i as f32,
                        };
                    }
                }
                let shape = if batch_axis { vec![1, rows, *columns] } else { vec![rows, *columns] };
                outputs.push((shape, data));
            }
        }
        outputs
    }

    #[test]
    fn scrfd_layouts_decode_to_same_face() {
        for (levels, anchors) in [(3, 2), (3, 1), (5, 1), (5, 2)] {
            for landmarks in [true, false] {
                for batch_axis in [true, false] {
                    let data = export(levels, anchors, landmarks, batch_axis);
                    assert!(OUTPUTS.contains(&data.len()));
                    let faces = decode(one_item(&views(&data)), (256, 128), 0.5).unwrap();
                    assert_eq!(faces.len(), 1, "{levels} {anchors} {landmarks} {batch_axis}");
                    // Centre (32, 16); distances 1, 2, 3 and 4 cells.
                    assert_eq!(faces[0].bbox, Rect { x: 16.0, y: -16.0, width: 64.0, height: 96.0 });
                    assert!((faces[0].det_score - 0.75).abs() < 1e-6);
                    let nose = faces[0].landmarks[2];
                    let (x, y) = if landmarks { (32.0 + 16.0, 16.0 + 20.0) } else { (47.68, 38.336) };
                    assert!(nose.distance(Point { x, y }) < 1e-3, "{nose:?}");
                }
            }
        }
    }

    #[test]
    fn invalid_scrfd_output_error_names_output() {
        let data = export(3, 2, true, true);
        let views = views(&data);
        assert!(decode(one_item(&views[..8]), (256, 128), 0.5).unwrap_err().contains("levels"));
        assert!(decode(one_item(&views), (512, 512), 0.5).unwrap_err().contains("stride 8"));
        let invalid = [OutputView { name: "odd", shape: vec![4, 3], data: &[0.0; 12], bytes: &[] }];
        assert!(decode(one_item(&invalid), (256, 128), 0.5).unwrap_err().contains("odd has 3 columns"));
    }
}
