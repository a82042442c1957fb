//! Tests of random schedules.

use futures::executor::block_on;

use super::Pct;
use crate::steps::explore::explore;
use crate::steps::sim::{Sim, client, executions, shrink};

#[test]
fn random_schedules_find_a_fault_that_requires_two_ordered_steps() {
    // Each schedule finds the fault with a probability of at least 1 / (3 * 7^2).
    for seed in 0..20 {
        let mut sim = Sim::new(1, vec![client(false), client(false), shrink()]);
        let explored = block_on(explore(&mut sim, &mut Pct::new(seed, 500, 7), 500)).unwrap();
        let (schedule, _) = explored.fault.unwrap();
        assert_eq!(schedule.len(), 4, "seed {seed}: {schedule:?}");
    }
}

#[test]
fn equal_seeds_give_equal_schedules() {
    let drawn = |seed| {
        let mut sim = Sim::new(1, vec![client(true), client(true), shrink()]);
        executions(&mut sim, Pct::new(seed, 20, 7))
    };
    assert_eq!(drawn(1).len(), 20);
    assert_eq!(drawn(1), drawn(1));
    assert_ne!(drawn(1), drawn(2));
}

#[test]
fn correct_clients_have_no_fault_in_any_random_schedule() {
    let mut sim = Sim::new(1, vec![client(true), client(true), shrink()]);
    let explored = block_on(explore(&mut sim, &mut Pct::new(1, 200, 9), u64::MAX)).unwrap();
    assert!(explored.fault.is_none());
    assert_eq!((explored.executions, explored.cut), (200, 0));
}
