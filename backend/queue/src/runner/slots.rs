//! Decides how many more jobs of each kind and tenant this process may claim, and when.
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use uuid::Uuid;

/// How long after its last job a tenant still shares the slots of a kind.
const RECENT_TENANT: Duration = Duration::from_secs(10);
/// How long the result "no other tenant has jobs" is reused. If only one tenant has jobs, the check
/// costs one statement per such interval.
const RECHECK_AFTER: Duration = Duration::from_secs(1);

/// With fewer slots than this, a quarter is less than one slot, so tenants take turns instead.
const MIN_SHARED_SLOTS: usize = 4;
/// Number of tenants whose last turns are remembered.
const MAX_TURNS: usize = 256;
/// Number of claims for other tenants after which the next claim is for all tenants. Only such a
/// claim returns a job that must run alone.
const TURNS_BEFORE_ANY: usize = 8;
/// Maximum number of runs outside their slots, as a multiple of the slots. One tenant has at most
/// three quarters of them.
const MAX_OUTSIDE: usize = 4;

/// The slots of one kind.
struct Slot {
    limit: usize,
    used: usize,
    /// Number of runs that wait outside their slots ([`outside_slot`]).
    outside: usize,
    /// Whether a tenant never uses more than three quarters of the slots.
    keeps_quarter: bool,
    /// The tenants that had a turn, the last one at the end.
    turns: VecDeque<Uuid>,
    /// Number of successive claims for other tenants.
    other_claims: usize,
    /// Whether the queue may contain jobs of this kind. A claim that returns no jobs clears it; a
    /// wake-up sets it.
    may_have_jobs: bool,
    /// Whether the last claim excluded jobs of the tenant that uses its whole share.
    skips_busiest_tenant: bool,
    /// The time of the last claim for other tenants, if it found no job and no wake-up came since.
    no_other_tenants_at: Option<Instant>,
    tenants: HashMap<Uuid, Tenant>,
}

/// A tenant with a current or recent running job of the kind.
struct Tenant {
    used: usize,
    outside: usize,
    last: Instant,
}

/// The limits of a claim for one kind.
#[derive(Debug)]
pub(super) struct ClaimRequest {
    pub(super) kind: String,
    /// Claims at most this many jobs of tenants other than this one, which has the most running
    /// jobs, before `any`. Used only for the last quarter of the slots.
    pub(super) other_tenants: Option<(Uuid, usize)>,
    /// Maximum number of jobs of all tenants, including those claimed for `other_tenants`.
    pub(super) any: usize,
    /// Number of running jobs by tenant.
    pub(super) running: Vec<(Uuid, usize)>,
}

/// The slots of all kinds.
pub(super) struct Slots {
    kinds: Mutex<BTreeMap<String, Slot>>,
    changed: Notify,
    /// Whether a job must run alone. No jobs are claimed until it ends.
    reserved: AtomicBool,
    /// Fires when a run ends.
    released: Notify,
}

impl Slot {
    fn new(limit: usize, keeps_quarter: bool) -> Self {
        Self {
            limit,
            used: 0,
            outside: 0,
            keeps_quarter,
            turns: VecDeque::new(),
            other_claims: 0,
            may_have_jobs: true,
            skips_busiest_tenant: false,
            no_other_tenants_at: None,
            tenants: HashMap::new(),
        }
    }

    /// Returns the maximum number of slots for one tenant while others have jobs: three quarters.
    fn share(&self) -> usize {
        (self.limit - self.limit.div_ceil(4)).max(1)
    }

    /// Returns the number of free slots. Runs that return to their slots may exceed the limit.
    fn free(&self) -> usize {
        self.limit.saturating_sub(self.used)
    }

    fn takes_turns(&self) -> bool {
        self.limit < MIN_SHARED_SLOTS
    }

    /// Returns whether a claim for this kind is worthwhile: it may have jobs and has a free slot.
    fn is_claimable(&self) -> bool {
        self.may_have_jobs && self.used < self.limit
    }

    /// Records that there may be jobs. If only other tenants may use more slots, the next claim
    /// searches for their jobs immediately.
    fn wake(&mut self) {
        self.may_have_jobs = true;
        if self.skips_busiest_tenant || self.takes_turns() {
            self.no_other_tenants_at = None;
        }
    }

    fn request(&mut self, kind: &str, now: Instant) -> ClaimRequest {
        let is_due = self.no_other_tenants_at.is_none_or(|at| now.duration_since(at) >= RECHECK_AFTER);
        if self.takes_turns() {
            return self.next_turn(kind, is_due, now);
        }
        let (free, share) = (self.free(), self.share());
        let busiest = self.tenants.iter().max_by_key(|(_, tenant)| tenant.used);
        let (busiest, busiest_used) = busiest.map_or((Uuid::nil(), 0), |(id, tenant)| (*id, tenant.used));
        let shared = self.tenants.iter().any(|(id, tenant)| *id != busiest && tenant.is_recent(now));
        let any_tenant = match shared || self.keeps_quarter {
            true => free.min(share.saturating_sub(busiest_used)),
            false => free,
        };
        let other_tenants = (self.used >= share && is_due).then_some((busiest, free));
        self.expect_no_other_tenants(other_tenants.is_some(), now);
        let running = self.tenants.iter().map(|(id, tenant)| (*id, tenant.used)).collect();
        ClaimRequest { kind: kind.to_owned(), other_tenants, any: any_tenant, running }
    }

    /// Returns the request for the tenant whose turn it is: the one that never had a turn, or whose
    /// last turn was the earliest.
    fn next_turn(&mut self, kind: &str, is_due: bool, now: Instant) -> ClaimRequest {
        let free = self.free();
        let any_tenant = self.other_claims >= TURNS_BEFORE_ANY;
        let last = self.turns.back().filter(|_| is_due && !any_tenant);
        let other_tenants = last.map(|last| (*last, free));
        self.expect_no_other_tenants(other_tenants.is_some(), now);
        self.other_claims = if other_tenants.is_some() { self.other_claims + 1 } else { 0 };
        // A later turn counts like more running jobs.
        let running = self.turns.iter().enumerate().map(|(turn, tenant)| (*tenant, turn + 1)).collect();
        ClaimRequest { kind: kind.to_owned(), other_tenants, any: free, running }
    }

    /// Assumes that a claim for other tenants will find no job. A wake-up during the claim, and
    /// [`Slots::found_other_tenants`], end this assumption.
    fn expect_no_other_tenants(&mut self, is_claimed: bool, now: Instant) {
        if is_claimed {
            self.no_other_tenants_at = Some(now);
        }
    }

    fn record_turn(&mut self, tenant: Uuid) {
        self.turns.retain(|earlier| *earlier != tenant);
        if self.turns.len() >= MAX_TURNS {
            self.turns.pop_front();
        }
        self.turns.push_back(tenant);
    }
}

impl Tenant {
    fn is_recent(&self, now: Instant) -> bool {
        self.used > 0 || self.outside > 0 || now.duration_since(self.last) < RECENT_TENANT
    }
}

impl ClaimRequest {
    /// Returns the limit for the claim of any tenant's jobs, after the claim for other tenants
    /// returned `found` jobs.
    pub(super) fn any_after(&self, found: usize) -> usize {
        if found > 0 { 0 } else { self.any }
    }
}

impl Slots {
    /// Creates slots by kind: their number, and whether one tenant uses at most three quarters.
    pub(super) fn new(limits: impl Iterator<Item = (String, usize, bool)>) -> Self {
        let slots = limits.map(|(kind, limit, keeps_quarter)| (kind, Slot::new(limit, keeps_quarter)));
        Self {
            kinds: Mutex::new(slots.collect()),
            changed: Notify::new(),
            reserved: AtomicBool::new(false),
            released: Notify::new(),
        }
    }

    /// Returns what to claim: the kinds that may have jobs and have free slots, with their limits.
    /// Clears their `may_have_jobs` flags. Later wake-ups set the flags again; this claim covers
    /// earlier ones.
    pub(super) fn requests(&self) -> Vec<ClaimRequest> {
        if self.reserved.load(Ordering::SeqCst) {
            return Vec::new();
        }
        let now = Instant::now();
        let mut kinds = self.kinds.lock();
        let mut requests = Vec::new();
        for (kind, slot) in kinds.iter_mut().filter(|(_, slot)| slot.is_claimable()) {
            slot.tenants.retain(|_, tenant| tenant.is_recent(now));
            let request = slot.request(kind, now);
            (slot.may_have_jobs, slot.skips_busiest_tenant) = (false, request.any == 0);
            if request.other_tenants.is_some() || request.any > 0 {
                requests.push(request);
            }
        }
        requests
    }

    /// Returns whether more slots will probably become free soon, so that one claim can fill
    /// several: some kind may have jobs, and each such kind has under a quarter of its slots free.
    pub(super) fn are_nearly_full(&self) -> bool {
        let kinds = self.kinds.lock();
        let mut claimable = kinds.values().filter(|slot| slot.is_claimable()).peekable();
        claimable.peek().is_some() && claimable.all(|slot| slot.used > slot.share())
    }

    /// Returns the kinds with free slots for jobs of any tenant. Only their next due time matters.
    pub(super) fn kinds_with_free_slots(&self) -> Vec<String> {
        let kinds = self.kinds.lock();
        let room = kinds.iter().filter(|(_, slot)| slot.used < slot.limit && !slot.skips_busiest_tenant);
        room.map(|(kind, _)| kind.clone()).collect()
    }

    /// Occupies a slot for a claimed job. Also records that there may be more jobs of this kind.
    pub(super) fn occupy(&self, kind: &str, tenant: Uuid) {
        if let Some(slot) = self.kinds.lock().get_mut(kind) {
            slot.used += 1;
            slot.may_have_jobs = true;
            let last = Instant::now();
            slot.tenants.entry(tenant).or_insert(Tenant { used: 0, outside: 0, last }).used += 1;
            if slot.takes_turns() {
                slot.record_turn(tenant);
            }
        }
    }

    /// Releases the slot of a run that waits. Returns `false` and does nothing if too many wait.
    fn leave_slot(&self, kind: &str, tenant: Uuid) -> bool {
        {
            let mut kinds = self.kinds.lock();
            let Some(slot) = kinds.get_mut(kind) else { return false };
            let max_outside = slot.limit * MAX_OUTSIDE;
            let Some(tenant_use) = slot.tenants.get_mut(&tenant) else { return false };
            if slot.outside >= max_outside || tenant_use.outside >= max_outside - max_outside / 4 {
                return false;
            }
            tenant_use.outside += 1;
            slot.outside += 1;
        }
        self.release(kind, tenant);
        true
    }

    /// Occupies a slot again for a run that waited. The slots may be exceeded for a while.
    fn return_to_slot(&self, kind: &str, tenant: Uuid) {
        if let Some(slot) = self.kinds.lock().get_mut(kind) {
            slot.outside -= 1;
            slot.used += 1;
            if let Some(tenant) = slot.tenants.get_mut(&tenant) {
                tenant.outside -= 1;
                tenant.used += 1;
            }
        }
    }

    /// Records that a claim for other tenants returned jobs of this kind.
    pub(super) fn found_other_tenants(&self, kind: &str) {
        if let Some(slot) = self.kinds.lock().get_mut(kind) {
            slot.no_other_tenants_at = None;
        }
    }

    pub(super) fn release(&self, kind: &str, tenant: Uuid) {
        if let Some(slot) = self.kinds.lock().get_mut(kind) {
            slot.used -= 1;
            slot.may_have_jobs |= slot.skips_busiest_tenant;
            if let Some(tenant) = slot.tenants.get_mut(&tenant) {
                tenant.used -= 1;
                tenant.last = Instant::now();
            }
        }
        self.released.notify_waiters();
        self.changed.notify_one();
    }

    /// Stops claims until [`Self::open`] is called, for a job that must run alone.
    pub(super) fn reserve(&self) {
        self.reserved.store(true, Ordering::SeqCst);
    }

    /// Resumes claims.
    pub(super) fn open(&self) {
        self.reserved.store(false, Ordering::SeqCst);
        self.wake();
    }

    /// Waits until at most one job is running.
    pub(super) async fn only_one(&self) {
        loop {
            let released = self.released.notified();
            if self.kinds.lock().values().map(|slot| slot.used + slot.outside).sum::<usize>() <= 1 {
                return;
            }
            released.await;
        }
    }

    /// Marks the kinds of a failed claim, so that the claim is repeated.
    pub(super) fn failed(&self, requests: &[ClaimRequest]) {
        let mut kinds = self.kinds.lock();
        for request in requests {
            if let Some(slot) = kinds.get_mut(&request.kind) {
                (slot.may_have_jobs, slot.no_other_tenants_at) = (true, None);
            }
        }
    }

    /// Records that there may be jobs of any kind.
    pub(super) fn wake(&self) {
        self.kinds.lock().values_mut().for_each(Slot::wake);
        self.changed.notify_one();
    }

    /// Records that there may be jobs of this kind, or that its next due time changed.
    pub(super) fn wake_kind(&self, kind: &str) {
        if let Some(slot) = self.kinds.lock().get_mut(kind) {
            slot.wake();
        }
        self.changed.notify_one();
    }

    pub(super) fn set_limit(&self, kind: &str, limit: usize) {
        if let Some(slot) = self.kinds.lock().get_mut(kind) {
            slot.limit = limit;
            slot.may_have_jobs = true;
        }
        self.changed.notify_one();
    }

    /// Waits until a slot is released or a kind is woken.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the number of running jobs per kind.
    pub(super) fn used(&self) -> Vec<(String, usize)> {
        self.kinds.lock().iter().map(|(kind, slot)| (kind.clone(), slot.used)).collect()
    }
}

tokio::task_local! {
    static SLOT: RunSlot;
}

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
        self.0.slots.return_to_slot(&self.0.kind, self.0.tenant);
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
    let outside = slot.filter(|slot| slot.slots.leave_slot(&slot.kind, slot.tenant)).map(Outside);
    let output = wait.await;
    drop(outside);
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns slots of one kind, of which `used` are occupied.
    fn slots(limit: usize, used: usize) -> Slots {
        let slots = Slots::new(std::iter::once(("image".to_owned(), limit, false)));
        (0..used).for_each(|_| slots.occupy("image", Uuid::nil()));
        slots
    }

    #[test]
    fn slots_are_nearly_full_below_one_quarter_free() {
        for (limit, used, nearly_full) in [
            (8, 0, false),
            (8, 6, false),
            (8, 7, true),
            (8, 8, false),
            (4, 3, false),
            (1, 0, false),
            (100, 75, false),
            (100, 76, true),
        ] {
            assert_eq!(slots(limit, used).are_nearly_full(), nearly_full, "{used} of {limit}");
        }
    }

    #[test]
    fn only_kinds_with_possible_jobs_count_as_nearly_full() {
        let slots = Slots::new([("image".to_owned(), 8, false), ("page".to_owned(), 8, false)].into_iter());
        (0..7).for_each(|_| slots.occupy("image", Uuid::nil()));
        assert!(!slots.are_nearly_full(), "all slots for pages are free");
        slots.requests();
        assert!(!slots.are_nearly_full(), "no kind may have jobs");
        slots.wake_kind("image");
        assert!(slots.are_nearly_full());
    }

    #[test]
    fn wake_up_during_claim_for_other_tenants_is_kept() {
        for (limit, started, ended) in [(8, 6, 0), (1, 1, 1)] {
            let slots = Slots::new(std::iter::once(("image".to_owned(), limit, true)));
            (0..started).for_each(|_| slots.occupy("image", Uuid::nil()));
            (0..ended).for_each(|_| slots.release("image", Uuid::nil()));
            let is_for_others = |requests: &[ClaimRequest]| requests[0].other_tenants.is_some();
            assert!(is_for_others(&slots.requests()), "{limit} slots");
            // The claim does not see the job that another tenant adds now.
            slots.wake_kind("image");
            assert!(is_for_others(&slots.requests()), "{limit} slots: the job is claimed");
            assert!(slots.requests().is_empty(), "{limit} slots: no other wake-up");
        }
    }
}
