//! Defines the inputs of models and the meaning of their outputs, independent of the runtime.
mod chip;
mod detector;
mod scrfd;
mod yunet;

pub use chip::{EmbedderModel, Embedding, QualityModel};
pub(crate) use chip::{check_chip, identity};
pub use detector::{DetectionRequest, DetectorModel};

use crate::Operation;
use crate::backend::{ImageInput, Outputs};
use crate::manifest::{Channels, PixelInput};
use multiversion::multiversion;
use vision::Frame;

/// Defines how requests become a tensor and outputs become results.
pub trait Model: Send + Sync + 'static {
    /// One request.
    type Input: Send + Sync + 'static;
    type Output: Send + 'static;

    fn operation(&self) -> Operation;

    /// Returns `[channels, height, width]` of the tensor for `input`; only equal shapes share a
    /// batch.
    fn shape(&self, input: &Self::Input) -> [usize; 3];

    /// Fills one item of the batch. The length of `slot` is the product of `shape`. This method is
    /// not called for operations that accept only images.
    fn write(&self, _input: &Self::Input, _slot: &mut [f32]) {
        unreachable!("{} requires a backend that accepts images", self.operation().name());
    }

    /// Returns the request as an image, for backends that accept images; `None` for other requests.
    fn image_input<'a>(&self, _input: &'a Self::Input) -> Option<ImageInput<'a>> {
        None
    }

    /// Reads the result of one item from the outputs of a run.
    fn read(&self, input: &Self::Input, outputs: Outputs<'_>) -> Result<Self::Output, String>;
}

/// Writes frames as planes for a model: `(pixel - mean) / std` in the model's channel order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PixelWriter {
    /// Index of the plane for red, green and blue.
    plane: [usize; 3],
    /// `1 / std` for red, green and blue.
    scale: [f32; 3],
    /// `-mean / std` for red, green and blue.
    offset: [f32; 3],
}

impl PixelWriter {
    pub fn new(input: &PixelInput) -> Self {
        let plane = match input.channels {
            Channels::Rgb => [0, 1, 2],
            Channels::Bgr => [2, 1, 0],
        };
        // The manifest lists mean and std in the order of the planes.
        Self {
            plane,
            scale: plane.map(|p| 1.0 / input.std[p]),
            offset: plane.map(|p| -input.mean[p] / input.std[p]),
        }
    }

    /// Writes `frame` into `planes`, which has three values per pixel.
    pub fn write(&self, frame: &Frame, planes: &mut [f32]) {
        let pixels = frame.data().len() / 3;
        assert_eq!(planes.len(), pixels * 3, "the planes have three values per pixel");
        let (first, rest) = planes.split_at_mut(pixels);
        let (second, third) = rest.split_at_mut(pixels);
        let mut planes = [Some(first), Some(second), Some(third)];
        let [red, green, blue] =
            self.plane.map(|p| planes[p].take().expect("every plane belongs to exactly one colour"));

        split_planes(frame.data(), [red, green, blue], (self.scale, self.offset));
    }
}

/// Writes `value * scale + offset` of each colour to its plane.
#[multiversion(targets("x86_64+avx2"))]
fn split_planes(rgb: &[u8], [red, green, blue]: [&mut [f32]; 3], (scale, offset): ([f32; 3], [f32; 3])) {
    for ((([r, g, b], red), green), blue) in rgb.as_chunks::<3>().0.iter().zip(red).zip(green).zip(blue) {
        *red = f32::from(*r) * scale[0] + offset[0];
        *green = f32::from(*g) * scale[1] + offset[1];
        *blue = f32::from(*b) * scale[2] + offset[2];
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::backend::OutputView;
    use proptest::prelude::*;

    /// Returns outputs without names. Each is a shape with its values.
    pub(super) fn views(outputs: &[(Vec<usize>, Vec<f32>)]) -> Vec<OutputView<'_>> {
        outputs
            .iter()
            .map(|(shape, data)| OutputView { name: "", shape: shape.clone(), data, bytes: &[] })
            .collect()
    }

    /// Returns the outputs of a run with one item.
    pub(super) fn one_item<'a>(views: &'a [OutputView<'a>]) -> Outputs<'a> {
        Outputs { views, index: 0, batch: 1 }
    }

    proptest! {
        #[test]
        fn pixel_writer_normalises_every_pixel_into_planes(
            (width, height) in (1_u32..70, 1_u32..40),
            bgr in any::<bool>(),
            seed in any::<u32>(),
        ) {
            let count = (width * height * 3) as usize;
            let mut state = seed | 1;
            let data: Vec<u8> = (0..count)
                .map(|_| { state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223); (state >> 24) as u8 })
                .collect();
            let frame = Frame::new(width, height, data).unwrap();
            let channels = if bgr { Channels::Bgr } else { Channels::Rgb };
            let input = PixelInput { channels, mean: [10.0, 20.0, 30.0], std: [2.0, 4.0, 8.0] };
            let mut planes = vec![f32::NAN; count];
            PixelWriter::new(&input).write(&frame, &mut planes);
            for y in 0..height {
                for x in 0..width {
                    let pixel = frame.pixel(x, y);
                    for plane in 0..3_usize {
                        let value = f32::from(pixel[if bgr { 2 - plane } else { plane }]);
                        let expected = (value - input.mean[plane]) / input.std[plane];
                        let actual = planes[plane * (width * height) as usize + (y * width + x) as usize];
                        prop_assert!((expected - actual).abs() < 1e-4, "{expected} {actual}");
                    }
                }
            }
        }
    }
}
