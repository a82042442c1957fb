//! Small histories with the verdict that each must have: violations that must be found with their
//! cause, and behaviour that is unusual but permitted. See `stories` for random histories.

use super::tests::Story;
use super::verdict::{Cause, Property};
use crate::history::{ConnectionState, Frame, Phase, Rules, Sender, Verb};

use Cause::{Administrator, Client, Unknown};
use Property::{Rule, S2, S3, S4, S5, S6, S9, S10, TokensConserved};

/// A history, and the expected violations in the order of time.
type Row = (&'static str, Story, Vec<(Property, Cause)>);

fn check(rows: Vec<Row>) {
    for (name, story, expected) in rows {
        let verdict = story.verdict();
        let found: Vec<_> =
            verdict.violations.iter().map(|one| (one.property, one.cause)).collect();
        assert_eq!(found, expected, "{name}: {:#?}", verdict.violations);
    }
}

fn none(slots: u32) -> Story {
    Story::new(Rules::None, slots)
}

fn queue(slots: u32) -> Story {
    Story::new(Rules::ExclusiveQueue, slots)
}

fn tokens(slots: u32) -> Story {
    Story::new(Rules::Token, slots)
}

/// Adds a look at A.
fn look(story: Story, process: u32, slot: u32) -> Story {
    story.call(process, "queue.declare(passive)", &format!("N-{slot}-A"))
}

/// Adds an attempt to acquire, up to its answer: the declare of B and the look at A.
fn tries(story: Story, process: u32, slot: u32) -> Story {
    let story = story.ask(process as usize, Verb::Acquire);
    look(story.own(process, &format!("N-{slot}-B")), process, slot)
}

/// Adds an acquisition according to the protocol.
fn acquires(story: Story, process: u32, slot: u32) -> Story {
    tries(story, process, slot).granted(process as usize, slot)
}

/// Adds a release according to the protocol.
fn releases(story: Story, process: u32, slot: u32) -> Story {
    let story = story.ask(process as usize, Verb::Release);
    let story = story.call(process, "queue.delete", &format!("N-{slot}-B"));
    story.ok(process as usize, Verb::Release)
}

/// Adds a resize by process 9 that deletes these slots.
fn shrinks(story: Story, to: u32, slots: &[u32]) -> Story {
    let delete = |story: Story, slot: &u32| story.call(9, "queue.delete", &format!("N-{slot}-A"));
    let story = slots.iter().fold(story.resize(9, to).own(9, "N"), delete);
    story.call(9, "queue.delete", "N").ok(9, Verb::Resize)
}

fn cut(story: Story, process: u32) -> Story {
    story.fault(process, "cut").connection(process, ConnectionState::Cut)
}

/// Adds a consumer of C that checks its type and looks at A.
fn consumes(story: Story, process: u32) -> Story {
    let story = story.ask(process as usize, Verb::Acquire).consume(process, "N-1-C");
    look(story.call(process, "queue.declare", "N-1-C"), process, 1).granted(process as usize, 1)
}

fn rejects(story: Story, process: u32, delivery: u64) -> Story {
    story.frame(Sender::Client, process, "basic.reject", |frame| {
        (frame.delivery, frame.requeue) = (Some(delivery), true);
    })
}

/// Adds a request and its answer on connection 2 of process 9.
fn on_second(story: Story, method: &str, queue: &str) -> Story {
    let second = |frame: &mut Frame| frame.connection = 2;
    let story = story.frame(Sender::Client, 9, method, |frame| {
        queue.clone_into(&mut frame.queue);
        second(frame);
    });
    story.frame(Sender::Broker, 9, &format!("{method}-ok"), second)
}

const FIRST: &str = "1760000000000001";
const SECOND: &str = "1760000000000002";

/// A hold that its process ends late, because its connection was cut, overlaps the next grant or
/// ends shortly before it. `look` after `lost`: the next client looks before the slot is removed.
fn stale(lost_before_the_grant: bool) -> Story {
    let story = cut(acquires(queue(2), 1, 2), 1);
    let story = shrinks(tries(story, 2, 2), 1, &[2]);
    if lost_before_the_grant { story.lost(1).granted(2, 2) } else { story.granted(2, 2).lost(1) }
}

#[test]
fn exclusion_and_existence() {
    let held = acquires(queue(2), 1, 2).ask(2, Verb::Acquire);
    let late = releases(shrinks(look(held, 2, 2), 1, &[2]), 1, 2);
    let no_second_look = late.own(2, "N-2-B").granted(2, 2);
    let closed = none(2).ask(1, Verb::Acquire).ok(1, Verb::Acquire).resize(9, 0);
    let closed = closed.ok(9, Verb::Resize).ask(2, Verb::Acquire).ok(2, Verb::Acquire);
    // Publishes a token and receives it, while the other token is held.
    let publishes = tokens(1).ask(1, Verb::Acquire).get(1, 1, "1").granted_token(1, "1");
    let publishes = publishes.ask(2, Verb::Acquire).request(2, "basic.publish", "N.semaphore");
    let publishes = publishes.get(2, 1, "1").granted_token(2, "1");
    let removed = queue(1).ask(3, Verb::Acquire).call(3, "queue.delete", "N-1-A").full(3);
    let removed = removed.ask(1, Verb::Acquire).own(1, "N-1-B").granted(1, 1);
    check(vec![
        ("a stale hold overlaps the grant", stale(false), vec![]),
        ("a stale hold ends before the grant", stale(true), vec![]),
        ("no look after the declare", no_second_look, vec![(S3, Client), (S4, Client)]),
        ("a slot of a closed lock", closed, vec![(S3, Unknown)]),
        ("slot 0", none(1).ask(1, Verb::Acquire).granted(1, 0), vec![(S3, Client)]),
        ("a client publishes tokens", publishes, vec![(S9, Client), (S2, Client)]),
        ("a client removes the slot of another", removed, vec![(S9, Client), (S4, Client)]),
    ]);
}

#[test]
fn answers_about_a_hold_that_no_acquisition_began() {
    let granted = |process| none(1).ask(process, Verb::Acquire).granted(process, 1);
    let taken = |story: Story, process| story.ask(process, Verb::Acquire).granted(process, 1);
    let says = |story: Story, process, verb| story.ask(process, verb).ok(process, verb);
    let fails = |story: Story, verb| story.ask(1, verb).failed(1, verb, "no");
    let unknown = || none(1).ask(1, Verb::Acquire).unknown(1, Verb::Acquire);
    let again = says(taken(fails(granted(1), Verb::Verify), 2), 1, Verb::Verify);
    let failed_release = || taken(fails(granted(1), Verb::Release), 2);
    let both = || vec![(S2, Unknown)];
    check(vec![
        ("verified after an unknown result", says(taken(unknown(), 2), 1, Verb::Verify), both()),
        ("believed after an unknown result", says(taken(unknown(), 2), 1, Verb::Believes), both()),
        ("verified after a loss", says(again, 1, Verb::Believes), both()),
        ("verified after a failed release", says(failed_release(), 1, Verb::Verify), both()),
        // The release failed because the slot was lost.
        ("a failed release", failed_release(), vec![]),
        // An answer from before the loss.
        (
            "a loss during a verification",
            taken(granted(1).ask(1, Verb::Verify).lost(1).ok(1, Verb::Verify), 2),
            vec![],
        ),
        (
            "another acquisition ends the claim",
            taken(says(unknown(), 1, Verb::Verify).ask(1, Verb::Acquire), 2).full(1),
            vec![],
        ),
    ]);
}

#[test]
fn answers_that_the_broker_contradicts() {
    let story = || acquires(queue(1), 1, 1);
    let believes = |after| {
        let story = cut(acquires(queue(1), 1, 1), 1).after_ms(after).ask(1, Verb::Believes);
        story.ok(1, Verb::Believes)
    };
    // The look of process 2 overlaps the deletion.
    let removed = |overlaps: bool, draining: bool| {
        let story = acquires(queue(2), 1, 2).ask(2, Verb::Acquire).resize(9, 1).own(9, "N");
        let story = story.request(9, "queue.delete", "N-2-A");
        let story = if overlaps { look(story, 2, 2) } else { story };
        let story = story.answer(9, "queue.delete-ok").call(9, "queue.delete", "N");
        let story = story.ok(9, Verb::Resize).ask(1, Verb::Verify);
        let story = story.call(1, "queue.declare(passive)", "N-2-B");
        if draining { story.draining(1) } else { story.ok(1, Verb::Verify) }
    };
    let unasked = story().ask(1, Verb::Verify).ok(1, Verb::Verify);
    let other =
        story().ask(1, Verb::Verify).frame(Sender::Broker, 1, "queue.declare-ok", |frame| {
            frame.connection = 2;
        });
    check(vec![
        ("believes after 3 s", believes(3000), vec![(S5, Client)]),
        ("believes for a moment", believes(500), vec![]),
        ("verified without a question", unasked, vec![(S5, Client)]),
        ("verified elsewhere", other.ok(1, Verb::Verify), vec![(S5, Client)]),
        ("verified", story().verifies(1).ok(1, Verb::Verify), vec![]),
        ("draining not reported", removed(false, false), vec![(S5, Client)]),
        ("draining not reported, a look overlaps", removed(true, false), vec![(S5, Client)]),
        ("draining reported", removed(true, true), vec![]),
    ]);
}

#[test]
fn leftovers() {
    // Takes slot 1 and slot 2, and reports slot 1.
    let two =
        || look(look(queue(2).ask(1, Verb::Acquire).own(1, "N-1-B"), 1, 1).own(1, "N-2-B"), 1, 2);
    let greedy = releases(two().granted(1, 1), 1, 1);
    let verified = two().granted(1, 1).verifies(1).ok(1, Verb::Verify);
    let returned = releases(two().call(1, "queue.delete", "N-2-B").granted(1, 1), 1, 1);
    let token = || {
        let story = tokens(2).ask(1, Verb::Acquire).get(1, 1, FIRST).get(1, 2, SECOND);
        story.granted_token(1, FIRST).ask(1, Verb::Release)
    };
    let both = rejects(rejects(token(), 1, 1), 1, 2);
    let both = both.call(1, "queue.declare(passive)", "N.semaphore").ok(1, Verb::Release);
    let second = releases(acquires(acquires(queue(2), 1, 1), 1, 2), 1, 2);
    // The second look finds slot 2 removed, and B of it stays.
    let attempt = |phase| {
        let story = queue(2).ask(1, Verb::Acquire).own(1, "N-2-B");
        let story = story.rejected(1, "queue.declare(passive)", "N-2-A", 404);
        releases(acquires(story.ended(1, Verb::Acquire, phase, "oops"), 1, 1), 1, 1)
    };
    let later = look(queue(1).ask(1, Verb::Acquire).own(1, "N-1-B"), 1, 1).full(1);
    let later = later.ask(1, Verb::Acquire).granted(1, 1);
    let late = tokens(1).ask(1, Verb::Acquire).full(1).get(1, 1, FIRST);
    let late = late.ask(1, Verb::Acquire).granted_token(1, FIRST);
    let kept = || acquires(queue(1), 1, 1).lost(1).ask(1, Verb::Acquire).full(1);
    let closes = acquires(queue(1), 1, 1).lost(1).ask(1, Verb::Acquire).full(1);
    let closes = closes.connection(1, ConnectionState::ClosedByClient);
    // It is uncertain since the fault, which may have been on another connection.
    let beyond_a_cut = kept().after_ms(500).fault(1, "cut before channel.open").after_ms(1_000);
    let beyond_a_cut = beyond_a_cut.connection(1, ConnectionState::ClosedByClient);
    let drained = shrinks(acquires(queue(1), 1, 1), 0, &[1]).ask(1, Verb::Verify);
    let drained = drained.failed(1, Verb::Verify, "lost").ask(1, Verb::Acquire).full(1);
    let unclear = acquires(queue(1), 1, 1).ask(1, Verb::Release);
    let unclear = unclear.unknown(1, Verb::Release);
    let refused_next = |story: Story| story.ask(1, Verb::Acquire).full(1);
    let holds = unclear.clone().ask(1, Verb::Acquire).failed(1, Verb::Acquire, "already holds");
    let consumer = Story::new(Rules::ExclusiveConsumer, 1);
    let left = consumes(consumer, 1).lost(1).ask(1, Verb::Acquire).full(1);
    check(vec![
        ("owns more than it was granted", greedy, vec![(S6, Client)]),
        ("owns more while it verifies", verified, vec![(S6, Client)]),
        ("gives the surplus back before its answer", returned, vec![]),
        ("two tokens, one reported", both, vec![(S6, Client)]),
        ("a second acquisition forgets the first", second, vec![(S6, Client)]),
        ("left by an unknown attempt", attempt(Phase::Info), vec![(Rule, Client)]),
        ("left by a failed attempt", attempt(Phase::Fail), vec![(Rule, Client)]),
        ("answers full, and grants it later", later, vec![(Rule, Client)]),
        ("keeps its consumer after a timeout", late, vec![(S6, Client)]),
        ("lost, but kept", kept(), vec![(S6, Client)]),
        ("reported once", kept().ask(1, Verb::Acquire).full(1), vec![(S6, Client)]),
        ("lost, and closed soon", closes, vec![]),
        ("lost, and not closed by a cut soon after", beyond_a_cut, vec![(S6, Client)]),
        ("draining treated as lost, but kept", drained, vec![(S6, Client)]),
        ("a release with an unknown result", refused_next(unclear), vec![(S6, Client)]),
        ("the same, and it knows that it holds", holds, vec![]),
        ("a consumer is kept after a loss", left, vec![(S6, Client)]),
    ]);
}

#[test]
fn a_process_that_may_still_react_violates_nothing_so_far() {
    let lost = acquires(queue(1), 1, 1).lost(1).ask(1, Verb::Acquire).full(1);
    let later = lost.clone().after_ms(1_100).ask(1, Verb::Acquire);
    let so_far = |story: Story| {
        let violations = super::judge_so_far(&story.history()).unwrap().violations;
        violations.iter().map(|one| (one.property, one.cause)).collect::<Vec<_>>()
    };
    assert_eq!(so_far(lost.clone()), []);
    let tried = look(look(queue(2).ask(1, Verb::Acquire).own(1, "N-1-B"), 1, 1), 1, 2);
    let tried = tried.full(1).ask(1, Verb::Acquire).full(1);
    assert_eq!(so_far(tried), [(Rule, Client)], "a failed attempt has nothing to give back");
    assert_eq!(so_far(later), [(S6, Client)]);
}

#[test]
fn greedy_clients_are_the_cause_of_a_refusal() {
    let story = look(look(queue(2).ask(1, Verb::Acquire).own(1, "N-1-B"), 1, 1), 1, 2);
    let story = story.own(1, "N-2-B").granted(1, 1).verifies(1).ok(1, Verb::Verify).waits(2);
    let refused = story.rejected(2, "queue.declare", "N-2-B", 405).after_ms(3000).full(2);
    let token = tokens(2).ask(1, Verb::Acquire).get(1, 1, FIRST).get(1, 2, SECOND);
    let token = token.granted_token(1, FIRST).ask(1, Verb::Verify);
    let token = token.call(1, "queue.declare(passive)", "N.semaphore").ok(1, Verb::Verify);
    let token = token.waits(2).after_ms(3000).full(2);
    let purged = tokens(1).ask(1, Verb::Acquire).call(1, "queue.purge", "N.semaphore").full(1);
    let purged = purged.waits(2).after_ms(3000).full(2);
    check(vec![
        ("destroys the token", purged, vec![(TokensConserved, Client), (S10, Client)]),
        ("takes every slot", refused, vec![(S6, Client), (S10, Client)]),
        ("takes every token", token, vec![(S6, Client), (S10, Client)]),
    ]);
}

#[test]
fn changes_by_clients() {
    let deletes = |story: Story, queue: &str| {
        let story = story.ask(1, Verb::Release).call(1, "queue.delete", queue);
        story.ok(1, Verb::Release)
    };
    let consumer = || consumes(Story::new(Rules::ExclusiveConsumer, 1), 1);
    let cancelled =
        consumer().ask(1, Verb::Release).frame(Sender::Client, 1, "basic.cancel", |one| {
            one.consumer = Some("N-1-C".to_owned());
        });
    let cancelled = cancelled.answer(1, "basic.cancel-ok").call(1, "queue.delete", "N-1-C");
    let and = |name: &str| {
        let story = acquires(queue(1), 1, 1).ask(1, Verb::Release);
        let story = story.call(1, "queue.delete", "N-1-B").call(1, "queue.delete", name);
        story.ok(1, Verb::Release)
    };
    let purge = |story: Story, queue: &str| {
        let story = story.ask(1, Verb::Acquire).call(1, "queue.purge", queue);
        story.full(1)
    };
    let during = queue(2).resize(9, 2).own(9, "N");
    let during = look(look(during, 9, 1), 9, 2).ask(1, Verb::Acquire);
    let during = during.call(1, "queue.delete", "N-1-A").full(1);
    let during = during.call(9, "queue.delete", "N").ok(9, Verb::Resize);
    let before = queue(1).ask(1, Verb::Acquire).call(1, "queue.delete", "N-1-A").full(1);
    let before = shrinks(before, 1, &[]);
    let s9 = || vec![(S9, Client)];
    check(vec![
        ("releases by deleting C", deletes(consumer(), "N-1-C"), s9()),
        ("deletes C after its release", cancelled.ok(1, Verb::Release), s9()),
        ("deletes the wait queue", and("N-W"), s9()),
        ("deletes the record", and("N-1-F"), s9()),
        ("purges the record", purge(queue(1), "N-1-F"), s9()),
        ("purges the tokens", purge(tokens(1), "N.semaphore"), vec![(TokensConserved, Client)]),
        ("deletes a slot during a resize", during, s9()),
        ("a resize does not repair a slot", before, vec![(S9, Client), (S9, Administrator)]),
    ]);
}

#[test]
fn changes_by_administrators() {
    let second = on_second(queue(2).resize(9, 1).own(9, "N"), "queue.delete", "N-2-A");
    let second = second.call(9, "queue.delete", "N").ok(9, Verb::Resize);
    let lost = cut(queue(3).resize(9, 1).own(9, "N"), 9);
    let lost = on_second(on_second(lost, "queue.delete", "N-3-A"), "queue.delete", "N-2-A");
    let deleted = queue(2).resize(9, 1).own(9, "N").rejected(9, "queue.declare(passive)", "N", 404);
    let late = |after| deleted.clone().after_ms(after).call(9, "queue.delete", "N-2-A");
    let s9 = |count| vec![(S9, Administrator); count];
    check(vec![
        ("another connection than that of the mutex", second, s9(1)),
        ("the mutex was lost with its connection", lost.ok(9, Verb::Resize), s9(2)),
        ("it may not know yet", late(10).ok(9, Verb::Resize), vec![]),
        ("it must know", late(3000).ok(9, Verb::Resize), s9(1)),
        ("ascending order", shrinks(queue(3), 1, &[2, 3]), vec![]),
        ("descending order", shrinks(queue(3), 1, &[3, 2]), vec![]),
    ]);
}
