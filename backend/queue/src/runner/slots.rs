//! How many more jobs of each kind this process may take, for whom, and whether it is worth asking.
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use uuid::Uuid;

/// How long after its last job a tenant still counts as one that shares the places of a kind.
const SHARING: Duration = Duration::from_secs(10);
/// How long a claim that found no job of another tenant stands: one tenant alone costs no more than a statement in this time.
const ALONE: Duration = Duration::from_secs(1);

/// Per kind.
struct Slot {
    limit: usize,
    used: usize,
    /// Whether the queue may have jobs of this kind: true until a claim brings none, and again after a wake-up.
    hungry: bool,
    /// The last claim did not ask for jobs of the tenant that holds its share.
    withheld: bool,
    /// When a claim last found no job of another tenant.
    alone: Option<Instant>,
    tenants: HashMap<Uuid, Tenant>,
}

/// One that has, or had not long ago, a job of a kind in flight.
struct Tenant {
    used: usize,
    last: Instant,
}

/// What to claim of a kind.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) kind: String,
    /// Jobs of tenants other than this one, at most so many. Comes first.
    pub(super) beside: Option<(Uuid, usize)>,
    /// Jobs of anybody, at most so many, those of other tenants included.
    pub(super) any: usize,
    /// Whether the claim may fill `any` with jobs of the tenant named in `beside`: true unless others share the places.
    withheld: bool,
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

impl Slot {
    fn new(limit: usize) -> Self {
        Self { limit, used: 0, hungry: true, withheld: false, alone: None, tenants: HashMap::new() }
    }

    /// The most that one tenant may hold while others want places too: three quarters.
    fn share(&self) -> usize {
        (self.limit - self.limit.div_ceil(4)).max(1)
    }

    fn wanted(&self, kind: &str, now: Instant) -> Wanted {
        let (free, share) = (self.limit - self.used, self.share());
        let busiest = self.tenants.iter().max_by_key(|(_, tenant)| tenant.used);
        let (busiest, most) = busiest.map_or((Uuid::nil(), 0), |(id, tenant)| (*id, tenant.used));
        let shared = self.tenants.iter().any(|(id, tenant)| *id != busiest && tenant.counts(now));
        let any = match shared {
            true => free.min(share.saturating_sub(most)),
            false => free,
        };
        let is_due = self.alone.is_none_or(|at| now.duration_since(at) >= ALONE);
        let beside = (most >= share && is_due).then_some((busiest, free));
        Wanted { kind: kind.to_owned(), beside, any, withheld: any == 0 }
    }
}

impl Tenant {
    fn counts(&self, now: Instant) -> bool {
        self.used > 0 || now.duration_since(self.last) < SHARING
    }
}

impl Wanted {
    /// What a claim of anybody's jobs may bring after a claim for other tenants brought `found`.
    pub(super) fn any_after(&self, found: usize) -> usize {
        if found > 0 { 0 } else { self.any }
    }
}

impl Slots {
    pub(super) fn new(limits: impl Iterator<Item = (String, usize)>) -> Self {
        Self {
            kinds: Mutex::new(limits.map(|(kind, limit)| (kind, Slot::new(limit))).collect()),
            changed: Notify::new(),
            reserved: AtomicBool::new(false),
            given_back: Notify::new(),
        }
    }

    /// What to claim: the kinds that may have jobs and have room, with how many. What wakes up from now on makes them hungry again; what came
    /// before is answered by the claim.
    pub(super) fn wanted(&self) -> Vec<Wanted> {
        if self.reserved.load(Ordering::SeqCst) {
            return Vec::new();
        }
        let now = Instant::now();
        let mut kinds = self.kinds.lock();
        let mut wanted = Vec::new();
        for (kind, slot) in kinds.iter_mut().filter(|(_, slot)| slot.hungry && slot.used < slot.limit) {
            slot.tenants.retain(|_, tenant| tenant.counts(now));
            let ask = slot.wanted(kind, now);
            (slot.hungry, slot.withheld) = (false, ask.withheld);
            if ask.beside.is_some() || ask.any > 0 {
                wanted.push(ask);
            }
        }
        wanted
    }

    /// Kinds whose next job is worth waking up for: those that have room for anybody's.
    pub(super) fn with_room(&self) -> Vec<String> {
        let kinds = self.kinds.lock();
        let room = kinds.iter().filter(|(_, slot)| slot.used < slot.limit && !slot.withheld);
        room.map(|(kind, _)| kind.clone()).collect()
    }

    /// A claim brought a job of this kind, so there may be more.
    pub(super) fn take(&self, kind: &str, tenant: Uuid) {
        if let Some(slot) = self.kinds.lock().get_mut(kind) {
            slot.used += 1;
            slot.hungry = true;
            let last = Instant::now();
            slot.tenants.entry(tenant).or_insert(Tenant { used: 0, last }).used += 1;
        }
    }

    /// A claim for tenants other than the busiest brought nothing.
    pub(super) fn none_beside(&self, kind: &str) {
        if let Some(slot) = self.kinds.lock().get_mut(kind) {
            slot.alone = Some(Instant::now());
        }
    }

    /// A run ended.
    pub(super) fn give_back(&self, kind: &str, tenant: Uuid) {
        if let Some(slot) = self.kinds.lock().get_mut(kind) {
            slot.used -= 1;
            slot.hungry |= slot.withheld;
            if let Some(tenant) = slot.tenants.get_mut(&tenant) {
                tenant.used -= 1;
                tenant.last = Instant::now();
            }
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

    /// A claim of these failed: they are asked for again.
    pub(super) fn failed(&self, wanted: &[Wanted]) {
        let mut kinds = self.kinds.lock();
        for ask in wanted {
            if let Some(slot) = kinds.get_mut(&ask.kind) {
                slot.hungry = true;
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
        if let Some(slot) = self.kinds.lock().get_mut(kind) {
            slot.hungry = true;
        }
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
