//! Starts ffmpeg and reads its pipes, with a time limit.

use crate::error::VideoError;
use crate::messages::Messages;
use command_fds::{CommandFdExt, FdMapping};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, PipeReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

/// File descriptor of the video in the child.
pub(crate) const VIDEO_FD: i32 = 3;
/// File descriptor of the pipe for timestamps in the child.
const TIMES_FD: i32 = 4;
/// Wanted size of the pipe for pixels in bytes. The default of 64 KiB holds 1 % of a frame.
const PIPE_BYTES: usize = 1 << 20;

/// Number of bytes that are read from that pipe at a time.
const BUFFER: usize = 1 << 18;

/// Time between two checks whether a process has ended, and their number.
const ENDING_STEP: Duration = Duration::from_millis(5);
const ENDING_STEPS: u32 = 1_000;

/// How the service starts ffmpeg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Through a program that calls [`run_child`](crate::sandbox::run_child), with these first
    /// arguments.
    Sandbox {
        /// The program, usually that of the service itself.
        program: PathBuf,
        /// Arguments before those of the sandbox.
        arguments: Vec<OsString>,
    },
    /// Without restrictions.
    Direct,
}

/// A running ffmpeg. Dropping it kills the process and waits for its end.
pub(crate) struct Process {
    child: Child,
    pub(crate) pixels: BufReader<TimedPipe<ChildStdout>>,
    pub(crate) times: BufReader<TimedPipe<PipeReader>>,
    messages: Option<JoinHandle<Messages>>,
    cpu_limit: Duration,
    patience: Duration,
}

impl Process {
    /// Starts `program` with `arguments`, with `video` as its file [`VIDEO_FD`].
    ///
    /// The calling thread must live as long as the process: the kernel kills the process when that
    /// thread ends.
    pub(crate) fn start(
        launcher: &Launcher,
        program: &std::path::Path,
        arguments: &[String],
        video: Option<File>,
        (cpu_limit, patience): (Duration, Duration),
    ) -> Result<Self, VideoError> {
        let mut command = match launcher {
            Launcher::Direct => Command::new(program),
            Launcher::Sandbox { program: own, arguments: first } => {
                let mut command = Command::new(own);
                command.args(first).arg(std::process::id().to_string());
                command.arg(cpu_limit.as_secs().max(1).to_string()).arg(program);
                command
            }
        };
        let (times, times_end) = io::pipe()?;
        let mut files = vec![FdMapping { parent_fd: times_end.into(), child_fd: TIMES_FD }];
        if let Some(video) = video {
            files.push(FdMapping { parent_fd: OwnedFd::from(video), child_fd: VIDEO_FD });
        }
        command.fd_mappings(files).map_err(|_| VideoError::Output("two pipes with one number"))?;
        command.args(arguments).env_clear().current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        // Closes this process's copies of the child's ends. Otherwise the pipes would never end.
        drop(command);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (Some(stdout), Some(stderr)) = (stdout, stderr) else {
            return Err(VideoError::Output("no pipes"));
        };
        // Only speed depends on it. An unprivileged user may have used up the limit for pipes.
        #[cfg(target_os = "linux")]
        let _ = rustix::pipe::fcntl_setpipe_size(&stdout, PIPE_BYTES);
        let messages = std::thread::spawn(move || Messages::read(stderr));
        Ok(Self {
            child,
            pixels: BufReader::with_capacity(BUFFER, TimedPipe { pipe: stdout, patience }),
            times: BufReader::new(TimedPipe { pipe: times, patience }),
            messages: Some(messages),
            cpu_limit,
            patience,
        })
    }

    /// Waits for the end of the process. A process that has closed its output has nothing left to
    /// do, so it is killed after a while.
    fn wait(&mut self) -> io::Result<ExitStatus> {
        for _ in 0..ENDING_STEPS {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(ENDING_STEP);
        }
        self.child.kill()?;
        self.child.wait()
    }

    /// Ends the process, and returns its messages so far.
    pub(crate) fn stop(mut self) -> Messages {
        self.kill();
        self.take_messages()
    }

    fn kill(&mut self) {
        // Both fail if the process has ended, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns the messages of a process that has ended.
    fn take_messages(&mut self) -> Messages {
        self.messages.take().and_then(|reader| reader.join().ok()).unwrap_or_default()
    }

    /// Describes a failure to read from a pipe.
    pub(crate) fn read_error(&self, error: io::Error) -> VideoError {
        match error.kind() {
            io::ErrorKind::TimedOut => VideoError::Stalled(self.patience),
            io::ErrorKind::InvalidData => VideoError::Output("not an image"),
            _ => VideoError::Io(error),
        }
    }

    /// Waits for the end of a process whose output was read to the end, and returns its messages.
    ///
    /// # Errors
    /// Fails if the kernel ended the process, or if the sandbox failed.
    pub(crate) fn finish(mut self) -> Result<(ExitStatus, Messages), VideoError> {
        let status = self.wait()?;
        let messages = self.take_messages();
        if let Some(failure) = &messages.sandbox_failure {
            return Err(VideoError::Unavailable(format!("the sandbox of the decoder failed: {failure}")));
        }
        const SIGXCPU: i32 = 24;
        match status.signal() {
            // At the hard limit, which equals the soft one, the kernel may send SIGKILL instead.
            Some(SIGXCPU | 9) => Err(VideoError::CpuLimit(self.cpu_limit)),
            _ => Ok((status, messages)),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A pipe whose reads fail with `TimedOut` when nothing arrives for `patience`.
pub(crate) struct TimedPipe<P> {
    pipe: P,
    patience: Duration,
}

impl<P: AsFd + Read> Read for TimedPipe<P> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let time = Timespec::try_from(self.patience).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        loop {
            let mut waiting = [PollFd::new(&self.pipe, PollFlags::IN)];
            match poll(&mut waiting, Some(&time)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => return self.pipe.read(buffer),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
