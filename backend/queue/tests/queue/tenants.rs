//! Tests that tenants share a worker's slots.
use crate::runner::{Worker, handler_fn};
use crate::support::{Fixture, SOON, page, soon, until};
use queue::{Enqueued, NewJob, RunEnd, only_outside_slot, outside_slot};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};
use uuid::Uuid;

/// Number of the worker's slots. Three quarters of them are six.
const SLOTS: usize = 8;

/// A worker whose jobs report their tenant when they start, and end when the test allows it.
struct SharedWorker {
    fixture: Fixture,
    worker: Worker,
    starts: mpsc::UnboundedReceiver<Uuid>,
    gates: HashMap<Uuid, Arc<Semaphore>>,
    /// Number of running jobs per tenant.
    running: HashMap<Uuid, usize>,
}

impl SharedWorker {
    fn with_eight_slots(fixture: Fixture, tenants: &[Uuid]) -> Self {
        Self::with(fixture, tenants, SLOTS, &[])
    }

    fn with(fixture: Fixture, tenants: &[Uuid], slots: usize, long_kinds: &[&str]) -> Self {
        let gates: HashMap<Uuid, Arc<Semaphore>> =
            tenants.iter().map(|tenant| (*tenant, Arc::new(Semaphore::new(0)))).collect();
        let (sender, starts) = mpsc::unbounded_channel();
        let handler = handler_fn({
            let gates = gates.clone();
            move |job, _| {
                let gate = Arc::clone(&gates[&job.tenant]);
                sender.send(job.tenant).unwrap();
                async move {
                    gate.acquire().await.unwrap().forget();
                    RunEnd::Done
                }
            }
        });
        let worker = Worker::start_on(&fixture.queue, &[("page", slots, handler)], |config| {
            config.keep_quarter_free = long_kinds.iter().map(|kind| (*kind).to_owned()).collect();
            config.never_alone = long_kinds.iter().map(|kind| (*kind).to_owned()).collect();
        });
        Self { fixture, worker, starts, gates, running: HashMap::new() }
    }

    /// Waits for the next job to start and returns its tenant.
    async fn next_tenant(&mut self) -> Uuid {
        let tenant = soon("a job starts", self.starts.recv()).await.unwrap();
        *self.running.entry(tenant).or_default() += 1;
        tenant
    }

    fn finish_one(&mut self, tenant: Uuid) {
        *self.running.get_mut(&tenant).unwrap() -= 1;
        self.gates[&tenant].add_permits(1);
    }

    fn open_gates(&self) {
        self.gates.values().for_each(|gate| gate.add_permits(100_000));
    }

    /// Lets all jobs end, and stops the worker.
    async fn end(self) {
        self.open_gates();
        self.worker.stop().await;
    }
}

fn job_of_tenant(tenant: Uuid) -> NewJob {
    NewJob { tenant, ..page() }
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_tenant_leaves_slots_to_other_tenants() {
    let (slow, other) = (Uuid::now_v7(), Uuid::now_v7());
    let fixture = Fixture::new().await;
    fixture.enqueue(&vec![job_of_tenant(slow); 20_000]).await;
    let mut shared = SharedWorker::with_eight_slots(fixture, &[slow, other]);
    for _ in 0..SLOTS {
        assert_eq!(shared.next_tenant().await, slow, "a tenant without others gets all slots");
    }
    shared.fixture.enqueue(&vec![job_of_tenant(other); 4]).await;
    // The jobs of the other tenant are the newest, but do not wait for the older ones.
    let mut ended_count = 0;
    while shared.running.get(&other).copied().unwrap_or(0) < 2 {
        shared.finish_one(slow);
        shared.next_tenant().await;
        ended_count += 1;
        assert!(ended_count < 19_000, "the other tenant waits for the whole queue");
    }
    assert_eq!(shared.running[&slow], 6, "the other tenant gets a quarter of the slots");
    for _ in 0..2 {
        shared.finish_one(other);
        assert_eq!(shared.next_tenant().await, other, "the other tenant keeps these slots while it has jobs");
    }
    // The slow tenant may reuse the slot of its job that ended, but no further slot.
    shared.finish_one(slow);
    assert_eq!(shared.next_tenant().await, slow);
    assert_eq!(shared.running, HashMap::from([(slow, 6), (other, 2)]));
    shared.end().await;
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_alternate_for_single_slot() {
    let [first, second, third] = [(); 3].map(|()| Uuid::now_v7());
    let fixture = Fixture::new().await;
    fixture.enqueue(&vec![job_of_tenant(first); 20]).await;
    fixture.enqueue(&vec![job_of_tenant(second); 5]).await;
    let mut shared = SharedWorker::with(fixture, &[first, second, third], 1, &[]);
    assert_eq!(shared.next_tenant().await, first, "the oldest job is the first");
    // The job of the third tenant is the newest.
    shared.fixture.enqueue(&[job_of_tenant(third)]).await;
    let mut order = Vec::new();
    let mut running = first;
    for _ in 0..6 {
        shared.finish_one(running);
        running = shared.next_tenant().await;
        order.push(running);
    }
    assert_eq!(order, [second, third, first, second, first, second]);
    assert!(shared.fixture.queue.has_other_waiting_tenants("page", first).await.unwrap());
    shared.end().await;
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashed_job_runs_while_tenants_alternate() {
    let [first, second] = [(); 2].map(|()| Uuid::now_v7());
    let fixture = Fixture::new().await;
    fixture.enqueue(&[job_of_tenant(first)]).await;
    fixture.run_sql("update jobs set crashes = 2, priority = 1").await;
    fixture.enqueue(&vec![job_of_tenant(first); 500]).await;
    fixture.enqueue(&vec![job_of_tenant(second); 500]).await;
    let shared = SharedWorker::with(fixture, &[first, second], 1, &[]);
    shared.open_gates();
    until("the suspect ends", || async {
        let remaining = "select count(*) from jobs where crashes > 1";
        shared.fixture.count(remaining).await == 0
    })
    .await;
    assert!(
        shared.fixture.count("select count(*) from jobs").await > 0,
        "it did not wait for all other jobs"
    );
    shared.worker.stop().await;
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn quarter_of_long_job_slots_stays_free_for_others() {
    let (slow, other) = (Uuid::now_v7(), Uuid::now_v7());
    let fixture = Fixture::new().await;
    fixture.enqueue(&vec![job_of_tenant(slow); 20]).await;
    let mut shared = SharedWorker::with(fixture, &[slow, other], SLOTS, &["page"]);
    for _ in 0..6 {
        assert_eq!(shared.next_tenant().await, slow);
    }
    shared.fixture.enqueue(&vec![job_of_tenant(other); 4]).await;
    for _ in 0..2 {
        assert_eq!(shared.next_tenant().await, other, "this happens before any job ends");
    }
    shared.end().await;
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashed_jobs_of_other_tenants_use_reserved_slots() {
    let (slow, other) = (Uuid::now_v7(), Uuid::now_v7());
    let fixture = Fixture::new().await;
    fixture.enqueue(&vec![job_of_tenant(slow); 20]).await;
    fixture.enqueue(&vec![job_of_tenant(other); 4]).await;
    fixture.run_sql("update jobs set crashes = 2").await;
    let mut shared = SharedWorker::with(fixture, &[slow, other], SLOTS, &["page"]);
    for _ in 0..SLOTS {
        shared.next_tenant().await;
    }
    assert_eq!(shared.running, [(slow, 6), (other, 2)].into(), "this happens before any job ends");
    shared.end().await;
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_waiting_outside_its_slot_lets_others_run() {
    let fixture = Fixture::new().await;
    let jobs = fixture.enqueue(&[page(), page()]).await;
    let gate = Arc::new(Semaphore::new(0));
    let handler = handler_fn({
        let gate = Arc::clone(&gate);
        let ids: Vec<_> = jobs.iter().map(job_id).collect();
        move |job, _| {
            let (gate, is_first) = (Arc::clone(&gate), job.claim.id == ids[0]);
            async move {
                if is_first {
                    outside_slot(gate.acquire()).await.unwrap().forget();
                } else {
                    gate.add_permits(1);
                }
                RunEnd::Done
            }
        }
    });
    let worker = Worker::start(&fixture.queue, &[("page", 1, handler)], SOON);
    fixture.until_ended(2).await;
    worker.stop().await;
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_most_three_slots_of_tenant_wait_outside_one_slot() {
    let fixture = Fixture::new().await;
    fixture.enqueue(&[page(), page(), page(), page()]).await;
    let gate = Arc::new(Semaphore::new(0));
    let handler = handler_fn({
        let gate = Arc::clone(&gate);
        move |_, _| {
            let gate = Arc::clone(&gate);
            async move {
                match only_outside_slot(gate.acquire()).await {
                    Some(permit) => permit.unwrap().forget(),
                    // The fourth job does not wait, so it ends the wait of the others.
                    None => gate.add_permits(3),
                }
                RunEnd::Done
            }
        }
    });
    let worker = Worker::start(&fixture.queue, &[("page", 1, handler)], SOON);
    fixture.until_ended(4).await;
    worker.stop().await;
    gate.add_permits(1);
    assert!(only_outside_slot(gate.acquire()).await.is_some(), "outside of a runner it always waits");
}

fn job_id(job: &Enqueued) -> Uuid {
    match job {
        Enqueued::New(id) => *id,
        Enqueued::Duplicate => panic!("a duplicate"),
    }
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn third_tenant_does_not_wait_for_two_backlogs() {
    let [first, second, third] = [(); 3].map(|()| Uuid::now_v7());
    let fixture = Fixture::new().await;
    fixture.enqueue(&vec![job_of_tenant(first); 4_000]).await;
    fixture.enqueue(&vec![job_of_tenant(second); 4_000]).await;
    let mut shared = SharedWorker::with_eight_slots(fixture, &[first, second, third]);
    for _ in 0..SLOTS {
        shared.next_tenant().await;
    }
    // Repeats until the second tenant has three slots, although the jobs of the first are older.
    let mut ended_count = 0;
    while shared.running.get(&second).copied().unwrap_or(0) < 3 {
        shared.finish_one(first);
        shared.next_tenant().await;
        ended_count += 1;
        assert!(ended_count < 3_500, "the second tenant waits for the whole queue");
    }
    shared.fixture.enqueue(&vec![job_of_tenant(third); 2]).await;
    shared.finish_one(second);
    assert_eq!(shared.next_tenant().await, third, "the tenant with the fewest running jobs comes first");
    shared.finish_one(first);
    assert_eq!(shared.next_tenant().await, third);
    shared.end().await;
}
