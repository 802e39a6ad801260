//! GPUs that the operating system knows: NVIDIA's from the driver's files, AMD's from sysfs. No library is needed, so
//! a GPU is listed even where the loaded runtime cannot use it.
use crate::report::GpuDevice;
use std::fs;
use std::path::Path;

/// The GPUs of this machine.
pub(crate) fn discover() -> Vec<GpuDevice> {
    let mut devices = nvidia(Path::new("/proc/driver/nvidia"));
    devices.extend(amd(Path::new("/sys/class/drm")));
    devices
}

fn nvidia(root: &Path) -> Vec<GpuDevice> {
    let driver = fs::read_to_string(root.join("version")).ok().and_then(|text| {
        let line = text.lines().find(|l| l.contains("NVRM version"))?.to_owned();
        line.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit())).map(str::to_owned)
    });
    folders(&root.join("gpus"))
        .iter()
        .filter_map(|gpu| fs::read_to_string(gpu.join("information")).ok())
        .zip(0..)
        .map(|(text, id)| {
            let name = text.lines().find_map(|line| line.strip_prefix("Model:"));
            GpuDevice {
                id,
                name: name.map_or("NVIDIA GPU", str::trim).to_owned(),
                backend: "cuda",
                memory_total: None,
                memory_used: None,
                driver: driver.clone(),
            }
        })
        .collect()
}

fn amd(root: &Path) -> Vec<GpuDevice> {
    let read = |path: std::path::PathBuf| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    folders(root)
        .iter()
        // `card0` is a device, `card0-HDMI-A-1` one of its sockets.
        .filter(|card| {
            card.file_name()
                .and_then(|n| n.to_str()?.strip_prefix("card"))
                .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        })
        .map(|card| card.join("device"))
        .filter(|device| read(device.join("vendor")).as_deref() == Some("0x1002"))
        .zip(0..)
        .map(|(device, id)| GpuDevice {
            id,
            name: read(device.join("product_name"))
                .filter(|n| !n.is_empty())
                .unwrap_or_else(|| "AMD GPU".to_owned()),
            backend: "rocm",
            memory_total: read(device.join("mem_info_vram_total")).and_then(|n| n.parse().ok()),
            memory_used: read(device.join("mem_info_vram_used")).and_then(|n| n.parse().ok()),
            driver: read(device.join("driver/module/version")),
        })
        .collect()
}

/// The entries of a folder, sorted; none when it cannot be read.
fn folders(path: &Path) -> Vec<std::path::PathBuf> {
    let mut found: Vec<_> = fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path()).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn devices_are_read_from_the_drivers_files() {
        let root = std::env::temp_dir().join(format!("facecrawl-devices-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26\n");
        write("nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA A10\nIRQ: 5\n");
        write("nvidia/gpus/0000:02:00.0/information", "Model: \t\t NVIDIA L4\n");
        write("drm/card0/device/vendor", "0x8086\n");
        write("drm/card1/device/vendor", "0x1002\n");
        write("drm/card1/device/mem_info_vram_total", "12868124672\n");
        write("drm/card1-DP-1/status", "connected\n");
        let (nvidia, amd) = (nvidia(&root.join("nvidia")), amd(&root.join("drm")));
        fs::remove_dir_all(&root).unwrap();
        let names: Vec<_> = nvidia.iter().map(|d| (d.id, d.name.as_str(), d.driver.as_deref())).collect();
        assert_eq!(names, [(0, "NVIDIA A10", Some("570.124.06")), (1, "NVIDIA L4", Some("570.124.06"))]);
        assert_eq!(amd.len(), 1);
        assert_eq!((amd[0].memory_total, amd[0].backend), (Some(12_868_124_672), "rocm"));
    }
}
