//! Restricts the system calls of the child with seccomp, to a list of those that ffmpeg needs.
//!
//! Other calls fail with `EPERM`, except `clone3` (`ENOSYS`) and, with a GPU,
//! [`NOT_FOUND_WITH_GPU`] (`ENOENT`). The lists come from traces of ffmpeg 7.0 and 9.0 for each
//! accepted codec, and of ffmpeg 9.0 on an H100 and an H200 with driver 580 for H.264.

use super::Mode;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};
use std::collections::BTreeMap;

/// Calls that are allowed with any arguments.
const ALLOWED: &[i64] = &[
    // The program and its memory.
    libc::SYS_execve,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Open files.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_ppoll,
    // Threads.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Handling of its own signals.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // Clocks and facts about the machine.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    // Calls that only x86-64 has: thread-local storage, and waiting for files.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_arch_prctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// Calls that fail with `ENOSYS`. The C library then uses `clone`, whose flags a filter can read.
const NOT_IMPLEMENTED: &[i64] = &[libc::SYS_clone3];

/// Further calls of CUDA. None of them changes another process or sends anything. The calls that
/// read priorities show whether a process with a given number exists.
const ALLOWED_WITH_GPU: &[i64] = &[
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_getcwd,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_get_mempolicy,
    libc::SYS_mbind,
    libc::SYS_mincore,
    libc::SYS_membarrier,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_getparam,
    libc::SYS_getpriority,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    // CUDA fails if it cannot listen on a socket. All are Unix sockets. Landlock denies creating
    // socket files, so only abstract names can be bound. `accept` is not in the list.
    libc::SYS_bind,
    libc::SYS_listen,
];

/// Calls that fail with `ENOENT` in a child with a GPU. CUDA continues after this error, but fails
/// after `EPERM`.
const NOT_FOUND_WITH_GPU: &[i64] = &[
    // CUDA connects to the control daemon of NVIDIA's Multi-Process Service, and works without it.
    libc::SYS_connect,
    // CUDA calls `unlink("")` at its start. A decoder cannot delete files.
    libc::SYS_unlinkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
];

/// Applies the list.
///
/// # Errors
/// Returns a message if the kernel rejects it, or the processor is neither x86-64 nor arm64.
pub(super) fn restrict(mode: Mode) -> Result<(), String> {
    let apply = || {
        // A filter returns only one error, so each error needs a filter. The filter with the
        // allowed calls is the last one, because it forbids further filters.
        fail_with(libc::ENOSYS, NOT_IMPLEMENTED)?;
        if mode == Mode::Gpu {
            fail_with(libc::ENOENT, NOT_FOUND_WITH_GPU)?;
        }
        // The last filter allows the calls that an earlier filter rejects. Otherwise its `EPERM`
        // would replace their error.
        let gpu_calls: [&[i64]; 2] = match mode {
            Mode::Cpu => [&[], &[]],
            Mode::Gpu => [ALLOWED_WITH_GPU, NOT_FOUND_WITH_GPU],
        };
        let calls = ALLOWED.iter().chain(NOT_IMPLEMENTED).chain(gpu_calls.into_iter().flatten());
        let mut rules: Rules = calls.map(|call| (*call, Vec::new())).chain(conditional_calls()?).collect();
        if mode == Mode::Gpu {
            rules.extend(conditional_gpu_calls()?);
        }
        install(rules, SeccompAction::Errno(libc::EPERM.unsigned_abs()), SeccompAction::Allow)
    };
    apply().map_err(|error: Box<dyn std::error::Error>| {
        let cause = if super::has_seccomp_filter() {
            "; a filter of system calls around the service forbids it (with systemd, allow `seccomp` in SystemCallFilter)"
        } else {
            ""
        };
        format!("cannot restrict system calls: {error}{cause}")
    })
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;
type FilterResult<T> = Result<T, Box<dyn std::error::Error>>;

/// Installs a filter with which `calls` fail with `error`.
fn fail_with(error: libc::c_int, calls: &[i64]) -> FilterResult<()> {
    let action = SeccompAction::Errno(error.unsigned_abs());
    let calls = calls.iter().map(|call| (*call, Vec::new())).collect();
    install(calls, SeccompAction::Allow, action)
}

fn install(rules: Rules, default_action: SeccompAction, action: SeccompAction) -> FilterResult<()> {
    let architecture = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, default_action, action, architecture)?;
    Ok(apply_filter(&BpfProgram::try_from(filter)?)?)
}

/// Returns the calls that are allowed only with certain arguments.
fn conditional_calls() -> FilterResult<Vec<(i64, Vec<SeccompRule>)>> {
    let any_of = |argument, values: &[libc::c_int]| -> FilterResult<Vec<SeccompRule>> {
        values.iter().map(|value| rule(argument, SeccompCmpOp::Eq, value.unsigned_abs().into())).collect()
    };
    let writing = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND;
    let thread = libc::CLONE_THREAD.unsigned_abs().into();
    Ok(vec![
        // Opening a file for reading.
        (libc::SYS_openat, vec![rule(2, SeccompCmpOp::MaskedEq(writing.unsigned_abs().into()), 0)?]),
        // Starting a thread, but not a process.
        (libc::SYS_clone, vec![rule(0, SeccompCmpOp::MaskedEq(thread), thread)?]),
        // Setting the name of a thread.
        (libc::SYS_prctl, any_of(0, &[libc::PR_SET_NAME])?),
        // Reading a limit. A process of root could raise it.
        (libc::SYS_prlimit64, vec![rule(2, SeccompCmpOp::Eq, 0)?]),
        (
            libc::SYS_fcntl,
            any_of(1, &[libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL, libc::F_DUPFD_CLOEXEC])?,
        ),
    ])
}

/// Returns the calls that a child with a GPU may make only with certain arguments.
///
/// The allowed numbers of `ioctl` are those of NVIDIA's driver. For the devices of GPUs, they have
/// the type `F` (`nv-ioctl.h`). For `/dev/nvidia-uvm`, they are below 256, except two
/// (`uvm_ioctl.h`, `uvm_linux_ioctl.h`). <https://github.com/NVIDIA/open-gpu-kernel-modules>. The
/// numbers of terminals, sockets and other files have other types.
fn conditional_gpu_calls() -> FilterResult<Vec<(i64, Vec<SeccompRule>)>> {
    const TYPE: u64 = 0xff00;
    const TYPE_OF_GPUS: u64 = 0x4600;
    const NOT_A_BYTE: u64 = 0xffff_ff00;
    const UVM_INITIALIZE: u64 = 0x3000_0001;
    const UVM_DEINITIALIZE: u64 = 0x3000_0002;
    let creating = libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND;
    // The flags with which `fopen` opens a file for writing. CUDA writes the names of its threads
    // in this way. Landlock prevents the creation of files.
    let fopen_flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC;
    let all_but_cloexec = !libc::O_CLOEXEC.unsigned_abs();
    let process_id = std::process::id();
    Ok(vec![
        // Files may be opened for reading and writing. Landlock decides which files.
        (
            libc::SYS_openat,
            vec![
                rule(2, SeccompCmpOp::MaskedEq(creating.unsigned_abs().into()), 0)?,
                rule(2, SeccompCmpOp::MaskedEq(all_but_cloexec.into()), fopen_flags.unsigned_abs().into())?,
            ],
        ),
        (
            libc::SYS_socket,
            vec![all_of([
                (0, SeccompCmpOp::Eq, libc::AF_UNIX.unsigned_abs().into()),
                (1, SeccompCmpOp::Eq, (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC).unsigned_abs().into()),
            ])?],
        ),
        (
            libc::SYS_setsockopt,
            vec![all_of([
                (1, SeccompCmpOp::Eq, libc::SOL_SOCKET.unsigned_abs().into()),
                (2, SeccompCmpOp::Eq, libc::SO_PASSCRED.unsigned_abs().into()),
            ])?],
        ),
        // Setting its own priority, which it can only lower.
        (
            libc::SYS_setpriority,
            vec![
                all_of([(0, SeccompCmpOp::Eq, 0), (1, SeccompCmpOp::Eq, 0)])?,
                all_of([(0, SeccompCmpOp::Eq, 0), (1, SeccompCmpOp::Eq, process_id.into())])?,
            ],
        ),
        (
            libc::SYS_ioctl,
            vec![
                rule(1, SeccompCmpOp::MaskedEq(TYPE), TYPE_OF_GPUS)?,
                rule(1, SeccompCmpOp::MaskedEq(NOT_A_BYTE), 0)?,
                rule(1, SeccompCmpOp::Eq, UVM_INITIALIZE)?,
                rule(1, SeccompCmpOp::Eq, UVM_DEINITIALIZE)?,
            ],
        ),
    ])
}

/// Compares an argument with `value`. A mask selects the bits that count.
fn rule(argument: u8, comparison: SeccompCmpOp, value: u64) -> FilterResult<SeccompRule> {
    all_of([(argument, comparison, value)])
}

/// Compares several arguments. All comparisons must be true.
fn all_of<const N: usize>(comparisons: [(u8, SeccompCmpOp, u64); N]) -> FilterResult<SeccompRule> {
    let conditions = comparisons.into_iter().map(|(argument, comparison, value)| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Qword, comparison, value)
    });
    Ok(SeccompRule::new(conditions.collect::<Result<_, _>>()?)?)
}
