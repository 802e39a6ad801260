//! Restricts the files that the child can open, with Landlock:
//! <https://docs.kernel.org/userspace-api/landlock.html>.

use super::{FileAccess, Mode};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use std::path::{Path, PathBuf};

/// Folders with shared libraries, and the loader's list of them.
const LIBRARIES: [&str; 6] =
    ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache"];

/// Files and folders from which CUDA reads information about the driver and the machine. None of
/// them belongs to another process.
const READ_BY_CUDA: [&str; 13] = [
    "/usr/local/nvidia",
    "/usr/local/cuda/compat",
    "/usr/share/nvidia",
    "/proc/driver/nvidia",
    "/proc/cpuinfo",
    "/proc/devices",
    "/proc/meminfo",
    "/proc/modules",
    "/proc/sys/vm/mmap_min_addr",
    "/sys/bus/pci/devices",
    "/sys/devices/system",
    "/sys/module/nvidia",
    "/sys/module/nvidia_uvm",
];

/// Files of its own process that a child with a GPU can read. CUDA fails without the memory map.
const OWN_FILES_READ_BY_CUDA: [&str; 2] = ["/proc/self/maps", "/proc/self/status"];
/// The list of its open files, which such a child can read.
const OWN_OPEN_FILES: &str = "/proc/self/fd";
/// Files of its own threads, which such a child can write. CUDA fails if it cannot name its threads
/// with `comm` in this folder.
const OWN_THREADS: &str = "/proc/self/task";
/// Contains one folder for each GPU, named by its PCI address.
const GPUS: &str = "/proc/driver/nvidia/gpus";

/// Allows to execute `program` and to read libraries, and denies every other file, TCP, and signals
/// and abstract sockets to other processes, as far as the kernel can. With [`Mode::Gpu`] it also
/// allows the devices of the driver, [`READ_BY_CUDA`], and some files about the child itself.
///
/// # Errors
/// Returns a message if the kernel has Landlock but rejects the rules, or `program` does not exist,
/// or there is no Landlock with [`Mode::Gpu`].
pub(super) fn restrict(mode: Mode, program: &Path) -> Result<FileAccess, String> {
    let rules = || {
        let abi = ABI::V6;
        let execute = AccessFs::Execute | AccessFs::ReadFile;
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(abi))?
            .handle_access(AccessNet::from_all(abi))?
            .scope(Scope::from_all(abi))?
            .create()?
            .add_rule(PathBeneath::new(PathFd::new(program)?, execute))?;
        for path in LIBRARIES {
            let Ok(opened) = PathFd::new(path) else { continue };
            let access = if Path::new(path).is_dir() { execute | AccessFs::ReadDir } else { execute };
            rules = rules.add_rule(PathBeneath::new(opened, access))?;
        }
        if mode == Mode::Gpu {
            for (path, access) in for_gpu() {
                let Ok(opened) = PathFd::new(&path) else { continue };
                rules = rules.add_rule(PathBeneath::new(opened, access))?;
            }
        }
        Ok::<_, Box<dyn std::error::Error>>(rules.restrict_self()?.ruleset)
    };
    match rules() {
        // Parts that an older kernel lacks (TCP, scopes) are denied by seccomp too.
        Ok(RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced) => Ok(FileAccess::LibrariesOnly),
        // With a GPU, seccomp allows the child to open files for writing.
        Ok(RulesetStatus::NotEnforced) if mode == Mode::Gpu => {
            Err("a decoder on a GPU needs Landlock (Linux 5.13 or newer)".into())
        }
        Ok(RulesetStatus::NotEnforced) => Ok(FileAccess::ReadOnly),
        Err(error) => Err(format!("cannot restrict access to files: {error}")),
    }
}

/// Returns the paths that a child with a GPU can open in addition, and how.
fn for_gpu() -> impl Iterator<Item = (PathBuf, BitFlags<AccessFs>)> {
    let readable =
        READ_BY_CUDA.iter().chain(&OWN_FILES_READ_BY_CUDA).map(PathBuf::from).chain(memory_nodes());
    let readable = readable.map(|path| {
        let folder: BitFlags<_> = if path.is_dir() { AccessFs::ReadDir.into() } else { BitFlags::empty() };
        (path, folder | AccessFs::ReadFile)
    });
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    readable.chain(devices().map(move |path| (path, device))).chain([
        (OWN_OPEN_FILES.into(), AccessFs::ReadDir.into()),
        (OWN_THREADS.into(), AccessFs::WriteFile | AccessFs::Truncate),
    ])
}

/// Returns the path of the `numa_node` file of each GPU, which CUDA reads.
fn memory_nodes() -> impl Iterator<Item = PathBuf> {
    let gpus = std::fs::read_dir(GPUS).into_iter().flatten().flatten();
    // The folders of the devices are symbolic links, and Landlock compares the target.
    gpus.filter_map(|gpu| Path::new("/sys/bus/pci/devices").join(gpu.file_name()).canonicalize().ok())
        .map(|folder| folder.join("numa_node"))
}

/// Returns the devices of NVIDIA's driver that decoding needs. Others observe processes
/// (`nvidia-uvm-tools`), set display modes, or configure the division of a GPU.
fn devices() -> impl Iterator<Item = PathBuf> {
    let listed = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    listed.filter(|entry| entry.file_name().to_str().is_some_and(is_needed)).map(|entry| entry.path())
}

fn is_needed(device: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    matches!(device, "nvidiactl" | "nvidia-uvm") || device.strip_prefix("nvidia").is_some_and(is_number)
}

#[cfg(test)]
mod tests {
    use super::is_needed;

    #[test]
    fn only_devices_for_decoding_are_allowed() {
        for needed in ["nvidiactl", "nvidia-uvm", "nvidia0", "nvidia15"] {
            assert!(is_needed(needed), "{needed}");
        }
        for other in ["nvidia", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps", "nvidia0x", "null"] {
            assert!(!is_needed(other), "{other}");
        }
    }
}
