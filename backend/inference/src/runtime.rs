//! Loads ONNX Runtime's shared library once per process, and never unloads it. Also loads CUDA's
//! libraries by path, and plug-in providers.
use crate::devices;
use crate::ep::Provider;
use crate::plugins::Plugin;
use crate::unavailable::{Unavailable, UnavailableKind, diagnose};
use crate::vulkan::{self, VulkanError};
use crate::{Config, StartError};
use ort::device::Device;
use ort::environment::Environment;
use ort::logging::LogLevel;
use ort::memory::DeviceType;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// The loaded library.
#[derive(Clone, Debug)]
pub struct Runtime {
    environment: Environment,
    path: PathBuf,
    version: String,
    /// The folder of the plug-in providers.
    plugins_dir: Option<PathBuf>,
}

/// The library of this process, which loads only one. `None` before the first attempt. An error
/// contains the path of a library that is loaded, but could not be initialised, and the reason.
static LIBRARY: Mutex<Option<Result<Runtime, (PathBuf, String)>>> = Mutex::new(None);

impl Runtime {
    /// Loads the library at `path`; with `None` the library that the system's loader finds. Later
    /// calls return the same library.
    ///
    /// # Errors
    /// Fails if the library cannot be loaded or initialised, or if a different library is already
    /// loaded. A process can load only one.
    pub fn load(path: Option<&Path>) -> Result<Self, StartError> {
        let library = locate_library(path)?;
        let load_error = |reason: String| StartError::Library { path: library.display().to_string(), reason };
        let mut state = LIBRARY.lock();
        match &*state {
            Some(Ok(runtime)) if runtime.path == library => return Ok(runtime.clone()),
            Some(Ok(runtime)) => {
                let path = runtime.path.display();
                return Err(load_error(format!(
                    "this process already uses {path}; only one library can be loaded per process"
                )));
            }
            Some(Err((path, reason))) => {
                let path = path.display();
                return Err(load_error(format!("an earlier attempt to load {path} failed: {reason}")));
            }
            None => {}
        }
        // `ort` panics on null pointers, which a library other than ONNX Runtime may return.
        let builder = match catch_unwind(AssertUnwindSafe(|| ort::init_from(&library))) {
            Ok(Ok(builder)) => builder,
            Ok(Err(error)) => return Err(load_error(explain_outdated_library(&error.to_string()))),
            Err(_) => return Err(load_error("the library does not provide its API".to_owned())),
        };
        let create_environment = || {
            let environment = builder.with_name("facecrawl").with_telemetry(false).build()?;
            environment.set_log_level(log_level());
            Ok::<_, ort::Error>(environment)
        };
        let created = catch_unwind(AssertUnwindSafe(create_environment)).map_or_else(
            |_| Err(format!("the library does not support version {} of the API", ort::MINOR_VERSION)),
            |result| result.map_err(|error| error.to_string()),
        );
        let environment = created.map_err(|reason| {
            *state = Some(Err((library.clone(), reason.clone())));
            load_error(reason)
        })?;
        let version = version(&library);
        let runtime = Self { environment, path: library, version, plugins_dir: None };
        tracing::info!(library = %runtime.path.display(), version = %runtime.version, "ONNX Runtime loaded");
        *state = Some(Ok(runtime.clone()));
        Ok(runtime)
    }

    /// Loads the library of a configuration, and uses its folder of plug-ins.
    pub(crate) fn start(config: &Config) -> Result<Self, StartError> {
        let plugins_dir = config.plugins_dir.clone();
        Ok(Self { plugins_dir, ..Self::load(config.dylib_path.as_deref())? })
    }

    pub(crate) fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Runs `attempt`, which may fail, and suppresses the library's own error messages, because the
    /// caller reports the failure. At debug level the messages are logged.
    pub(crate) fn suppress_library_errors<T>(&self, attempt: impl FnOnce() -> T) -> T {
        if tracing::enabled!(target: "ort::logging", tracing::Level::DEBUG) {
            return attempt();
        }
        self.environment.set_log_level(LogLevel::Fatal);
        let result = attempt();
        self.environment.set_log_level(log_level());
        result
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the library's version from its file name, or its build information.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Loads the libraries of `provider` from the folder of ONNX Runtime, once per process.
    ///
    /// The provider's library refers to CUDA's libraries by file name, and has no search path. The
    /// loader reuses a library that is already loaded under the same name. Loading the libraries by
    /// path first therefore makes `LD_LIBRARY_PATH` unnecessary. If they are not in the folder of
    /// ONNX Runtime, nothing is loaded and the system's loader searches as usual.
    pub(crate) fn preload_libraries(&self, provider: Provider) {
        static LOADED: Mutex<Vec<Provider>> = Mutex::new(Vec::new());
        let names: Vec<&str> = match provider {
            _ if !cfg!(target_os = "linux") => return,
            Provider::Cuda => CUDA_LIBRARIES.to_vec(),
            Provider::Tensorrt => [&CUDA_LIBRARIES[..], &TENSORRT_LIBRARIES[..]].concat(),
            _ => return,
        };
        let mut loaded = LOADED.lock();
        if loaded.contains(&provider) {
            return;
        }
        loaded.push(provider);
        self.preload(&names, self.path.parent());
    }

    /// Loads the libraries `names` of `folder` by path, in this order.
    fn preload(&self, names: &[&str], folder: Option<&Path>) {
        let Some(folder) = folder else { return };
        for library in names.iter().filter_map(|name| find_library(folder, name)) {
            match ort::util::preload_dylib(&library) {
                Ok(()) => tracing::debug!(library = %library.display(), "library loaded by path"),
                // The provider then fails with its own error, which is reported.
                Err(error) => {
                    tracing::debug!(library = %library.display(), %error, "library cannot be loaded by path");
                }
            }
        }
    }

    /// Checks that `provider` is available: that the loaded library includes it or, for a plug-in,
    /// that its library is installed and lists the GPU `device_id`.
    ///
    /// # Errors
    /// Fails with the reason if it is not available.
    pub(crate) fn check(&self, provider: Provider, device_id: u32) -> Result<(), Unavailable> {
        if let Some(plugin) = provider.plugin() {
            return self.check_plugin(plugin, device_id);
        }
        let library = self.path.display();
        let kind = if !provider.is_in_build() {
            UnavailableKind::NotInBuild
        } else if !provider.is_in_library() {
            UnavailableKind::NotInLibrary { library: library.to_string() }
        } else {
            return Ok(());
        };
        Err(Unavailable::new(provider, kind, format!("not among the providers of {library}")))
    }

    /// Checks that the plug-in is installed, can be loaded, and lists the GPU `device_id`.
    fn check_plugin(&self, plugin: &Plugin, device_id: u32) -> Result<(), Unavailable> {
        let provider = plugin.provider;
        self.register_once(plugin)?;
        match provider {
            Provider::WebGpu if cfg!(target_os = "linux") => check_vulkan()?,
            Provider::TensorrtRtx => check_compute_capability(device_id)?,
            _ => {}
        }
        // The WebGPU plug-in selects the GPU itself, whichever of its devices a session names.
        let usable = if provider == Provider::WebGpu { 1 } else { usize::MAX };
        let kind = match self.plugin_devices(plugin).count().min(usable) {
            0 => NO_DEVICE,
            listed if device_id as usize >= listed => UnavailableKind::DeviceId { id: device_id, listed },
            _ => return Ok(()),
        };
        Err(Unavailable::new(provider, kind, format!("{} lists no such device", plugin.ep_name)))
    }

    /// Registers the library of an installed plug-in at the first call, and returns the result of
    /// that call. The library is never unloaded.
    fn register_once(&self, plugin: &Plugin) -> Result<(), Unavailable> {
        static REGISTERED: Mutex<BTreeMap<&str, Result<(), Unavailable>>> = Mutex::new(BTreeMap::new());
        let (provider, folder) = (plugin.provider, self.plugins_dir.as_deref());
        let Some(library) = plugin.find(folder) else {
            let detail = match folder {
                Some(folder) => format!("{} has no library in it", folder.join(plugin.package).display()),
                None => "no folder of plug-ins is configured".to_owned(),
            };
            return Err(Unavailable::new(provider, UnavailableKind::PluginMissing, detail));
        };
        let register = || {
            self.preload(plugin.dependencies, library.parent());
            let registered = self.environment.register_ep_library(plugin.ep_name, &library);
            registered.map_err(|error| diagnose(provider, 0, &error.to_string()))?;
            tracing::info!(library = %library.display(), provider = provider.name(), "plug-in provider loaded");
            Ok(())
        };
        REGISTERED.lock().entry(plugin.ep_name).or_insert_with(register).clone()
    }

    /// Returns the GPUs that a plug-in lists, in its order.
    pub(crate) fn plugin_devices(&self, plugin: &Plugin) -> impl Iterator<Item = Device<'_>> {
        let (provider, ep_name) = (plugin.provider, plugin.ep_name);
        self.environment.devices().filter(move |device| {
            // WebGPU lists a software driver as a CPU.
            let is_gpu = provider == Provider::WebGpu || device.hardware_device().ty() == DeviceType::GPU;
            is_gpu && device.ep().is_ok_and(|name| name == ep_name)
        })
    }

    /// Returns whether the library was built with `provider`, or its plug-in is installed.
    pub(crate) fn has(&self, provider: Provider) -> bool {
        match provider.plugin() {
            Some(plugin) => plugin.find(self.plugins_dir.as_deref()).is_some(),
            None => provider.is_in_library(),
        }
    }

    /// Returns the providers that this program can use with the library and the installed plug-ins.
    pub fn providers(&self) -> Vec<Provider> {
        Provider::all().filter(|provider| self.has(*provider)).collect()
    }
}

const NO_DEVICE: UnavailableKind = UnavailableKind::NoDevice { listed: 0 };

/// Checks that a Vulkan driver lists a GPU for WebGPU, whose plug-in lists a device even without a
/// driver.
fn check_vulkan() -> Result<(), Unavailable> {
    let (kind, detail) = match vulkan::gpus() {
        Ok([]) => (NO_DEVICE, "no Vulkan driver lists a GPU".to_owned()),
        Ok([first, ..]) if first.is_software && !allows_software_gpu() => {
            (NO_DEVICE, format!("the only driver, {}, computes on the CPU", first.name))
        }
        Ok(_) => return Ok(()),
        Err(VulkanError::LoaderMissing(text)) => {
            (UnavailableKind::LibraryMissing { name: vulkan::LOADER.to_owned() }, text)
        }
        Err(VulkanError::Failed(text)) => (UnavailableKind::Failed, text),
    };
    Err(Unavailable::new(Provider::WebGpu, kind, detail))
}

/// Checks that TensorRT for RTX supports the GPU, if its driver reports the generation.
fn check_compute_capability(device_id: u32) -> Result<(), Unavailable> {
    let provider = Provider::TensorrtRtx;
    match devices::find(provider, device_id).and_then(|gpu| gpu.compute_capability) {
        Some(capability) if !devices::supports_tensorrt_rtx(&capability) => {
            let detail = format!("the GPU has compute capability {capability}");
            Err(Unavailable::new(provider, UnavailableKind::DeviceUnsupported, detail))
        }
        _ => Ok(()),
    }
}

/// Returns whether the WebGPU plug-in may use a Vulkan driver that computes on the CPU. Tests set
/// its variable.
fn allows_software_gpu() -> bool {
    std::env::var("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER").is_ok_and(|value| value == "1")
}

/// Libraries of CUDA, each after the libraries that it depends on. cuDNN and cuFFT find their other
/// files in their own folder.
const CUDA_LIBRARIES: [&str; 8] = [
    "libcudart",
    "libnvrtc",
    "libnvJitLink",
    "libcublasLt",
    "libcublas",
    "libcurand",
    "libcufft",
    "libcudnn",
];
const TENSORRT_LIBRARIES: [&str; 3] = ["libnvinfer", "libnvinfer_plugin", "libnvonnxparser"];

/// Returns the file to load. The file is checked before the loader opens it, because the loader's
/// message about a folder is unclear, and opening a pipe would block forever.
fn locate_library(path: Option<&Path>) -> Result<PathBuf, StartError> {
    let Some(path) = path else {
        let name = format!("{}onnxruntime{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        return Ok(name.into());
    };
    let load_error = |reason: String| StartError::Library { path: path.display().to_string(), reason };
    let canonical = path.canonicalize().map_err(|e| load_error(e.to_string()))?;
    let reason = "the path is not a file; it must be the path of the shared library";
    if canonical.is_file() { Ok(canonical) } else { Err(load_error(reason.to_owned())) }
}

/// Returns the version from names such as `libonnxruntime.so.1.31.1` and
/// `libonnxruntime.1.31.1.dylib`. For other names, it returns the library's build information.
fn version(path: &Path) -> String {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let numbers: Vec<&str> =
        name.split('.').filter(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit())).collect();
    if numbers.len() >= 2 { numbers.join(".") } else { ort::info().to_owned() }
}

/// Replaces `ort`'s message about an outdated library with a clearer one; keeps other messages.
fn explain_outdated_library(text: &str) -> String {
    let quoted =
        |after: &str| Some(text.split_once(after)?.1.split(['\'', '`']).next()?.trim_end_matches(".x"));
    match (quoted("but got '"), quoted("expected version >= '")) {
        (Some(actual), Some(required)) => format!(
            "the library has version {actual}, but {required} or newer is required; `./scripts/setup` installs it"
        ),
        _ => text.to_owned(),
    }
}

/// Returns the log level for the library. It follows the level of the log, because the library
/// formats every message of its level, even if the message is not logged.
pub(crate) fn log_level() -> LogLevel {
    if tracing::enabled!(target: "ort::logging", tracing::Level::TRACE) {
        LogLevel::Verbose
    } else if tracing::enabled!(target: "ort::logging", tracing::Level::DEBUG) {
        LogLevel::Info
    } else {
        LogLevel::Warning
    }
}

/// Returns the path of `NAME.so.VERSION` in the folder. If there are several, returns the last one
/// in alphabetical order.
fn find_library(folder: &Path, name: &str) -> Option<PathBuf> {
    let prefix = format!("{name}.so.");
    let has_name =
        |path: &PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&prefix));
    std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).filter(has_name).max()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn finds_library_by_full_name() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["libcublasLt.so.13", "libcublas.so.13", "libcublas.so.12", "libcublas.a"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(find_library(folder.path(), "libcublas"), Some(folder.path().join("libcublas.so.13")));
        assert_eq!(find_library(folder.path(), "libcudnn"), None);
        assert_eq!(find_library(&folder.path().join("nowhere"), "libcublas"), None);
    }
}
