//! Restricts itself and becomes ffmpeg, for the tests of this crate. With `--without-landlock` as
//! its first argument, it does so as on a kernel without Landlock.

fn main() -> std::process::ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    #[cfg(target_os = "linux")]
    if arguments.next_if(|first| first == "--without-landlock").is_some() {
        hide_landlock().expect("a filter for system calls");
    }
    video::sandbox::run_child(arguments)
}

/// Makes the system calls of Landlock fail as on an older kernel.
#[cfg(target_os = "linux")]
fn hide_landlock() -> Result<(), Box<dyn std::error::Error>> {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
    let calls = [libc::SYS_landlock_create_ruleset, libc::SYS_landlock_restrict_self];
    let filter = SeccompFilter::new(
        calls.map(|call| (call, Vec::new())).into(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS.unsigned_abs()),
        std::env::consts::ARCH.try_into()?,
    )?;
    Ok(apply_filter(&BpfProgram::try_from(filter)?)?)
}
