//! Which of the pipeline's errors are the database's and pass, for [`store::retried`].
//!
//! Work that ends with a word to the queue in the same transaction may be done again: when the transaction was committed after all, the claim is
//! stale the second time.

macro_rules! transient {
    ($($error:ident),*) => {
        $(impl store::transient::Transient for $error {
            fn cause(&self) -> Option<store::transient::Cause> {
                match self {
                    Self::Store(error) => error.cause(),
                    Self::Queue(error) => error.database().and_then(store::transient::Cause::of),
                    #[allow(unreachable_patterns, reason = "some have further errors, which do not pass")]
                    _ => None,
                }
            }
        })*
    };
}

pub(crate) use transient;
