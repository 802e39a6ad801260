//! Lists the GPUs of Vulkan's drivers, for the reports about WebGPU and OpenVINO, whose plug-ins do
//! not report names.
#![allow(unsafe_code, reason = "Vulkan has only a C interface; every call is listed with its reason")]
use std::sync::OnceLock;

/// File name of Vulkan's loader, which finds the drivers.
pub(crate) const LOADER: &str = "libvulkan.so.1";

/// A GPU with a Vulkan driver.
#[derive(Clone, Debug)]
pub(crate) struct VulkanGpu {
    pub(crate) name: String,
    /// Whether the driver computes on the CPU.
    pub(crate) is_software: bool,
    /// Bytes of device-local memory; on an integrated GPU, a part of the machine's memory.
    pub(crate) memory: u64,
}

/// Why Vulkan lists no GPUs.
#[derive(Clone, Debug)]
pub(crate) enum VulkanError {
    /// The loader is not installed. The text is the message of the system's loader.
    LoaderMissing(String),
    Failed(String),
}

/// Returns the discrete GPUs, then the integrated, virtual and software ones; the WebGPU plug-in
/// prefers the same order. They are listed once, because this can take seconds, and drivers do not
/// change. On other systems than Linux, the list is empty.
///
/// # Errors
/// Fails if the loader is not installed or cannot be used.
pub(crate) fn gpus() -> Result<&'static [VulkanGpu], VulkanError> {
    static GPUS: OnceLock<Result<Vec<VulkanGpu>, VulkanError>> = OnceLock::new();
    GPUS.get_or_init(query).as_deref().map_err(Clone::clone)
}

#[cfg(not(target_os = "linux"))]
fn query() -> Result<Vec<VulkanGpu>, VulkanError> {
    Ok(Vec::new())
}

#[cfg(target_os = "linux")]
fn query() -> Result<Vec<VulkanGpu>, VulkanError> {
    use ash::vk;
    // SAFETY: loads the system's Vulkan loader, whose initialisation has no preconditions.
    let entry = unsafe { ash::Entry::load_from(LOADER) }
        .map_err(|error| VulkanError::LoaderMissing(error.to_string()))?;
    let information = vk::InstanceCreateInfo::default();
    // SAFETY: `information` contains no pointers, and the instance is destroyed below, before
    // `entry` unloads the library.
    let instance = match unsafe { entry.create_instance(&information, None) } {
        Ok(instance) => instance,
        // No driver is installed.
        Err(vk::Result::ERROR_INCOMPATIBLE_DRIVER) => return Ok(Vec::new()),
        Err(error) => return Err(VulkanError::Failed(format!("Vulkan: {error}"))),
    };
    // SAFETY: the instance is valid, and its devices are used only until it is destroyed.
    let listed = unsafe { instance.enumerate_physical_devices() };
    let mut gpus: Vec<(u8, VulkanGpu)> = listed
        .iter()
        .flatten()
        .map(|gpu| {
            let gpu = *gpu;
            // SAFETY: `gpu` belongs to the valid instance.
            let properties = unsafe { instance.get_physical_device_properties(gpu) };
            // SAFETY: as above.
            let heaps = unsafe { instance.get_physical_device_memory_properties(gpu) };
            let name = properties.device_name_as_c_str().unwrap_or(c"GPU").to_string_lossy().into_owned();
            let is_own = |heap: &&vk::MemoryHeap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL);
            let memory = heaps.memory_heaps_as_slice().iter().filter(is_own).map(|heap| heap.size).sum();
            let rank = match properties.device_type {
                vk::PhysicalDeviceType::DISCRETE_GPU => 0,
                vk::PhysicalDeviceType::INTEGRATED_GPU => 1,
                vk::PhysicalDeviceType::VIRTUAL_GPU => 2,
                _ => 3,
            };
            let is_software = properties.device_type == vk::PhysicalDeviceType::CPU;
            (rank, VulkanGpu { name, is_software, memory })
        })
        .collect();
    // SAFETY: nothing uses the instance after this call.
    unsafe { instance.destroy_instance(None) };
    listed.map_err(|error| VulkanError::Failed(format!("Vulkan: {error}")))?;
    gpus.sort_by_key(|(rank, _)| *rank);
    Ok(gpus.into_iter().map(|(_, gpu)| gpu).collect())
}
