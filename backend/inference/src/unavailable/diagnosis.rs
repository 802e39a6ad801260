//! Maps the text of a failed attempt to its kind. ONNX Runtime reports errors of the loader, of
//! CUDA and of HIP only as text. This module therefore searches for known phrases: those of glibc's
//! loader, of `cudaGetErrorString` and `hipGetErrorString`, and of ONNX Runtime's own checks.
use super::{Unavailable, UnavailableKind};
use crate::devices::{self, Drivers};
use crate::ep::Provider;

/// Start of the message about results that differ from the CPU's.
pub(crate) const DIFFERS: &str = "its results differ from the CPU's: ";

/// The driver's own libraries; the providers and CUDA's libraries load them by these names.
const DRIVER_LIBRARIES: [&str; 2] = ["libcuda.so", "libnvidia-ml.so"];

/// `cudaErrorInsufficientDriver`, `cudaErrorUnsupportedPtxVersion`,
/// `cudaErrorCompatNotSupportedOnDevice`.
const DRIVER_TOO_OLD: [&str; 6] = [
    "driver version is insufficient",
    "cuda failure 35:",
    "the provided ptx was compiled with an unsupported toolchain",
    "cuda failure 222:",
    "forward compatibility was attempted",
    "cuda failure 804:",
];
/// `cudaErrorSystemDriverMismatch`.
const DRIVER_MISMATCH: [&str; 2] =
    ["unsupported display driver / cuda driver combination", "cuda failure 803:"];
/// `cudaErrorNoDevice`, `hipErrorNoDevice`.
const NO_DEVICE: [&str; 5] = [
    "no cuda-capable device",
    "cuda failure 100:",
    "no rocm-capable device",
    "hip failure 100:",
    "failed to get a webgpu adapter",
];
/// `cudaErrorInvalidDevice`, `hipErrorInvalidDevice`.
const DEVICE_ID: [&str; 3] = ["invalid device ordinal", "cuda failure 101:", "hip failure 101:"];
/// `cudaErrorNoKernelImageForDevice`.
const DEVICE_UNSUPPORTED: [&str; 2] = ["no kernel image is available", "cuda failure 209:"];
/// Libraries that ONNX Runtime opens itself, with its messages when they are missing.
const OPENED_BY_RUNTIME: [(&str, &str); 3] = [
    ("cudnn is not available", "libcudnn.so.9"),
    ("cudnn library was not found", "libcudnn.so.9"),
    ("unable to load any libcudart", "libcudart.so.13"),
];
/// Messages about a library whose version differs from the one used at link time. They come from
/// glibc's loader and from ONNX Runtime's check of its interface.
const OUT_OF_DATE: [&str; 4] = [
    "undefined symbol:",
    "' not found (required by",
    "is not supported, only version",
    "no version information",
];

/// Classifies `text`, the error from an attempt to use `provider`, and returns it as a failure of
/// that kind. Queries the drivers for details.
pub(crate) fn diagnose(provider: Provider, device_id: u32, text: &str) -> Unavailable {
    Unavailable::new(provider, find_kind(provider, device_id, text, &devices::drivers(provider)), text)
}

fn find_kind(provider: Provider, id: u32, text: &str, drivers: &Drivers) -> UnavailableKind {
    let lower = text.to_ascii_lowercase();
    let contains_any = |phrases: &[&str]| phrases.iter().any(|phrase| lower.contains(phrase));
    if text.starts_with(DIFFERS) {
        return UnavailableKind::Disagrees;
    }
    if let Some(name) = missing_library(text) {
        return match provider {
            Provider::Cuda | Provider::Tensorrt | Provider::TensorrtRtx
                if DRIVER_LIBRARIES.iter().any(|library| name.starts_with(library)) =>
            {
                UnavailableKind::DriverMissing
            }
            _ => UnavailableKind::LibraryMissing { name },
        };
    }
    let version = || drivers.version.clone();
    if contains_any(&DRIVER_TOO_OLD) || missing_symbol(text).is_some_and(is_driver_symbol) {
        UnavailableKind::DriverTooOld { found: version() }
    } else if contains_any(&DRIVER_MISMATCH) {
        UnavailableKind::DriverMismatch
    } else if contains_any(&NO_DEVICE) {
        UnavailableKind::NoDevice { listed: drivers.devices }
    } else if contains_any(&DEVICE_ID) {
        UnavailableKind::DeviceId { id, listed: drivers.devices }
    } else if contains_any(&DEVICE_UNSUPPORTED) {
        UnavailableKind::DeviceUnsupported
    } else if is_out_of_memory(text) {
        UnavailableKind::OutOfMemory
    } else if let Some((_, name)) = OPENED_BY_RUNTIME.iter().find(|(phrase, _)| lower.contains(phrase)) {
        UnavailableKind::LibraryMissing { name: (*name).to_owned() }
    } else if contains_any(&OUT_OF_DATE) {
        UnavailableKind::RuntimeOutOfDate
    } else {
        UnavailableKind::Failed
    }
}

/// Returns whether the device or the host ran out of memory. The runtime reports device errors only
/// as text. The phrases are from CUDA (`cudaGetErrorString`), HIP, cuDNN and the runtime.
pub(crate) fn is_out_of_memory(message: &str) -> bool {
    const MEMORY: [&str; 8] = [
        "out of memory",
        "memory_allocation",
        "failed to allocate memory",
        "bad allocation",
        "bad_alloc",
        "alloc_failed",
        "allocation_failed",
        "available memory of",
    ];
    let text = message.to_ascii_lowercase();
    MEMORY.iter().any(|phrase| text.contains(phrase))
}

/// Returns the file that the loader did not find: `libcublasLt.so.13: cannot open shared object
/// file` (glibc), `Library not loaded: @rpath/lib.dylib` (dyld), `Cannot load libcuda.so.1`
/// (ffmpeg, which reports missing symbols with the same words).
fn missing_library(text: &str) -> Option<String> {
    if let Some(name) = text.strip_prefix("Cannot load ").filter(|name| name.contains(".so")) {
        return name.split_whitespace().next().map(str::to_owned);
    }
    let glibc = text.split_once(": cannot open shared object file").map(|(before, _)| before);
    let path = match glibc {
        Some(before) => before.split_whitespace().next_back()?,
        None => text.split_once("Library not loaded: ")?.1.split_whitespace().next()?,
    };
    path.rsplit('/').next().map(|name| name.trim_matches(['"', '\'', '`']).to_owned())
}

/// Returns the symbol that is missing in a library: `undefined symbol: cuTensorMapEncodeTiled`.
fn missing_symbol(text: &str) -> Option<&str> {
    text.split_once("undefined symbol: ")?.1.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// Returns whether the symbol belongs to the driver's interface. The names in that interface are
/// like `cuInit`; CUDA's other libraries have names like `cudaMalloc` or `cublasCreate`.
fn is_driver_symbol(symbol: &str) -> bool {
    symbol.strip_prefix("cu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
}

/// Returns `text` as one line, without the C++ source locations that ONNX Runtime and CUDA add.
pub(super) fn without_source_location(text: &str) -> String {
    let start = text.rfind("FAIL : ").map_or(0, |at| at + "FAIL : ".len());
    let text = text[start..].trim();
    let text = ["CUDA failure ", "HIP failure "]
        .iter()
        .find_map(|prefix| text.find(prefix))
        .map_or(text, |at| &text[at..]);
    // `CUDA failure 999: unknown error ; GPU=0 ; hostname=… ; file=… ; line=65 ;
    // expr=cudaSetDevice(id);`
    let text = text.split(" ; GPU=").next().unwrap_or(text);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classify(text: &str) -> UnavailableKind {
        find_kind(Provider::Cuda, 3, text, &Drivers { version: Some("535.183.01".into()), devices: 2 })
    }

    fn missing(name: &str) -> UnavailableKind {
        UnavailableKind::LibraryMissing { name: name.into() }
    }

    /// The text that ONNX Runtime adds around the messages of the loader and of CUDA.
    const LOADER: &str = "/onnxruntime_src/onnxruntime/core/session/provider_bridge_ort.cc:2043 onnxruntime::Provider& \
        onnxruntime::ProviderLibrary::Get() [ONNXRuntimeError] : 1 : FAIL : Failed to load library \
        libonnxruntime_providers_cuda.so with error: ";
    const CALL: &str = "/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:133 std::conditional_t<THRW, void, \
        onnxruntime::common::Status> onnxruntime::CudaCall(ERRTYPE, const char*, const char*, ERRTYPE, const char*, const char*, int) \
        [with ERRTYPE = cudaError; bool THRW = true] ";
    const EXPRESSION: &str = " ; GPU=-1 ; hostname=host ; file=/onnxruntime_src/onnxruntime/core/providers/cuda/\
        cuda_execution_provider.cc ; line=281 ; expr=cudaSetDevice(info_.device_id); \n\n";

    #[test]
    fn loader_errors_name_missing_library_or_driver() {
        let loader = |text: &str| classify(&format!("{LOADER}{text}"));
        let not_found = ": cannot open shared object file: No such file or directory";
        assert_eq!(loader(&format!("libcublasLt.so.13{not_found}")), missing("libcublasLt.so.13"));
        assert_eq!(loader(&format!("libcuda.so.1{not_found}")), UnavailableKind::DriverMissing);
        let provider = format!("/opt/onnxruntime/libonnxruntime_providers_cuda.so{not_found}");
        assert_eq!(loader(&provider), missing("libonnxruntime_providers_cuda.so"));
        assert_eq!(
            classify("dlopen(libonnxruntime.dylib): Library not loaded: @rpath/libomp.dylib"),
            missing("libomp.dylib")
        );
        let old = "libonnxruntime_providers_cuda.so: undefined symbol: cuTensorMapEncodeTiled";
        assert_eq!(loader(old), UnavailableKind::DriverTooOld { found: Some("535.183.01".into()) });
        for mismatch in [
            "libonnxruntime_providers_cuda.so: undefined symbol: cudaGraphInstantiate_v9",
            "libcudnn.so.9: version `libcudnn.so.9' not found (required by libonnxruntime_providers_cuda.so)",
        ] {
            assert_eq!(loader(mismatch), UnavailableKind::RuntimeOutOfDate, "{mismatch}");
        }
    }

    #[test]
    fn cuda_errors_identify_driver_device_and_memory() {
        let call = |text: &str| classify(&format!("{CALL}{text}{EXPRESSION}"));
        let insufficient = "CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version";
        assert_eq!(call(insufficient), UnavailableKind::DriverTooOld { found: Some("535.183.01".into()) });
        let mismatch = "CUDA failure 803: system has unsupported display driver / cuda driver combination";
        assert_eq!(call(mismatch), UnavailableKind::DriverMismatch);
        let no_device = "CUDA failure 100: no CUDA-capable device is detected";
        assert_eq!(call(no_device), UnavailableKind::NoDevice { listed: 2 });
        let ordinal = "CUDA failure 101: invalid device ordinal";
        assert_eq!(call(ordinal), UnavailableKind::DeviceId { id: 3, listed: 2 });
        let image = "CUDA failure 209: no kernel image is available for execution on the device";
        assert_eq!(call(image), UnavailableKind::DeviceUnsupported);
        assert_eq!(call("CUDA failure 2: out of memory"), UnavailableKind::OutOfMemory);
        let arena = "BFCArena::AllocateRawInternal Available memory of 1048576 is smaller than requested bytes of 4194304";
        assert_eq!(classify(arena), UnavailableKind::OutOfMemory);
        let library = "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0 ; expr=cublasCreate(&handle);";
        assert_eq!(classify(library), UnavailableKind::OutOfMemory);
        let cudnn = "cuDNN is not available. Install cuDNN, update the system library search path, or set enable_cudnn=0";
        assert_eq!(classify(cudnn), missing("libcudnn.so.9"));
        assert_eq!(call("CUDA failure 999: unknown error"), UnavailableKind::Failed);
    }

    #[test]
    fn ffmpeg_errors_identify_driver_device_and_library() {
        assert_eq!(classify("Cannot load libcuda.so.1"), UnavailableKind::DriverMissing);
        assert_eq!(classify("Cannot load libnvcuvid.so.1"), missing("libnvcuvid.so.1"));
        assert_eq!(classify("Cannot load cuvidGetDecoderCaps"), UnavailableKind::Failed);
        let no_device = "cu->cuInit(0) failed -> CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected";
        assert_eq!(classify(no_device), UnavailableKind::NoDevice { listed: 2 });
        let ordinal = "cu->cuDeviceGet(&hwctx->internal->cuda_device, device_idx) failed -> \
                       CUDA_ERROR_INVALID_DEVICE: invalid device ordinal";
        assert_eq!(classify(ordinal), UnavailableKind::DeviceId { id: 3, listed: 2 });
    }

    #[test]
    fn error_text_omits_source_location() {
        let text = format!("{CALL}CUDA failure 999: unknown error{EXPRESSION}");
        let text = format!("[ONNXRuntimeError] : 1 : FAIL : {text}");
        assert_eq!(without_source_location(&text), "CUDA failure 999: unknown error");
        assert_eq!(
            without_source_location(&format!("{LOADER}libx.so: invalid ELF header")),
            "Failed to load library \
            libonnxruntime_providers_cuda.so with error: libx.so: invalid ELF header"
        );
        assert_eq!(without_source_location("two\n lines "), "two lines");
    }

    #[test]
    fn failed_comparison_is_classified_as_disagreement() {
        let text = format!("{DIFFERS}at batch 4 by 12.0 %; up to 3 % is allowed");
        assert_eq!(classify(&text), UnavailableKind::Disagrees);
    }
}
