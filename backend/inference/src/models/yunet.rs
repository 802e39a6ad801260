//! Decodes the outputs of YuNet (Wu et al., "YuNet: A Tiny Millisecond-level Face Detector", 2023).
//! The decoding is that of OpenCV's `FaceDetectorYN`.
use crate::backend::{ItemOutput, Outputs};
use vision::{Detection, Landmarks, Point, Rect};

/// Pixels per cell of each level.
pub(super) const STRIDES: [usize; 3] = [8, 16, 32];
/// Two scores, one box and one set of landmarks for each of three levels.
pub(super) const OUTPUTS: usize = 12;

/// The four outputs of one level. The score is the square root of the product of class and
/// objectness. Both have one column and can be in either order, so names are not needed.
struct Level<'a> {
    scores: [&'a [f32]; 2],
    boxes: &'a [f32],
    landmarks: &'a [f32],
}

/// Returns the faces with `det_score >= min_score` on a canvas of `width` x `height` pixels, before
/// suppression of overlaps.
pub(super) fn decode(
    outputs: Outputs<'_>,
    (width, height): (usize, usize),
    min_score: f32,
) -> Result<Vec<Detection>, String> {
    let Outputs { views, index, batch } = outputs;
    let items = views.iter().map(|view| view.item(index, batch)).collect::<Result<Vec<_>, _>>()?;
    let mut faces = Vec::new();
    for stride in STRIDES {
        let columns = width / stride;
        let level = find_level(&items, columns * (height / stride), stride)?;
        decode_level(&level, columns, stride as f32, min_score, &mut faces);
    }
    Ok(faces)
}

fn find_level<'a>(items: &[ItemOutput<'a>], cells: usize, stride: usize) -> Result<Level<'a>, String> {
    let with_columns = |columns: usize| {
        items.iter().filter(move |item| item.rows == cells && item.columns == columns).map(|item| item.data)
    };
    let missing = || format!("no outputs of stride {stride} with {cells} cells");
    let mut scores = with_columns(1);
    let scores = [scores.next().ok_or_else(missing)?, scores.next().ok_or_else(missing)?];
    let boxes = with_columns(4).next().ok_or_else(missing)?;
    let landmarks = with_columns(10).next().ok_or_else(missing)?;
    Ok(Level { scores, boxes, landmarks })
}

fn decode_level(level: &Level<'_>, columns: usize, stride: f32, min_score: f32, faces: &mut Vec<Detection>) {
    // Nearly every cell is below the threshold. Comparing squares avoids roots and exponentials.
    let threshold = min_score.max(0.0) * min_score.max(0.0);
    for (cell, (first, second)) in level.scores[0].iter().zip(level.scores[1]).enumerate() {
        let squared_score = first.clamp(0.0, 1.0) * second.clamp(0.0, 1.0);
        if squared_score.is_nan() || squared_score < threshold {
            continue;
        }
        let (x, y) = ((cell % columns) as f32, (cell / columns) as f32);
        let bbox = &level.boxes[cell * 4..cell * 4 + 4];
        let points = &level.landmarks[cell * 10..cell * 10 + 10];
        let (width, height) = (bbox[2].exp() * stride, bbox[3].exp() * stride);
        let landmarks: Landmarks = std::array::from_fn(|i| Point {
            x: (x + points[2 * i]) * stride,
            y: (y + points[2 * i + 1]) * stride,
        });
        faces.push(Detection {
            bbox: Rect {
                x: (x + bbox[0]) * stride - width / 2.0,
                y: (y + bbox[1]) * stride - height / 2.0,
                width,
                height,
            },
            det_score: squared_score.sqrt(),
            landmarks,
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::models::tests::{one_item, views};

    /// Numbers of cells of the levels on a canvas of 64 x 32 pixels.
    const CELLS: [usize; 3] = [32, 8, 2];

    #[test]
    fn yunet_cell_decodes_in_any_output_order() {
        let (width, height) = (64, 32);
        let output = |columns: usize, cells: usize| (vec![1, cells, columns], vec![0.0; cells * columns]);
        let outputs = [10, 1, 4, 1].into_iter().flat_map(|columns| CELLS.map(|cells| output(columns, cells)));
        let mut data: Vec<_> = outputs.collect();
        // Stride 16, cell 6 of 4 x 2: column 2, row 1.
        let cell = 6;
        data[4].1[cell] = 0.81;
        data[10].1[cell] = 1.7;
        data[7].1[cell * 4..cell * 4 + 4].copy_from_slice(&[0.5, 0.25, 0.0, std::f32::consts::LN_2]);
        let landmarks: Vec<f32> = (0..10_u8).map(|i| f32::from(i) * 0.1).collect();
        data[1].1[cell * 10..cell * 10 + 10].copy_from_slice(&landmarks);
        let views = views(&data);

        let faces = decode(one_item(&views), (width, height), 0.6).unwrap();
        assert_eq!(faces.len(), 1);
        let face = faces[0];
        assert!(
            (face.det_score - 0.9).abs() < 1e-6,
            "the score is the square root of 0.81 times a value clipped to 1"
        );
        // Centre (2.5, 1.25) cells, 1 x 2 cells large.
        assert_eq!(face.bbox, Rect { x: 32.0, y: 4.0, width: 16.0, height: 32.0 });
        assert!(face.landmarks[4].distance(Point { x: 2.8 * 16.0, y: 1.9 * 16.0 }) < 1e-4);
        assert!(decode(one_item(&views), (width, height), 0.95).unwrap().is_empty());
        assert!(decode(one_item(&views[..9]), (width, height), 0.6).is_err());
        assert!(decode(one_item(&views), (128, 32), 0.6).unwrap_err().contains("stride 8"));
    }

    #[test]
    fn yunet_ignores_nan_outputs() {
        let output = |columns: usize, cells: usize| (vec![cells, columns], vec![f32::NAN; cells * columns]);
        let outputs = [1, 1, 4, 10].into_iter().flat_map(|columns| CELLS.map(|cells| output(columns, cells)));
        let data: Vec<_> = outputs.collect();
        assert!(decode(one_item(&views(&data)), (64, 32), 0.0).unwrap().is_empty());
    }
}
