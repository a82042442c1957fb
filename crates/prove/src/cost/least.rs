//! The minimum cost of each operation: the cost of a client that follows docs/protocols and
//! pipelines all requests that do not depend on an answer. See `report` for the comparison.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::operation::Operation;
use crate::history::Rules;

/// The minimum cost of an operation, on open connections and channels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Least {
    /// Number of methods that clients send. `None` if it varies with the course of events.
    pub methods: Option<u32>,
    /// Number of round trips.
    pub round_trips: Option<u32>,
    /// Methods and round trips of a client that remembers a free slot, if these numbers differ.
    pub remembered: Option<(u32, u32)>,
    /// Number of channels closed. Connections are never closed.
    pub channels_closed: u32,
    /// Why a lower cost is not possible.
    pub reason: String,
}

/// Methods and round trips to open a connection and a channel: start-ok, tune-ok, open and
/// channel.open. The client needs their answers, and the answer to the protocol header.
const CONNECT: (u32, u32) = (4, 4);

/// Maximum time between a waiter's searches for a free slot, in seconds. A holder that crashes
/// wakes no waiter, and the waiter that was woken may be suspended.
const WAITER_POLL: u32 = 6;

/// Returns the minimum cost if `taken` slots are held, or `None` for an unknown protocol.
/// `first`: the process has no connection yet.
pub fn least(rules: Rules, operation: Operation, taken: u32, first: bool) -> Option<Least> {
    let (methods, round_trips, reason) = match rules {
        Rules::ExclusiveQueue | Rules::AmqpLocksPython => queue(operation, taken),
        Rules::ExclusiveConsumer => consumer(operation, taken),
        Rules::Token => token(operation)?,
        Rules::None => return None,
    };
    let connects = first
        && matches!(operation, Operation::AcquireFree | Operation::Grow | Operation::AcquireFull);
    let (more_methods, more_trips) = if connects { CONNECT } else { (0, 0) };
    let lost_race = operation == Operation::LostRace;
    let mut reason = reason.to_owned();
    if connects {
        reason += "; and 4 in 4 to open a connection and a channel";
    }
    let searches = matches!(operation, Operation::AcquireFree | Operation::AcquireTaken);
    let remembered = match rules {
        _ if first || !searches => None,
        Rules::ExclusiveQueue | Rules::AmqpLocksPython => {
            (operation == Operation::AcquireTaken).then_some((3, 1))
        }
        Rules::ExclusiveConsumer => Some((2, 1)),
        Rules::Token | Rules::None => None,
    };
    Some(Least {
        remembered,
        methods: (!lost_race).then_some(methods + more_methods),
        round_trips: (!lost_race).then_some(round_trips + more_trips),
        channels_closed: u32::from(lost_race),
        reason,
    })
}

/// Methods, round trips and reason.
type Row = (u32, u32, &'static str);

const LOST_RACE: Row = (0, 0, "a refusal closes its channel, but no connection");

fn queue(operation: Operation, taken: u32) -> Row {
    match operation {
        Operation::AcquireFree => (
            3,
            1,
            "a probe of A, the declare of B and a probe of A, together: slot 1 is likely to be free",
        ),
        Operation::AcquireTaken => (
            4 + taken,
            2,
            "as with all slots free, plus a probe of B for each held slot, together with the first two. With a remembered free slot: as above",
        ),
        Operation::AcquireFull => {
            (taken + 2, 1, "probes of every B and of the first A that is missing, together")
        }
        Operation::Verify => (2, 1, "passive declares of B and then of A, together"),
        Operation::Release => (1, 1, "delete of B"),
        Operation::Grow => (
            5,
            2,
            "the declare of the mutex, which must precede any change, with probes of the highest A and the next one; then the declare of A and the delete of the mutex, together",
        ),
        Operation::Shrink => (5, 2, "as resize +1, with the delete of A instead of its declare"),
        Operation::HandOver => (
            8,
            3,
            "delete of B with the count of waiters; the wake-up; probe, declare and probe of the slot that it names; cancel and ack of the wake-up",
        ),
        Operation::LostRace => LOST_RACE,
    }
}

fn consumer(operation: Operation, taken: u32) -> Row {
    match operation {
        Operation::AcquireFree => (
            3,
            1,
            "consume of C, declare of C and probe of A, together: a held slot refuses the consume. The declare is needed once for each C, to check its type",
        ),
        Operation::AcquireTaken => (
            4 + taken,
            2,
            "passive declares of C show which slots are held; then as with all slots free. With a remembered free slot: as above",
        ),
        Operation::AcquireFull => {
            (taken + 2, 1, "passive declares of every C up to the first that is missing, together")
        }
        Operation::Verify => (2, 1, "passive declares of C and A, together"),
        Operation::Release => (1, 1, "cancel of the consumer"),
        Operation::Grow => (
            6,
            2,
            "the declare of the mutex, which must precede any change, with two probes; then the declares of C and A and the delete of the mutex, together",
        ),
        Operation::Shrink => {
            (6, 2, "as resize +1, with the deletes of A and C instead of their declares")
        }
        Operation::HandOver => (
            8,
            3,
            "cancel of the consumer with the count of waiters; the wake-up; consume, declare and probe of the slot that it names; cancel and ack of the wake-up",
        ),
        Operation::LostRace => LOST_RACE,
    }
}

fn token(operation: Operation) -> Option<Row> {
    Some(match operation {
        Operation::AcquireFree | Operation::AcquireTaken => (1, 1, "a get"),
        Operation::AcquireFull => (1, 1, "a get, which finds nothing"),
        Operation::Verify => (1, 1, "a passive declare on the channel of the token"),
        Operation::Release => (2, 1, "a reject, and a request whose answer shows that it was done"),
        Operation::Grow => (
            5,
            2,
            "the declare of the mutex, which must precede any change, with the probe of the token queue and the request for confirms; then the publish and the delete of the mutex, together",
        ),
        Operation::Shrink => (
            5,
            3,
            "the declare of the mutex with the probe of the token queue; the get; then the ack and the delete of the mutex, together",
        ),
        Operation::HandOver => (
            3,
            2,
            "a release, after which the broker delivers the token; then a request of the waiter, whose answer shows that its connection is open",
        ),
        // A get that finds no token is not a refusal.
        Operation::LostRace => return None,
    })
}

/// Returns the minimum number of methods that the holder of a slot sends per minute, with the
/// reason. Returns `None` without heartbeats or for an unknown protocol.
pub fn least_held(rules: Rules, heartbeat: Duration) -> Option<(f64, String)> {
    let each = least(rules, Operation::Verify, 0, false)?.methods?;
    if heartbeat.is_zero() {
        return None;
    }
    // docs/protocols/persistent-semaphore.md, "Holding".
    let margin = (heartbeat / 4).min(Duration::from_millis(500));
    let validity = (heartbeat * 2).mul_f64(0.98).saturating_sub(margin).as_secs_f64();
    let methods = 60.0 / (validity / 4.0) * f64::from(each);
    let reason = format!(
        "a verification every quarter of the validity, which is {validity:.1} s with this heartbeat"
    );
    Some((methods, reason))
}

/// Returns the minimum number of methods that a waiter for a lock of one slot sends per minute,
/// with the reason. Returns `None` for an unknown protocol.
pub fn least_waiting(rules: Rules) -> Option<(f64, String)> {
    match rules {
        Rules::None => None,
        Rules::Token => Some((0.0, "the broker delivers the token without a request".to_owned())),
        _ => {
            let look = least(rules, Operation::AcquireFull, 0, false)?.methods?;
            let looks = 60.0 / f64::from(WAITER_POLL);
            let reason = format!(
                "a search every {WAITER_POLL} s, because a holder that crashes wakes no waiter"
            );
            Some((f64::from(look) * looks, reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rules: Rules, operation: Operation) -> (u32, u32) {
        let least = least(rules, operation, 2, false).unwrap();
        (least.methods.unwrap(), least.round_trips.unwrap())
    }

    #[test]
    fn the_minimum_costs_match_the_protocols() {
        use Operation::{AcquireFree, Release, Verify};
        let all = [AcquireFree, Verify, Release];
        let expected = [
            (Rules::ExclusiveQueue, [(3, 1), (2, 1), (1, 1)]),
            (Rules::ExclusiveConsumer, [(3, 1), (2, 1), (1, 1)]),
            (Rules::Token, [(1, 1), (1, 1), (2, 1)]),
        ];
        for (rules, expected) in expected {
            assert_eq!(all.map(|operation| of(rules, operation)), expected, "{rules:?}");
        }
        assert_eq!(least(Rules::None, AcquireFree, 0, false), None);
    }

    #[test]
    fn only_a_lost_race_closes_a_channel() {
        for operation in Operation::ALL {
            let closed = least(Rules::ExclusiveQueue, operation, 1, false).unwrap().channels_closed;
            assert_eq!(closed, u32::from(operation == Operation::LostRace), "{operation:?}");
        }
    }

    #[test]
    fn the_first_acquire_also_connects() {
        let first = least(Rules::Token, Operation::AcquireFree, 0, true).unwrap();
        assert_eq!((first.methods, first.round_trips), (Some(5), Some(5)));
        let first = least(Rules::Token, Operation::Release, 0, true).unwrap();
        assert_eq!((first.methods, first.round_trips), (Some(2), Some(1)));
    }

    #[test]
    fn a_holder_verifies_every_quarter_of_its_validity() {
        let (methods, _) = least_held(Rules::ExclusiveQueue, Duration::from_secs(10)).unwrap();
        // 2 methods every (19.6 - 0.5) / 4 s.
        assert!((methods - 25.13).abs() < 0.01, "{methods}");
        assert_eq!(least_held(Rules::ExclusiveQueue, Duration::ZERO), None);
        assert!(least_waiting(Rules::Token).unwrap().0.abs() < 1e-9);
        assert!((least_waiting(Rules::ExclusiveQueue).unwrap().0 - 20.0).abs() < 1e-9);
    }
}
