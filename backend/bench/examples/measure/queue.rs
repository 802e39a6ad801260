//! Measures how many jobs per second are claimed and completed. One case uses an otherwise empty
//! table, the other a backlog of other due jobs of the same kind and priority.
use crate::common::{per_second, rounded};
use anyhow::{Result, ensure};
use bench::Spread;
use futures::future::try_join_all;
use queue::{Config, NewJob, Queue};
use serde_json::{Value, json};
use std::time::Instant;
use testing::TestDatabase;

/// Number of jobs in one insert.
const BATCH_SIZE: usize = 5000;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of jobs that are claimed and completed
    #[arg(long, default_value_t = 100_000)]
    jobs: usize,
    /// Number of other due jobs in the second case
    #[arg(long, default_value_t = 1_000_000)]
    backlog: usize,
    /// Number of jobs in one claim
    #[arg(long, default_value_t = 500)]
    batch: i64,
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    workers: u32,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

pub(crate) async fn measure(arguments: &Arguments) -> Result<Value> {
    let database = TestDatabase::create().await;
    // Uses the same connection settings as a runner.
    let queue =
        Queue::new(database.pool().clone(), Config::default()).on_own_connections(arguments.workers + 1);
    // The rounds alternate, so that changes in the machine's speed affect both cases.
    let (mut alone, mut with_backlog, mut enqueued) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=arguments.rounds {
        enqueued.push(fill(&database, &queue, arguments.jobs).await?);
        alone.push(drain(&queue, arguments).await?);
        fill(&database, &queue, arguments.jobs + arguments.backlog).await?;
        with_backlog.push(drain(&queue, arguments).await?);
        eprintln!("round {round}: jobs/s alone {alone:.0?}, with the backlog {with_backlog:.0?}");
    }
    let left = database.number("select count(*) from jobs").await;
    ensure!(left == arguments.backlog as i64, "{left} jobs are left");
    let median = |rates: &[f64]| Spread::of(rates).map_or(0.0, |spread| spread.median);
    let fsync = database.number("select current_setting('fsync')::bool::int::bigint").await;
    Ok(json!({
        "jobs": arguments.jobs, "backlog": arguments.backlog, "batch": arguments.batch,
        "workers": arguments.workers, "rounds": arguments.rounds, "fsync": fsync == 1,
        "enqueue_jobs_per_s": median(&enqueued).round(),
        "claim_complete_jobs_per_s": median(&alone).round(),
        "claim_complete_with_backlog_jobs_per_s": median(&with_backlog).round(),
        "ratio": rounded(median(&with_backlog) / median(&alone), 3),
    }))
}

/// Replaces all jobs. Returns the jobs enqueued per second.
async fn fill(database: &TestDatabase, queue: &Queue, jobs: usize) -> Result<f64> {
    database.execute("truncate jobs, finished_jobs").await;
    let started = Instant::now();
    let mut conn = queue.pool().acquire().await?;
    for first in (0..jobs).step_by(BATCH_SIZE) {
        let job = |number| NewJob::new("work", json!({"number": number, "url": "http://127.0.0.1/a.jpg"}));
        let batch: Vec<NewJob> = (first..jobs.min(first + BATCH_SIZE)).map(job).collect();
        queue.enqueue(&mut conn, &batch).await?;
    }
    let rate = per_second(jobs, started);
    // Updates the visibility map and the planner's statistics, as autovacuum would a minute later.
    database.execute("vacuum analyze jobs").await;
    database.execute("checkpoint").await;
    Ok(rate)
}

/// Claims and completes `arguments.jobs` jobs with all workers. Returns the jobs per second.
async fn drain(queue: &Queue, arguments: &Arguments) -> Result<f64> {
    let started = Instant::now();
    let (workers, batch) = (arguments.workers as usize, arguments.batch);
    let tasks = (0..workers).map(|worker| {
        let queue = queue.clone();
        let mut share = (arguments.jobs / workers + usize::from(worker < arguments.jobs % workers)) as i64;
        tokio::spawn(async move {
            let (kinds, name) = (["work".to_owned()], format!("worker {worker}"));
            while share > 0 {
                let claimed = queue.claim(&kinds, batch.min(share), &name).await?;
                let claims: Vec<_> = claimed.iter().map(|job| job.claim).collect();
                let stale = queue.complete_many(&claims).await?;
                ensure!(stale.is_empty(), "{} claims were stale", stale.len());
                share -= claims.len() as i64;
            }
            Ok(())
        })
    });
    try_join_all(tasks).await?.into_iter().collect::<Result<()>>()?;
    Ok(per_second(arguments.jobs, started))
}
