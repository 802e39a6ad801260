//! Wraps a connection so that writes fail when the peer reads too slowly. This module does not
//! limit reads.
use hyper::rt::{Read, ReadBufCursor, Write};
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Rate at which written data earns waiting time, in bytes per second. A slower reader is
/// eventually disconnected.
const MIN_READ_RATE: u32 = 16 << 10;

/// Fails a write if the peer reads too slowly.
///
/// A connection has at most `patience` of waiting time. Every written byte restores waiting time,
/// at [`MIN_READ_RATE`] bytes per second. A reader that only occasionally reads one byte therefore
/// cannot keep the connection open.
pub(crate) struct WriteStallGuard<T> {
    inner: T,
    patience: Duration,
    left: Duration,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl<T> WriteStallGuard<T> {
    pub(crate) fn new(inner: T, patience: Duration) -> Self {
        Self { inner, patience, left: patience, waiting: None }
    }

    /// Accounts for the result of a write. A pending write fails when the waiting time is used up.
    fn note(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let Poll::Ready(done) = written else {
            let left = self.left;
            let (_, timer) =
                self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(left))));
            ready!(timer.as_mut().poll(cx));
            return Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, "the other end reads too slowly")));
        };
        if let Some((since, _)) = self.waiting.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
        if let Ok(bytes) = done {
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            let earned = Duration::from_secs_f64(f64::from(bytes) / f64::from(MIN_READ_RATE));
            self.left = self.left.saturating_add(earned).min(self.patience);
        }
        Poll::Ready(done)
    }
}

impl<T: Read + Unpin> Read for WriteStallGuard<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<T: Write + Unpin> Write for WriteStallGuard<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.note(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, slices);
        self.note(cx, written)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use hyper_util::rt::TokioIo;
    use std::future::poll_fn;
    use tokio::io::{AsyncReadExt, DuplexStream};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Returns a connection whose buffer holds 1 KiB.
    fn connection() -> (WriteStallGuard<TokioIo<DuplexStream>>, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(1 << 10);
        (WriteStallGuard::new(TokioIo::new(ours), PATIENCE), theirs)
    }

    async fn write(ours: &mut WriteStallGuard<TokioIo<DuplexStream>>, bytes: usize) -> io::Result<()> {
        let mut left = bytes;
        while left > 0 {
            let chunk = vec![0; left];
            left -= poll_fn(|cx| Pin::new(&mut *ours).poll_write(cx, &chunk)).await?;
        }
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_for_which_nobody_reads_ends() {
        let (mut ours, theirs) = connection();
        let error = write(&mut ours, 2 << 10).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        drop(theirs);
    }

    /// Reads `bytes` every ten seconds. Returns whether a write of 4 MiB succeeds.
    async fn reads(bytes: usize) -> bool {
        let (mut ours, mut theirs) = connection();
        let reader = tokio::spawn(async move {
            let mut buffer = vec![0; bytes];
            while theirs.read_exact(&mut buffer).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
        });
        let arrived = write(&mut ours, 4 << 20).await.is_ok();
        reader.abort();
        arrived
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_gets_all_of_it_and_one_who_reads_a_byte_now_and_then_does_not() {
        let ten_seconds = 10 * MIN_READ_RATE as usize;
        assert!(reads(ten_seconds + (1 << 10)).await);
        assert!(!reads(ten_seconds / 2).await);
        assert!(!reads(1).await);
    }
}
