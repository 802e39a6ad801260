//! What runs where: the answer of `GET /gpu`.
use serde::Serialize;

/// One operation's device.
#[derive(Clone, Debug, Serialize)]
pub struct OperationReport {
    /// `face_detection`, …
    pub operation: &'static str,
    /// Whether its flag asks for a GPU.
    pub gpu_requested: bool,
    /// The provider asked for: `cpu`, `cuda`, …
    pub requested: String,
    /// The provider in use, with its device: `cpu`, `cuda:0`, …
    pub effective: String,
    /// Why they differ, or why there is nothing to place.
    pub reason: Option<String>,
}

/// A GPU.
#[derive(Clone, Debug, Serialize)]
pub struct GpuDevice {
    /// Index as the driver counts.
    pub id: u32,
    /// Product name.
    pub name: String,
    /// `cuda`, `rocm`, `mps`.
    pub backend: &'static str,
    /// Bytes of memory.
    pub memory_total: Option<u64>,
    /// Bytes in use.
    pub memory_used: Option<u64>,
    /// Driver version.
    pub driver: Option<String>,
}

/// Backends, devices and operations.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    /// ONNX Runtime's version.
    pub runtime_version: String,
    /// Providers compiled into the loaded library.
    pub backends: Vec<String>,
    /// GPUs found.
    pub devices: Vec<GpuDevice>,
    /// The five operations.
    pub operations: Vec<OperationReport>,
}
