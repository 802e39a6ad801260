//! Which of the pipeline's errors are the database's and pass, for [`store::retried`].
//!
//! Work that ends with a word to the queue in the same transaction may be done again: when the transaction was committed after all, the claim is
//! stale the second time.
use crate::cluster::ClusterError;
use crate::crawl::news::NewsError;
use crate::{CrawlError, IngestError};
use store::transient::{Cause, Transient};

macro_rules! transient {
    ($($error:ident),*) => {
        $(impl Transient for $error {
            fn cause(&self) -> Option<Cause> {
                match self {
                    Self::Store(error) => error.cause(),
                    Self::Queue(error) => error.database().and_then(Cause::of),
                    #[allow(unreachable_patterns, reason = "some have further errors, which do not pass")]
                    _ => None,
                }
            }
        })*
    };
}

transient!(NewsError, CrawlError, IngestError, ClusterError);
