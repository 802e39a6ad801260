//! Tests that tenants share a worker's slots.
use crate::runner::{Worker, body};
use crate::support::{Bench, SOON, page, soon, until};
use queue::{Enqueued, NewJob, RunEnd, outside_slot};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};
use uuid::Uuid;

/// Number of the worker's slots. Three quarters of them are six.
const PLACES: usize = 8;

/// A worker whose jobs report their tenant when they start, and end when the test allows it.
struct Shared {
    bench: Bench,
    worker: Worker,
    started: mpsc::UnboundedReceiver<Uuid>,
    gates: HashMap<Uuid, Arc<Semaphore>>,
    /// Number of running jobs per tenant.
    running: HashMap<Uuid, usize>,
}

impl Shared {
    fn of(bench: Bench, tenants: &[Uuid]) -> Self {
        Self::with(bench, tenants, PLACES, &[])
    }

    fn with(bench: Bench, tenants: &[Uuid], places: usize, keep_quarter: &[&str]) -> Self {
        let gates: HashMap<Uuid, Arc<Semaphore>> =
            tenants.iter().map(|tenant| (*tenant, Arc::new(Semaphore::new(0)))).collect();
        let (tell, started) = mpsc::unbounded_channel();
        let handler = body({
            let gates = gates.clone();
            move |job, _| {
                let gate = Arc::clone(&gates[&job.tenant]);
                tell.send(job.tenant).unwrap();
                async move {
                    gate.acquire().await.unwrap().forget();
                    RunEnd::Done
                }
            }
        });
        let worker = Worker::start_on(&bench.queue, &[("page", places, handler)], |config| {
            config.keep_quarter = keep_quarter.iter().map(|kind| (*kind).to_owned()).collect();
            config.never_alone = keep_quarter.iter().map(|kind| (*kind).to_owned()).collect();
        });
        Self { bench, worker, started, gates, running: HashMap::new() }
    }

    /// Waits for the next job to start and returns its tenant.
    async fn next(&mut self) -> Uuid {
        let tenant = soon("a job starts", self.started.recv()).await.unwrap();
        *self.running.entry(tenant).or_default() += 1;
        tenant
    }

    fn end_one(&mut self, tenant: Uuid) {
        *self.running.get_mut(&tenant).unwrap() -= 1;
        self.gates[&tenant].add_permits(1);
    }

    fn open(&self) {
        self.gates.values().for_each(|gate| gate.add_permits(100_000));
    }

    /// Lets all jobs end, and stops the worker.
    async fn end(self) {
        self.open();
        self.worker.stop().await;
    }
}

fn of(tenant: Uuid) -> NewJob {
    NewJob { tenant, ..page() }
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_tenant_leaves_slots_to_other_tenants() {
    let (slow, other) = (Uuid::now_v7(), Uuid::now_v7());
    let bench = Bench::new().await;
    bench.add(&vec![of(slow); 20_000]).await;
    let mut shared = Shared::of(bench, &[slow, other]);
    for _ in 0..PLACES {
        assert_eq!(shared.next().await, slow, "a tenant that is alone gets all places");
    }
    shared.bench.add(&vec![of(other); 4]).await;
    // The jobs of the other tenant are the newest of all, but do not wait for the older ones.
    let mut ended = 0;
    while shared.running.get(&other).copied().unwrap_or(0) < 2 {
        shared.end_one(slow);
        shared.next().await;
        ended += 1;
        assert!(ended < 19_000, "the other tenant waits for the whole queue");
    }
    assert_eq!(shared.running[&slow], 6, "the other tenant gets a quarter of the places");
    for _ in 0..2 {
        shared.end_one(other);
        assert_eq!(shared.next().await, other, "the other tenant keeps these places while it has jobs");
    }
    // The slow tenant may reuse the slot of its job that ended, but no further slot.
    shared.end_one(slow);
    assert_eq!(shared.next().await, slow);
    assert_eq!(shared.running, HashMap::from([(slow, 6), (other, 2)]));
    shared.end().await;
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_alternate_for_single_slot() {
    let [first, second, third] = [(); 3].map(|()| Uuid::now_v7());
    let bench = Bench::new().await;
    bench.add(&vec![of(first); 20]).await;
    bench.add(&vec![of(second); 5]).await;
    let mut shared = Shared::with(bench, &[first, second, third], 1, &[]);
    assert_eq!(shared.next().await, first, "the oldest job is the first");
    // Its job is the newest of all.
    shared.bench.add(&[of(third)]).await;
    let mut order = Vec::new();
    let mut running = first;
    for _ in 0..6 {
        shared.end_one(running);
        running = shared.next().await;
        order.push(running);
    }
    assert_eq!(order, [second, third, first, second, first, second]);
    assert!(shared.bench.queue.others_wait("page", first).await.unwrap());
    shared.end().await;
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashed_job_runs_while_tenants_alternate() {
    let [first, second] = [(); 2].map(|()| Uuid::now_v7());
    let bench = Bench::new().await;
    bench.add(&[of(first)]).await;
    bench.run_sql("update jobs set crashes = 2, priority = 1").await;
    bench.add(&vec![of(first); 500]).await;
    bench.add(&vec![of(second); 500]).await;
    let shared = Shared::with(bench, &[first, second], 1, &[]);
    shared.open();
    until("the suspect ends", || async {
        let left = "select count(*) from jobs where crashes > 1";
        shared.bench.count(left).await == 0
    })
    .await;
    assert!(shared.bench.count("select count(*) from jobs").await > 0, "it did not wait for all others");
    shared.worker.stop().await;
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn quarter_of_long_job_slots_stays_free_for_others() {
    let (slow, other) = (Uuid::now_v7(), Uuid::now_v7());
    let bench = Bench::new().await;
    bench.add(&vec![of(slow); 20]).await;
    let mut shared = Shared::with(bench, &[slow, other], PLACES, &["page"]);
    for _ in 0..6 {
        assert_eq!(shared.next().await, slow);
    }
    shared.bench.add(&vec![of(other); 4]).await;
    for _ in 0..2 {
        assert_eq!(shared.next().await, other, "no job has ended");
    }
    shared.end().await;
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashed_jobs_of_other_tenants_use_reserved_slots() {
    let (slow, other) = (Uuid::now_v7(), Uuid::now_v7());
    let bench = Bench::new().await;
    bench.add(&vec![of(slow); 20]).await;
    bench.add(&vec![of(other); 4]).await;
    bench.run_sql("update jobs set crashes = 2").await;
    let mut shared = Shared::with(bench, &[slow, other], PLACES, &["page"]);
    for _ in 0..PLACES {
        shared.next().await;
    }
    assert_eq!(shared.running, [(slow, 6), (other, 2)].into(), "no job has ended");
    shared.end().await;
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_waiting_outside_its_slot_lets_others_run() {
    let bench = Bench::new().await;
    let jobs = bench.add(&[page(), page()]).await;
    let gate = Arc::new(Semaphore::new(0));
    let handler = body({
        let gate = Arc::clone(&gate);
        let ids: Vec<_> = jobs.iter().map(job_id).collect();
        move |job, _| {
            let (gate, first) = (Arc::clone(&gate), job.claim.id == ids[0]);
            async move {
                if first {
                    outside_slot(gate.acquire()).await.unwrap().forget();
                } else {
                    gate.add_permits(1);
                }
                RunEnd::Done
            }
        }
    });
    let worker = Worker::start(&bench.queue, &[("page", 1, handler)], SOON);
    bench.ended(2).await;
    worker.stop().await;
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
    let bench = Bench::new().await;
    bench.add(&vec![of(first); 4_000]).await;
    bench.add(&vec![of(second); 4_000]).await;
    let mut shared = Shared::of(bench, &[first, second, third]);
    for _ in 0..PLACES {
        shared.next().await;
    }
    // Repeats until the second tenant also has a share. The first tenant's older jobs do not
    // prevent this.
    let mut ended = 0;
    while shared.running.get(&second).copied().unwrap_or(0) < 3 {
        shared.end_one(first);
        shared.next().await;
        ended += 1;
        assert!(ended < 3_500, "the second tenant waits for the whole queue");
    }
    shared.bench.add(&vec![of(third); 2]).await;
    shared.end_one(second);
    assert_eq!(shared.next().await, third, "the tenant with the fewest running jobs comes first");
    shared.end_one(first);
    assert_eq!(shared.next().await, third);
    shared.end().await;
}
