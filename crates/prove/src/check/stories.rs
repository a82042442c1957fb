//! Random histories of correct clients and an administrator on a simulated broker, with cuts,
//! kills and resizes: no violation is found. With one deviation of the clients or the
//! administrator: every violation that is found is one that the deviation causes, by that side.
//! See `handmade` for single histories.

mod world;

use super::verdict::{Cause, Property, Verdict};
use world::{Bug, story};

use Cause::{Administrator, Client};
use Property::{Rule, S2, S3, S4, S5, S6, S9};

fn judged(seed: u64, bug: Option<Bug>) -> Verdict {
    super::judge(&story(seed, bug)).unwrap()
}

/// The number of stories of a kind. More with the variable of long tests.
fn count(usual: u64) -> u64 {
    if std::env::var_os("LOCKKEEPER_SOAK").is_some() { 20 * usual } else { usual }
}

fn correct(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let verdict = judged(seed, None);
        assert_eq!(verdict.violations, [], "seed {seed}: {:#?}", story(seed, None).events);
    }
}

#[test]
fn correct_clients_violate_nothing() {
    correct(0..count(45_000));
}

#[test]
fn correct_clients_violate_nothing_with_other_seeds() {
    let from = 1 << 32;
    correct(from..from + count(45_000));
}

#[test]
fn each_deviation_is_found_with_its_cause() {
    let expected: [(Bug, &[Property], Cause); 11] = [
        (Bug::NoLook, &[S3, S4], Client),
        (Bug::AlreadyMine, &[S2, S4], Client),
        (Bug::KeepsB, &[Rule], Client),
        (Bug::DeletesA, &[S9], Client),
        (Bug::ReleasesNothing, &[S6], Client),
        (Bug::VerifiesNothing, &[S5], Client),
        (Bug::NeverDrains, &[S5], Client),
        (Bug::Loses, &[S6], Client),
        (Bug::Greedy, &[S6], Client),
        (Bug::NoMutex, &[S9], Administrator),
        (Bug::GrowsOnlyLast, &[S9], Administrator),
    ];
    for (bug, properties, cause) in expected {
        let mut found = 0;
        for seed in 0..count(1_000) {
            let violations = judged(seed, Some(bug)).violations;
            let right = |one: &super::verdict::Violation| {
                properties.contains(&one.property) && one.cause == cause
            };
            assert!(violations.iter().all(right), "{bug:?}, seed {seed}: {violations:#?}");
            found += usize::from(!violations.is_empty());
        }
        println!("{bug:?}: in {found} stories");
        assert!(found > 10, "{bug:?}: in {found} stories");
    }
}
