//! A queue that serves one item of each requester in turn (round-robin fair queueing, RFC 970).

use std::collections::VecDeque;

/// Identifies the requester of work. Work waits mainly behind other work of its own requester. The
/// default value represents all work without a caller, such as that of crawls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Requester(pub u128);

/// A queue with one list of items per requester, in the order of turns. The oldest item of a
/// requester is the first of its list. Each operation takes time linear in the number of items.
#[derive(Debug)]
pub struct FairQueue<T> {
    /// Items that were put back; they are served before all others.
    returned: VecDeque<T>,
    /// The requesters that have items, in the order of their turns. No list is empty.
    turns: VecDeque<(Requester, VecDeque<T>)>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { returned: VecDeque::new(), turns: VecDeque::new() }
    }
}

impl<T> FairQueue<T> {
    /// Adds an item. A requester without other items is placed after all other requesters.
    pub fn push(&mut self, requester: Requester, item: T) {
        match self.turns.iter_mut().find(|(queued_requester, _)| *queued_requester == requester) {
            Some((_, items)) => items.push_back(item),
            None => self.turns.push_back((requester, VecDeque::from([item]))),
        }
    }

    /// Puts back an item that was taken. It becomes the next item.
    pub fn put_back(&mut self, item: T) {
        self.returned.push_front(item);
    }

    /// Takes the next item. Its requester moves behind all other requesters.
    pub fn pop(&mut self) -> Option<T> {
        self.pop_if(|_| true)
    }

    /// Takes the next item for which `predicate` returns `true`.
    pub fn pop_if(&mut self, predicate: impl Fn(&T) -> bool) -> Option<T> {
        if let Some(at) = self.returned.iter().position(&predicate) {
            return self.returned.remove(at);
        }
        let find = |(_, items): &(_, VecDeque<T>)| items.iter().position(&predicate);
        let (turn, at) = self.turns.iter().enumerate().find_map(|(i, list)| Some((i, find(list)?)))?;
        let (requester, mut items) = self.turns.remove(turn)?;
        let item = items.remove(at);
        if !items.is_empty() {
            self.turns.push_back((requester, items));
        }
        item
    }

    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        self.returned.retain(&keep);
        self.turns.retain_mut(|(_, items)| {
            items.retain(&keep);
            !items.is_empty()
        });
    }

    pub fn len(&self) -> usize {
        self.returned.len() + self.turns.iter().map(|(_, items)| items.len()).sum::<usize>()
    }

    pub fn is_empty(&self) -> bool {
        self.returned.is_empty() && self.turns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(items: impl IntoIterator<Item = (u128, u32)>) -> FairQueue<u32> {
        let mut queue = FairQueue::default();
        items.into_iter().for_each(|(requester, item)| queue.push(Requester(requester), item));
        queue
    }

    fn drain(queue: &mut FairQueue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn requesters_alternate_and_keep_own_order() {
        let mut queue = queue([(1, 10), (1, 11), (1, 12), (2, 20), (3, 30)]);
        assert_eq!(queue.len(), 5);
        assert_eq!(queue.pop(), Some(10));
        // A late requester waits for one item of each other requester, however many they have.
        queue.push(Requester(4), 40);
        assert_eq!(drain(&mut queue), [20, 30, 11, 40, 12]);
        assert!(queue.is_empty());
    }

    #[test]
    fn returned_items_come_first() {
        let mut queue = queue([(1, 10)]);
        queue.put_back(2);
        queue.put_back(1);
        assert_eq!(drain(&mut queue), [1, 2, 10]);
    }

    #[test]
    fn pop_if_uses_turn_of_requester() {
        let mut queue = queue([(1, 10), (2, 20), (1, 11), (2, 21)]);
        assert_eq!(queue.pop_if(|item| *item == 11), Some(11));
        assert_eq!(queue.pop_if(|item| *item == 99), None);
        assert_eq!(drain(&mut queue), [20, 10, 21]);
    }

    #[test]
    fn dropped_requester_loses_its_turn() {
        let mut queue = queue([(10, 10), (20, 20), (30, 30)]);
        queue.retain(|item| *item != 10);
        queue.push(Requester(10), 11);
        assert_eq!(drain(&mut queue), [20, 30, 11]);
    }
}
