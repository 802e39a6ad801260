//! Measures the queue: jobs per second through claim and completion, on an otherwise empty table
//! and with a backlog.
//!
//!     cargo run --release -p facecrawl-queue --example throughput -- \
//!         --url postgres://… --jobs 100000 --backlog 1000000
//!
//! Each option can also be set in the environment (`URL` as `DATABASE_URL`; `JOBS`, `BACKLOG`,
//! `BATCH`, `WORKERS`, `ROUNDS`). The program works in its own database, which it drops at the end,
//! and prints one JSON document. The jobs and the backlog have the same kind and priority and are
//! all due; only their order differs.
#![allow(missing_docs)]

use anyhow::{Context, Result, bail};
use queue::{Config, NewJob, Queue};
use serde_json::json;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use std::str::FromStr;
use std::time::Instant;
use uuid::Uuid;

struct Options {
    url: String,
    jobs: usize,
    backlog: usize,
    batch: i64,
    workers: usize,
    rounds: usize,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = options()?;
    let server = PgConnectOptions::from_str(&options.url).context("--url is not a postgres:// URL")?;
    let mut admin = PgConnection::connect_with(&server).await.context("the server does not answer")?;
    let name = format!("queue_throughput_{}", Uuid::now_v7().simple());
    sqlx::query(AssertSqlSafe(format!("create database {name}"))).execute(&mut admin).await?;
    let report = measure(&options, server.database(&name)).await;
    sqlx::query(AssertSqlSafe(format!("drop database {name} with (force)"))).execute(&mut admin).await?;
    println!("{}", serde_json::to_string_pretty(&report?)?);
    Ok(())
}

async fn measure(options: &Options, database: PgConnectOptions) -> Result<serde_json::Value> {
    let pool = PgPoolOptions::new().max_connections(1).connect_with(database).await?;
    for migration in queue_migrations()? {
        sqlx::raw_sql(AssertSqlSafe(migration)).execute(&pool).await?;
    }
    // Uses the same connection settings as a runner.
    let queue = Queue::new(pool.clone(), Config::default()).on_own_connections(options.workers as u32 + 1);

    // The rounds alternate, so that changes in the machine's speed affect both measurements.
    let (mut alone, mut behind, mut enqueued) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..options.rounds {
        sqlx::raw_sql("truncate jobs, finished_jobs").execute(&pool).await?;
        enqueued.push(fill(&queue, options.jobs).await?);
        alone.push(drain(&queue, options).await?);
        sqlx::raw_sql("truncate jobs, finished_jobs").execute(&pool).await?;
        fill(&queue, options.jobs + options.backlog).await?;
        behind.push(drain(&queue, options).await?);
        eprintln!(
            "round {}: {:.0} jobs/s alone, {:.0} jobs/s with the backlog",
            round + 1,
            alone[round],
            behind[round]
        );
    }
    let left: i64 = sqlx::query_scalar("select count(*) from jobs").fetch_one(&pool).await?;
    if left != options.backlog as i64 {
        bail!("{left} jobs are left, the backlog has {}", options.backlog);
    }
    let (alone, behind) = (median(alone), median(behind));
    Ok(json!({
        "jobs": options.jobs, "batch": options.batch, "workers": options.workers, "rounds": options.rounds,
        "postgres": setting(&pool, "server_version").await?,
        "fsync": setting(&pool, "fsync").await?,
        "synchronous_commit": setting(&pool, "synchronous_commit").await?,
        "enqueue_jobs_per_s": median(enqueued).round(),
        "claim_complete_jobs_per_s": alone.round(),
        "backlog": options.backlog,
        "claim_complete_with_backlog_jobs_per_s": behind.round(),
        "ratio": (behind / alone * 1000.0).round() / 1000.0,
    }))
}

/// Returns the migrations of the queue's tables, in their order. Their file names contain `queue`.
fn queue_migrations() -> Result<Vec<String>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations");
    let entries = std::fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    let mut files: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    files
        .retain(|file| file.to_string_lossy().ends_with(".sql") && file.to_string_lossy().contains("_queue"));
    files.sort();
    files.iter().map(|file| Ok(std::fs::read_to_string(file)?)).collect()
}

/// Enqueues in batches. Returns jobs per second.
async fn fill(queue: &Queue, jobs: usize) -> Result<f64> {
    let start = Instant::now();
    let mut conn = queue.pool().acquire().await?;
    let mut index = 0;
    while index < jobs {
        let count = 5000.min(jobs - index);
        let batch: Vec<NewJob> = (index..index + count)
            .map(|i| NewJob::new("work", json!({"number": i, "url": "http://127.0.0.1/a.jpg"})))
            .collect();
        queue.enqueue(&mut conn, &batch).await?;
        index += count;
    }
    let seconds = start.elapsed().as_secs_f64();
    // Updates the visibility map and the planner's statistics, as autovacuum would a minute later.
    sqlx::raw_sql("vacuum analyze jobs").execute(&mut *conn).await?;
    sqlx::raw_sql("checkpoint").execute(&mut *conn).await?;
    Ok(jobs as f64 / seconds)
}

/// Claims and completes `options.jobs` jobs with all workers. Returns jobs per second.
async fn drain(queue: &Queue, options: &Options) -> Result<f64> {
    let start = Instant::now();
    let workers = (0..options.workers).map(|worker| {
        let queue = queue.clone();
        let share = options.jobs / options.workers + usize::from(worker < options.jobs % options.workers);
        let batch = options.batch;
        tokio::spawn(async move {
            let (kinds, name) = (["work".to_owned()], format!("worker {worker}"));
            let mut left = share as i64;
            while left > 0 {
                let claimed = queue.claim(&kinds, batch.min(left), &name).await?;
                let claims: Vec<_> = claimed.iter().map(|job| job.claim).collect();
                let stale = queue.complete_many(&claims).await?;
                if !stale.is_empty() {
                    bail!("{} claims were stale", stale.len());
                }
                left -= claims.len() as i64;
            }
            Ok(())
        })
    });
    for worker in futures::future::join_all(workers).await {
        worker??;
    }
    Ok(options.jobs as f64 / start.elapsed().as_secs_f64())
}

async fn setting(pool: &PgPool, name: &str) -> Result<String> {
    Ok(sqlx::query_scalar("select current_setting($1)").bind(name).fetch_one(pool).await?)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn options() -> Result<Options> {
    let mut arguments = std::collections::HashMap::new();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let name = word.strip_prefix("--").filter(|name| NAMES.contains(name));
        let Some(name) = name else {
            bail!("{word:?} is not an option; there are --{}", NAMES.join(", --"));
        };
        arguments.insert(name.to_owned(), words.next().with_context(|| format!("--{name} needs a value"))?);
    }
    let text =
        |name: &str, variable: &str| arguments.get(name).cloned().or_else(|| std::env::var(variable).ok());
    let number = |name: &str, default: usize| -> Result<usize> {
        let Some(value) = text(name, &name.to_uppercase()) else { return Ok(default) };
        value
            .parse()
            .ok()
            .filter(|n| *n > 0)
            .with_context(|| format!("--{name} is {value:?}, it must be a positive number"))
    };
    Ok(Options {
        url: text("url", "DATABASE_URL").context("--url (or DATABASE_URL) is missing")?,
        jobs: number("jobs", 100_000)?,
        backlog: number("backlog", 1_000_000)?,
        batch: number("batch", 500)? as i64,
        workers: number("workers", 2)?,
        rounds: number("rounds", 3)?,
    })
}

const NAMES: [&str; 6] = ["url", "jobs", "backlog", "batch", "workers", "rounds"];
