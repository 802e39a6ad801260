//! How many more jobs of each kind this process may take, and whether it is worth asking.
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Per kind.
struct Slot {
    limit: usize,
    used: usize,
    /// Whether the queue may have jobs of this kind: true until a claim brings none, and again after a wake-up.
    hungry: bool,
}

/// The slots of all kinds.
pub(super) struct Slots {
    kinds: Mutex<BTreeMap<String, Slot>>,
    changed: Notify,
    /// A job has to run alone: nothing is claimed until it has ended.
    reserved: AtomicBool,
    /// A run ended.
    given_back: Notify,
}

impl Slots {
    pub(super) fn new(limits: impl Iterator<Item = (String, usize)>) -> Self {
        let kinds = limits.map(|(kind, limit)| (kind, Slot { limit, used: 0, hungry: true })).collect();
        Self {
            kinds: Mutex::new(kinds),
            changed: Notify::new(),
            reserved: AtomicBool::new(false),
            given_back: Notify::new(),
        }
    }

    /// What to claim: the kinds that may have jobs and have room, with how many.
    pub(super) fn wanted(&self) -> Vec<(String, usize)> {
        if self.reserved.load(Ordering::SeqCst) {
            return Vec::new();
        }
        let kinds = self.kinds.lock();
        let wanted = kinds.iter().filter(|(_, slot)| slot.hungry && slot.used < slot.limit);
        wanted.map(|(kind, slot)| (kind.clone(), slot.limit - slot.used)).collect()
    }

    /// Kinds that have room.
    pub(super) fn with_room(&self) -> Vec<String> {
        let kinds = self.kinds.lock();
        kinds.iter().filter(|(_, slot)| slot.used < slot.limit).map(|(kind, _)| kind.clone()).collect()
    }

    /// A claim brought a job of this kind.
    pub(super) fn take(&self, kind: &str) {
        if let Some(slot) = self.kinds.lock().get_mut(kind) {
            slot.used += 1;
        }
    }

    /// A run ended.
    pub(super) fn give_back(&self, kind: &str) {
        if let Some(slot) = self.kinds.lock().get_mut(kind) {
            slot.used -= 1;
        }
        self.given_back.notify_waiters();
        self.changed.notify_one();
    }

    /// Ends the claims until [`Self::open`], for a job that has to run alone.
    pub(super) fn reserve(&self) {
        self.reserved.store(true, Ordering::SeqCst);
    }

    /// Lets claims go on.
    pub(super) fn open(&self) {
        self.reserved.store(false, Ordering::SeqCst);
        self.wake();
    }

    /// Until one job is in flight.
    pub(super) async fn only_one(&self) {
        loop {
            let given_back = self.given_back.notified();
            if self.kinds.lock().values().map(|slot| slot.used).sum::<usize>() <= 1 {
                return;
            }
            given_back.await;
        }
    }

    /// Before a claim of these kinds: what wakes up from now on makes them hungry again, what came before is answered by it.
    pub(super) fn asked(&self, wanted: &[(String, usize)]) {
        self.set_hungry(wanted.iter().map(|(kind, _)| kind.as_str()), false);
    }

    /// The claim brought jobs of these kinds, so there may be more.
    pub(super) fn more<'a>(&self, kinds: impl Iterator<Item = &'a str>) {
        self.set_hungry(kinds, true);
    }

    fn set_hungry<'a>(&self, names: impl Iterator<Item = &'a str>, hungry: bool) {
        let mut kinds = self.kinds.lock();
        for name in names {
            if let Some(slot) = kinds.get_mut(name) {
                slot.hungry = hungry;
            }
        }
    }

    /// There may be jobs of any kind.
    pub(super) fn wake(&self) {
        self.kinds.lock().values_mut().for_each(|slot| slot.hungry = true);
        self.changed.notify_one();
    }

    /// There may be jobs of this kind, or a new time at which there will be.
    pub(super) fn wake_kind(&self, kind: &str) {
        self.set_hungry(std::iter::once(kind), true);
        self.changed.notify_one();
    }

    pub(super) fn set_limit(&self, kind: &str, limit: usize) {
        if let Some(slot) = self.kinds.lock().get_mut(kind) {
            slot.limit = limit;
            slot.hungry = true;
        }
        self.changed.notify_one();
    }

    /// Until a slot is given back or somebody wakes the kinds.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Jobs in flight, per kind.
    pub(super) fn used(&self) -> Vec<(String, usize)> {
        self.kinds.lock().iter().map(|(kind, slot)| (kind.clone(), slot.used)).collect()
    }
}
