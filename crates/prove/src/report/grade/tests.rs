//! Tests the grades of given verdicts.

use super::*;
use crate::check::LONG_WAITS;
use crate::check::tests::Story;
use crate::check::verdict::Cause;
use crate::report::situations::{
    CUT_HOLDING, CUT_RESIZING, Hits, KILL_ACQUIRING, KILL_HOLDING, KILL_RESIZING,
};

/// Returns a verdict without violations, of a run in which all required situations occurred.
fn enough() -> (Verdict, Situations) {
    let counts =
        [("contended hand-overs", 5000), ("refusals", 100), ("resizes", 100), (LONG_WAITS, 1)];
    let counts = counts.map(|(name, count)| (name.to_owned(), count)).into();
    let faults = [
        (KILL_HOLDING, 20),
        (KILL_ACQUIRING, 20),
        (CUT_HOLDING, 20),
        (CUT_RESIZING, 5),
        (KILL_RESIZING, 5),
        ("x while idle", 9),
    ];
    let hits = Hits {
        verb: Verb::Acquire,
        method: "queue.declare".to_owned(),
        sent: 100,
        operations: 100,
        before: 2,
        after: 2,
    };
    let situations = Situations {
        shrunk_while_held: 20,
        shrunk_while_acquired: 20,
        lost_races: 20,
        timed_out: 20,
        very_long_waits: 20,
        long_after_cut: 20,
        acquired_again: [20, 0],
        alive_at_end: 4,
        verified_removed: 20,
        granted_after_failure: 20,
        faults: faults.map(|(name, count)| (name.to_owned(), count)).into(),
        methods: vec![hits],
    };
    (Verdict { counts, ..Verdict::default() }, situations)
}

fn tested(property: Option<Property>, right: bool) -> Tested {
    let bug = property.map(|_| "a-bug".to_owned());
    Tested { bug, property, cause: None, found: 0, others: 0, right }
}

/// Enough random schedules without a violation.
const SCHEDULED: Scheduled = Scheduled { executions: 30, violations: Vec::new() };

fn evidence<'a>(controls: Option<&'a [Tested]>, scheduled: &'a Scheduled) -> Evidence<'a> {
    Evidence { controls, scheduled: Some(scheduled) }
}

fn history() -> History {
    Story::new(Rules::ExclusiveQueue, 1).history()
}

fn given(
    history: &History,
    (verdict, situations): &(Verdict, Situations),
    tested: Option<&[Tested]>,
) -> [Given; 2] {
    let grades = grades(history, verdict, situations, evidence(tested, &SCHEDULED));
    [grades[0].given, grades[1].given]
}

#[test]
fn gives_both_grades_if_enough_was_tested() {
    let right = [tested(None, true), tested(Some(Property::S2), true)];
    assert_eq!(given(&history(), &enough(), Some(&right)), [Given::Yes, Given::Yes]);
    let (verdict, situations) = enough();
    let scheduled = SCHEDULED;
    let evidence = evidence(Some(&right), &scheduled);
    let grades = grades(&history(), &verdict, &situations, evidence);
    assert_eq!((grades[0].trials, grades[1].trials), (5000, 70));
}

#[test]
fn gives_no_grade_without_controls_or_with_a_missed_one() {
    let run = |tested: Option<&[Tested]>| given(&history(), &enough(), tested);
    assert_eq!(run(None), [Given::NotGiven; 2]);
    assert_eq!(run(Some(&[tested(None, false)])), [Given::NotGiven; 2]);
    assert_eq!(run(Some(&[tested(Some(Property::S2), false)])), [Given::NotGiven; 2]);
    let later = [tested(Some(Property::S5), false)];
    assert_eq!(run(Some(&later)), [Given::Yes, Given::NotGiven]);
}

#[test]
fn requires_no_controls_for_other_locks() {
    let history = Story::new(Rules::None, 1).history();
    assert_eq!(given(&history, &enough(), None), [Given::Yes, Given::Yes]);
}

#[test]
fn gives_no_grade_if_a_situation_is_missing() {
    let run = |change: fn(&mut Verdict, &mut Situations)| {
        let (mut verdict, mut situations) = enough();
        change(&mut verdict, &mut situations);
        given(&history(), &(verdict, situations), Some(&[]))
    };
    let contended = run(|verdict, _| {
        verdict.counts.insert("contended hand-overs".to_owned(), 3);
    });
    assert_eq!(contended, [Given::NotGiven; 2]);
    assert_eq!(run(|_, situations| situations.lost_races = 0), [Given::NotGiven; 2]);
    assert_eq!(run(|_, situations| situations.timed_out = 0), [Given::NotGiven; 2]);
    assert_eq!(run(|_, situations| situations.acquired_again = [0, 0]), [Given::NotGiven; 2]);
    // The driver does not offer it.
    let unsupported = run(|_, situations| situations.acquired_again = [20, 20]);
    assert_eq!(unsupported, [Given::Yes; 2]);
    let second = [Given::Yes, Given::NotGiven];
    assert_eq!(run(|_, situations| situations.very_long_waits = 0), second);
    let without_recovery = run(|verdict, _| {
        verdict.counts.remove(LONG_WAITS);
    });
    assert_eq!(without_recovery, second);
    assert_eq!(run(|_, situations| situations.methods[0].after = 0), second);
    let killed = run(|_, situations| {
        situations.faults.remove(KILL_ACQUIRING);
    });
    assert_eq!(killed, second);
    let unstruck = run(|_, situations| {
        situations.faults.remove(KILL_RESIZING);
    });
    assert_eq!(unstruck, second);
    assert_eq!(run(|_, situations| situations.long_after_cut = 0), second);
    assert_eq!(run(|_, situations| situations.alive_at_end = 0), second);
    assert_eq!(run(|_, situations| situations.granted_after_failure = 0), second);
    // A rarely sent method need not be hit.
    let rare =
        run(|_, situations| (situations.methods[0].sent, situations.methods[0].after) = (4, 0));
    assert_eq!(rare, [Given::Yes, Given::Yes]);
}

#[test]
fn gives_no_grade_if_the_broker_was_not_observed() {
    let (mut verdict, situations) = enough();
    verdict.not_judged.insert(Property::S4, "no frames".to_owned());
    assert_eq!(given(&history(), &(verdict, situations), Some(&[])), [Given::NotGiven; 2]);
}

/// Returns whether the grades are given if the last event violates the property.
fn violated(story: Story, property: Property) -> [Given; 2] {
    let history = story.history();
    let (mut verdict, situations) = enough();
    let event = history.events.len() - 1;
    let what = String::new();
    let cause = Cause::Client;
    let (processes, rule) = (vec![1], None);
    verdict.violations.push(Violation { property, cause, at: 0, event, processes, what, rule });
    given(&history, &(verdict, situations), Some(&[]))
}

#[test]
fn a_violation_without_faults_denies_both_grades() {
    let story = || Story::new(Rules::ExclusiveQueue, 1).acquires(1);
    assert_eq!(violated(story(), Property::S2), [Given::No; 2]);
    assert_eq!(violated(story(), Property::S6), [Given::Yes, Given::No]);
    // A fault of another process, or an old fault, does not count.
    let other = Story::new(Rules::ExclusiveQueue, 1).fault(2, "cut").acquires(1);
    assert_eq!(violated(other, Property::S2), [Given::No; 2]);
    let long_ago = story().fault(1, "cut").acquires(1).releases(1).acquires(1);
    assert_eq!(violated(long_ago, Property::S2), [Given::No; 2]);
}

#[test]
fn a_violation_soon_after_a_fault_denies_only_grade_1() {
    let story = || Story::new(Rules::ExclusiveQueue, 1).acquires(1).fault(1, "cut");
    assert_eq!(violated(story().lost(1), Property::S2), [Given::Yes, Given::No]);
    assert_eq!(violated(story().acquires(1), Property::S4), [Given::Yes, Given::No]);
}

#[test]
fn a_violation_in_a_random_schedule_denies_the_grades_that_require_the_property() {
    let (verdict, situations) = enough();
    let given = |scheduled: &Scheduled| {
        let evidence = evidence(Some(&[]), scheduled);
        let grades = grades(&history(), &verdict, &situations, evidence);
        [grades[0].given, grades[1].given]
    };
    assert_eq!(given(&SCHEDULED), [Given::Yes; 2]);
    assert_eq!(given(&Scheduled { executions: 3, ..SCHEDULED }), [Given::NotGiven; 2]);
    let violated = |property| {
        let (what, processes) = (String::new(), vec![1]);
        let (cause, rule) = (Cause::Client, None);
        let one = Violation { property, cause, at: 0, event: 0, processes, what, rule };
        given(&Scheduled { violations: vec![one], ..SCHEDULED })
    };
    assert_eq!(violated(Property::S4), [Given::No; 2]);
    assert_eq!(violated(Property::S6), [Given::Yes, Given::No]);
}
