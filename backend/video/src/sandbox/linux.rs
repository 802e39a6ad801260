//! Applies the restrictions on Linux, in the order in which each is still permitted.
use super::{FileAccess, Mode, REPORT_PREFIX, syscalls};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

/// Largest address space in bytes: several threads for 4096x2304 pixels need about a quarter.
const ADDRESS_SPACE: u64 = 4 << 30;
/// Maximum writable private memory of a child with a GPU, in bytes. CUDA reserves addresses for all
/// memory of the machine and its GPUs, which a limit of the address space would count.
const PRIVATE_MEMORY_WITH_GPU: u64 = 8 << 30;
/// Maximum number of open files. Eight are in use.
const OPEN_FILES: u64 = 32;
/// Maximum number of open files with a GPU. CUDA opens each device several times.
const OPEN_FILES_WITH_GPU: u64 = 256;
/// Seconds of processor time between the signal at the limit and the kill.
const CPU_GRACE: u64 = 5;
/// The highest file descriptor that the child is given: stdin, stdout, stderr, the video, and the
/// pipe for timestamps.
const LAST_FD: RawFd = 4;

/// Restricts this process. `parent` is the process id of the service.
///
/// # Errors
/// Returns a message if a required restriction cannot be applied.
pub(super) fn restrict(mode: Mode, parent: u32, cpu_seconds: u32, program: &Path) -> Result<(), String> {
    end_with_parent(parent)?;
    close_other_files()?;
    set_limits(mode, cpu_seconds)?;
    let report = match restrict_files(mode, program)? {
        FileAccess::LibrariesOnly => "landlock",
        FileAccess::ReadOnly | FileAccess::Unrestricted => "no landlock",
    };
    eprintln!("{REPORT_PREFIX} {report}");
    if mode == Mode::Gpu {
        // Moves a child of root to a new, empty network namespace. A child with a GPU can create
        // Unix sockets and write files in `/proc/self/task`, including files of the network. Only
        // root can create the namespace, and only root can write these files.
        let _ = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET);
    }
    drop_capabilities()?;
    syscalls::restrict(mode)
}

/// Removes the rights of root, such as reading the memory of every process, from a child of root.
/// It does not regain them with the program, because Landlock and seccomp forbid new rights.
fn drop_capabilities() -> Result<(), String> {
    let empty = CapabilitySet::empty();
    let sets = CapabilitySets { effective: empty, permitted: empty, inheritable: empty };
    set_capabilities(None, sets).map_err(|error| format!("cannot drop capabilities: {error}"))
}

/// Prevents processes of the same user from opening the environment, the memory and the files of
/// this process in `/proc`. Debuggers of the same user and core dumps stop working too.
pub(crate) fn hide_from_user() -> std::io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Ends this process with its parent. The signal is sent when the *thread* that started the child
/// ends, so that thread waits for the child.
fn end_with_parent(parent: u32) -> Result<(), String> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| format!("cannot end with the service: {error}"))?;
    // The parent may have ended before the call.
    let current = rustix::process::getppid().map(|id| id.as_raw_nonzero().get().unsigned_abs());
    if current == Some(parent) { Ok(()) } else { Err("the service has ended".into()) }
}

/// Closes the files that a library of the service opened without the flag `O_CLOEXEC`.
fn close_other_files() -> Result<(), String> {
    let entries = std::fs::read_dir("/proc/self/fd")
        .map_err(|error| format!("cannot list the open files in /proc/self/fd: {error}"))?;
    let numbers: Vec<RawFd> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > LAST_FD) {
        // One of them was the listed folder, which is closed already.
        let _ = nix::unistd::close(number);
    }
    Ok(())
}

fn set_limits(mode: Mode, cpu_seconds: u32) -> Result<(), String> {
    let (open_files, memory) = match mode {
        Mode::Cpu => (OPEN_FILES, (Resource::As, ADDRESS_SPACE)),
        Mode::Gpu => (OPEN_FILES_WITH_GPU, (Resource::Data, PRIVATE_MEMORY_WITH_GPU)),
    };
    let limits = [
        (Resource::Core, 0, 0),
        // Writing to any regular file ends the process. Pipes have no size.
        (Resource::Fsize, 0, 0),
        (Resource::Nofile, open_files, open_files),
        // At the first limit, the process receives SIGXCPU, so that the reason is known. At the
        // second one, the kernel kills it.
        (Resource::Cpu, u64::from(cpu_seconds), u64::from(cpu_seconds) + CPU_GRACE),
        (memory.0, memory.1, memory.1),
    ];
    for (resource, current, maximum) in limits {
        let rlimit = Rlimit { current: Some(current), maximum: Some(maximum) };
        rustix::process::setrlimit(resource, rlimit)
            .map_err(|error| format!("cannot limit {resource:?}: {error}"))?;
    }
    Ok(())
}

/// Folders with shared libraries, and the list of libraries that the loader reads.
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
/// The list of its open files, which a child with a GPU can read.
const OWN_OPEN_FILES: &str = "/proc/self/fd";
/// Files of its own threads, which a child with a GPU can write. CUDA fails if it cannot name its
/// threads with `comm` in this folder.
const OWN_THREADS: &str = "/proc/self/task";
/// Contains one folder for each GPU, named by its PCI address.
const NVIDIA_GPUS: &str = "/proc/driver/nvidia/gpus";

/// Allows to execute `program` and to read libraries, and denies every other file, TCP, and signals
/// and abstract sockets to other processes, as far as the kernel can. With [`Mode::Gpu`] it also
/// allows the devices of the driver, [`READ_BY_CUDA`], and some files about the child itself.
///
/// # Errors
/// Returns a message if the kernel has Landlock but rejects the rules, or `program` does not exist,
/// or there is no Landlock with [`Mode::Gpu`].
pub(super) fn restrict_files(mode: Mode, program: &Path) -> Result<FileAccess, String> {
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
            let Ok(descriptor) = PathFd::new(path) else { continue };
            let access = if Path::new(path).is_dir() { execute | AccessFs::ReadDir } else { execute };
            rules = rules.add_rule(PathBeneath::new(descriptor, access))?;
        }
        if mode == Mode::Gpu {
            for (path, access) in gpu_paths() {
                let Ok(descriptor) = PathFd::new(&path) else { continue };
                rules = rules.add_rule(PathBeneath::new(descriptor, access))?;
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
fn gpu_paths() -> impl Iterator<Item = (PathBuf, BitFlags<AccessFs>)> {
    let readable =
        READ_BY_CUDA.iter().chain(&OWN_FILES_READ_BY_CUDA).map(PathBuf::from).chain(numa_node_files());
    let readable = readable.map(|path| {
        let folder: BitFlags<_> = if path.is_dir() { AccessFs::ReadDir.into() } else { BitFlags::empty() };
        (path, folder | AccessFs::ReadFile)
    });
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    readable.chain(gpu_devices().map(move |path| (path, device))).chain([
        (OWN_OPEN_FILES.into(), AccessFs::ReadDir.into()),
        (OWN_THREADS.into(), AccessFs::WriteFile | AccessFs::Truncate),
    ])
}

/// Returns the path of the `numa_node` file of each GPU, which CUDA reads.
fn numa_node_files() -> impl Iterator<Item = PathBuf> {
    let gpus = std::fs::read_dir(NVIDIA_GPUS).into_iter().flatten().flatten();
    // The folders of the devices are symbolic links, and Landlock compares the target.
    gpus.filter_map(|gpu| Path::new("/sys/bus/pci/devices").join(gpu.file_name()).canonicalize().ok())
        .map(|folder| folder.join("numa_node"))
}

/// Returns the devices of NVIDIA's driver that decoding needs. Others observe processes
/// (`nvidia-uvm-tools`), set display modes, or configure the division of a GPU.
fn gpu_devices() -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_str().is_some_and(is_needed_device)).map(|entry| entry.path())
}

fn is_needed_device(device: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    matches!(device, "nvidiactl" | "nvidia-uvm") || device.strip_prefix("nvidia").is_some_and(is_number)
}

#[cfg(test)]
mod tests {
    use super::is_needed_device;

    #[test]
    fn allows_only_devices_needed_for_decoding() {
        for needed in ["nvidiactl", "nvidia-uvm", "nvidia0", "nvidia15"] {
            assert!(is_needed_device(needed), "{needed}");
        }
        for other in ["nvidia", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps", "nvidia0x", "null"] {
            assert!(!is_needed_device(other), "{other}");
        }
    }
}
