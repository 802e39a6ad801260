//! Limits the event streams of each caller.
use crate::auth::CallerId;
use crate::limit::{KeyedLimit, KeyedPermit};
use crate::{ApiError, Code, Config};
use metrics::{Gauge, describe_gauge, gauge};
use std::time::Duration;

/// Time after which a caller with too many streams may try again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

pub(crate) struct EventStreams {
    max: usize,
    callers: KeyedLimit<CallerId>,
    open: Gauge,
}

/// An open stream, which counts towards the limit of its caller.
pub(crate) struct Stream {
    open: Gauge,
    _permit: KeyedPermit<CallerId>,
}

impl EventStreams {
    pub(crate) fn new(config: &Config) -> Self {
        describe_gauge!("facecrawl_event_streams", "Number of open event streams.");
        let open = gauge!("facecrawl_event_streams");
        open.set(0.0);
        Self { max: config.max_streams, callers: KeyedLimit::new(config.max_streams), open }
    }

    /// Counts a stream.
    ///
    /// # Errors
    /// Fails with 429 if the caller has the maximum number of streams.
    pub(crate) fn admit(&self, caller: CallerId) -> Result<Stream, ApiError> {
        let permit = self.callers.try_acquire(caller).ok_or_else(|| {
            let max = self.max;
            let sentence = format!(
                "the caller already has {max} open event streams, the maximum per caller (MAX_EVENT_STREAMS)"
            );
            ApiError::new(Code::Overloaded, sentence).retry_after(RETRY_AFTER)
        })?;
        self.open.increment(1.0);
        Ok(Stream { open: self.open.clone(), _permit: permit })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.open.decrement(1.0);
    }
}
