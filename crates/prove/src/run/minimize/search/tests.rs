//! Tests the search with oracles that run nothing.

use futures::executor::block_on;
use proptest::prelude::*;

use super::*;

/// More than the answers that any search from a size of [`sizes`] needs: at most 24 in each
/// pass, and at most 24 passes that reduce an option.
const ANSWERS: usize = 600;

fn sizes() -> impl Strategy<Value = Size> {
    let percent = || prop_oneof![Just(0), 1..=100_u32];
    let faults = (percent(), percent(), percent(), percent());
    let faults = faults.prop_map(|(kill, cut, slow, again)| Faults { kill, cut, slow, again });
    (faults, 1..=64_u32, 1..=64_u32, 0..2_u64, 1000..=60_000_u64).prop_map(
        |(faults, clients, slots, resizes, duration)| Size {
            faults,
            clients,
            slots,
            resize_within: Duration::from_millis(600 * resizes),
            duration: Duration::from_millis(duration),
        },
    )
}

/// Returns whether the violation of a run of `small` can also occur in a run of `large`.
fn contains(mut large: Size, mut small: Size) -> bool {
    let faults = large.faults.kinds().into_iter().zip(small.faults.kinds());
    let faults = faults.into_iter().all(|((_, large), (_, small))| *large >= *small);
    let resizes = |size: Size| size.slots > 1 && !size.resize_within.is_zero();
    faults
        && large.clients >= small.clients
        && large.slots >= small.slots
        && resizes(large) >= resizes(small)
        && large.duration >= small.duration
}

/// Returns every size that is one reduction smaller.
fn reductions(size: Size) -> Vec<Size> {
    let mut smaller = Vec::new();
    for kind in 0..4 {
        let mut without = size;
        *without.faults.kinds()[kind].1 = 0;
        smaller.push(without);
    }
    smaller.push(Size { resize_within: Duration::ZERO, ..size });
    smaller.push(Size { clients: size.clients.max(2) - 1, ..size });
    smaller.push(Size { slots: size.slots.max(2) - 1, ..size });
    if size.duration / 2 >= SHORTEST {
        smaller.push(Size { duration: size.duration / 2, ..size });
    }
    smaller.retain(|one| *one != size && !contains(*one, size));
    smaller
}

proptest! {
    /// Each size that contains one of some needed sizes violates.
    #[test]
    fn no_option_of_the_result_can_be_reduced_if_larger_runs_violate_too(
        start in sizes(),
        needed in prop::collection::vec(sizes(), 1..4),
    ) {
        let violates = |size: Size| needed.iter().any(|&one| contains(size, one));
        let found = block_on(least(start, async |size| Some(violates(size))));
        prop_assert_eq!(found.is_some(), violates(start));
        if let Some(Found { size, is_unfinished }) = found {
            prop_assert!(violates(size) && contains(start, size) && !is_unfinished);
            for smaller in reductions(size) {
                prop_assert!(!violates(smaller), "{:?} is smaller than {:?}", smaller, size);
            }
        }
    }

    #[test]
    fn the_result_violated_and_the_search_ends_for_any_oracle(
        start in sizes(),
        answers in prop::collection::vec(any::<bool>(), ANSWERS),
    ) {
        let mut last = None;
        let mut left = answers.iter();
        let found = block_on(least(start, async |size| {
            let violates = *left.next().expect("too many questions");
            if violates {
                last = Some(size);
            }
            Some(violates)
        }));
        let result = found.map(|found| found.size);
        // Only the first answer can prevent a result. Later answers are about smaller sizes.
        prop_assert_eq!(result, last.filter(|_| answers[0]));
    }

    #[test]
    fn a_missed_violation_is_found_by_a_later_pass(start in sizes()) {
        // A second option to reduce: after that, the missed one is tried again. A size whose only
        // reduction was missed is not tried again.
        let start = Size { clients: start.clients.max(2), slots: start.slots.max(2), ..start };
        let mut asked = 0;
        let found = block_on(least(start, async |_| {
            asked += 1;
            // The first reduction is missed.
            Some(asked != 2)
        }));
        let size = found.map(|found| found.size);
        let smallest = size.is_some_and(|size| {
            (size.faults, size.clients, size.slots) == (Faults::NONE, 1, 1)
        });
        prop_assert!(smallest, "{:?}", size);
    }

    #[test]
    fn the_oracle_can_end_the_search(start in sizes(), after in 0..8_usize) {
        let mut asked = Vec::new();
        let found = block_on(least(start, async |size| {
            asked.push(size);
            (asked.len() <= after).then_some(true)
        }));
        if after == 0 {
            prop_assert_eq!(found, None);
        } else if let Some(Found { size, is_unfinished }) = found {
            prop_assert_eq!(is_unfinished, asked.len() > after);
            prop_assert_eq!(size, asked[asked.len().min(after) - 1]);
        }
    }
}
