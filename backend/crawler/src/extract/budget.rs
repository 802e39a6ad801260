//! Limits the bytes of absolute URLs that one document yields.

/// Counts bytes up to a limit. A short relative link becomes at least as long as its base. Limits
/// on the number of links and on the length of the document do not limit the total length of the
/// resolved URLs.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    left: usize,
}

impl ByteBudget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { left: bytes }
    }

    /// Takes `bytes` and returns `true`, or returns `false` and takes nothing if fewer are left.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        let left = self.left.checked_sub(bytes);
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }
}
