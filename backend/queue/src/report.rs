//! Reports the number of waiting, failed and completed jobs per kind.
use crate::claim::{bands, interval};
use crate::inspect::every_band;
use crate::{JobState, Queue, QueueError};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct KindReport {
    /// Number of live jobs per state, and of discarded jobs.
    pub counts: BTreeMap<JobState, i64>,
    /// Number of jobs completed within the window.
    pub completed: i64,
    /// Number of jobs discarded within the window.
    pub discarded: i64,
    /// Age in seconds of the oldest job that is due and not running; `None` if none is due.
    pub oldest_due_seconds: Option<f64>,
}

/// The report of every kind that has live or discarded jobs, or a job that ended within the window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueReport {
    /// The window of `completed` and `discarded`.
    pub window: Duration,
    pub kinds: BTreeMap<String, KindReport>,
}

impl Queue {
    /// Returns a report per kind, with the jobs that ended within the last `window`. The cost
    /// depends only on the live jobs and on those that ended within the window.
    pub async fn report(&self, window: Duration) -> Result<QueueReport, QueueError> {
        let mut kinds: BTreeMap<String, KindReport> = BTreeMap::new();
        for (kind, state, count) in self.depth().await?.counts {
            kinds.entry(kind).or_default().counts.insert(state, count);
        }
        let ended: Vec<(String, String, i64)> =
            sqlx::query_as(ENDED).bind(interval(window)).fetch_all(&self.pool).await?;
        for (kind, state, count) in ended {
            let report = kinds.entry(kind).or_default();
            match state.parse()? {
                JobState::Completed => report.completed = count,
                _ => report.discarded = count,
            }
        }
        let ages: Vec<(String, f64)> = sqlx::query_as(OLDEST).fetch_all(&self.pool).await?;
        for (kind, age) in ages {
            kinds.entry(kind).or_default().oldest_due_seconds = (age >= 0.0).then_some(age);
        }
        Ok(QueueReport { window, kinds })
    }
}

/// Each half uses its own partial index: completed jobs by time, the few discarded jobs by state.
const ENDED: &str = "
select kind, state::text, count(*) from finished_jobs
where state <> 'discarded' and state = 'completed' and finished_at > now() - $1::interval group by 1, 2
union all
select kind, state::text, count(*) from finished_jobs where state = 'discarded' and finished_at > now() - $1::interval group by 1, 2";

const OLDEST: &str = concat!(
    every_band!(),
    " select kind, extract(epoch from clock_timestamp() - min(first_at))::float8 from bands group by kind"
);
