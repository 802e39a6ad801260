//! Lets a handler give up its slot while it waits, so that another job can run.
use super::slots::Slots;
use std::sync::Arc;
use uuid::Uuid;

tokio::task_local! {
    static SLOT: RunSlot;
}

/// The slot of a run.
#[derive(Clone)]
struct RunSlot {
    slots: Arc<Slots>,
    kind: String,
    tenant: Uuid,
}

/// A run outside its slot. Dropping it occupies the slot again.
struct Outside(RunSlot);

impl Drop for Outside {
    fn drop(&mut self) {
        self.0.slots.come_back(&self.0.kind, self.0.tenant);
    }
}

/// Runs a handler that may call [`outside_slot`].
pub(super) async fn in_slot<F: Future>(slots: &Arc<Slots>, kind: &str, tenant: Uuid, run: F) -> F::Output {
    let slot = RunSlot { slots: Arc::clone(slots), kind: kind.to_owned(), tenant };
    SLOT.scope(slot, run).await
}

/// Releases the slot of the current run while `wait` runs, for example the time until a host
/// permits the next request. The claim and its lease remain. The run keeps its slot if too many
/// others wait, and outside of a runner.
///
/// Call it in the task of the handler, and never from within `wait`.
pub async fn outside_slot<F: Future>(wait: F) -> F::Output {
    let slot = SLOT.try_with(RunSlot::clone).ok();
    let outside = slot.filter(|slot| slot.slots.leave(&slot.kind, slot.tenant)).map(Outside);
    let output = wait.await;
    drop(outside);
    output
}
