//! Elements that were taken from a queue, with the information for giving them back.

use std::collections::VecDeque;

/// Limits of one get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Maximum number of elements. 0 counts as 1.
    pub elements: usize,
    /// No further element is taken once this number of bytes is reached.
    pub bytes: usize,
}

impl Limit {
    /// One element.
    pub const ONE: Self = Self { elements: 1, bytes: 1 };
}

/// Elements that a get took, the oldest first. They are no longer in the queue. Unused
/// ones can be given back with [`Queue::give_back`](crate::Queue::give_back).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    elements: VecDeque<Vec<u8>>,
    /// The queue's counter of elements ever read, after the last of these. `None` if it
    /// does not count.
    counted: Option<u64>,
}

impl Taken {
    /// Creates it for elements of a get. Only with `counted` they can be given back.
    #[must_use]
    pub fn new(elements: Vec<Vec<u8>>, counted: Option<u64>) -> Self {
        Self { elements: elements.into(), counted }
    }

    pub(super) fn counted(&self) -> Option<u64> {
        self.counted
    }

    /// Splits off elements, the oldest first, at least one if there is one. While younger
    /// ones stay behind, those split off can't be given back.
    pub(super) fn take(&mut self, limit: Limit) -> Self {
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

    /// Returns the number of remaining elements.
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Whether no element remains.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// Returns the oldest remaining element without removing it.
    pub fn first(&self) -> Option<&[u8]> {
        self.elements.front().map(Vec::as_slice)
    }

    /// Removes the oldest remaining element, which was used or is about to be.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        self.elements.pop_front()
    }

    /// Iterates over the remaining elements, the oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.elements.iter().map(Vec::as_slice)
    }

    /// Returns the remaining elements, the oldest first.
    pub fn into_elements(self) -> Vec<Vec<u8>> {
        self.elements.into()
    }
}
