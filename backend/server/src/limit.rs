//! Limits the number of permits that each holder (an address or a key) has at a time.
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Limits the permits of each holder. A holder without permits uses no memory.
pub(crate) struct KeyedLimit<K> {
    max_permits: usize,
    held: Arc<Mutex<HashMap<K, usize>>>,
}

/// Represents one permit of a holder. Dropping it releases the permit.
pub(crate) struct KeyedPermit<K: Eq + Hash> {
    holder: K,
    held: Arc<Mutex<HashMap<K, usize>>>,
}

impl<K: Copy + Eq + Hash> KeyedLimit<K> {
    pub(crate) fn new(max_permits: usize) -> Self {
        Self { max_permits, held: Arc::default() }
    }

    /// Returns a permit, or `None` if the holder already has `max_permits` permits.
    pub(crate) fn try_acquire(&self, holder: K) -> Option<KeyedPermit<K>> {
        let mut held = locked(&self.held);
        let count = held.get(&holder).copied().unwrap_or_default();
        if count >= self.max_permits {
            return None;
        }
        held.insert(holder, count + 1);
        Some(KeyedPermit { holder, held: self.held.clone() })
    }
}

impl<K: Eq + Hash> Drop for KeyedPermit<K> {
    fn drop(&mut self) {
        let mut held = locked(&self.held);
        if let Some(count) = held.get_mut(&self.holder) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.holder);
            }
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_holder_has_as_many_as_it_may_and_not_one_more() {
        let limit = KeyedLimit::new(2);
        let (one, other) = (1_u8, 2_u8);
        let first = limit.try_acquire(one).unwrap();
        let second = limit.try_acquire(one).unwrap();
        assert!(limit.try_acquire(one).is_none());
        let _elsewhere = limit.try_acquire(other).unwrap();
        drop(first);
        let third = limit.try_acquire(one).unwrap();
        assert!(limit.try_acquire(one).is_none());
        drop((second, third));
        assert_eq!(locked(&limit.held).len(), 1, "holders without permits are removed");
    }
}
