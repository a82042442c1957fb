//! Tests the situations in small histories.

use super::*;
use crate::check::examine;
use crate::check::tests::Story;
use crate::history::Rules;

fn queue() -> Story {
    Story::new(Rules::ExclusiveQueue, 2)
}

fn situations(story: Story) -> Situations {
    let history = story.history();
    read(&history, &examine(&history).unwrap())
}

fn faults(story: Story) -> Vec<(String, u64)> {
    situations(story).faults.into_iter().collect()
}

#[test]
fn names_a_kill_by_the_state_of_the_process() {
    let one = |name: &str| vec![(name.to_owned(), 1)];
    let kill = |story: Story| story.fault(1, "kill").killed(1);
    assert_eq!(faults(kill(queue().acquires(1))), one("kill during a hold"));
    assert_eq!(faults(kill(queue().ask(1, Verb::Acquire))), one("kill during an acquire"));
    let verifying = queue().acquires(1).ask(1, Verb::Verify);
    assert_eq!(faults(kill(verifying)), one("kill during a hold"));
    assert_eq!(faults(kill(queue().acquires(1).releases(1))), one("kill while idle"));
    assert_eq!(faults(kill(queue().resize(1, 1))), one(KILL_RESIZING));
}

#[test]
fn counts_a_cut_only_if_it_took_effect() {
    let story = || queue().acquires(1).ask(1, Verb::Release).request(1, "queue.delete", "N-1-B");
    let aimed = || story().fault(1, "cut before queue.delete");
    assert_eq!(faults(aimed()), []);
    // Another reason ended the connection.
    let closed = aimed().connection(1, ConnectionState::ClosedByBroker);
    assert_eq!(faults(closed.fault(1, "kill").killed(1)), [("kill in release".to_owned(), 1)]);
    // The end of a process is not the end of a connection by a cut.
    assert_eq!(faults(aimed().killed(1)), []);
    // When a process is killed, its connections are cut, too.
    let killed = story().fault(1, "kill").connection(1, ConnectionState::Cut).killed(1);
    assert_eq!(faults(killed), [("kill in release".to_owned(), 1)]);
    let cut = situations(aimed().connection(1, ConnectionState::Cut));
    assert_eq!(cut.faults["cut before queue.delete in release"], 1);
    let hits = cut.methods.iter().find(|hits| hits.method == "queue.delete").unwrap();
    let expected = (Verb::Release, 1, 1, 1, 0);
    assert_eq!((hits.verb, hits.sent, hits.operations, hits.before, hits.after), expected);
}

#[test]
fn counts_a_cut_between_two_operations_of_a_hold() {
    let cut = |story: Story| faults(story.fault(1, "cut").connection(1, ConnectionState::Cut));
    assert_eq!(cut(queue().acquires(1)), [("cut during a hold".to_owned(), 1)]);
    assert_eq!(cut(queue().acquires(1).releases(1)), [("cut while idle".to_owned(), 1)]);
}

#[test]
fn counts_resizes_that_removed_a_held_slot() {
    let shrunk = |slot: u32, slots: u32| {
        let held = queue().ask(1, Verb::Acquire).own(1, &format!("N-{slot}-B")).granted(1, slot);
        situations(held.resize(9, slots).ok(9, Verb::Resize)).shrunk_while_held
    };
    assert_eq!([shrunk(2, 1), shrunk(1, 1), shrunk(2, 2), shrunk(2, 3)], [1, 0, 0, 0]);
}

#[test]
fn counts_resizes_below_the_number_of_held_tokens() {
    let shrunk = |clients: usize| {
        let mut story = Story::new(Rules::None, 2);
        for client in 1..=clients {
            story = story.ask(client, Verb::Acquire).ok(client, Verb::Acquire);
        }
        situations(story.resize(9, 1).ok(9, Verb::Resize)).shrunk_while_held
    };
    assert_eq!([shrunk(0), shrunk(1), shrunk(2)], [0, 0, 1]);
}

#[test]
fn counts_resizes_to_fewer_slots_during_an_acquire() {
    let shrunk = |slots: u32| {
        let story = queue().ask(1, Verb::Acquire).resize(9, slots).ok(9, Verb::Resize);
        situations(story.full(1)).shrunk_while_acquired
    };
    assert_eq!([shrunk(1), shrunk(2)], [1, 0]);
    let before = queue().resize(9, 1).ok(9, Verb::Resize).ask(1, Verb::Acquire).full(1);
    assert_eq!(situations(before).shrunk_while_acquired, 0);
}

#[test]
fn counts_lost_races() {
    let story = |code: u16| {
        queue().ask(1, Verb::Acquire).rejected(1, "queue.declare", "N-1-B", code).full(1)
    };
    assert_eq!(situations(story(405)).lost_races, 1);
    assert_eq!(situations(story(404)).lost_races, 0);
}

#[test]
fn counts_grants_to_processes_that_survived_a_failure() {
    let after = |story: Story| situations(story.acquires(1)).granted_after_failure;
    assert_eq!(after(queue().acquires(1).releases(1)), 0);
    assert_eq!(after(queue().acquires(1).lost(1)), 1);
    assert_eq!(after(queue().acquires(1).ask(1, Verb::Verify).failed(1, Verb::Verify, "lost")), 1);
    assert_eq!(after(queue().ask(1, Verb::Acquire).unknown(1, Verb::Acquire)), 1);
    let other = queue().acquires(2).lost(2);
    assert_eq!(after(other), 0);
}

#[test]
fn counts_waits_by_their_time_limit() {
    let waits = |story: Story| {
        let situations = situations(story);
        (situations.timed_out, situations.very_long_waits)
    };
    assert_eq!(waits(queue().ask(1, Verb::Acquire).full(1)), (0, 0));
    assert_eq!(waits(queue().waits(1).full(1)), (1, 0));
    assert_eq!(waits(queue().waits_for(1, 10_000).full(1)), (1, 1));
    assert_eq!(waits(queue().waits_for(1, 10_000).granted(1, 1)), (0, 1));
}

#[test]
fn counts_holders_that_are_asked_long_after_a_cut() {
    let asked = |after| {
        let cut = queue().acquires(1).fault(1, "cut").connection(1, ConnectionState::Cut);
        situations(cut.after_ms(after).ask(1, Verb::Believes)).long_after_cut
    };
    assert_eq!((asked(900), asked(1_100)), (0, 1));
    let idle = queue().fault(1, "cut").connection(1, ConnectionState::Cut).after_ms(2_000);
    assert_eq!(situations(idle.acquires(1)).long_after_cut, 0);
}

#[test]
fn counts_clients_that_are_alive_at_the_last_grant() {
    let client = || queue().acquires(1).releases(1).acquires(1).releases(1);
    assert_eq!(situations(client()).alive_at_end, 0);
    assert_eq!(situations(client().acquires(2)).alive_at_end, 1);
    assert_eq!(situations(client().killed(1).acquires(2)).alive_at_end, 0);
    assert_eq!(situations(client().acquires(2).killed(1)).alive_at_end, 1);
}

#[test]
fn counts_verifications_of_removed_slots() {
    let held =
        |slot: u32| queue().ask(1, Verb::Acquire).own(1, &format!("N-{slot}-B")).granted(1, slot);
    let verified =
        |story: Story| situations(story.verifies(1).ok(1, Verb::Verify)).verified_removed;
    let removed = |slot: u32| held(slot).resize(9, 1).ok(9, Verb::Resize);
    assert_eq!((verified(removed(1)), verified(removed(2))), (0, 1));
    // The resize may not have removed it yet.
    assert_eq!(verified(held(2).resize(9, 1)), 0);
    let unsupported = removed(2).ask(1, Verb::Verify).failed(1, Verb::Verify, "unsupported");
    assert_eq!(situations(unsupported).verified_removed, 0);
}

#[test]
fn counts_acquires_of_holders() {
    let again = |story: Story, why: &str| {
        let story = story.ask(1, Verb::Acquire).failed(1, Verb::Acquire, why);
        situations(story).acquired_again
    };
    assert_eq!(again(queue().acquires(1), "it holds"), [1, 0]);
    assert_eq!(again(queue().acquires(1), "unsupported"), [1, 1]);
    assert_eq!(again(queue().acquires(1).releases(1), "full"), [0, 0]);
}
