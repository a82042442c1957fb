//! Tests which samples a measurement keeps, without processes.

use std::time::Duration;

use super::Bench;
use crate::cost::sample::{Recorded, Span};
use crate::cost::tape::Tape;
use crate::cost::{CostOptions, Operation};
use crate::driver::message::{Done, FULL, Line, UNSUPPORTED};
use crate::history::{Phase, Rules, Verb};

fn bench(rules: Rules) -> Bench {
    let options = CostOptions {
        driver: String::new(),
        administrator: String::new(),
        url: "amqp://127.0.0.1".parse().unwrap(),
        rules,
        lock: "ci.lock".to_owned(),
        taken: 2,
        repetitions: 1,
        hold: Duration::ZERO,
    };
    Bench::new(&options, "ci.lock")
}

/// Passes an acquire of process 1 with this answer to the bench.
fn keep(bench: &Bench, operation: Operation, answer: &Line) -> bool {
    let mut tape = Tape::default();
    tape.operation(1, Verb::Acquire, Phase::Invoke).operation(1, Verb::Acquire, Phase::Ok);
    let recorded = Recorded { events: tape.events, ..Recorded::default() };
    let from = (1, Verb::Acquire);
    let span = Span { from, to: from, processes: &[1] };
    bench.keep((operation, false), Duration::ZERO, answer, &recorded, span)
}

#[test]
fn only_the_expected_answer_is_a_sample() {
    let bench = bench(Rules::Token);
    let (ok, full) = (Line::Ok(Done::default()), Line::Fail(FULL.to_owned()));
    assert!(keep(&bench, Operation::AcquireFree, &ok));
    assert!(keep(&bench, Operation::AcquireFull, &full));
    assert_eq!((bench.samples().len(), bench.troubles().len()), (2, 0));
    let other = Line::Fail("this process holds a slot already".to_owned());
    for (operation, answer) in [
        (Operation::AcquireFree, &full),
        (Operation::AcquireFull, &ok),
        (Operation::AcquireFull, &other),
    ] {
        assert!(!keep(&bench, operation, answer), "{operation:?} {answer:?}");
    }
    assert_eq!((bench.samples().len(), bench.troubles().len()), (0, 3));
}

#[test]
fn an_unsupported_or_always_failing_operation_is_not_repeated() {
    let bench = bench(Rules::Token);
    assert!(!keep(&bench, Operation::AcquireFree, &Line::Fail(UNSUPPORTED.to_owned())));
    assert!(bench.not_offered().contains(&Operation::AcquireFree) && bench.troubles().is_empty());
    assert!(!bench.wants(Operation::AcquireFree, 0));
    for _ in 0..3 {
        assert!(bench.wants(Operation::HandOver, 0));
        keep(&bench, Operation::HandOver, &Line::Info("timeout".to_owned()));
    }
    assert!(!bench.wants(Operation::HandOver, 0));
}

#[test]
fn a_slow_operation_is_measured_in_the_first_round_only() {
    let bench = bench(Rules::Token);
    bench.spend(Operation::Grow, Duration::from_secs(9));
    assert!(bench.wants(Operation::Grow, 0) && !bench.wants(Operation::Grow, 1));
    assert!(bench.wants(Operation::Shrink, 1));
}

#[test]
fn a_request_for_the_holder_queue_takes_a_slot() {
    let queue = bench(Rules::ExclusiveQueue);
    assert!(queue.takes_a_slot("queue.declare", "ci.lock-2-B"));
    assert!(!queue.takes_a_slot("queue.declare(passive)", "ci.lock-2-B"));
    assert!(!queue.takes_a_slot("queue.declare", "ci.lock-2-A"));
    assert!(!queue.takes_a_slot("queue.declare", "ci.other-2-B"));
    let consumer = bench(Rules::ExclusiveConsumer);
    assert!(consumer.takes_a_slot("basic.consume", "ci.lock-1-C"));
    assert!(!consumer.takes_a_slot("queue.declare", "ci.lock-1-C"));
    assert!(!bench(Rules::Token).takes_a_slot("basic.get", "ci.lock.semaphore"));
}
