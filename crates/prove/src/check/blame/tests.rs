//! Tests each property on small histories: a violation with its cause, and the legal
//! counterpart.

use super::super::tests::Story;
use super::super::verdict::{Cause, Property};
use crate::history::{ConnectionState, Rules, Sender, Verb};

mod wire;

const NONE: [(Property, Cause); 0] = [];

fn queue() -> Story {
    Story::new(Rules::ExclusiveQueue, 1)
}

fn consumer() -> Story {
    Story::new(Rules::ExclusiveConsumer, 1)
}

#[test]
fn blames_the_broker_for_two_owners() {
    let both = queue().acquires(1).acquires(2).violations();
    assert_eq!(both, [(Property::S1, Cause::Broker), (Property::S2, Cause::Broker)]);
    assert_eq!(queue().acquires(1).releases(1).acquires(2).violations(), NONE);
}

#[test]
fn reports_an_unknown_cause_without_a_broker() {
    let story = || Story::new(Rules::None, 1).ask(1, Verb::Acquire).granted(1, 1);
    let both = story().ask(2, Verb::Acquire).granted(2, 1).violations();
    assert_eq!(both, [(Property::S2, Cause::Unknown)]);
    let turns = story().ask(1, Verb::Release).ask(2, Verb::Acquire).granted(2, 1);
    assert_eq!(turns.violations(), NONE);
}

#[test]
fn blames_a_client_that_owned_nothing() {
    let claims = queue().acquires(1).ask(2, Verb::Acquire).granted(2, 1).violations();
    assert_eq!(claims, [(Property::S2, Cause::Client), (Property::S4, Cause::Client)]);
}

#[test]
fn blames_a_client_that_continues_after_its_connection_ended() {
    let story = || queue().acquires(1).connection(1, ConnectionState::Cut).acquires(2);
    let unnoticed = story().after_ms(2000).lost(1).violations();
    assert_eq!(unnoticed, [(Property::S2, Cause::Client)]);
    let verdict = story().lost(1).verdict();
    assert_eq!((verdict.violations.len(), verdict.counts["stale holds"]), (0, 1));
}

#[test]
fn blames_a_client_that_continues_after_its_release() {
    let gave_up = queue().acquires(1).call(1, "queue.delete", "N-1-B").acquires(2).lost(1);
    assert_eq!(gave_up.violations(), [(Property::S2, Cause::Client)]);
}

#[test]
fn a_killed_process_holds_nothing() {
    let killed =
        queue().acquires(1).connection(1, ConnectionState::ClosedByClient).acquires(2).killed(1);
    assert_eq!(killed.violations(), NONE);
}

#[test]
fn an_answer_that_arrives_while_its_process_is_killed_is_backed_and_begins_no_hold() {
    let story = |slot| {
        let lock = Story::new(Rules::ExclusiveQueue, 2);
        let asked = lock.ask(1, Verb::Acquire).own(1, "N-1-B").fault(1, "kill");
        asked.connection(1, ConnectionState::ClosedByClient).granted(1, slot)
    };
    assert_eq!(story(1).killed(1).acquires(2).violations(), NONE);
    assert_eq!(story(1).acquires(2).killed(1).violations(), NONE);
    // What its connection did not own is still a violation.
    assert_eq!(story(2).killed(1).violations(), [(Property::S4, Cause::Client)]);
}

#[test]
fn reports_more_holds_than_slots_without_numbers() {
    let story = |slots| {
        let story = Story::new(Rules::None, slots).ask(1, Verb::Acquire).ok(1, Verb::Acquire);
        story.ask(2, Verb::Acquire).ok(2, Verb::Acquire).violations()
    };
    assert_eq!(story(1), [(Property::S2, Cause::Unknown)]);
    assert_eq!(story(2), NONE);
}

#[test]
fn reports_a_slot_that_no_resize_requested() {
    let story = |grow: bool| {
        let story = Story::new(Rules::None, 1);
        let story = if grow { story.resize(9, 2).ok(9, Verb::Resize) } else { story };
        story.ask(1, Verb::Acquire).granted(1, 2).violations()
    };
    assert_eq!(story(false), [(Property::S3, Cause::Unknown)]);
    assert_eq!(story(true), NONE);
    let owned = queue().ask(1, Verb::Acquire).request(1, "basic.publish", "N-2-A");
    let owned = owned.own(1, "N-2-B").granted(1, 2).violations();
    assert_eq!(owned, [(Property::S3, Cause::Client), (Property::S4, Cause::Client)]);
}

#[test]
fn reports_a_slot_that_was_removed_before_it_was_owned() {
    let removed = |mutex: bool, early: bool| {
        let story = queue().ask(1, Verb::Acquire).resize(9, 0);
        let story = if mutex { story.own(9, "N") } else { story };
        let story = if early { story } else { story.own(1, "N-1-B") };
        let story = story.call(9, "queue.delete", "N-1-A");
        let story = if early { story.own(1, "N-1-B") } else { story };
        story.granted(1, 1).ok(9, Verb::Resize).violations()
    };
    assert_eq!(removed(true, true), [(Property::S4, Cause::Client)]);
    assert_eq!(removed(true, false), NONE);
    let without_mutex =
        [(Property::S9, Cause::Administrator), (Property::S4, Cause::Administrator)];
    assert_eq!(removed(false, true), without_mutex);
}

#[test]
fn reports_a_grant_after_the_slot_was_given_up() {
    let early = queue().ask(1, Verb::Acquire).own(1, "N-1-B").call(1, "queue.delete", "N-1-B");
    assert_eq!(early.granted(1, 1).violations(), [(Property::S4, Cause::Client)]);
}

#[test]
fn reports_a_false_verification() {
    let verify = |story: Story| story.ask(1, Verb::Verify).ok(1, Verb::Verify).violations();
    assert_eq!(queue().acquires(1).verifies(1).ok(1, Verb::Verify).violations(), NONE);
    // The broker was not asked.
    assert_eq!(verify(queue().acquires(1)), [(Property::S5, Cause::Client)]);
    let cut = queue().acquires(1).connection(1, ConnectionState::Cut);
    assert_eq!(verify(cut), [(Property::S5, Cause::Client)]);
    let gone = queue().acquires(1).rejected(1, "queue.declare(passive)", "N-1-B", 404);
    assert_eq!(verify(gone), [(Property::S5, Cause::Client)]);
}

#[test]
fn reports_a_false_answer_about_draining() {
    let verify = |removed: bool, draining: bool| {
        let story = queue().acquires(1);
        let shrink = |story: Story| {
            let story = story.resize(9, 0).own(9, "N").call(9, "queue.delete", "N-1-A");
            story.call(9, "queue.delete", "N").ok(9, Verb::Resize)
        };
        let story = if removed { shrink(story) } else { story };
        let story = story.verifies(1);
        let story = if draining { story.draining(1) } else { story.ok(1, Verb::Verify) };
        story.violations()
    };
    assert_eq!(verify(true, true), NONE);
    assert_eq!(verify(false, false), NONE);
    assert_eq!(verify(true, false), [(Property::S5, Cause::Client)]);
    assert_eq!(verify(false, true), [(Property::S5, Cause::Client)]);
}

#[test]
fn accepts_a_draining_answer_after_a_probe_found_the_slot_missing() {
    let story = queue()
        .acquires(1)
        .ask(1, Verb::Verify)
        .call(1, "queue.declare(passive)", "N-1-B")
        .rejected(1, "queue.declare(passive)", "N-1-A", 404)
        .draining(1);
    assert_eq!(story.violations(), NONE);
}

#[test]
fn reports_a_slot_that_is_still_owned_after_a_release() {
    let story = || queue().acquires(1).ask(1, Verb::Release);
    let left = story().call(1, "channel.close", "").ok(1, Verb::Release).after_ms(100).lost(1);
    assert_eq!(left.violations(), [(Property::S6, Cause::Client)]);
    let overtaken = story().ok(1, Verb::Release).call(1, "queue.delete", "N-1-B");
    assert_eq!(overtaken.violations(), NONE);
}

#[test]
fn a_consumer_releases_by_closing_its_channel() {
    let story = || {
        let story = consumer().ask(1, Verb::Acquire).consume(1, "N-1-C");
        let story = story.call(1, "queue.declare", "N-1-C").granted(1, 1);
        story.ask(1, Verb::Release)
    };
    let closed = story().call(1, "channel.close", "").ok(1, Verb::Release);
    assert_eq!(closed.violations(), NONE);
    let left = story().ok(1, Verb::Release).after_ms(100).lost(1);
    assert_eq!(left.violations(), [(Property::S6, Cause::Client)]);
}

#[test]
fn reports_the_deletion_of_a_held_consumer_queue() {
    let held = |release: bool, shrink: bool| {
        let story = consumer().ask(1, Verb::Acquire).consume(1, "N-1-C");
        let story = story.call(1, "queue.declare", "N-1-C").granted(1, 1);
        let story = if release { story.ask(2, Verb::Release) } else { story };
        let story = if shrink { story.resize(2, 0) } else { story };
        let story = story.request(2, "queue.delete", "N-1-C");
        let cancel = |frame: &mut crate::history::Frame| frame.consumer = Some("N-1-C".to_owned());
        let story = story.frame(Sender::Broker, 1, "basic.cancel", cancel).lost(1);
        let story = story.answer(2, "queue.delete-ok");
        let story = if release { story.ok(2, Verb::Release) } else { story };
        story.violations()
    };
    assert_eq!(held(true, false), [(Property::S6, Cause::Client)]);
    assert_eq!(held(false, true), [(Property::S9, Cause::Administrator)]);
    assert_eq!(held(false, false), [(Property::S9, Cause::Client)]);
    let free = consumer().resize(2, 0).own(2, "N").call(2, "queue.delete", "N-1-C");
    assert_eq!(free.violations(), NONE);
}

#[test]
fn reports_a_destroyed_token() {
    const TOKEN: &str = "1760000000000001";
    let settle = |method: &str, requeue: bool, administrator: bool| {
        let story = Story::new(Rules::Token, 1);
        let story = if administrator { story.resize(1, 0) } else { story };
        let story = story.ask(1, Verb::Acquire).get(1, 1, TOKEN).granted_token(1, TOKEN);
        let story = story.frame(Sender::Client, 1, method, |frame| {
            (frame.delivery, frame.requeue) = (Some(1), requeue);
        });
        story.violations()
    };
    assert_eq!(settle("basic.reject", true, false), NONE);
    assert_eq!(settle("basic.ack", false, true), NONE);
    let destroyed = [(Property::TokensConserved, Cause::Client)];
    assert_eq!(settle("basic.ack", false, false), destroyed);
    assert_eq!(settle("basic.reject", false, false), destroyed);
}

#[test]
fn tokens_without_unique_ids_are_counted() {
    let story = |slots| {
        let get = |story: Story, process| {
            let story = story.ask(process as usize, Verb::Acquire).get(process, 1, "1");
            story.granted_token(process as usize, "1")
        };
        get(get(Story::new(Rules::Token, slots), 1), 2).violations()
    };
    assert_eq!(story(2), NONE);
    assert_eq!(story(1), [(Property::S2, Cause::Administrator)]);
}

#[test]
fn reports_changes_without_the_admin_mutex() {
    let change = |mutex: bool, resize: bool| {
        let story = if resize { queue().resize(9, 2) } else { queue() };
        let story = if mutex { story.own(9, "N") } else { story };
        story.call(9, "queue.declare", "N-2-A").violations()
    };
    assert_eq!(change(true, true), NONE);
    assert_eq!(change(false, true), [(Property::S9, Cause::Administrator)]);
    assert_eq!(change(false, false), [(Property::S9, Cause::Client)]);
    let lost = queue().resize(9, 2).own(9, "N").connection(9, ConnectionState::Cut);
    assert_eq!(lost.call(9, "queue.declare", "N-2-A").violations(), NONE);
}

#[test]
fn reports_a_second_grant_on_one_connection() {
    let again = queue().acquires(1).acquires(1).violations();
    assert_eq!(again, [(Property::S2, Cause::Client)]);
    assert_eq!(queue().acquires(1).releases(1).acquires(1).violations(), NONE);
}

#[test]
fn reports_a_hold_that_was_resumed_on_a_new_connection() {
    let other = |frame: &mut crate::history::Frame| {
        (frame.connection, frame.exclusive) = (2, true);
        "N-1-B".clone_into(&mut frame.queue);
    };
    let declare = |story: Story| {
        let story = story.connection(1, ConnectionState::Cut);
        story.frame(Sender::Client, 1, "queue.declare", other).frame(
            Sender::Broker,
            1,
            "queue.declare-ok",
            other,
        )
    };
    let resumed = declare(queue().acquires(1).ask(1, Verb::Verify)).ok(1, Verb::Verify);
    let expected = [(Property::Rule, Cause::Client), (Property::S2, Cause::Client)];
    assert_eq!(resumed.violations(), expected);
    let acquired = declare(queue().acquires(1).ask(1, Verb::Acquire)).granted(1, 1);
    assert_eq!(acquired.violations(), NONE);
}

#[test]
fn reports_tokens_that_a_client_keeps_after_a_release() {
    let release = |again: bool, late: bool| {
        let story =
            Story::new(Rules::Token, 1).ask(1, Verb::Acquire).get(1, 1, "1").granted_token(1, "1");
        let story = story.ask(1, Verb::Release).frame(Sender::Client, 1, "basic.reject", |frame| {
            (frame.delivery, frame.requeue) = (Some(1), true);
        });
        let story = if again && !late { story.get(1, 2, "1") } else { story };
        let story = story.ok(1, Verb::Release);
        let story = if again && late { story.get(1, 2, "1") } else { story };
        story.after_ms(100).ask(1, Verb::Acquire).get(1, 3, "1").granted_token(1, "1").violations()
    };
    assert_eq!(release(false, false), NONE);
    assert_eq!(release(true, false), [(Property::S6, Cause::Client)]);
    assert_eq!(release(true, true), [(Property::S6, Cause::Client)]);
}

#[test]
fn reports_slots_that_are_not_contiguous() {
    let shrink = |slots: &[&str]| {
        let story = Story::new(Rules::ExclusiveQueue, 3).resize(9, 1).own(9, "N");
        let delete = |story: Story, slot: &&str| story.call(9, "queue.delete", slot);
        slots.iter().fold(story, delete).ok(9, Verb::Resize).violations()
    };
    assert_eq!(shrink(&["N-3-A", "N-2-A"]), NONE);
    let administrator = [(Property::S9, Cause::Administrator)];
    // The order of the deletions is free.
    assert_eq!(shrink(&["N-2-A", "N-3-A"]), NONE);
    assert_eq!(shrink(&["N-3-A"]), administrator);
}

#[test]
fn a_fault_during_an_acquire_is_not_a_release() {
    // The cut hits another connection. An answer to a later request proves that the cancel was
    // processed.
    let tag = |frame: &mut crate::history::Frame| frame.consumer = Some("N-1-C".to_owned());
    let story = consumer()
        .ask(1, Verb::Acquire)
        .consume(1, "N-1-C")
        .call(1, "queue.declare", "N-1-C")
        .call(1, "queue.declare(passive)", "N-1-A")
        .fault(1, "cut after basic.cancel")
        .granted(1, 1)
        .ask(1, Verb::Release)
        .frame(Sender::Client, 1, "basic.cancel", tag)
        .call(1, "queue.declare(passive)", "N-1-A")
        .ok(1, Verb::Release);
    assert_eq!(story.violations(), NONE);
}

#[test]
fn judges_only_the_broker_without_operations() {
    let verdict = queue().own(1, "N-1-B").own(2, "N-1-B").verdict();
    let found: Vec<_> = verdict.violations.iter().map(|one| (one.property, one.cause)).collect();
    assert_eq!(found, [(Property::S1, Cause::Broker)]);
    let unknown: Vec<_> = verdict.not_judged.keys().copied().collect();
    assert_eq!(
        unknown,
        [Property::S2, Property::S3, Property::S4, Property::S5, Property::S6, Property::S10]
    );
    let changed = |mutex: bool| {
        let story = if mutex { queue().own(9, "N") } else { queue() };
        story.call(9, "queue.declare", "N-2-A").violations()
    };
    assert_eq!(
        (changed(true), changed(false)),
        (NONE.to_vec(), vec![(Property::S9, Cause::Client)])
    );
    let removed = |mutex: bool| {
        let story = Story::new(Rules::Token, 1);
        let story = if mutex { story.own(9, "N") } else { story };
        let story = story.get(9, 1, "1").frame(Sender::Client, 9, "basic.ack", |frame| {
            frame.delivery = Some(1);
        });
        story.violations()
    };
    let destroyed = vec![(Property::TokensConserved, Cause::Client)];
    assert_eq!((removed(true), removed(false)), (NONE.to_vec(), destroyed));
}
