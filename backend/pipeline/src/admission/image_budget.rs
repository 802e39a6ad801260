//! Memory budgets for decoded images: one for all images, and an additional one for small images.

use crate::admission::budget::{Budget, Exhausted, Share};
use inference::Priority;
use std::time::Instant;

/// The additional budget for small images is the common budget divided by this number.
const SMALL_BUDGET_DIVISOR: u64 = 8;
/// Minimum number of small images that fit into the additional budget together.
const MIN_SMALL_IMAGES: u64 = 2;

/// Limits the memory of decoded images. A small image of an interactive caller does not wait for a
/// large image that waits for memory.
pub(crate) struct DecodedImageBudget {
    all: Budget,
    small: Budget,
}

impl DecodedImageBudget {
    /// Creates a budget of `bytes` for all images, and an additional budget of an eighth of `bytes`
    /// for small images. One image takes at most `largest` bytes.
    pub(crate) fn new(bytes: u64, largest: u64) -> Self {
        Self {
            all: Budget::new("decoded_pictures", bytes).with_background_room(largest),
            small: Budget::new("small_decoded_pictures", bytes / SMALL_BUDGET_DIVISOR),
        }
    }

    /// Waits until `bytes` are free for one image.
    ///
    /// # Errors
    /// Fails with [`Exhausted`] shortly before `deadline`.
    pub(crate) async fn take(
        &self,
        bytes: u64,
        priority: Priority,
        deadline: Option<Instant>,
    ) -> Result<Share, Exhausted> {
        if priority == Priority::Background || bytes > self.small.limit() / MIN_SMALL_IMAGES {
            return self.all.take(bytes, priority, deadline).await;
        }
        tokio::select! {
            biased;
            share = self.small.take(bytes, priority, deadline) => share,
            share = self.all.take(bytes, priority, deadline) => share,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use futures::FutureExt;

    const MIB: u64 = 1 << 20;

    fn now(memory: &DecodedImageBudget, mib: u64, priority: Priority) -> Option<Share> {
        memory.take(mib * MIB, priority, None).now_or_never().transpose().unwrap()
    }

    #[test]
    fn a_small_picture_does_not_wait_behind_a_large_one() {
        let memory = DecodedImageBudget::new(80 * MIB, 60 * MIB);
        let _held = now(&memory, 80, Priority::Interactive).unwrap();
        let mut waiting = Box::pin(memory.take(60 * MIB, Priority::Interactive, None));
        assert!((&mut waiting).now_or_never().is_none());
        let small: Vec<_> = (0..2).map(|_| now(&memory, 5, Priority::Interactive).unwrap()).collect();
        assert!(now(&memory, 5, Priority::Interactive).is_none(), "the budget for small images is full");
        drop(small);
        assert!(
            now(&memory, 6, Priority::Interactive).is_none(),
            "6 MiB is more than half of the budget for small images"
        );
        assert!(
            now(&memory, 5, Priority::Background).is_none(),
            "background work has no access to the budget for small images"
        );
    }
}
