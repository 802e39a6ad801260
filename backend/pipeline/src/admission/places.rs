//! A semaphore that grants permits to one waiter of each requester in turn.

use inference::{FairQueue, Requester};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Holds a fixed number of permits. Cloning it is cheap.
#[derive(Clone)]
pub(crate) struct FairSemaphore {
    state: Arc<Mutex<State>>,
}

struct State {
    free: usize,
    waiting: FairQueue<oneshot::Sender<Permit>>,
}

/// Represents one permit. Dropping it passes it to the next waiter.
pub(crate) struct Permit {
    /// `None` only during the drop.
    state: Option<Arc<Mutex<State>>>,
}

impl FairSemaphore {
    pub(crate) fn new(permits: usize) -> Self {
        let state = State { free: permits, waiting: FairQueue::default() };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Waits for a permit. Dropping the future passes its permit to the next waiter.
    pub(crate) async fn acquire(&self, requester: Requester) -> Permit {
        loop {
            let granted = {
                let mut state = self.state.lock();
                if state.free > 0 {
                    state.free -= 1;
                    return Permit { state: Some(self.state.clone()) };
                }
                let (grant, granted) = oneshot::channel();
                state.waiting.push(requester, grant);
                granted
            };
            if let Ok(permit) = granted.await {
                return permit;
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(shared) = self.state.take() else { return };
        let mut state = shared.lock();
        while let Some(grant) = state.waiting.pop() {
            match grant.send(Self { state: Some(shared.clone()) }) {
                Ok(()) => return,
                // The waiter dropped its future. A permit without state does not lock the semaphore
                // again when it is dropped.
                Err(mut refused) => refused.state = None,
            }
        }
        state.free += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    fn poll<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[test]
    fn permits_alternate_between_requesters() {
        let semaphore = FairSemaphore::new(1);
        let (one, other) = (Requester(1), Requester(2));
        let held = poll(pin!(semaphore.acquire(one)));
        let (mut second, mut third) = (pin!(semaphore.acquire(one)), pin!(semaphore.acquire(one)));
        let mut late = pin!(semaphore.acquire(other));
        assert!(poll(second.as_mut()).is_none() && poll(third.as_mut()).is_none());
        assert!(poll(late.as_mut()).is_none());
        drop(held);
        let held = poll(second.as_mut());
        assert!(held.is_some() && poll(third.as_mut()).is_none() && poll(late.as_mut()).is_none());
        drop(held);
        assert!(poll(third.as_mut()).is_none());
        let held = poll(late.as_mut());
        assert!(held.is_some());
        drop(held);
        assert!(poll(third.as_mut()).is_some());
    }

    #[test]
    fn dropped_waiters_do_not_lose_permits() {
        let semaphore = FairSemaphore::new(1);
        let held = poll(pin!(semaphore.acquire(Requester(1))));
        {
            let mut leaves = Box::pin(semaphore.acquire(Requester(2)));
            assert!(poll(leaves.as_mut()).is_none());
            // One waiter is dropped before it receives a permit, the other one afterwards.
            let mut granted = Box::pin(semaphore.acquire(Requester(3)));
            assert!(poll(granted.as_mut()).is_none());
            drop(leaves);
            drop(held);
        }
        assert!(poll(pin!(semaphore.acquire(Requester(4)))).is_some());
    }
}
