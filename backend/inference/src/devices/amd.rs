//! Lists AMD GPUs from sysfs (the files of the amdgpu driver).
use super::{GpuDevice, folders};
use std::fs;
use std::path::{Path, PathBuf};

/// PCI vendor id of AMD.
const VENDOR: &str = "0x1002";

pub(super) fn discover() -> Vec<GpuDevice> {
    read_from(Path::new("/sys/class/drm"))
}

fn read_from(root: &Path) -> Vec<GpuDevice> {
    let read = |path: PathBuf| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    folders(root)
        .iter()
        // `card0` is a device; `card0-HDMI-A-1` is one of its connectors.
        .filter(|card| {
            card.file_name()
                .and_then(|n| n.to_str()?.strip_prefix("card"))
                .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        })
        .map(|card| card.join("device"))
        .filter(|device| read(device.join("vendor")).as_deref() == Some(VENDOR))
        .zip(0..)
        .map(|(device, id)| {
            let number = |file: &str| read(device.join(file)).and_then(|n| n.parse::<u64>().ok());
            GpuDevice {
                id,
                name: read(device.join("product_name"))
                    .filter(|n| !n.is_empty())
                    .unwrap_or_else(|| "AMD GPU".to_owned()),
                backend: "rocm",
                memory_total: number("mem_info_vram_total"),
                memory_used: number("mem_info_vram_used"),
                driver: read(device.join("driver/module/version")),
                utilization: number("gpu_busy_percent").map(|percent| percent as f64 / 100.0),
                compute_capability: None,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::testing::Tree;

    #[test]
    fn cards_of_amd_are_read_and_others_are_not() {
        let tree = Tree::new("amd");
        tree.write("card0/device/vendor", "0x8086\n");
        tree.write("card1/device/vendor", "0x1002\n");
        tree.write("card1/device/mem_info_vram_total", "12868124672\n");
        tree.write("card1/device/mem_info_vram_used", "1048576\n");
        tree.write("card1/device/gpu_busy_percent", "37\n");
        tree.write("card1-DP-1/status", "connected\n");
        let found = read_from(tree.path());
        assert_eq!(found.len(), 1);
        let card = &found[0];
        assert_eq!((card.id, card.name.as_str(), card.backend), (0, "AMD GPU", "rocm"));
        assert_eq!((card.memory_total, card.memory_used), (Some(12_868_124_672), Some(1_048_576)));
        assert_eq!(card.utilization, Some(0.37));
    }
}
