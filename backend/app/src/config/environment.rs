//! Restarts the program with variables that its libraries read while they load.
//!
//! A process cannot safely change its own environment.

/// The variable that disables the telemetry of ONNX Runtime. From version 1.31, its library for
/// Linux writes a device ID and a database for events to the user's cache folder while it loads,
/// before a program can switch its telemetry off.
#[cfg(unix)]
const NO_TELEMETRY: (&str, &str) = ("ORT_DISABLE_TELEMETRY", "1");

/// Settings of glibc's allocator, unless the user sets them. Child processes, such as Postgres,
/// inherit them.
///
/// Without the first two, glibc keeps the memory of images and frames for each thread, and does not
/// return it to the system. Without the third, it returns free memory as soon as there are 128 KiB
/// of it. The program soon needs this memory again, and the page faults then take up to a tenth of
/// the processor time (docs/how-to/SIZING.md).
#[cfg(unix)]
const ALLOCATOR: [(&str, &str); 3] = [
    ("MALLOC_ARENA_MAX", "2"),
    ("MALLOC_MMAP_THRESHOLD_", "8388608"),
    ("MALLOC_TRIM_THRESHOLD_", "16777216"),
];

/// Starts the program again with the variables above, unless it has them. The process keeps its ID,
/// and nothing is lost if this is called before anything else.
#[cfg(unix)]
pub fn restart_with_library_settings() {
    use std::os::unix::process::CommandExt;

    let unset = |(name, _): &(&str, &str)| std::env::var_os(name).is_none();
    let mut missing: Vec<_> = ALLOCATOR.into_iter().filter(unset).collect();
    let (name, value) = NO_TELEMETRY;
    missing.extend(std::env::var_os(name).is_none_or(|set| set != value).then_some(NO_TELEMETRY));
    if missing.is_empty() {
        return;
    }
    let mut arguments = std::env::args_os();
    let program_name = arguments.next();
    let error = match std::env::current_exe() {
        Ok(program) => {
            let mut command = std::process::Command::new(program);
            if let Some(program_name) = program_name {
                command.arg0(program_name);
            }
            command.args(arguments).envs(missing).exec()
        }
        Err(error) => error,
    };
    eprintln!(
        "warning: cannot restart with {name}={value} ({error}); set it, or ONNX Runtime writes a device ID"
    );
}

/// Does nothing: only systems with `exec` can restart a program in its place.
#[cfg(not(unix))]
pub fn restart_with_library_settings() {}
