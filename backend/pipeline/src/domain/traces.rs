//! Removes erased addresses from the records of the queue. The store removes them from the ledgers.

use queue::{Queue, QueueError};
use store::Tx;
use store::erasures::traces::LedgerJobs;
use uuid::Uuid;

/// Clears the records of the jobs that processed these ledger rows and videos. Call it in the
/// transaction that erases their addresses.
///
/// # Errors
/// Fails if the queue fails.
pub async fn forget_jobs(queue: &Queue, tx: &mut Tx, jobs: &LedgerJobs) -> Result<(), QueueError> {
    let crawls: Vec<Uuid> = jobs.crawls.iter().copied().collect();
    // The unique key of such a job is the id of its row.
    let keys: Vec<String> = jobs.rows.iter().map(Uuid::to_string).collect();
    queue.redact_keyed(tx.conn(), &crawls, &keys).await?;
    // The jobs of a video are its group.
    let videos: Vec<Uuid> = jobs.videos.iter().copied().collect();
    queue.redact_groups(tx.conn(), &videos).await?;
    Ok(())
}
