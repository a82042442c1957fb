//! Tests the evidence in frames: no violation is reported unless it is certain.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{NONE, queue};
use crate::check::tests::Story;
use crate::check::verdict::{Cause, Property};
use crate::history::{ConnectionState, Rules, Sender, Verb};

#[test]
fn does_not_blame_the_broker_for_a_connection_that_it_closed() {
    // The broker frees the slot before the proxy reads that it closed the connection.
    let story = queue().acquires(1).acquires(2).connection(1, ConnectionState::ClosedByBroker);
    let verdict = story.lost(1).verdict();
    assert_eq!((verdict.violations.len(), verdict.counts["stale holds"]), (0, 1));
}

#[test]
fn a_later_answer_proves_that_the_broker_granted_twice() {
    let story = queue().acquires(1).acquires(2).call(1, "queue.declare(passive)", "N-1-B");
    let story = story.connection(1, ConnectionState::ClosedByBroker);
    let broker = [(Property::S1, Cause::Broker), (Property::S2, Cause::Broker)];
    assert_eq!(story.violations(), broker);
}

#[test]
fn a_request_behind_a_rejected_one_is_ignored() {
    let story = queue().ask(1, Verb::Acquire).request(1, "queue.declare(passive)", "N-1-A");
    let declare = |frame: &mut crate::history::Frame| {
        "N-1-B".clone_into(&mut frame.queue);
        frame.exclusive = true;
    };
    let story = story.frame(Sender::Client, 1, "queue.declare", declare);
    let close = |frame: &mut crate::history::Frame| frame.code = Some(404);
    let story = story.frame(Sender::Broker, 1, "channel.close", close);
    let story = story.frame(Sender::Client, 1, "queue.declare", declare);
    let story = story.frame(Sender::Client, 1, "channel.close-ok", |_| {});
    // The answers belong to this declare, not to the ignored ones.
    let story = story.call(1, "queue.declare(passive)", "N-2-A").granted(1, 1);
    assert_eq!(story.violations(), [(Property::S4, Cause::Client)]);
}

/// RabbitMQ's queue sends the consume-ok, and its channel the declare-ok.
#[test]
fn a_consume_is_answered_after_a_later_declare() {
    let story = Story::new(Rules::ExclusiveConsumer, 1).ask(1, Verb::Acquire);
    let consume = |frame: &mut crate::history::Frame| {
        "N-1-C".clone_into(&mut frame.queue);
        (frame.exclusive, frame.flag, frame.consumer) = (true, true, Some("tag".to_owned()));
    };
    let story = story.frame(Sender::Client, 1, "basic.consume", consume);
    let story = story.call(1, "queue.declare", "N-1-C");
    let story = story.call(1, "queue.declare(passive)", "N-1-A");
    let answer = |frame: &mut crate::history::Frame| frame.consumer = Some("tag".to_owned());
    let story = story.frame(Sender::Broker, 1, "basic.consume-ok", answer);
    assert_eq!(story.granted(1, 1).violations(), NONE);
}

/// The broker may grant the slot to the next owner before the proxy has read its answer to the
/// delete.
#[test]
fn a_slot_is_owned_again_before_the_answer_to_its_delete_is_read() {
    let story = queue().acquires(1).ask(1, Verb::Release).request(1, "queue.delete", "N-1-B");
    let story = story.ask(2, Verb::Acquire).own(2, "N-1-B");
    let story = story.answer(1, "queue.delete-ok").ok(1, Verb::Release).granted(2, 1);
    let story = story.ask(2, Verb::Release).call(2, "queue.delete", "N-1-B");
    assert_eq!(story.ok(2, Verb::Release).violations(), NONE);
}

/// A sweep above the highest slot deletes nothing.
#[test]
fn a_sweep_of_missing_slots_may_ascend() {
    let story = Story::new(Rules::ExclusiveQueue, 1).resize(9, 1).own(9, "N");
    let story = story.call(9, "queue.delete", "N-2-A").call(9, "queue.delete", "N-3-A");
    assert_eq!(story.ok(9, Verb::Resize).violations(), NONE);
}

/// A publish to a slot's queue is a probe.
#[test]
fn a_client_may_publish_to_a_slots_queue() {
    let story = queue().ask(1, Verb::Acquire).request(1, "basic.publish", "N-1-A");
    assert_eq!(story.own(1, "N-1-B").granted(1, 1).violations(), NONE);
}

#[test]
fn finds_the_slot_that_the_driver_does_not_report() {
    let grant = |story: Story, process, slot| {
        let story = story.ask(process as usize, Verb::Acquire).own(process, slot);
        story.ok(process as usize, Verb::Acquire)
    };
    let two = |second| {
        let story = grant(Story::new(Rules::ExclusiveQueue, 2), 1, "N-1-B");
        grant(story, 2, second).violations()
    };
    assert_eq!(two("N-2-B"), NONE);
    assert_eq!(two("N-1-B"), [(Property::S1, Cause::Broker), (Property::S2, Cause::Broker)]);
}

#[test]
fn understands_the_names_of_amqp_locks_python() {
    let grant = |story: Story, process: u32| {
        let story = story.ask(process as usize, Verb::Acquire).own(process, "N-B-1");
        story.granted(process as usize, 1)
    };
    let story = grant(Story::new(Rules::AmqpLocksPython, 1), 1);
    let story = story.ask(1, Verb::Release).call(1, "queue.delete", "N-B-1").ok(1, Verb::Release);
    assert_eq!(grant(story, 2).violations(), NONE);
}

/// Clients that follow the protocol, some of which are killed or cut, on a broker that follows
/// it. Nothing must be reported, and everything must be counted.
#[test]
fn reports_no_violation_of_correct_clients() {
    let seed = 5;
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..500 {
        let mut story = queue();
        let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
        let (mut holder, mut alive, mut next) = (None, vec![1, 2, 3], 4);
        for _ in 0..rng.random_range(5..40) {
            let index = rng.random_range(0..alive.len());
            let process: u32 = alive[index];
            let (name, done) = match (holder, rng.random_range(0..8)) {
                (Some(one), 0) if one == process => {
                    (holder, alive[index]) = (None, next);
                    next += 1;
                    let closed = story.connection(process, ConnectionState::ClosedByClient);
                    ("", closed.killed(process))
                }
                (Some(one), 1) if one == process => {
                    (holder, alive[index]) = (None, next);
                    next += 1;
                    ("", story.connection(process, ConnectionState::Cut).lost(process))
                }
                (Some(one), 2..5) if one == process => {
                    let story = story.ask(process as usize, Verb::Verify);
                    let story = story.call(process, "queue.declare(passive)", "N-1-B");
                    ("verifications", story.ok(process as usize, Verb::Verify))
                }
                (Some(one), _) if one == process => {
                    holder = None;
                    ("releases", story.releases(process))
                }
                (Some(_), _) => {
                    let story = story.ask(process as usize, Verb::Acquire);
                    let story = story.rejected(process, "queue.declare", "N-1-B", 405);
                    ("refusals", story.full(process as usize))
                }
                (None, _) => {
                    holder = Some(process);
                    ("grants", story.acquires(process))
                }
            };
            *expected.entry(name).or_default() += 1;
            story = done;
        }
        let verdict = story.verdict();
        assert_eq!(verdict.violations, []);
        expected.remove("");
        for (name, count) in expected {
            assert_eq!(verdict.counts[name], count, "{name}");
        }
    }
}

#[test]
fn a_publish_on_a_closed_channel_changes_nothing() {
    let publish = |closed: bool| {
        let story = Story::new(Rules::Token, 1).request(1, "queue.declare(passive)", "N.semaphore");
        let method = if closed { "channel.close" } else { "queue.declare-ok" };
        story.answer(1, method).request(1, "basic.publish", "N.semaphore").violations()
    };
    assert_eq!(publish(true), NONE);
    assert_eq!(publish(false), [(Property::S9, Cause::Client)]);
}
