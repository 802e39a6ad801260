//! Starts ffmpeg and reads its pipes until it stalls, its processor time is used up, or the caller
//! cancels.
use crate::cpu::{CpuBudget, CpuClock};
use crate::error::VideoError;
use crate::messages::Messages;
use crate::sandbox;
use command_fds::{CommandFdExt, FdMapping};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// File descriptor of the video in the child.
pub(crate) const VIDEO_FD: i32 = 3;
/// File descriptor of the pipe for timestamps in the child.
const TIMES_FD: i32 = 4;
/// Requested size of the pipe for pixels in bytes. The default of 64 KiB holds 1 % of a frame.
const PIPE_BYTES: usize = 1 << 20;

/// Number of bytes that are read from that pipe at a time.
const BUFFER: usize = 1 << 18;

/// Time between two checks whether a process has exited, and the number of checks.
const EXIT_CHECK_INTERVAL: Duration = Duration::from_millis(5);
const EXIT_CHECKS: u32 = 1_000;

/// How the service starts ffmpeg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Through a program that calls [`run_child`](crate::sandbox::run_child).
    Sandbox {
        /// The program, usually that of the service itself.
        program: PathBuf,
        /// Arguments before those of the sandbox.
        arguments: Vec<OsString>,
    },
    /// Without restrictions.
    Direct,
}

pub(crate) struct ProcessConfig<'a> {
    pub(crate) launcher: &'a Launcher,
    pub(crate) program: &'a Path,
    pub(crate) arguments: &'a [String],
    /// The file that the process has as [`VIDEO_FD`].
    pub(crate) video: Option<File>,
    /// The environment of a process that decodes on a GPU.
    pub(crate) gpu: Option<&'a [(&'static str, OsString)]>,
}

/// The limits of a process.
#[derive(Clone, Debug)]
pub(crate) struct ProcessLimits {
    /// The processor time that the process shares with the other processes of the video.
    pub(crate) budget: CpuBudget,
    /// Longest time in which the process neither writes output nor uses the processor.
    pub(crate) stall_timeout: Duration,
    pub(crate) cancelled: Option<Cancelled>,
}

/// A running ffmpeg. Dropping it kills the process and waits for its exit.
pub(crate) struct Process {
    child: Child,
    pub(crate) pixels: BufReader<WatchedPipe<ChildStdout>>,
    pub(crate) times: BufReader<WatchedPipe<PipeReader>>,
    messages: Option<JoinHandle<Messages>>,
    clock: Option<CpuClock>,
    /// Limit of processor time of this process.
    cpu_limit: Duration,
    limits: ProcessLimits,
}

impl Process {
    /// Starts a process. The calling thread must live as long as the process: the kernel kills the
    /// process when that thread ends.
    pub(crate) fn start(config: ProcessConfig<'_>, limits: ProcessLimits) -> Result<Self, VideoError> {
        let ProcessConfig { launcher, program, arguments, video, gpu } = config;
        let cpu_seconds = limits.budget.seconds_left()?;
        let mut command = match launcher {
            Launcher::Direct => Command::new(program),
            Launcher::Sandbox { program: wrapper, arguments: wrapper_arguments } => {
                let mut command = Command::new(wrapper);
                command.args(wrapper_arguments).args(gpu.map(|_| sandbox::GPU_ARGUMENT));
                command.arg(std::process::id().to_string()).arg(cpu_seconds.to_string()).arg(program);
                command
            }
        };
        let (times, times_writer) = io::pipe()?;
        let mut files = vec![FdMapping { parent_fd: times_writer.into(), child_fd: TIMES_FD }];
        if let Some(video) = video {
            files.push(FdMapping { parent_fd: OwnedFd::from(video), child_fd: VIDEO_FD });
        }
        command.fd_mappings(files).map_err(|_| VideoError::Output("two pipes with one descriptor"))?;
        command.args(arguments).env_clear().envs(gpu.into_iter().flatten().cloned()).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        // Closes this process's copies of the child's ends. Otherwise the pipes would never end.
        drop(command);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (Some(stdout), Some(stderr)) = (stdout, stderr) else {
            return Err(VideoError::Output("no pipes"));
        };
        // Only the speed depends on this call. It fails if the user has reached the limit for
        // pipes.
        #[cfg(target_os = "linux")]
        let _ = rustix::pipe::fcntl_setpipe_size(&stdout, PIPE_BYTES);
        let messages = std::thread::spawn(move || Messages::read(stderr));
        let clock = CpuClock::new(child.id());
        let watch = Watch { stall_timeout: limits.stall_timeout, clock, cancelled: limits.cancelled.clone() };
        Ok(Self {
            child,
            pixels: BufReader::with_capacity(BUFFER, WatchedPipe { pipe: stdout, watch: watch.clone() }),
            times: BufReader::new(WatchedPipe { pipe: times, watch }),
            messages: Some(messages),
            clock,
            cpu_limit: Duration::from_secs(cpu_seconds.into()),
            limits,
        })
    }

    /// Waits for the exit of the process, and returns its status and its processor time. A process
    /// that has closed its output has no more work, so it is killed after some seconds.
    fn wait(&mut self) -> io::Result<(ExitStatus, Option<Duration>)> {
        for _ in 0..EXIT_CHECKS {
            if self.has_exited() {
                return self.reap();
            }
            std::thread::sleep(EXIT_CHECK_INTERVAL);
        }
        self.child.kill()?;
        self.reap()
    }

    /// Returns whether the process has exited. Its process id remains valid.
    fn has_exited(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.pid().is_none_or(|pid| !matches!(waitid(WaitId::Pid(pid), options), Ok(None)))
    }

    /// Waits for the process, and counts its processor time, which cannot be measured afterwards.
    fn reap(&mut self) -> io::Result<(ExitStatus, Option<Duration>)> {
        let clock = self.clock.take();
        if let (Some(_), Some(pid)) = (clock, self.pid()) {
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        }
        let used = clock.and_then(CpuClock::read);
        self.limits.budget.spend(used.unwrap_or_default());
        Ok((self.child.wait()?, used))
    }

    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    /// Returns the processor time that the process has used.
    pub(crate) fn processor_time(&self) -> Option<Duration> {
        self.clock.and_then(CpuClock::read)
    }

    /// Ends the process, and returns its messages so far.
    pub(crate) fn stop(mut self) -> Messages {
        self.kill();
        self.join_messages()
    }

    fn kill(&mut self) {
        // Both calls fail if the process has already exited.
        let _ = self.child.kill();
        let _ = self.reap();
    }

    fn join_messages(&mut self) -> Messages {
        self.messages.take().and_then(|reader| reader.join().ok()).unwrap_or_default()
    }

    pub(crate) fn read_error(&self, error: io::Error) -> VideoError {
        match error.kind() {
            io::ErrorKind::TimedOut => VideoError::Stalled(self.limits.stall_timeout),
            CANCELLED => VideoError::Cancelled,
            io::ErrorKind::InvalidData => VideoError::Output("not an image"),
            _ => VideoError::Io(error),
        }
    }

    /// Waits for the end of a process whose output was read to the end, and returns its messages.
    ///
    /// # Errors
    /// Fails if the processor time was used up, if something killed the process, or if the sandbox
    /// failed.
    pub(crate) fn finish(mut self) -> Result<(ExitStatus, Messages), VideoError> {
        let (status, used) = self.wait()?;
        let messages = self.join_messages();
        if let Some(failure) = &messages.sandbox_failure {
            return Err(VideoError::Unavailable(format!("the sandbox of the decoder failed: {failure}")));
        }
        // ffmpeg ends with an ordinary status after SIGXCPU, so the measured time decides too.
        let is_used_up = used.is_some_and(|used| used >= self.cpu_limit);
        match status.signal().and_then(Signal::from_named_raw) {
            Some(Signal::XCPU) => Err(self.limits.budget.exceeded()),
            _ if is_used_up && !status.success() => Err(self.limits.budget.exceeded()),
            Some(Signal::KILL) => Err(VideoError::Killed),
            _ => Ok((status, messages)),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Cancels when it is dropped: processes of its decoder end, and calls fail with
/// [`VideoError::Cancelled`](crate::VideoError::Cancelled). See
/// [`Decoder::cancellable`](crate::Decoder::cancellable).
#[derive(Debug)]
pub struct CancelOnDrop {
    _end: PipeWriter,
}

/// Signals the cancellation to readers of pipes: this pipe becomes readable.
#[derive(Clone, Debug)]
pub(crate) struct Cancelled(Arc<PipeReader>);

pub(crate) fn cancellation_pair() -> io::Result<(CancelOnDrop, Cancelled)> {
    let (reader, writer) = io::pipe()?;
    Ok((CancelOnDrop { _end: writer }, Cancelled(Arc::new(reader))))
}

impl AsFd for Cancelled {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The kind of error after a cancellation.
const CANCELLED: io::ErrorKind = io::ErrorKind::ConnectionAborted;
/// A child that uses less than 1/20 of one processor has stalled. A decoder that reads a file from
/// a slow disk waits too, but for a shorter time.
const STALL_DIVISOR: u32 = 20;

/// The conditions that end a read of a pipe.
#[derive(Clone, Debug)]
struct Watch {
    /// Longest time in which nothing arrives and the child does not use the processor.
    stall_timeout: Duration,
    clock: Option<CpuClock>,
    cancelled: Option<Cancelled>,
}

/// A pipe whose reads fail with `TimedOut` when the child has stalled, and with [`CANCELLED`] when
/// the caller cancels. A child can work for minutes without output, because it decodes all frames
/// between two selected ones. Its processor time has a separate limit.
pub(crate) struct WatchedPipe<P> {
    pipe: P,
    watch: Watch,
}

impl<P: AsFd + Read> Read for WatchedPipe<P> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let watch = &self.watch;
        let time = Timespec::try_from(watch.stall_timeout).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        let used = || watch.clock.and_then(CpuClock::read);
        let mut before = used();
        loop {
            let mut polled = vec![PollFd::new(&self.pipe, PollFlags::IN)];
            polled.extend(watch.cancelled.as_ref().map(|end| PollFd::new(end, PollFlags::IN)));
            match poll(&mut polled, Some(&time)) {
                Ok(0) => {
                    let now = used();
                    let used = now.zip(before).map(|(now, before)| now.saturating_sub(before));
                    if used.is_none_or(|used| used < watch.stall_timeout / STALL_DIVISOR) {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    before = now;
                }
                Ok(_) if polled.get(1).is_some_and(|end| !end.revents().is_empty()) => {
                    return Err(CANCELLED.into());
                }
                Ok(_) => return self.pipe.read(buffer),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Returns a file in memory with these bytes.
pub(crate) fn memory_file(bytes: &[u8]) -> io::Result<File> {
    #[cfg(target_os = "linux")]
    let mut file = File::from(rustix::fs::memfd_create("image", rustix::fs::MemfdFlags::CLOEXEC)?);
    // Other systems have no files in memory.
    #[cfg(not(target_os = "linux"))]
    let mut file = tempfile::tempfile()?;
    file.write_all(bytes)?;
    Ok(file)
}
