//! The key of an engine: everything that the engine depends on.
use sha2::{Digest, Sha256};
use std::fmt;

/// Everything whose change makes an engine invalid.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EngineKey {
    /// SHA-256 of the bytes that are loaded, hex.
    pub(crate) model_sha256: String,
    pub(crate) onnxruntime: String,
    pub(crate) tensorrt: String,
    /// Product name. GPUs of the same compute capability differ in memory and cores, and engines
    /// are tuned to them.
    pub(crate) gpu: String,
    pub(crate) compute_capability: String,
    pub(crate) fp16: bool,
    /// SHA-256 of the calibration table, hex; `None` without 8-bit computation.
    pub(crate) calibration_sha256: Option<String>,
    /// The range of shapes, as text.
    pub(crate) profile: String,
}

/// Writes one line per part. This text is hashed, and it is the content of `key.txt` in the folder.
impl fmt::Display for EngineKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let precision = super::precision(self.calibration_sha256.is_some(), self.fp16);
        writeln!(f, "model sha256: {}", self.model_sha256)?;
        writeln!(f, "ONNX Runtime: {}", self.onnxruntime)?;
        writeln!(f, "TensorRT: {}", self.tensorrt)?;
        writeln!(f, "GPU: {}, compute capability {}", self.gpu, self.compute_capability)?;
        writeln!(f, "precision: {precision}")?;
        if let Some(table) = &self.calibration_sha256 {
            writeln!(f, "calibration table sha256: {table}")?;
        }
        writeln!(f, "shapes: {}", self.profile)
    }
}

impl EngineKey {
    /// Returns the folder's name: the model's name, for readability, and a hash of the whole key.
    pub(crate) fn folder(&self, model: &str) -> String {
        let hash = hex::encode(Sha256::digest(self.to_string().as_bytes()));
        format!("{model}-{}", &hash[..16])
    }
}
