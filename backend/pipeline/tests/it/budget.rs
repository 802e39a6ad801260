//! Tests of the memory budget: order, limits, deadlines and parts of shares.

use futures::{FutureExt, poll};
use inference::Priority;
use pipeline::{Budget, Share};
use std::pin::pin;
use std::time::Instant;

const MIB: u64 = 1 << 20;

/// Returns a budget of 8 MiB, of which background work may use 6.
fn budget() -> Budget {
    Budget::new("things", 8 * MIB)
}

/// Returns the share if it is granted without waiting.
fn try_share(budget: &Budget, mib: u64, priority: Priority) -> Option<Share> {
    budget.acquire(mib * MIB, priority, None).now_or_never().map(Result::unwrap)
}

#[testing::test]
async fn large_share_is_not_starved_by_small_shares() {
    let budget = budget();
    let first = try_share(&budget, 5, Priority::Interactive).unwrap();
    let mut large = pin!(budget.acquire(6 * MIB, Priority::Interactive, None));
    assert!(poll!(&mut large).is_pending());
    let mut small = pin!(budget.acquire(MIB, Priority::Interactive, None));
    assert!(poll!(&mut small).is_pending(), "memory is free, but an earlier caller waits");
    drop(first);
    let _large = large.await.unwrap();
    let _small = small.await.unwrap();
}

#[testing::test]
async fn background_leaves_quarter_of_budget_to_interactive() {
    let budget = budget();
    let work: Vec<Share> = (0..3).map(|_| try_share(&budget, 2, Priority::Background).unwrap()).collect();
    let mut backlog: Vec<_> =
        (0..100).map(|_| Box::pin(budget.acquire(2 * MIB, Priority::Background, None))).collect();
    for waiting in &mut backlog {
        assert!(poll!(waiting).is_pending());
    }
    let caller = try_share(&budget, 2, Priority::Interactive).expect("background callers wait separately");
    assert!(try_share(&budget, 1, Priority::Interactive).is_none(), "the whole budget is held");
    drop((work, caller));
    for waiting in backlog {
        drop(waiting.await.unwrap());
    }
}

#[testing::test]
async fn share_larger_than_budget_is_held_alone() {
    let budget = budget();
    let small = try_share(&budget, 1, Priority::Interactive).unwrap();
    let mut large = pin!(budget.acquire(100 * MIB, Priority::Interactive, None));
    assert!(poll!(&mut large).is_pending());
    drop(small);
    let large = large.await.unwrap();
    assert!(try_share(&budget, 1, Priority::Interactive).is_none());
    drop(large);
    // The same applies to background work and its part of the budget. That part is at least as
    // large as the argument of `with_background_room`.
    let _work = try_share(&budget, 7, Priority::Background).unwrap();
    assert!(try_share(&budget, 2, Priority::Interactive).is_some());
    let enlarged = Budget::new("things", 8 * MIB).with_background_room(7 * MIB);
    let _work = try_share(&enlarged, 7, Priority::Background).unwrap();
    assert!(try_share(&enlarged, 2, Priority::Interactive).is_none());
}

#[testing::test]
async fn dropped_share_or_waiter_releases_budget() {
    let budget = budget();
    let held = try_share(&budget, 8, Priority::Interactive).unwrap();
    for priority in [Priority::Interactive, Priority::Background] {
        let mut waiting = Box::pin(budget.acquire(6 * MIB, priority, None));
        assert!(poll!(&mut waiting).is_pending());
    }
    drop(held);
    drop(try_share(&budget, 6, Priority::Background).unwrap());
    drop(try_share(&budget, 8, Priority::Interactive).unwrap());
}

#[testing::test]
async fn budget_wait_ends_at_deadline() {
    let budget = budget();
    let held = try_share(&budget, 8, Priority::Interactive).unwrap();
    let deadline = Instant::now();
    assert_eq!(
        budget.acquire(MIB, Priority::Interactive, Some(deadline)).await.unwrap_err().budget,
        "things"
    );
    drop(held);
    // A share that is free now is granted even after the deadline.
    let deadline = Instant::now();
    assert!(budget.acquire(8 * MIB, Priority::Interactive, Some(deadline)).await.is_ok());
}

#[testing::test]
async fn share_can_shrink_and_split() {
    let budget = budget();
    let mut share = try_share(&budget, 6, Priority::Background).unwrap();
    share.shrink(4 * MIB);
    let part = share.split(3 * MIB);
    share.shrink(100 * MIB);
    drop(try_share(&budget, 2, Priority::Background).unwrap());
    assert!(try_share(&budget, 3, Priority::Background).is_none());
    drop(part);
    drop(try_share(&budget, 5, Priority::Background).unwrap());
    assert!(try_share(&budget, 8, Priority::Interactive).is_none());
    drop(share);
    drop(try_share(&budget, 8, Priority::Interactive).unwrap());
}
