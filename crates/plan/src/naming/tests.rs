//! Tests which names are rejected, and that no two locks share a queue.

use super::*;
use proptest::prelude::*;

#[test]
fn names_that_could_be_a_part_of_another_lock_are_refused() {
    for name in [
        "",
        "amq.x",
        "jobs-1-A",
        "jobs-12-B",
        "jobs-3-C",
        "jobs-3-F",
        "jobs-A-1",
        "jobs-B-22",
        "jobs-W",
        "jobs.semaphore",
        "tab\there",
        "\u{202e}reordered",
    ] {
        assert!(LockName::new(name).is_err(), "{name:?} should be refused");
    }
    assert!(QueueName::new("p", "\u{202e}reordered").is_err());
    assert!(LockName::new("x".repeat(201)).is_err());
}

#[test]
fn ordinary_names_are_accepted() {
    for name in ["jobs", "ci.deploy-prod", "team-A", "a-1", "W", "x-1-D", "semaphore", "jobs-A-x"] {
        assert!(LockName::new(name).is_ok(), "{name:?} should be accepted");
    }
    assert!(LockName::new("x".repeat(200)).is_ok());
}

#[test]
fn a_pressure_queue_name_that_ends_in_a_key_suffix_is_refused() {
    for suffix in KEY_SUFFIXES {
        let refused = QueueName::new("p", format!("jobs{suffix}")).unwrap_err();
        assert!(refused.to_string().contains(suffix));
    }
    assert_eq!(QueueName::new("p", "jobs").unwrap().data(), "p:jobs");
    // Still a key of the queue "jobs" under the prefix "p".
    assert!(QueueName::new("p:jobs", "closed").is_err());
    assert!(QueueName::new("p:jobs:stats", "produced_bytes").is_err());
    assert!(QueueName::new("p", "closed").is_ok());
}

proptest! {
    #[test]
    fn no_two_accepted_names_share_a_queue(
        a in "[ab.-]{0,3}(-[0-9]-)?[ABW]{0,1}", b in "[ab.-]{0,3}(-[0-9]-)?[ABW]{0,1}",
        i in 1u32..20, j in 1u32..20,
    ) {
        if let (Ok(a), Ok(b)) = (LockName::new(a), LockName::new(b)) {
            let of = |n: &LockName, i| {
                [Profile::Guideline, Profile::AmqpLocksPython].into_iter().flat_map(move |profile| {
                    let n = n.clone().with_profile(profile);
                    let parts = [n.slot_queue(i), n.holder_queue(i), n.admin_mutex().to_owned()];
                    parts.into_iter().chain(n.record_queue(i)).chain(n.wait_queue())
                }).collect::<Vec<_>>()
            };
            let shared = of(&a, i).into_iter().any(|q| of(&b, j).contains(&q));
            prop_assert!(!shared || a == b);
        }
    }

    #[test]
    fn a_slot_number_survives_the_way_through_its_queue_name(i in 1u32..1_000_000) {
        for profile in [Profile::Guideline, Profile::AmqpLocksPython] {
        let lock = LockName::new("ci.deploy").unwrap().with_profile(profile);
        prop_assert_eq!(lock.slot_of_slot_queue(&lock.slot_queue(i)), Some(i));
        prop_assert_eq!(lock.slot_of_holder_queue(&lock.holder_queue(i)), Some(i));
        prop_assert_eq!(lock.slot_of_slot_queue(&lock.holder_queue(i)), None);
        }
    }
}
