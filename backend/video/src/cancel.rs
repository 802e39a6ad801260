//! Ends the calls of a decoder from another thread.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Cancels when it is dropped: processes of its decoder end, and calls fail with
/// [`VideoError::Cancelled`](crate::VideoError::Cancelled). See
/// [`Decoder::cancellable`](crate::Decoder::cancellable).
#[derive(Debug)]
pub struct CancelOnDrop {
    _end: PipeWriter,
}

/// Tells readers of pipes about the cancellation: the file becomes readable.
#[derive(Clone, Debug)]
pub(crate) struct Cancelled(Arc<PipeReader>);

pub(crate) fn pair() -> io::Result<(CancelOnDrop, Cancelled)> {
    let (reader, writer) = io::pipe()?;
    Ok((CancelOnDrop { _end: writer }, Cancelled(Arc::new(reader))))
}

impl AsFd for Cancelled {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
