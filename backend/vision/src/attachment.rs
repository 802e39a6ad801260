//! A value that is dropped together with pixels.

use std::any::Any;
use std::sync::Arc;

/// A value that is dropped with the last frame that it is attached to. It is not part of an image:
/// all attachments are equal, so that frames with equal pixels are equal.
#[derive(Clone, Default)]
pub(crate) struct Attachment(
    #[expect(dead_code, reason = "it is there to be dropped")] Option<Arc<dyn Any + Send + Sync>>,
);

impl Attachment {
    pub(crate) fn new(value: impl Any + Send + Sync) -> Self {
        Self(Some(Arc::new(value)))
    }
}

impl PartialEq for Attachment {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Attachment {}
