use uuid::Uuid;

#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The claim is lost: the job was rescued after its lease expired, or was cancelled.
    #[error("the claim on job {0} is no longer held")]
    Stale(Uuid),
    /// The job does not exist, or its state does not allow the operation.
    #[error("there is no job {0}, or its state does not allow this")]
    NotFound(Uuid),
    #[error("job {0} cannot be retried: a live job has the same kind and unique key")]
    Duplicate(Uuid),
    /// The input cannot be stored. The text states what is allowed.
    #[error("{0}")]
    Invalid(String),
    #[error("the queue's database failed: {0}")]
    Database(#[from] sqlx::Error),
}

impl QueueError {
    pub fn database(&self) -> Option<&sqlx::Error> {
        match self {
            Self::Database(error) => Some(error),
            _ => None,
        }
    }
}
