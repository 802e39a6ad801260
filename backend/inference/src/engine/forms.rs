//! The forms in which a model file is loaded.
use crate::manifest::{ModelFamily, ModelFile, ModelKind, ResolvedPack, WeightStorage};
use crate::onnx;
use bytes::Bytes;

/// Returns the bytes of the pack's model of `kind` with weights in FP32, regardless of how the file
/// stores them. Every ONNX runtime can load the result.
///
/// # Errors
/// Fails with a message that names the file that is missing, corrupt or different from its
/// description in the manifest.
pub fn fp32_model(pack: &ResolvedPack, kind: ModelKind) -> Result<Vec<u8>, String> {
    let file =
        pack.pack.file(kind).ok_or_else(|| format!("the pack {} contains no such model", pack.pack.name))?;
    Ok(ModelForms::from_file(file, pack.read(file)?)?.general.to_vec())
}

/// One model in the forms for different runtimes. All forms compute the same function.
#[derive(Debug)]
pub(super) struct ModelForms {
    /// The form for every provider.
    pub(super) general: Bytes,
    /// The form for ONNX Runtime's own kernels.
    pub(super) cpu: Bytes,
}

impl ModelForms {
    /// Reads a model file and builds both forms from `bytes`. A file that needs no conversion keeps
    /// its original bytes.
    ///
    /// # Errors
    /// Fails with a message about how the file differs from its description in the manifest.
    pub(super) fn from_file(file: &ModelFile, bytes: Vec<u8>) -> Result<Self, String> {
        let original = Bytes::from(bytes);
        let mut model = onnx::read(original.clone())?;
        let mut changed = false;
        if file.weights == WeightStorage::Int8Blocks {
            model = onnx::expand_blocks(model)?;
            changed = true;
        }
        // Nothing in this network depends on the canvas size.
        if file.family == ModelFamily::Yunet
            && onnx::has_fixed_canvas(&model)
            && let Ok(freed) = onnx::free_canvas(model.clone())
        {
            model = freed;
            changed = true;
        }
        let general = if changed { onnx::write(&model).into() } else { original };
        let cpu =
            onnx::expand_prelu(model).map_or_else(|| general.clone(), |model| onnx::write(&model).into());
        Ok(Self { general, cpu })
    }

    /// Returns the form for ONNX Runtime's own kernels with the large matrix products in INT8.
    ///
    /// # Errors
    /// Fails if the model cannot be read or has no large matrix products.
    pub(super) fn int8(&self) -> Result<Bytes, String> {
        let model = onnx::quantize_products(onnx::read(self.general.clone())?)
            .ok_or("the model has no large matrix products")?;
        Ok(onnx::write(&onnx::expand_prelu(model.clone()).unwrap_or(model)).into())
    }

    /// Returns [`Self::general`] with a free batch axis.
    pub(super) fn batched(&self) -> Result<Bytes, String> {
        Ok(onnx::write(&onnx::free_batch(onnx::read(self.general.clone())?)?).into())
    }
}
