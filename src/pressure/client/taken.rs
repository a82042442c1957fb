//! Elements that were taken from a queue, with what it takes to give them back.

use std::collections::VecDeque;

/// Elements that a get took, the oldest first. They are nowhere else any more:
/// what is not used can be given back with
/// [`Queue::give_back`](super::Queue::give_back).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    elements: VecDeque<Vec<u8>>,
    /// What the queue's counter of elements ever got was after the last of these;
    /// absent if it does not count.
    counted: Option<u64>,
}

impl Taken {
    pub(super) fn new(elements: Vec<Vec<u8>>, counted: Option<u64>) -> Self {
        Self { elements: elements.into(), counted }
    }

    pub(super) fn counted(&self) -> Option<u64> {
        self.counted
    }

    /// Takes elements out of here, the oldest first, at least one if there is one.
    /// While younger ones stay behind, those taken can't be given back.
    pub(super) fn take(&mut self, limit: super::Limit) -> Self {
        let (mut count, mut bytes) = (0, 0);
        for element in &self.elements {
            if count > 0 && (count >= limit.elements || bytes >= limit.bytes) {
                break;
            }
            count += 1;
            bytes += element.len();
        }
        let rest = self.elements.split_off(count);
        let counted = self.counted.filter(|_| rest.is_empty());
        Self { elements: std::mem::replace(&mut self.elements, rest), counted }
    }

    /// How many elements are left in here.
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// The oldest element that is left, without removing it.
    pub fn first(&self) -> Option<&[u8]> {
        self.elements.front().map(Vec::as_slice)
    }

    /// Removes the oldest element that is left: it was used, or is about to be.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        self.elements.pop_front()
    }

    /// The elements that are left, the oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.elements.iter().map(Vec::as_slice)
    }

    /// The elements that are left, the oldest first.
    pub fn into_elements(self) -> Vec<Vec<u8>> {
        self.elements.into()
    }
}
