//! Tracks a value over time that operations change at an unknown instant between their request
//! and their answer. Returns the largest value that it may have had in an interval, in O(log n).
//! See `sweep` for its use for the number of slots, and `blame` for the existence of a queue.

use std::collections::BTreeMap;

/// A position in the history's events. Positions, unlike times, are never equal.
pub type Position = usize;

/// Position of an event that never happened.
pub const NEVER: Position = usize::MAX;

/// An operation that set the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Its request.
    pub invoked: Position,
    /// Its answer, or [`NEVER`] if it is unknown whether and when the operation takes effect.
    pub done: Position,
    /// The value that the operation sets.
    pub value: u32,
}

/// The largest possible value over time.
#[derive(Clone, Debug)]
pub struct Register {
    /// The start of each segment. The first is 0.
    starts: Vec<Position>,
    /// `maxima[k][i]`: the largest value of the segments `i..i + 2^k`.
    maxima: Vec<Vec<u32>>,
}

impl Register {
    /// Computes the largest possible values. A write may be the latest one from its request
    /// until the answer of another write that was certainly requested after its answer. This is
    /// exact for writes that do not overlap: a larger value counts from its request, a smaller
    /// one from its answer.
    pub fn new(initial: u32, writes: &[Write]) -> Self {
        let mut writes = writes.to_vec();
        writes.sort_unstable_by_key(|write| write.invoked);
        // `earliest[i]`: the first answer of the writes from `i` on.
        let mut earliest = vec![NEVER; writes.len() + 1];
        for (index, write) in writes.iter().enumerate().rev() {
            earliest[index] = earliest[index + 1].min(write.done);
        }
        let mut changes: Vec<(Position, bool, u32)> = vec![(0, true, initial)];
        let mut end = |until: Position, value| {
            if until != NEVER {
                changes.push((until + 1, false, value));
            }
        };
        end(earliest[0], initial);
        for write in &writes {
            let after = writes.partition_point(|other| other.invoked <= write.done);
            end(earliest[after], write.value);
        }
        changes.extend(writes.iter().map(|write| (write.invoked, true, write.value)));
        changes.sort_unstable();
        Self::from_changes(&changes)
    }

    fn from_changes(changes: &[(Position, bool, u32)]) -> Self {
        let mut possible: BTreeMap<u32, usize> = BTreeMap::new();
        let (mut starts, mut values) = (Vec::new(), Vec::new());
        for same in changes.chunk_by(|one, other| one.0 == other.0) {
            for &(_, begins, value) in same {
                let count = possible.entry(value).or_default();
                *count = if begins { *count + 1 } else { count.saturating_sub(1) };
                if *count == 0 {
                    possible.remove(&value);
                }
            }
            starts.push(same[0].0);
            values.push(possible.last_key_value().map_or(0, |(&value, _)| value));
        }
        let mut maxima = vec![values];
        let mut width = 1;
        while 2 * width <= starts.len() {
            let below = &maxima[maxima.len() - 1];
            let row = (0..=starts.len() - 2 * width).map(|i| below[i].max(below[i + width]));
            let row = row.collect();
            maxima.push(row);
            width *= 2;
        }
        Self { starts, maxima }
    }

    /// Returns the largest value that was possible at an instant from `from` to `to`, both
    /// included.
    pub fn max(&self, from: Position, to: Position) -> u32 {
        let segment = |at| self.starts.partition_point(|&start| start <= at).saturating_sub(1);
        let (first, last) = (segment(from), segment(to.max(from)));
        let level = (last - first + 1).ilog2() as usize;
        let row = &self.maxima[level];
        row[first].max(row[last + 1 - (1 << level)])
    }
}

/// Returns whether any two writes overlap, so that their order is unknown.
pub fn overlap(writes: &[Write]) -> bool {
    let mut writes = writes.to_vec();
    writes.sort_unstable_by_key(|write| write.invoked);
    let mut latest = 0;
    writes.iter().enumerate().any(|(index, write)| {
        let overlaps = index > 0 && write.invoked < latest;
        latest = latest.max(write.done);
        overlaps
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_at_the_request_and_shrinks_at_the_answer() {
        let writes =
            [Write { invoked: 10, done: 20, value: 5 }, Write { invoked: 30, done: 40, value: 1 }];
        let register = Register::new(2, &writes);
        let at = |position| register.max(position, position);
        assert_eq!([9, 10, 30, 40, 41, 1000].map(at), [2, 5, 5, 5, 1, 1]);
        assert_eq!((register.max(0, 9), register.max(0, 10), register.max(41, NEVER)), (2, 5, 1));
    }

    #[test]
    fn an_unanswered_write_stays_possible() {
        let writes = [
            Write { invoked: 10, done: NEVER, value: 5 },
            Write { invoked: 30, done: 40, value: 1 },
        ];
        assert_eq!(Register::new(2, &writes).max(50, 60), 5);
        assert!(overlap(&writes));
        assert!(!overlap(&writes[..1]));
    }
}
