//! Implements `jobs list|show|retry|cancel|purge|stats`, with which operators manage the queue. The
//! commands need only the database.
use super::options::parse_duration;
use super::{Exit, UsageError};
use crate::config::Settings;
use crate::output::{self, format_time};
use crate::service::{Database, Sharing};
use clap::{Args, Subcommand};
use pipeline::{CrawlError, Crawls};
use queue::{JobRow, JobState, Queue, QueueError};
use serde_json::{Value, json};
use std::time::Duration;
use store::StoreError;
use store::db::schema::OlderProgramPolicy;
use uuid::Uuid;

/// The arguments of `jobs`.
#[derive(Args, Debug)]
pub struct JobsArgs {
    #[command(subcommand)]
    command: JobsCommand,
    /// Print one JSON document
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum JobsCommand {
    /// List jobs, newest first
    List(ListArgs),
    /// Show all fields of a job
    Show {
        /// Id of the job
        id: Uuid,
    },
    /// Return discarded or cancelled jobs to the queue, with all their attempts; exit status 3 if
    /// this is not possible for some of them
    Retry(RetryArgs),
    /// Cancel jobs that have not ended; their pages and images are skipped
    Cancel {
        /// Ids of the jobs
        #[arg(required = true)]
        ids: Vec<Uuid>,
    },
    /// Delete the records of discarded jobs, which are kept until then
    Purge {
        /// Minimum time since the job ended: 12h, 90d, 52w
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        older_than: time::Duration,
    },
    /// Print the number of waiting, running and failed jobs by kind, and their rates
    Stats {
        /// Period, in seconds up to now, for the rates of completed and discarded jobs
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
        window: u64,
    },
}

#[derive(Args, Debug)]
struct ListArgs {
    /// State: available, running, retryable, completed, discarded, cancelled, or any
    #[arg(long, default_value = "discarded", value_parser = parse_state_filter)]
    state: StateFilter,
    /// Only jobs of this kind, such as scan_image
    #[arg(long)]
    kind: Option<String>,
    /// Only jobs of this crawl
    #[arg(long, value_name = "ID")]
    crawl: Option<Uuid>,
    /// Only jobs older than this one; for the next page, the last job of the previous one (`next`
    /// of the JSON)
    #[arg(long, value_name = "ID")]
    before: Option<Uuid>,
    /// Maximum number of jobs to list
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=1000))]
    limit: i64,
}

#[derive(Args, Debug)]
struct RetryArgs {
    /// Ids of the jobs
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<Uuid>,
    /// All discarded jobs; --kind and --crawl select some of them
    #[arg(long)]
    all: bool,
    /// With --all: only jobs of this kind, such as scan_image
    #[arg(long, requires = "all", conflicts_with = "ids")]
    kind: Option<String>,
    /// With --all: only jobs of this crawl
    #[arg(long, requires = "all", conflicts_with = "ids", value_name = "ID")]
    crawl: Option<Uuid>,
}

/// A state, or `None` for any.
#[derive(Clone, Copy, Debug)]
struct StateFilter(Option<JobState>);

fn parse_state_filter(text: &str) -> Result<StateFilter, String> {
    match text {
        "any" => Ok(StateFilter(None)),
        state => state
            .parse()
            .map(|state| StateFilter(Some(state)))
            .map_err(|error: QueueError| format!("{error}, any")),
    }
}

pub(super) async fn run(settings: &Settings, args: JobsArgs) -> anyhow::Result<Exit> {
    Database::with(settings, Sharing::Shared, async |database| {
        database.migrate(OlderProgramPolicy::FailMigration).await?;
        let queue = Queue::new(database.store.pool().clone(), queue::Config::default());
        let crawls = Crawls::new(database.store.clone(), queue.clone()).with_config(settings.crawls());
        dispatch(&queue, &crawls, args).await
    })
    .await
}

async fn dispatch(queue: &Queue, crawls: &Crawls, args: JobsArgs) -> anyhow::Result<Exit> {
    let json = args.json;
    match args.command {
        JobsCommand::List(args) => list(queue, args, json).await,
        JobsCommand::Show { id } => match queue.jobs().get(id).await {
            Err(QueueError::NotFound(_)) => Err(UsageError(format!(
                "there is no job {id}; `facecrawl jobs list --state any` lists all jobs"
            ))
            .into()),
            job => print_job(&job?, json),
        },
        JobsCommand::Retry(args) => {
            let mut results = JobResults::default();
            if args.all {
                let retried = crawls.retry_discarded(args.kind.as_deref(), args.crawl).await?;
                (results.done, results.rejected) = (retried.retried, retried.rejected);
            }
            for id in args.ids {
                results.add(id, crawls.retry(id).await)?;
            }
            results.print("retried", json)
        }
        JobsCommand::Cancel { ids } => {
            let mut results = JobResults::default();
            for id in ids {
                results.add(id, crawls.cancel_job(id).await)?;
            }
            results.print(JobState::Cancelled.as_str(), json)
        }
        JobsCommand::Purge { older_than } => {
            let purged = queue.jobs().purge_discarded(older_than.unsigned_abs()).await?;
            output::print_json_or(json, &json!({ "purged": purged }), || {
                output::print_line(format!("{purged} purged"))
            })?;
            Ok(Exit::Success)
        }
        JobsCommand::Stats { window } => stats(queue, Duration::from_secs(window), json).await,
    }
}

async fn list(queue: &Queue, args: ListArgs, json: bool) -> anyhow::Result<Exit> {
    let ListArgs { state: StateFilter(requested), kind, crawl, before, limit } = args;
    // An additional row shows whether there is a next page.
    let mut jobs = queue.jobs().list(requested, kind.as_deref(), crawl, before, limit + 1).await?;
    let has_next = jobs.len() as i64 > limit;
    if has_next {
        jobs.pop();
    }
    let next = jobs.last().filter(|_| has_next).map(|job| job.id);
    if json {
        return output::print_json(
            &json!({ "jobs": jobs.iter().map(job_json).collect::<Vec<_>>(), "next": next }),
        )
        .map(|()| Exit::Success);
    }
    let mut table = output::table_with_unbroken_columns(
        &[0],
        ["Id", "Kind", "State", "Attempt", "Scheduled", "Ended", "Last error"],
    );
    for job in &jobs {
        table.add_row([
            job.id.to_string(),
            job.kind.clone(),
            state_text(job),
            format!("{} of {}", job.attempt, job.max_attempts),
            format_time(job.scheduled_at),
            job.finished_at.map(format_time).unwrap_or_default(),
            job.last_error.clone().unwrap_or_default(),
        ]);
    }
    output::print_line(table)?;
    if let Some(next) = next {
        eprintln!("{} shown; --before {next} lists more", jobs.len());
    }
    Ok(Exit::Success)
}

fn print_job(job: &JobRow, json: bool) -> anyhow::Result<Exit> {
    let document = job_json(job);
    if json {
        return output::print_json(&document).map(|()| Exit::Success);
    }
    let mut table = output::table(["Field", "Value"]);
    for (field, value) in document.as_object().into_iter().flatten() {
        let text = match value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        table.add_row([field.clone(), text]);
    }
    output::print_line(table)?;
    Ok(Exit::Success)
}

async fn stats(queue: &Queue, window: Duration, json: bool) -> anyhow::Result<Exit> {
    let report = queue.jobs().report(window).await?;
    let rate = |count: i64| count as f64 / window.as_secs_f64();
    let states = [JobState::Available, JobState::Running, JobState::Retryable, JobState::Discarded];
    let mut table = output::table([
        "Kind",
        "Available",
        "Running",
        "Retryable",
        "Discarded",
        "Completed/s",
        "Discarded/s",
        "Oldest due",
    ]);
    let mut kinds = Vec::new();
    for (kind, report) in &report.kinds {
        let count = |state| report.counts.get(&state).copied().unwrap_or(0);
        let mut row = vec![kind.clone()];
        row.extend(states.map(|state| count(state).to_string()));
        row.extend([report.completed, report.discarded].map(|ended| format!("{:.2}", rate(ended))));
        row.push(report.oldest_due_seconds.map(|age| format!("{age:.0} s")).unwrap_or_default());
        table.add_row(row);
        kinds.push(json!({
            "kind": kind,
            "available": count(JobState::Available),
            "running": count(JobState::Running),
            "retryable": count(JobState::Retryable),
            "discarded": count(JobState::Discarded),
            "completed_per_second": rate(report.completed),
            "discarded_per_second": rate(report.discarded),
            "oldest_due_seconds": report.oldest_due_seconds,
        }));
    }
    let report = json!({ "window_seconds": window.as_secs(), "kinds": kinds });
    output::print_json_or(json, &report, || output::print_line(table))?;
    Ok(Exit::Success)
}

#[derive(Default)]
struct JobResults {
    done: u64,
    rejected: Vec<(Uuid, String)>,
}

impl JobResults {
    /// Counts a result. A job whose state does not allow the operation is reported. Any other error
    /// ends the command.
    fn add(&mut self, id: Uuid, result: Result<JobRow, CrawlError>) -> anyhow::Result<()> {
        match result {
            Ok(_) => self.done += 1,
            Err(
                error @ (CrawlError::Queue(QueueError::NotFound(_) | QueueError::Duplicate(_))
                | CrawlError::Store(StoreError::Conflict(_))),
            ) => self.rejected.push((id, error.to_string())),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn print(self, verb: &str, json: bool) -> anyhow::Result<Exit> {
        if json {
            let rejected: Vec<Value> =
                self.rejected.iter().map(|(id, reason)| json!({ "id": id, "reason": reason })).collect();
            output::print_json(&json!({ verb: self.done, "left": rejected }))?;
        } else {
            output::print_line(format!("{} {verb}", self.done))?;
            for (id, reason) in &self.rejected {
                eprintln!("{id}: {reason}");
            }
        }
        Ok(Exit::from_counts(usize::try_from(self.done).unwrap_or(usize::MAX), self.rejected.len()))
    }
}

/// Returns the state of a job, and whether it is held.
fn state_text(job: &JobRow) -> String {
    if job.held { format!("{} (held)", job.state) } else { job.state.to_string() }
}

fn job_json(job: &JobRow) -> Value {
    json!({
        "id": job.id,
        "kind": job.kind,
        "state": job.state,
        "held": job.held,
        "payload": job.payload,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "priority": job.priority,
        "scheduled_at": format_time(job.scheduled_at),
        "created_at": format_time(job.created_at),
        "finished_at": job.finished_at.map(format_time),
        "last_error": job.last_error,
        "crawl_id": job.group_id,
        "worker": job.locked_by,
    })
}
