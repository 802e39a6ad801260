//! Restricts the process that decodes: it can only read the video file and write to its pipes.
//!
//! The service starts itself again with [`run_child`], which applies the restrictions and then
//! replaces itself by ffmpeg. Code that an attacker runs through a fault in a codec therefore:
//!
//! - can open only system libraries (Landlock), and can write no file (seccomp);
//! - has no network, and no access to other processes, and can start no process (seccomp);
//! - has an empty environment, and no open file except the video and the pipes;
//! - has limits for memory and processor time, and ends when its parent ends;
//! - has no rights of root, even if the service runs as root.
//!
//! Seccomp is required. Landlock is used if the kernel has it ([`FileAccess`]). Without Landlock,
//! such code could read files that the user of the service can read, but could send them only in
//! its frames. The service's process then hides its environment, its memory and its open files.
//! Other processes of the same user remain visible.
//!
//! The number of threads has no separate limit: the kernel counts the threads of all processes of a
//! user together, and does not count those of root. The limits of memory and processor time apply
//! to all threads together.
//!
//! A child that decodes on a GPU ([`Mode::Gpu`]) needs the driver, and therefore has more rights.
//! It can read and write `/dev/nvidia*`, read information about the driver and itself in `/proc`
//! and `/sys`, name its threads, call `ioctl` with the numbers of NVIDIA's driver, and wait on a
//! Unix socket, but accept no connection. Its limit of memory does not count reserved addresses,
//! because CUDA reserves many. It never runs without Landlock, because it can open files for
//! writing. Its list of files and system calls was tested on an H100 with driver 580.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod syscalls;

use std::ffi::OsString;
use std::process::ExitCode;

/// The argument after which the program is the child of a decoder; see [`run_child`].
pub const ARGUMENT: &str = "decode-child";
/// Exit status of a child that could not restrict itself or start ffmpeg.
const FAILURE_STATUS: u8 = 126;
/// Prefix of the line on stderr that reports the restrictions.
pub(crate) const REPORT_PREFIX: &str = "facecrawl sandbox:";

/// First argument of a child that decodes on a GPU.
pub(crate) const GPU_ARGUMENT: &str = "gpu";
/// Environment variables that such a child keeps. They determine how CUDA numbers the GPUs. Without
/// them, the child would use other GPUs than the service.
pub const GPU_VARIABLES: [&str; 2] = ["CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"];

/// The device on which the child decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Cpu,
    Gpu,
}

/// How far the child's access to files is restricted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// Only system libraries can be opened (Landlock).
    LibrariesOnly,
    /// The kernel has no Landlock: files can be read, but not written.
    ReadOnly,
    /// `VIDEO_SANDBOX=false`: there is no sandbox.
    Unrestricted,
}

/// Restricts this process and becomes ffmpeg. `arguments` are those that
/// [`Launcher`](crate::Launcher) passes: `gpu` for a child that decodes on a GPU, process id of the
/// parent, limit of processor time in seconds, program, arguments of the program.
///
/// It must run before other threads exist. It returns only on failure, after a message on stderr.
pub fn run_child(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    eprintln!("{REPORT_PREFIX} error: {}", become_program(arguments));
    ExitCode::from(FAILURE_STATUS)
}

#[cfg(target_os = "linux")]
fn become_program(arguments: impl Iterator<Item = OsString>) -> String {
    use std::os::unix::process::CommandExt;
    let mut arguments = arguments.peekable();
    let mode = if arguments.next_if(|first| first == GPU_ARGUMENT).is_some() { Mode::Gpu } else { Mode::Cpu };
    let mut number = || arguments.next()?.to_str()?.parse::<u32>().ok();
    let (Some(parent), Some(cpu_seconds)) = (number(), number()) else {
        return format!("{ARGUMENT} is for the service itself; use `facecrawl detect FILE`");
    };
    let Some(program) = arguments.next() else { return "no program".into() };
    let mut command = std::process::Command::new(&program);
    command.args(arguments).env_clear();
    if mode == Mode::Gpu {
        // Prevents CUDA from searching for a folder for compiled code.
        command.env("CUDA_CACHE_DISABLE", "1");
        command.envs(GPU_VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    }
    if let Err(error) = linux::restrict(mode, parent, cpu_seconds, program.as_ref()) {
        return error;
    }
    let error = command.exec();
    format!("cannot start {}: {error}", program.display())
}

/// Returns whether a filter of system calls (seccomp) applies to this process, such as that of a
/// systemd unit or a container.
pub fn has_seccomp_filter() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"]))
}

/// Hides this process from children that can open any file of its user.
pub(crate) fn hide_from_user() -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    linux::hide_from_user()?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn become_program(_: impl Iterator<Item = OsString>) -> String {
    "this system has no sandbox for decoders; set VIDEO_SANDBOX=false to decode without one".into()
}
