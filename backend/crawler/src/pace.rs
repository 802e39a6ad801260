//! Computes the delay between requests to a host: a pure function from response to next delay.
//!
//! The delay follows the host's response time. The crawler's requests then occupy at most about
//! half of the host's time, as with Scrapy's AutoThrottle for one request at a time. The delay
//! shrinks step by step, and only after successful responses. Errors often arrive fast, and an
//! overloaded host must not receive requests faster because of them.
use std::time::Duration;

/// First pause after a 429 or 503 without `Retry-After`. It doubles with each consecutive one.
pub const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// Maximum pause that the crawler chooses itself.
pub const MAX_PAUSE: Duration = Duration::from_secs(300);
/// Starting value that a failure doubles when there was no delay before.
const INITIAL_DELAY: Duration = Duration::from_millis(125);

/// State of a host between two requests. The default represents a host without any request so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// Time from the end of one request to the start of the next.
    pub delay: Duration,
    /// Number of consecutive 429 and 503 responses.
    pub refusals: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEnd {
    /// The head of a response arrived.
    Responded {
        status: u16,
        /// `Retry-After`, as a duration from now.
        retry_after: Option<Duration>,
        /// Time from sending the request to the head of the response.
        took: Duration,
    },
    /// There was no response: the connection failed, broke or timed out.
    Failed,
}

/// Limits of the delay. `min_delay`, of the operator or robots.txt, takes precedence over
/// `max_delay`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub min_delay: Duration,
    /// Maximum delay that a slow host can cause.
    pub max_delay: Duration,
}

impl Pace {
    /// Returns the state after a request. If the host requested a pause, also returns the duration
    /// during which no request is sent to it. `Retry-After` is unchanged; the caller limits it.
    #[must_use]
    pub fn after(self, outcome: RequestEnd, bounds: Bounds) -> (Self, Option<Duration>) {
        let clamp = |delay: Duration| delay.min(bounds.max_delay).max(bounds.min_delay);
        let doubled_delay = clamp(self.delay.max(INITIAL_DELAY).saturating_mul(2).max(self.delay));
        match outcome {
            RequestEnd::Responded { status: 429 | 503, retry_after, .. } => {
                let refusals = self.refusals.saturating_add(1);
                let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(refusals - 1)).min(MAX_PAUSE);
                (Self { delay: doubled_delay, refusals }, Some(retry_after.unwrap_or(pause)))
            }
            RequestEnd::Responded { status, took, .. } => {
                // The delay rises to the response time immediately, and falls by half of the
                // difference per response.
                let adjusted = took.max((self.delay + took) / 2);
                let is_success = (200..400).contains(&status);
                let delay = if is_success { adjusted } else { adjusted.max(self.delay) };
                let refusals = if is_success { 0 } else { self.refusals };
                (Self { delay: clamp(delay), refusals }, None)
            }
            RequestEnd::Failed => (Self { delay: doubled_delay, ..self }, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }
    const BOUNDS: Bounds = Bounds { min_delay: ms(100), max_delay: ms(10_000) };

    fn response(status: u16, took: u64) -> RequestEnd {
        RequestEnd::Responded { status, retry_after: None, took: ms(took) }
    }
    fn delays_after(start: Pace, outcomes: &[RequestEnd]) -> Vec<u64> {
        let step = |pace: &mut Pace, outcome: &RequestEnd| {
            *pace = pace.after(*outcome, BOUNDS).0;
            Some(pace.delay.as_millis() as u64)
        };
        outcomes.iter().scan(start, step).collect()
    }

    #[test]
    fn host_delay_follows_response_time() {
        let fast = response(200, 20);
        assert_eq!(
            delays_after(Pace::default(), &[fast, fast]),
            [100, 100],
            "never faster than the minimum delay"
        );
        let slow = response(200, 800);
        assert_eq!(
            delays_after(Pace::default(), &[slow, slow, fast, fast, fast, fast]),
            [800, 800, 410, 215, 117, 100]
        );
        assert_eq!(delays_after(Pace::default(), &[response(200, 60_000)]), [10_000]);
    }

    #[test]
    fn errors_never_shorten_host_delay() {
        let start = Pace { delay: ms(2000), refusals: 0 };
        for status in [400, 403, 404, 410, 500, 502, 504] {
            assert_eq!(delays_after(start, &[response(status, 1)]), [2000], "{status}");
        }
        assert_eq!(delays_after(start, &[RequestEnd::Failed; 3]), [4000, 8000, 10_000]);
        assert_eq!(delays_after(Pace::default(), &[RequestEnd::Failed]), [250]);
    }

    #[test]
    fn refusal_pauses_double_until_successful_response() {
        let refused = response(429, 5);
        let (mut pace, mut pauses) = (Pace::default(), Vec::new());
        for outcome in [refused, refused, response(404, 5), refused, response(200, 5), refused] {
            let (next, pause) = pace.after(outcome, BOUNDS);
            pace = next;
            pauses.push(pause.map(|p| p.as_secs()));
        }
        assert_eq!(pauses, [Some(5), Some(10), None, Some(20), None, Some(5)]);
        let (_, pause) = Pace { refusals: u32::MAX, ..pace }.after(refused, BOUNDS);
        assert_eq!(pause, Some(MAX_PAUSE));
        let requested_pause = RequestEnd::Responded { status: 503, retry_after: Some(ms(42)), took: ms(1) };
        assert_eq!(pace.after(requested_pause, BOUNDS).1, Some(ms(42)));
    }

    proptest! {
        #[test]
        fn host_delay_stays_in_bounds_for_any_outcome(
            delay in 0_u64..100_000, refusals: u32, status in 100_u16..600, took in 0_u64..100_000, has_response: bool,
            min_delay in 0_u64..400_000, max_delay in 0_u64..20_000,
        ) {
            let bounds = Bounds { min_delay: ms(min_delay), max_delay: ms(max_delay) };
            let outcome = if has_response { response(status, took) } else { RequestEnd::Failed };
            let (next, pause) = Pace { delay: ms(delay), refusals }.after(outcome, bounds);
            prop_assert!(next.delay >= bounds.min_delay);
            prop_assert!(next.delay <= bounds.max_delay.max(bounds.min_delay));
            if !has_response || !(200..400).contains(&status) {
                prop_assert!(next.delay >= ms(delay).min(bounds.max_delay));
            }
            prop_assert_eq!(pause.is_some(), has_response && matches!(status, 429 | 503));
        }
    }
}
