//! Connects a detector with the graphs that prepare its input, so that the detector takes images.
//! The graphs and the detector must run on the same device.
use super::candidates::for_pixels;
use super::warmup::{Sample, TOLERANCE, compare_outputs};
use crate::backend::{Backend, OnnxModel, Placement, Preparation, PreparedModel};
use crate::batcher::buckets;
use crate::drawing::portrait;
use crate::manifest::PixelInput;
use crate::models::{DetectionRequest, DetectorModel};
use crate::runtime::Runtime;
use vision::Letterbox;

/// The preparation graphs that `image_processing` can run for a detector.
pub(super) struct Colocation<'a> {
    pub(super) runtime: &'a Runtime,
    pub(super) input: &'a PixelInput,
    /// Where `image_processing` runs.
    pub(super) placements: &'a [Placement],
    /// The canvas for the comparison: width and height.
    pub(super) canvas: (u32, u32),
}

impl Colocation<'_> {
    /// Returns `session` with its preparation graphs if `image_processing` runs on the same device
    /// and the results agree with those of `session` alone. Otherwise it returns `session`
    /// unchanged, and the inputs are tensors.
    pub(super) fn prepare(
        &self,
        model: &DetectorModel,
        session: OnnxModel,
        placement: &Placement,
        batch: usize,
    ) -> Box<dyn Backend> {
        if !self.placements.iter().any(|other| other.shares_memory_with(placement)) {
            return Box::new(session);
        }
        let sizes = buckets(batch);
        let device = placement.label();
        let refused = |reason: &str| {
            tracing::warn!(device, reason, "images are sent to the device as tensors instead of bytes");
        };
        // The graphs run on the provider of `image_processing`, because TensorRT would compile an
        // engine for each image size.
        let graphs = for_pixels(placement.provider).map_err(|reason| reason.message()).and_then(|provider| {
            Preparation::load(self.runtime, self.input, &sizes, &Placement { provider, ..placement.clone() })
        });
        let preparation = match graphs {
            Ok(preparation) => preparation,
            Err(reason) => {
                refused(&reason);
                return Box::new(session);
            }
        };
        let mut prepared = PreparedModel::new(preparation, session);
        match self.verify(model, &mut prepared, &sizes) {
            Ok(()) => {
                tracing::info!(device, "images are sent to the device once, as bytes");
                Box::new(prepared)
            }
            Err(reason) => {
                refused(&reason);
                Box::new(prepared.into_model())
            }
        }
    }

    /// Compares, for every batch size, the model's outputs for an image with those for the tensor
    /// that the CPU creates from it.
    fn verify(
        &self,
        model: &DetectorModel,
        prepared: &mut PreparedModel,
        sizes: &[usize],
    ) -> Result<(), String> {
        let frame = portrait(500, 333);
        let letterbox = Letterbox::fit((frame.width(), frame.height()), self.canvas);
        let sample = Sample::new(model, DetectionRequest { frame: frame.into(), letterbox, min_score: 0.5 });
        let expected = sample.run(model, prepared, 1)?;
        for size in sizes {
            compare_outputs(&expected, &sample.run_images(model, prepared, *size)?, *size, TOLERANCE)?;
        }
        Ok(())
    }
}
