//! Defines, for [`store::retried`], which errors of the pipeline are transient errors of the
//! database. A transaction that calls the queue for a claim can safely be repeated. If the first
//! attempt was committed, the claim is stale in the second attempt.

macro_rules! transient {
    ($($error:ident),*) => {
        $(impl store::db::transient::Transient for $error {
            fn cause(&self) -> Option<store::db::transient::Cause> {
                match self {
                    Self::Store(error) => error.cause(),
                    Self::Queue(error) => error.database().and_then(store::db::transient::Cause::of),
                    #[allow(unreachable_patterns, reason = "some have further errors, which do not pass")]
                    _ => None,
                }
            }
        })*
    };
}

pub(crate) use transient;
