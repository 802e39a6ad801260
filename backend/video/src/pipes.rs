//! Reads pipes of a child until the child stops working, or the caller cancels.

use crate::cancel::Cancelled;
use crate::cpu::CpuClock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::Duration;

/// The kind of error after a cancellation.
pub(crate) const CANCELLED: io::ErrorKind = io::ErrorKind::ConnectionAborted;
/// A child works if it uses at least this share of one processor: 5 %. A decoder that reads a file
/// from a slow disk waits, but not for so long.
const WORKING_SHARE: u32 = 20;

/// Until when a pipe is read.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    /// Longest time in which nothing arrives and the child does not work.
    pub(crate) patience: Duration,
    pub(crate) clock: Option<CpuClock>,
    pub(crate) cancelled: Option<Cancelled>,
}

impl Watch {
    fn used(&self) -> Option<Duration> {
        self.clock.and_then(CpuClock::read)
    }
}

/// A pipe whose reads fail with `TimedOut` when the child neither writes nor works, and with
/// [`CANCELLED`] when the caller cancels. A child can work for minutes without output: all frames
/// between two that are selected are decoded. Its processor time has a limit of its own.
pub(crate) struct WatchedPipe<P> {
    pub(crate) pipe: P,
    pub(crate) watch: Watch,
}

impl<P: AsFd + Read> Read for WatchedPipe<P> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let watch = &self.watch;
        let time = Timespec::try_from(watch.patience).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        let mut before = watch.used();
        loop {
            let mut waiting = vec![PollFd::new(&self.pipe, PollFlags::IN)];
            waiting.extend(watch.cancelled.as_ref().map(|end| PollFd::new(end, PollFlags::IN)));
            match poll(&mut waiting, Some(&time)) {
                Ok(0) => {
                    let now = watch.used();
                    let used = now.zip(before).map(|(now, before)| now.saturating_sub(before));
                    if used.is_none_or(|used| used < watch.patience / WORKING_SHARE) {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    before = now;
                }
                Ok(_) if waiting.get(1).is_some_and(|end| !end.revents().is_empty()) => {
                    return Err(CANCELLED.into());
                }
                Ok(_) => return self.pipe.read(buffer),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
