//! Decides how many more jobs of each kind and tenant this process may claim, and when.
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use uuid::Uuid;

/// Time after the last job of a tenant for which the tenant still shares the slots of a kind.
const RECENT_TENANT: Duration = Duration::from_secs(10);
/// Time for which the result "no other tenant has jobs" is reused. If only one tenant has jobs, the
/// check costs one statement per such interval.
const RECHECK_AFTER: Duration = Duration::from_secs(1);

/// With fewer slots than this, a quarter is less than one slot, so tenants take turns instead.
const MIN_SHARED_SLOTS: usize = 4;
/// Maximum number of tenants whose last turns are stored.
const MAX_TURNS: usize = 256;
/// Number of claims for other tenants after which the next claim is for all tenants. Only such a
/// claim returns a job that must run alone.
const TURNS_BEFORE_ANY: usize = 8;
/// Maximum number of runs outside their slots, as a multiple of the slots. One tenant has at most
/// three quarters of them.
const MAX_OUTSIDE: usize = 4;

/// The slots of one kind.
struct KindSlots {
    limit: usize,
    used: usize,
    /// Number of runs that wait outside their slots ([`outside_slot`]).
    outside: usize,
    /// Whether a tenant never uses more than three quarters of the slots.
    keeps_quarter: bool,
    /// The tenants that had a turn, in the order of their last turns.
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
    last_used: Instant,
}

/// The limits of a claim for one kind.
#[derive(Debug)]
pub(super) struct ClaimRequest {
    pub(super) kind: String,
    /// Tenant with the most running jobs, and maximum number of jobs to claim of other tenants
    /// before `any_tenant`. Set only for the last quarter of the slots.
    pub(super) other_tenants: Option<(Uuid, usize)>,
    /// Maximum number of jobs of all tenants, including those claimed for `other_tenants`.
    pub(super) any_tenant: usize,
    /// Number of running jobs by tenant.
    pub(super) running: Vec<(Uuid, usize)>,
}

/// The slots of all kinds.
pub(super) struct Slots {
    kinds: Mutex<BTreeMap<String, KindSlots>>,
    changed: Notify,
    /// Whether claims are stopped, because a job must run alone.
    are_claims_stopped: AtomicBool,
    /// Fires when a run ends.
    released: Notify,
}

impl KindSlots {
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
    fn max_tenant_slots(&self) -> usize {
        (self.limit - self.limit.div_ceil(4)).max(1)
    }

    /// Returns the number of free slots. Runs that return to their slots may exceed the limit.
    fn free_slots(&self) -> usize {
        self.limit.saturating_sub(self.used)
    }

    fn takes_turns(&self) -> bool {
        self.limit < MIN_SHARED_SLOTS
    }

    /// Returns `true` if the kind may have jobs and has a free slot.
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

    fn next_request(&mut self, kind: &str, now: Instant) -> ClaimRequest {
        let is_check_due = self.no_other_tenants_at.is_none_or(|at| now.duration_since(at) >= RECHECK_AFTER);
        if self.takes_turns() {
            return self.next_turn(kind, is_check_due, now);
        }
        let (free, max_per_tenant) = (self.free_slots(), self.max_tenant_slots());
        let busiest = self.tenants.iter().max_by_key(|(_, tenant)| tenant.used);
        let (busiest, busiest_used) = busiest.map_or((Uuid::nil(), 0), |(id, tenant)| (*id, tenant.used));
        let is_shared = self.tenants.iter().any(|(id, tenant)| *id != busiest && tenant.is_recent(now));
        let any_tenant = match is_shared || self.keeps_quarter {
            true => free.min(max_per_tenant.saturating_sub(busiest_used)),
            false => free,
        };
        let other_tenants = (self.used >= max_per_tenant && is_check_due).then_some((busiest, free));
        self.expect_no_other_tenants(other_tenants.is_some(), now);
        let running = self.tenants.iter().map(|(id, tenant)| (*id, tenant.used)).collect();
        ClaimRequest { kind: kind.to_owned(), other_tenants, any_tenant, running }
    }

    /// Returns the request for the tenant whose turn it is: the one that never had a turn, or whose
    /// last turn was the earliest.
    fn next_turn(&mut self, kind: &str, is_check_due: bool, now: Instant) -> ClaimRequest {
        let free = self.free_slots();
        let is_for_any = self.other_claims >= TURNS_BEFORE_ANY;
        let last = self.turns.back().filter(|_| is_check_due && !is_for_any);
        let other_tenants = last.map(|last| (*last, free));
        self.expect_no_other_tenants(other_tenants.is_some(), now);
        self.other_claims = if other_tenants.is_some() { self.other_claims + 1 } else { 0 };
        // A later turn counts like more running jobs.
        let running = self.turns.iter().enumerate().map(|(turn, tenant)| (*tenant, turn + 1)).collect();
        ClaimRequest { kind: kind.to_owned(), other_tenants, any_tenant: free, running }
    }

    /// Assumes that a claim for other tenants will find no job. A wake-up during the claim, or a
    /// call of [`Slots::record_other_tenants`], ends this assumption.
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
        self.used > 0 || self.outside > 0 || now.duration_since(self.last_used) < RECENT_TENANT
    }
}

impl ClaimRequest {
    /// Returns the limit for the claim of any tenant's jobs, after the claim for other tenants
    /// returned `found` jobs.
    pub(super) fn limit_after(&self, found: usize) -> usize {
        if found > 0 { 0 } else { self.any_tenant }
    }
}

impl Slots {
    /// Creates slots from (kind, number of slots, whether one tenant uses at most three quarters).
    pub(super) fn new(limits: impl Iterator<Item = (String, usize, bool)>) -> Self {
        let kinds = limits.map(|(kind, limit, keeps_quarter)| (kind, KindSlots::new(limit, keeps_quarter)));
        Self {
            kinds: Mutex::new(kinds.collect()),
            changed: Notify::new(),
            are_claims_stopped: AtomicBool::new(false),
            released: Notify::new(),
        }
    }

    /// Returns the requests of the next claim, for the kinds that may have jobs and have free
    /// slots. Clears their `may_have_jobs` flags. Wake-ups after this call set the flags again.
    pub(super) fn requests(&self) -> Vec<ClaimRequest> {
        if self.are_claims_stopped.load(Ordering::SeqCst) {
            return Vec::new();
        }
        let now = Instant::now();
        let mut kinds = self.kinds.lock();
        let mut requests = Vec::new();
        for (kind, slots) in kinds.iter_mut().filter(|(_, slots)| slots.is_claimable()) {
            slots.tenants.retain(|_, tenant| tenant.is_recent(now));
            let request = slots.next_request(kind, now);
            (slots.may_have_jobs, slots.skips_busiest_tenant) = (false, request.any_tenant == 0);
            if request.other_tenants.is_some() || request.any_tenant > 0 {
                requests.push(request);
            }
        }
        requests
    }

    /// Returns `true` if a kind may have jobs, and each such kind has less than a quarter of its
    /// slots free. More slots will then probably become free soon, and one claim can fill several.
    pub(super) fn are_nearly_full(&self) -> bool {
        let kinds = self.kinds.lock();
        let mut claimable = kinds.values().filter(|slots| slots.is_claimable()).peekable();
        claimable.peek().is_some() && claimable.all(|slots| slots.used > slots.max_tenant_slots())
    }

    /// Returns the kinds with free slots for jobs of any tenant. Only their next due time matters.
    pub(super) fn kinds_with_free_slots(&self) -> Vec<String> {
        let kinds = self.kinds.lock();
        let kinds = kinds.iter().filter(|(_, slots)| slots.used < slots.limit && !slots.skips_busiest_tenant);
        kinds.map(|(kind, _)| kind.clone()).collect()
    }

    /// Occupies a slot for a claimed job. Also records that there may be more jobs of this kind.
    pub(super) fn occupy(&self, kind: &str, tenant: Uuid) {
        if let Some(slots) = self.kinds.lock().get_mut(kind) {
            slots.used += 1;
            slots.may_have_jobs = true;
            let last_used = Instant::now();
            slots.tenants.entry(tenant).or_insert(Tenant { used: 0, outside: 0, last_used }).used += 1;
            if slots.takes_turns() {
                slots.record_turn(tenant);
            }
        }
    }

    /// Releases the slot of a run that waits. Returns `false` and does nothing if too many wait.
    fn leave_slot(&self, kind: &str, tenant: Uuid) -> bool {
        {
            let mut kinds = self.kinds.lock();
            let Some(slots) = kinds.get_mut(kind) else { return false };
            let max_outside = slots.limit * MAX_OUTSIDE;
            let Some(tenant_use) = slots.tenants.get_mut(&tenant) else { return false };
            if slots.outside >= max_outside || tenant_use.outside >= max_outside - max_outside / 4 {
                return false;
            }
            tenant_use.outside += 1;
            slots.outside += 1;
        }
        self.release(kind, tenant);
        true
    }

    /// Occupies a slot again for a run that waited. The slots may be exceeded for a while.
    fn return_to_slot(&self, kind: &str, tenant: Uuid) {
        if let Some(slots) = self.kinds.lock().get_mut(kind) {
            slots.outside -= 1;
            slots.used += 1;
            if let Some(tenant) = slots.tenants.get_mut(&tenant) {
                tenant.outside -= 1;
                tenant.used += 1;
            }
        }
    }

    /// Records that a claim for other tenants returned jobs of this kind.
    pub(super) fn record_other_tenants(&self, kind: &str) {
        if let Some(slots) = self.kinds.lock().get_mut(kind) {
            slots.no_other_tenants_at = None;
        }
    }

    pub(super) fn release(&self, kind: &str, tenant: Uuid) {
        if let Some(slots) = self.kinds.lock().get_mut(kind) {
            slots.used -= 1;
            slots.may_have_jobs |= slots.skips_busiest_tenant;
            if let Some(tenant) = slots.tenants.get_mut(&tenant) {
                tenant.used -= 1;
                tenant.last_used = Instant::now();
            }
        }
        self.released.notify_waiters();
        self.changed.notify_one();
    }

    /// Stops claims until [`Self::resume_claims`] is called, for a job that must run alone.
    pub(super) fn stop_claims(&self) {
        self.are_claims_stopped.store(true, Ordering::SeqCst);
    }

    pub(super) fn resume_claims(&self) {
        self.are_claims_stopped.store(false, Ordering::SeqCst);
        self.wake();
    }

    /// Waits until at most one job is running.
    pub(super) async fn until_alone(&self) {
        loop {
            let released = self.released.notified();
            if self.kinds.lock().values().map(|slots| slots.used + slots.outside).sum::<usize>() <= 1 {
                return;
            }
            released.await;
        }
    }

    /// Marks the kinds of a failed claim, so that the claim is repeated.
    pub(super) fn mark_failed(&self, requests: &[ClaimRequest]) {
        let mut kinds = self.kinds.lock();
        for request in requests {
            if let Some(slots) = kinds.get_mut(&request.kind) {
                (slots.may_have_jobs, slots.no_other_tenants_at) = (true, None);
            }
        }
    }

    /// Records that there may be jobs of any kind.
    pub(super) fn wake(&self) {
        self.kinds.lock().values_mut().for_each(KindSlots::wake);
        self.changed.notify_one();
    }

    /// Records that there may be jobs of this kind, or that its next due time changed.
    pub(super) fn wake_kind(&self, kind: &str) {
        if let Some(slots) = self.kinds.lock().get_mut(kind) {
            slots.wake();
        }
        self.changed.notify_one();
    }

    pub(super) fn set_limit(&self, kind: &str, limit: usize) {
        if let Some(slots) = self.kinds.lock().get_mut(kind) {
            slots.limit = limit;
            slots.may_have_jobs = true;
        }
        self.changed.notify_one();
    }

    /// Waits until a slot is released or a kind is woken.
    pub(super) async fn until_changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the number of running jobs per kind.
    pub(super) fn count_running(&self) -> Vec<(String, usize)> {
        self.kinds.lock().iter().map(|(kind, slots)| (kind.clone(), slots.used)).collect()
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

/// A run outside its slot. When it is dropped, it occupies a slot again.
struct OutsideRun(RunSlot);

impl Drop for OutsideRun {
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
    let outside = slot.filter(|slot| slot.slots.leave_slot(&slot.kind, slot.tenant)).map(OutsideRun);
    let output = wait.await;
    drop(outside);
    output
}

/// Works like [`outside_slot`], but returns `None` without waiting if the run would keep its slot.
/// Outside of a runner it always waits.
pub async fn only_outside_slot<F: Future>(wait: F) -> Option<F::Output> {
    let outside = match SLOT.try_with(RunSlot::clone) {
        Ok(slot) if slot.slots.leave_slot(&slot.kind, slot.tenant) => Some(OutsideRun(slot)),
        Ok(_) => return None,
        Err(_) => None,
    };
    let output = wait.await;
    drop(outside);
    Some(output)
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
        for (limit, used, is_nearly_full) in [
            (8, 0, false),
            (8, 6, false),
            (8, 7, true),
            (8, 8, false),
            (4, 3, false),
            (1, 0, false),
            (100, 75, false),
            (100, 76, true),
        ] {
            assert_eq!(slots(limit, used).are_nearly_full(), is_nearly_full, "{used} of {limit}");
        }
    }

    #[test]
    fn only_kinds_with_possible_jobs_count_as_nearly_full() {
        let slots = Slots::new([("image".to_owned(), 8, false), ("page".to_owned(), 8, false)].into_iter());
        (0..7).for_each(|_| slots.occupy("image", Uuid::nil()));
        assert!(!slots.are_nearly_full(), "all slots for pages are free");
        slots.requests();
        assert!(!slots.are_nearly_full(), "the flags of all kinds are cleared");
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
