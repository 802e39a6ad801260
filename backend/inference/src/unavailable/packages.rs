//! Maps a shared library to the package that contains it.

/// The source of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Package {
    /// A wheel of `scripts/gpu-wheels.txt`.
    Wheel(&'static str),
    /// A wheel of `scripts/openvino-wheels.txt`.
    OpenVino,
    /// TensorRT; no script installs it.
    Tensorrt,
    /// ROCm; no script installs it.
    Rocm,
    /// The system's zlib, which cuDNN needs.
    Zlib,
    /// The part of NVIDIA's driver that decodes videos.
    VideoDriver,
    Other,
}

/// Packages by the start of the library's file name; the first match applies.
const PACKAGES: [(&str, Package); 17] = [
    ("libonnxruntime_providers_openvino", Package::OpenVino),
    ("libonnxruntime_providers_migraphx", Package::Rocm),
    ("libonnxruntime_providers_", Package::Wheel("onnxruntime-gpu")),
    ("libcublas", Package::Wheel("nvidia-cublas")),
    ("libcudart", Package::Wheel("nvidia-cuda-runtime")),
    ("libnvrtc", Package::Wheel("nvidia-cuda-nvrtc")),
    ("libnvJitLink", Package::Wheel("nvidia-nvjitlink")),
    ("libcufft", Package::Wheel("nvidia-cufft")),
    ("libcurand", Package::Wheel("nvidia-curand")),
    ("libcudnn", Package::Wheel("nvidia-cudnn-cu13")),
    ("libnvinfer", Package::Tensorrt),
    ("libnvonnxparser", Package::Tensorrt),
    ("libopenvino", Package::OpenVino),
    ("libmigraphx", Package::Rocm),
    ("libamdhip", Package::Rocm),
    ("libz.so", Package::Zlib),
    ("libnvcuvid", Package::VideoDriver),
];

impl Package {
    pub(super) fn of(library: &str) -> Self {
        PACKAGES
            .iter()
            .find(|(start, _)| library.starts_with(start))
            .map_or(Self::Other, |(_, package)| *package)
    }

    pub(super) fn advice(self) -> String {
        match self {
            Self::Wheel(name) => format!("`./scripts/gpu-runtime` installs it (package {name})"),
            Self::OpenVino => "`./scripts/openvino` installs it".to_owned(),
            Self::Tensorrt => {
                "install TensorRT 10 for CUDA 13 (package tensorrt), and copy its libraries to the folder of ONNX Runtime"
                    .to_owned()
            }
            Self::Rocm => "install ROCm 7.2.4 with MIGraphX (package migraphx)".to_owned(),
            Self::Zlib => "install zlib (package zlib1g or zlib)".to_owned(),
            Self::VideoDriver => {
                "install the video libraries of the NVIDIA driver (in a container: NVIDIA_DRIVER_CAPABILITIES must \
                 contain `video`)"
                    .to_owned()
            }
            Self::Other => "install the package that contains it".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nvidia_wheel_of_the_list_is_named_for_a_library() {
        let listed = include_str!("../../../../scripts/gpu-wheels.txt");
        let nvidia = listed.split("# AMD").next().unwrap_or_default();
        let wheels: Vec<&str> = nvidia.lines().filter_map(|line| Some(line.split_once("==")?.0)).collect();
        for wheel in &wheels {
            assert!(PACKAGES.iter().any(|(_, package)| *package == Package::Wheel(wheel)), "{wheel}");
        }
        for (library, package) in PACKAGES {
            if let Package::Wheel(wheel) = package {
                assert!(wheels.contains(&wheel), "{library}: {wheel} is not in scripts/gpu-wheels.txt");
            }
        }
        assert_eq!(Package::of("libcublasLt.so.13"), Package::Wheel("nvidia-cublas"));
        assert_eq!(Package::of("libelsewhere.so.1"), Package::Other);
    }
}
