//! Tests that the search explores exactly one execution of each class, and finds the same faults
//! as the full enumeration.

use std::collections::BTreeSet;

use futures::executor::block_on;
use proptest::prelude::*;

use super::{Choice, End, Scheduler, Search, explore};
use crate::steps::request::{Asked, On, Request};
use crate::steps::sim::{
    Execution, GRANTED, Line, Op, STOP, Sim, client, executions, greedy, shrink,
};

/// Returns the executions of the full enumeration, and those of the reduced search.
fn both(slots: u32, programs: &[Vec<Line>]) -> (Vec<Execution>, Vec<Execution>) {
    both_of(&mut Sim::new(slots, programs.to_vec()))
}

fn both_of(sim: &mut Sim) -> (Vec<Execution>, Vec<Execution>) {
    (executions(sim, Search::new(false)), executions(sim, Search::new(true)))
}

fn classes(executions: &[Execution]) -> BTreeSet<Vec<(usize, Request)>> {
    executions.iter().map(Execution::class).collect()
}

/// Returns the faults and the answers of each execution.
fn verdicts(executions: &[Execution]) -> BTreeSet<Execution> {
    let verdict = |execution: &Execution| Execution { steps: Vec::new(), ..execution.clone() };
    executions.iter().map(verdict).collect()
}

/// Checks that `reduced` has one execution of each class and all verdicts. Returns the number of
/// executions of both.
fn compared((all, reduced): (Vec<Execution>, Vec<Execution>)) -> (usize, usize) {
    assert_eq!(classes(&all), classes(&reduced));
    assert_eq!(reduced.len(), classes(&all).len());
    assert_eq!(verdicts(&all), verdicts(&reduced));
    (all.len(), reduced.len())
}

#[test]
fn the_reduced_search_explores_one_execution_of_each_class() {
    let two = [client(true), client(true), shrink()];
    assert_eq!(compared(both(1, &two)), (298, 31));
    assert_eq!(compared(both(1, &[client(true), client(true), client(true)])), (3654, 21));
}

#[test]
fn few_executions_are_cut() {
    let mut sim = Sim::new(1, vec![client(true), client(true), shrink()]);
    let explored = block_on(explore(&mut sim, &mut Search::new(true), u64::MAX)).unwrap();
    assert_eq!((explored.executions, explored.cut), (31, 2));
}

#[test]
fn faults_are_the_same_with_and_without_reduction() {
    for programs in [
        vec![client(false), client(false), shrink()],
        vec![client(false), greedy(), shrink()],
        vec![greedy(), greedy(), shrink()],
    ] {
        let (all, reduced) = both(1, &programs);
        assert!(all.iter().any(|execution| !execution.faults.is_empty()));
        compared((all, reduced));
    }
}

#[test]
fn the_shortest_schedule_of_a_fault_is_reported() {
    let mut sim = Sim::new(1, vec![client(false), client(false), shrink()]);
    let explored = block_on(explore(&mut sim, &mut Search::new(true), u64::MAX)).unwrap();
    let (schedule, fault) = explored.fault.unwrap();
    assert_eq!(schedule.len(), 4, "{schedule:?}");
    assert_eq!(fault.len(), 1);
    assert!(explored.executions < 35, "{} executions", explored.executions);
}

#[test]
fn a_limited_search_reports_that_it_is_incomplete() {
    let mut sim = Sim::new(1, vec![client(true), client(true), shrink()]);
    let explored = block_on(explore(&mut sim, &mut Search::new(true), 5)).unwrap();
    assert_eq!((explored.executions + explored.cut, explored.end), (5, End::Limit));
}

#[test]
fn an_actor_that_does_not_repeat_its_steps_is_detected() {
    let step = |process, queue: &str| Request {
        process,
        what: Asked::Method("queue.delete".to_owned(), On::Queue(queue.to_owned())),
        connection: 1,
    };
    let mut search = Search::new(true);
    let first = [step(1, "x"), step(2, "y")];
    assert_eq!(search.choose(&first), Choice::Take(first[0].clone()));
    assert_eq!(search.choose(&first[1..]), Choice::Take(first[1].clone()));
    assert_eq!(search.choose(&[]), Choice::Ended);
    search.again();
    let other = [step(1, "z"), step(2, "y")];
    assert_eq!(search.choose(&other), Choice::Diverged(first[0].clone()));
    // The steps are independent, so the search is complete.
    assert!(!search.next());
}

#[test]
fn a_step_that_appears_late_is_explored_too() {
    let step = |process| Request {
        process,
        what: Asked::Method("queue.delete".to_owned(), On::Queue("q".to_owned())),
        connection: 1,
    };
    let mut search = Search::new(true);
    assert_eq!(search.choose(&[step(1)]), Choice::Take(step(1)));
    assert_eq!(search.choose(&[step(2)]), Choice::Take(step(2)));
    assert_eq!(search.choose(&[]), Choice::Ended);
    assert!(!search.clone().next());
    search.again();
    assert_eq!(search.choose(&[step(1), step(2)]), Choice::Take(step(1)));
    assert_eq!(search.choose(&[step(2)]), Choice::Take(step(2)));
    assert_eq!(search.choose(&[]), Choice::Ended);
    assert!(search.next());
    assert_eq!(search.choose(&[step(1), step(2)]), Choice::Take(step(2)));
}

fn any_op() -> impl Strategy<Value = Op> {
    (0..6, 1..=2_u32).prop_map(|(op, slot)| match op {
        0 => Op::LookA(slot),
        1 => Op::LookB(slot),
        2 => Op::DeclareA(slot),
        3 => Op::DeleteA(slot),
        4 => Op::DeclareB(slot),
        _ => Op::DeleteB(slot),
    })
}

/// Generates programs of up to three requests. The answers determine the next request. The last
/// request may be followed by a grant if it concerns that slot.
fn any_program() -> impl Strategy<Value = Vec<Line>> {
    let line = (any_op(), 1..3_usize, 1..3_usize);
    (prop::collection::vec(line, 1..=3), any::<bool>()).prop_map(|(lines, grants)| {
        let last = lines.len() - 1;
        let about = |op| matches!(op, Op::LookA(1) | Op::LookB(1) | Op::DeclareB(1));
        let grants = grants && about(lines[last].0);
        let line = |(at, (op, yes, no)): (usize, (Op, usize, usize))| {
            let granted = grants && at == last;
            let yes = if granted { GRANTED } else { at + yes };
            Line(op, yes, if at == last { STOP } else { at + no })
        };
        lines.into_iter().enumerate().map(line).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_equivalence_class_is_explored_once(
        slots in 0..=2_u32,
        programs in prop::collection::vec(any_program(), 2..=3),
    ) {
        compared(both(slots, &programs));
    }

    #[test]
    fn an_actor_with_two_connections_is_explored_once_per_class(
        slots in 0..=2_u32,
        programs in prop::collection::vec(any_program(), 3),
    ) {
        let sim = Sim::with_two_connections(slots, programs);
        prop_assume!(sim.is_some());
        compared(both_of(&mut sim.unwrap()));
    }
}
