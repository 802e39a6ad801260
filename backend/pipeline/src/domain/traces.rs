//! What the queue's records say of addresses that were erased.

use queue::{Queue, QueueError};
use store::Tx;
use store::traces::LedgerJobs;
use uuid::Uuid;

/// Empties the records of the jobs that worked on these rows of the ledgers, in the transaction that erases the rows' addresses.
///
/// # Errors
/// Those of the queue.
pub async fn forget_jobs(queue: &Queue, tx: &mut Tx, jobs: &LedgerJobs) -> Result<(), QueueError> {
    let crawls: Vec<Uuid> = jobs.crawls.iter().copied().collect();
    // The unique key of such a job is its row's id.
    let keys: Vec<String> = jobs.rows.iter().map(Uuid::to_string).collect();
    queue.forget_keyed(tx.conn(), &crawls, &keys).await?;
    Ok(())
}
