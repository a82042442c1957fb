//! Tests which refusals count as refusals with room, and their causes.

use crate::check::tests::Story;
use crate::check::verdict::{Cause, Property};
use crate::history::{ConnectionState, Rules, Verb};

/// A lock with this number of slots and without a broker.
fn lock(slots: u32) -> Story {
    Story::new(Rules::None, slots)
}

const VIOLATED: [(Property, Cause); 1] = [(Property::S10, Cause::Unknown)];

#[test]
fn a_process_that_waits_alone_must_be_granted_a_slot() {
    assert_eq!(lock(1).waits(1).after_ms(6000).full(1).violations(), VIOLATED);
    let granted = lock(1).waits(1).after_ms(6000).granted(1, 1).verdict();
    assert_eq!((granted.violations.len(), granted.counts["long waits"]), (0, 1));
    assert_eq!(lock(0).waits(1).after_ms(6000).full(1).violations(), []);
}

#[test]
fn a_refusal_counts_only_after_two_seconds_with_room() {
    assert_eq!(lock(1).waits(1).after_ms(1900).full(1).violations(), []);
    assert_eq!(lock(1).ask(1, Verb::Acquire).after_ms(6000).full(1).violations(), []);
    let held = lock(1).ask(2, Verb::Acquire).granted(2, 1).waits(1);
    let released = |after| held.clone().after_ms(after).ask(2, Verb::Release).ok(2, Verb::Release);
    assert_eq!(released(1000).after_ms(2500).full(1).violations(), VIOLATED);
    assert_eq!(released(1000).after_ms(1500).full(1).violations(), []);
    assert_eq!(held.after_ms(9000).full(1).violations(), []);
}

#[test]
fn a_request_that_may_wait_is_not_refused_before_its_time() {
    let early = lock(1).waits(1).after_ms(1700).full(1);
    assert_eq!(early.violations(), [(Property::S10, Cause::Client)]);
    assert_eq!(lock(0).waits(1).after_ms(10).full(1).violations(), []);
    let busy = lock(1).waits(1).after_ms(10).failed(1, Verb::Acquire, "the broker is down");
    assert_eq!(busy.violations(), []);
    let cut = lock(1).waits(1).fault(1, "cut before queue.declare").after_ms(10).full(1);
    assert_eq!(cut.violations(), []);
    let shrinks = lock(1).waits(1).resize(3, 0).after_ms(10).full(1);
    assert_eq!(shrinks.violations(), []);
}

#[test]
fn whoever_may_hold_a_slot_takes_its_room() {
    let two = || lock(2).ask(2, Verb::Acquire).granted(2, 1).waits(1);
    assert_eq!(two().after_ms(6000).full(1).violations(), VIOLATED);
    assert_eq!(two().ask(3, Verb::Acquire).after_ms(6000).full(1).violations(), []);
    // A process that lost its slot may still have it at the broker, until it ends.
    let lost = || lock(1).ask(2, Verb::Acquire).granted(2, 1).lost(2).waits(1);
    assert_eq!(lost().after_ms(6000).full(1).violations(), []);
    // Its end wakes no waiter.
    assert_eq!(lost().killed(2).after_ms(7000).full(1).violations(), []);
    assert_eq!(lost().killed(2).after_ms(9000).full(1).violations(), VIOLATED);
}

#[test]
fn the_broker_may_notice_the_end_of_a_connection_later() {
    let cut = |before| {
        let held = lock(1).ask(2, Verb::Acquire).granted(2, 1);
        let cut = held.connection(2, ConnectionState::Cut).lost(2).ask(2, Verb::Acquire);
        cut.full(2).after_ms(before).waits(1)
    };
    assert_eq!(cut(1000).after_ms(3000).full(1).violations(), []);
    assert_eq!(cut(1000).after_ms(9000).full(1).violations(), VIOLATED);
    assert_eq!(cut(3000).after_ms(3000).full(1).violations(), VIOLATED);
}

#[test]
fn a_process_that_acquires_again_makes_room() {
    let unknown = || lock(1).ask(2, Verb::Acquire).unknown(2, Verb::Acquire);
    assert_eq!(unknown().waits(1).after_ms(9000).full(1).violations(), []);
    let again = |story: Story| story.ask(2, Verb::Acquire).full(2).waits(1).after_ms(9000).full(1);
    assert_eq!(again(unknown()).violations(), VIOLATED);
    let lost = lock(1).ask(2, Verb::Acquire).granted(2, 1).lost(2);
    assert_eq!(again(lost).violations(), VIOLATED);
    // A holder that acquires again may keep its slot.
    let held = lock(1).ask(2, Verb::Acquire).granted(2, 1);
    assert_eq!(again(held).violations(), []);
}

#[test]
fn a_slot_that_may_be_removed_is_no_room() {
    let shrinks = || lock(0).resize(3, 1).ok(3, Verb::Resize).waits(1);
    assert_eq!(shrinks().after_ms(6000).full(1).violations(), VIOLATED);
    assert_eq!(shrinks().after_ms(6000).resize(3, 0).full(1).violations(), []);
}

#[test]
fn a_process_that_a_fault_hit_may_be_refused() {
    let cut = lock(1).waits(1).after_ms(6000).fault(1, "cut before queue.declare").full(1);
    assert_eq!(cut.violations(), []);
    let other = lock(1).waits(1).after_ms(6000).fault(2, "kill").full(1);
    assert_eq!(other.violations(), VIOLATED);
}

#[test]
fn the_cause_is_whoever_left_no_slot_or_did_not_take_it() {
    // Frames show that slot 1 exists, and that nothing else does.
    let seen = |slots| {
        let story = Story::new(Rules::ExclusiveQueue, slots).waits(1);
        story.call(1, "queue.declare(passive)", "N-1-A")
    };
    let client = seen(1).after_ms(6000).full(1);
    assert_eq!(client.violations(), [(Property::S10, Cause::Client)]);
    // The broker may have refused it.
    let locked = seen(1).after_ms(6000).rejected(1, "queue.declare", "N-1-B", 405).full(1);
    assert_eq!(locked.violations(), VIOLATED);
    let hole = seen(2).rejected(1, "queue.declare(passive)", "N-2-A", 404);
    let hole = hole.after_ms(6000).full(1).violations();
    assert!(hole.contains(&(Property::S10, Cause::Administrator)), "{hole:?}");
    // Process 2 released in its own words only.
    let leak = Story::new(Rules::ExclusiveQueue, 1).acquires(2).ask(2, Verb::Release);
    let leak = leak.ok(2, Verb::Release).waits(1).after_ms(6000).full(1).violations();
    assert!(leak.contains(&(Property::S10, Cause::Client)), "{leak:?}");
}

#[test]
fn a_slot_that_the_broker_gives_to_no_client_is_room_while_others_wait() {
    let seen = || {
        let story = Story::new(Rules::ExclusiveQueue, 1).waits(1).waits(2);
        story.call(1, "queue.declare(passive)", "N-1-A")
    };
    let both = seen().after_ms(2100).full(1).full(2).violations();
    assert_eq!(both, [(Property::S10, Cause::Client); 2]);
    let held = seen().own(3, "N-1-B").after_ms(2100).full(1).full(2).violations();
    assert!(!held.contains(&(Property::S10, Cause::Client)), "{held:?}");
    let for_a_moment = seen().after_ms(100).own(2, "N-1-B").call(2, "queue.delete", "N-1-B");
    assert_eq!(for_a_moment.after_ms(1950).full(1).full(2).violations(), []);
}
