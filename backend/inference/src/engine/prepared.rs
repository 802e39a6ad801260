//! A detector that takes pictures: only where pictures can become its tensors on the device that it runs on.
use super::warmup::{Sample, TOLERANCE, agree};
use crate::backend::{Backend, OnnxModel, Placement, Preparation, PreparedModel};
use crate::batcher::buckets;
use crate::drawing::portrait;
use crate::manifest::PixelInput;
use crate::models::{DetectorModel, Probe};
use crate::runtime::Runtime;
use vision::Letterbox;

/// What `image_processing` can do for a detector.
pub(super) struct Colocation<'a> {
    pub(super) runtime: &'a Runtime,
    pub(super) input: &'a PixelInput,
    /// Where `image_processing` runs.
    pub(super) placements: &'a [Placement],
    /// The canvas to prove it on: width and height.
    pub(super) canvas: (u32, u32),
}

impl Colocation<'_> {
    /// `session` behind its preparation if `image_processing` runs on the same device and the two agree with the session alone; otherwise
    /// `session` as it is, and pictures come to it as tensors.
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
            tracing::warn!(device, reason, "pictures cross to this device as tensors and not as bytes");
        };
        // The graphs are those of `image_processing`, on its provider: TensorRT would compile each size of picture.
        let graphs =
            placement.provider.for_pixels().map_err(|reason| reason.message()).and_then(|provider| {
                Preparation::load(
                    self.runtime,
                    self.input,
                    &sizes,
                    &Placement { provider, ..placement.clone() },
                )
            });
        let preparation = match graphs {
            Ok(preparation) => preparation,
            Err(reason) => {
                refused(&reason);
                return Box::new(session);
            }
        };
        let mut prepared = PreparedModel::new(preparation, session);
        match self.prove(model, &mut prepared, &sizes) {
            Ok(()) => {
                tracing::info!(device, "pictures cross to this device once, as bytes");
                Box::new(prepared)
            }
            Err(reason) => {
                refused(&reason);
                Box::new(prepared.into_model())
            }
        }
    }

    /// Compares what the model says of a picture with what it says of the tensor that the CPU makes of it, for every size of batch.
    fn prove(
        &self,
        model: &DetectorModel,
        prepared: &mut PreparedModel,
        sizes: &[usize],
    ) -> Result<(), String> {
        let frame = portrait(500, 333);
        let letterbox = Letterbox::fit((frame.width(), frame.height()), self.canvas);
        let sample = Sample::new(model, Probe { frame: frame.into(), letterbox, min_score: 0.5 });
        let expected = sample.run(model, prepared, 1)?;
        for size in sizes {
            agree(&expected, &sample.run_pictures(model, prepared, *size)?, *size, TOLERANCE)?;
        }
        Ok(())
    }
}
