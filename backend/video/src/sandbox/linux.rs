//! Applies the restrictions on Linux, in the order in which each is still permitted.

use super::{FileAccess, Mode, REPORT, files, syscalls};
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use std::os::fd::RawFd;
use std::path::Path;

/// Largest address space in bytes: several threads for 4096x2304 pixels need about a quarter.
const ADDRESS_SPACE: u64 = 4 << 30;
/// Maximum writable private memory of a child with a GPU, in bytes. CUDA reserves addresses for all
/// memory of the machine and its GPUs, which a limit of the address space would count.
const PRIVATE_MEMORY_WITH_GPU: u64 = 8 << 30;
/// Maximum number of open files. Eight are in use.
const OPEN_FILES: u64 = 32;
/// The same limit with a GPU. CUDA opens each device several times.
const OPEN_FILES_WITH_GPU: u64 = 256;
/// Seconds of processor time between the signal of the limit and the end by force.
const CPU_GRACE: u64 = 5;
/// The highest file descriptor that the child is given: stdin, stdout, stderr, the video, and the
/// pipe for timestamps.
const LAST_FD: RawFd = 4;

/// Restricts this process. `parent` is the process id of the service.
///
/// # Errors
/// Returns a message if a required restriction cannot be applied.
pub(super) fn restrict(mode: Mode, parent: u32, cpu_seconds: u32, program: &Path) -> Result<(), String> {
    die_with(parent)?;
    close_other_files()?;
    limit(mode, cpu_seconds)?;
    let access = files::restrict(mode, program)?;
    let report = match access {
        FileAccess::LibrariesOnly => "landlock",
        FileAccess::ReadOnly | FileAccess::Unrestricted => "no landlock",
    };
    eprintln!("{REPORT} {report}");
    if mode == Mode::Gpu {
        leave_network();
    }
    drop_capabilities()?;
    syscalls::restrict(mode)
}

/// Gives a child of root a network of its own, which is empty. A child with a GPU can create Unix
/// sockets and write files in `/proc/self/task`, among them files of the network. Only root may do
/// this; other users may not write these files.
fn leave_network() {
    let _ = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET);
}

/// Takes the rights of root, such as reading the memory of every process, from a child of root. It
/// does not regain them with the program, because Landlock and seccomp forbid new rights.
fn drop_capabilities() -> Result<(), String> {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, sets).map_err(|error| format!("cannot drop capabilities: {error}"))
}

/// Prevents processes of the same user from opening the environment, the memory and the files of
/// this process in `/proc`. Debuggers of the same user and core dumps stop working too.
pub(crate) fn hide_from_user() -> std::io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Ends this process with its parent. The signal is sent when the *thread* that started the child
/// ends, so that thread waits for the child.
fn die_with(parent: u32) -> Result<(), String> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| format!("cannot end with the service: {error}"))?;
    // The parent may have ended before the call.
    let current = rustix::process::getppid().map(|id| id.as_raw_nonzero().get().unsigned_abs());
    if current == Some(parent) { Ok(()) } else { Err("the service has ended".into()) }
}

/// Closes the files that a library of the service opened without the flag for closing them.
fn close_other_files() -> Result<(), String> {
    let listed = std::fs::read_dir("/proc/self/fd")
        .map_err(|error| format!("cannot list the open files in /proc/self/fd: {error}"))?;
    let numbers: Vec<RawFd> =
        listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > LAST_FD) {
        // One of them belonged to the listing and is closed already.
        let _ = nix::unistd::close(number);
    }
    Ok(())
}

fn limit(mode: Mode, cpu_seconds: u32) -> Result<(), String> {
    let (open_files, memory) = match mode {
        Mode::Cpu => (OPEN_FILES, (Resource::As, ADDRESS_SPACE)),
        Mode::Gpu => (OPEN_FILES_WITH_GPU, (Resource::Data, PRIVATE_MEMORY_WITH_GPU)),
    };
    let limits = [
        (Resource::Core, 0, 0),
        // Writing to any regular file ends the process. Pipes have no size.
        (Resource::Fsize, 0, 0),
        (Resource::Nofile, open_files, open_files),
        // At the first limit, the process gets SIGXCPU, so that its end has a reason. At the second
        // one, the kernel kills it.
        (Resource::Cpu, u64::from(cpu_seconds), u64::from(cpu_seconds) + CPU_GRACE),
        (memory.0, memory.1, memory.1),
    ];
    for (resource, current, maximum) in limits {
        let both = Rlimit { current: Some(current), maximum: Some(maximum) };
        rustix::process::setrlimit(resource, both)
            .map_err(|error| format!("cannot limit {resource:?}: {error}"))?;
    }
    Ok(())
}
