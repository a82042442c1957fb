//! Tests of the choice of faults, and of the order of steps after a fault.

use super::*;
use crate::history::Verb;
use crate::steps::request::On;

fn step(process: u32, method: &str) -> Request {
    let what = Asked::Method(method.to_owned(), On::Slot(1, 'B'));
    Request { process, what, connection: 1 }
}

fn release(process: u32) -> Request {
    Request { process, what: Asked::Begin(Verb::Release), connection: 0 }
}

fn cut(process: u32, when: When, method: &str) -> Request {
    let what = Asked::Cut(Cut::Method(when, method.to_owned(), On::Slot(1, 'B')));
    Request { process, what, connection: 1 }
}

fn holding(process: u32) -> Request {
    Request { process, what: Asked::Cut(Cut::Holding), connection: 0 }
}

fn fault(at: usize, side: Side) -> Fault {
    Fault { execution: 0, at, side }
}

fn set(processes: &[u32]) -> BTreeSet<u32> {
    processes.iter().copied().collect()
}

/// Process 1 declares and holds while process 2 looks, and then releases.
fn execution() -> Execution {
    let schedule = vec![step(1, "declare"), step(2, "look"), release(1), step(1, "delete")];
    let holders = [&[][..], &[1], &[1], &[], &[]].map(set).to_vec();
    Execution { schedule, holders }
}

#[test]
fn each_request_is_cut_on_both_sides_and_each_hold_at_each_point() {
    let faults = every(&[execution()]);
    let expected = [
        (0, Side::Before),
        (0, Side::After),
        (1, Side::Before),
        (1, Side::After),
        (1, Side::Holding(1)),
        // The start of an operation is no request.
        (2, Side::Holding(1)),
        (3, Side::Before),
        (3, Side::After),
    ];
    assert_eq!(faults, expected.map(|(at, side)| fault(at, side)));
    let held = Execution { schedule: vec![step(1, "declare")], holders: vec![set(&[]), set(&[1])] };
    assert_eq!(every(&[execution(), held]).last().unwrap().at, 1, "a hold until the end");
    assert_eq!(every(&[]), []);
}

#[test]
fn draws_different_faults_that_the_seed_determines() {
    let faults: Vec<Fault> = (0..100).map(|at| fault(at, Side::After)).collect();
    let drawn = draw(faults.clone(), 10, 1);
    assert_eq!(drawn.iter().collect::<BTreeSet<_>>().len(), 10);
    assert!(drawn.is_sorted());
    assert_eq!(drawn, draw(faults.clone(), 10, 1));
    assert_ne!(drawn, draw(faults.clone(), 10, 2));
    assert_eq!(draw(faults.clone(), 100, 1), faults);
    assert_eq!(draw(faults.clone(), 1000, 1), faults);
}

/// Chooses until the end. Each process makes its steps in order, and process 1 makes others
/// after the fault. Process 1 holds while it waits for its release.
fn chosen(fault: Fault, after: &[Request]) -> Vec<Request> {
    let Execution { schedule, .. } = execution();
    let mut order = Order::new(&schedule, fault);
    let of = |process| schedule.iter().filter(move |step| step.process == process).cloned();
    let mut left: [VecDeque<Request>; 2] = [of(1).collect(), of(2).collect()];
    let mut taken = Vec::new();
    loop {
        let steps: Vec<Request> = left.iter().filter_map(|left| left.front()).cloned().collect();
        let holds = matches!(left[0].front(), Some(Request { what: Asked::Begin(_), .. }));
        let holders = if holds { set(&[1]) } else { set(&[]) };
        let Some(step) = order.choose(&steps, &holders) else { return taken };
        if matches!(step.what, Asked::Cut(_)) {
            let index = usize::try_from(step.process - 1).unwrap();
            left[index] = after.iter().cloned().collect();
        } else {
            left.iter_mut().find(|left| left.front() == Some(&step)).unwrap().pop_front();
        }
        taken.push(step);
    }
}

#[test]
fn a_cut_replaces_its_request_and_the_rest_keeps_its_order() {
    let cut_first = cut(1, When::Before, "declare");
    let look = step(2, "look");
    assert_eq!(chosen(fault(0, Side::Before), &[]), [cut_first.clone(), look.clone()]);
    let cut_look = cut(2, When::Before, "look");
    let expected = [step(1, "declare"), cut_look, release(1), step(1, "delete")];
    assert_eq!(chosen(fault(1, Side::Before), &[]), expected);
    // The client tries again: first the steps of the schedule, then others.
    let again = [step(1, "open"), step(1, "declare")];
    let expected = [cut_first, look.clone(), again[0].clone(), again[1].clone()];
    assert_eq!(chosen(fault(0, Side::Before), &again), expected);
    let expected = [step(1, "declare"), look, release(1), cut(1, When::After, "delete")];
    assert_eq!(chosen(fault(3, Side::After), &[]), expected);
}

#[test]
fn a_holder_is_cut_before_the_step_at_that_point() {
    let (first, look) = (step(1, "declare"), step(2, "look"));
    let verify = Request { process: 1, what: Asked::Begin(Verb::Verify), connection: 0 };
    let after = [verify.clone(), release(1)];
    let expected = [first.clone(), holding(1), look.clone(), verify.clone(), release(1)];
    assert_eq!(chosen(fault(1, Side::Holding(1)), &after), expected);
    let expected = [first, look, holding(1), verify, release(1)];
    assert_eq!(chosen(fault(2, Side::Holding(1)), &after), expected);
}

#[test]
fn a_fault_whose_point_is_not_reached_is_not_chosen() {
    let mut order = Order::new(&execution().schedule, fault(3, Side::Before));
    let other = [step(1, "other")];
    assert_eq!(order.choose(&other, &set(&[])), Some(other[0].clone()));
    assert_eq!(order.choose(&[], &set(&[])), None);
    let mut order = Order::new(&execution().schedule, fault(1, Side::Holding(2)));
    assert_eq!(order.choose(&[step(2, "look")], &set(&[1])), Some(step(2, "look")));
}
