//! Reads and writes ONNX files without a runtime, and converts a model to the forms in which it is
//! loaded. The modules `axes`, `blocks` and `cpu_kernels` convert a [`proto::Model`] to an
//! equivalent one. This module does not decide how sessions use the result.
mod axes;
mod blocks;
pub mod builder;
mod cpu_kernels;
mod proto;

use crate::manifest::{ModelFamily, ModelFile, ModelKind, ResolvedPack, WeightStorage};
use axes::{make_batch_axis_dynamic, make_canvas_dynamic};
use blocks::expand_blocks;
use bytes::Bytes;
use cpu_kernels::{expand_prelu, quantize_products};
use prost::Message;
use proto::Model;

/// Reads a model file; its weights are not copied. Fails with a message if the file is not an ONNX
/// model or has no graph.
fn read(file: Bytes) -> Result<Model, String> {
    let model = Model::decode(file).map_err(|_| "the file is not an ONNX model".to_owned())?;
    if model.graph.is_some() { Ok(model) } else { Err("the file has no graph".to_owned()) }
}

/// Returns the bytes of the model's file.
fn write(model: &Model) -> Vec<u8> {
    model.encode_to_vec()
}

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
pub(crate) struct ModelForms {
    /// The form for every provider.
    pub(crate) general: Bytes,
    /// The form for ONNX Runtime's own kernels.
    pub(crate) cpu: Bytes,
}

impl ModelForms {
    /// Builds both forms from `bytes`, the content of a model file. If no conversion is necessary,
    /// the bytes do not change. Fails with a message that describes how the file differs from its
    /// description in the manifest.
    pub(crate) fn from_file(file: &ModelFile, bytes: Vec<u8>) -> Result<Self, String> {
        let original = Bytes::from(bytes);
        let mut model = read(original.clone())?;
        let mut is_changed = false;
        if file.weights == WeightStorage::Int8Blocks {
            model = expand_blocks(model)?;
            is_changed = true;
        }
        // No part of this network depends on the size of the canvas.
        if file.family == ModelFamily::Yunet
            && let Some(dynamic) = make_canvas_dynamic(model.clone())
        {
            model = dynamic;
            is_changed = true;
        }
        let general = if is_changed { write(&model).into() } else { original };
        let cpu = expand_prelu(model).map_or_else(|| general.clone(), |model| write(&model).into());
        Ok(Self { general, cpu })
    }

    /// Returns the form for ONNX Runtime's own kernels with the large matrix products in INT8.
    /// Fails if the model cannot be read or has no large matrix products.
    pub(crate) fn int8(&self) -> Result<Bytes, String> {
        let model =
            quantize_products(read(self.general.clone())?).ok_or("the model has no large matrix products")?;
        Ok(write(&expand_prelu(model.clone()).unwrap_or(model)).into())
    }

    /// Returns [`Self::general`] with a dynamic batch axis.
    pub(crate) fn with_dynamic_batch_axis(&self) -> Result<Bytes, String> {
        Ok(write(&make_batch_axis_dynamic(read(self.general.clone())?)?).into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::backend::{Backend, BatchView, OnnxModel, Placement};
    use crate::runtime::Runtime;

    /// Runs a model on the CPU and returns the shape and the values of its first output.
    pub(super) fn run(model: &[u8], shape: [usize; 4], data: &[f32]) -> (Vec<usize>, Vec<f32>) {
        let runtime = Runtime::load(Some(&testing::library())).unwrap();
        let mut session = OnnxModel::load(&runtime, model, &Placement::CPU).unwrap();
        let mut output = Default::default();
        session
            .run(BatchView { shape, data }, &mut |outputs| {
                output = (outputs[0].shape.clone(), outputs[0].data.to_vec());
            })
            .unwrap();
        output
    }
}
