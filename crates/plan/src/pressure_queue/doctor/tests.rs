//! Tests of the diagnosis: findings that are damage, and when they may be repaired.

mod model;

use super::super::tests::{fresh, used};
use super::*;
use crate::pressure_queue::{DATA_LABEL, Role};

const IDLE: Duration = Duration::from_secs(30);
const DATABASE: i64 = 3;

fn connection(id: u64) -> Connection {
    Connection {
        id,
        address: format!("10.0.0.{id}:4242"),
        name: String::new(),
        age: Duration::from_secs(9),
        database: DATABASE,
        only_listens: false,
    }
}

/// An observation at this second, with these connections open. Every subject has had a
/// guard since the first observation.
fn look(second: u64, seen: &ObservedQueue, connections: &[u64]) -> Look {
    let all = connections.iter().map(|&id| connection(id)).collect();
    look_with(second, seen, &Guarded::Untouched { guard: 1, connections: Some(all) })
}

/// An observation with this guard state for every subject.
fn look_with(second: u64, seen: &ObservedQueue, guarded: &Guarded) -> Look {
    Look {
        at: Duration::from_secs(second),
        time: Timestamp::from_second(1_000_000 + i64::try_from(second).unwrap()).unwrap(),
        seen: seen.clone(),
        guarded: subjects(seen).into_iter().map(|subject| (subject, guarded.clone())).collect(),
    }
}

fn listed(connections: &[Connection]) -> Guarded {
    Guarded::Untouched { guard: 1, connections: Some(connections.into()) }
}

fn doctor() -> Doctor {
    Doctor::new(IDLE, DATABASE)
}

/// A queue whose producer role is taken.
fn produced(bound: u64, length: u64) -> ObservedQueue {
    let producer = Role { id: Some("p".to_owned()), busy: true };
    ObservedQueue { producer, producer_free: 0, ..used(bound, length) }
}

fn consumed(bound: u64, length: u64) -> ObservedQueue {
    let consumer = Role { id: Some("c".to_owned()), busy: true };
    ObservedQueue { consumer, consumer_free: 0, ..used(bound, length) }
}

fn reasons(diagnosis: &Diagnosis) -> Vec<&'static str> {
    diagnosis.damage.iter().map(|finding| finding.remark.reason()).collect()
}

fn is_mended(diagnosis: &Diagnosis) -> bool {
    diagnosis.damage.iter().any(|finding| matches!(finding.remedy, Remedy::Mend(_)))
}

#[test]
fn a_role_is_released_after_a_quiet_time_once_all_earlier_clients_are_gone() {
    let (mut doctor, seen) = (doctor(), produced(10, 3));
    let first = doctor.look(look(0, &seen, &[1, 2]));
    assert!(first.damage.is_empty(), "one look shows nothing: {first:?}");
    assert_eq!(first.at_work.len(), 1);
    // A client that connected later can't have the role.
    let second = doctor.look(look(1, &seen, &[2, 3]));
    assert!(second.damage.is_empty());
    let third = doctor.look(look(2, &seen, &[3]));
    assert_eq!(reasons(&third), ["RoleStuck"]);
    assert_eq!(third.damage[0].remedy, Remedy::Wait(Against::Moved(IDLE)));
    let last = doctor.look(look(30, &seen, &[3]));
    let Remedy::Mend(repair) = &last.damage[0].remedy else { panic!("{last:?}") };
    assert!(matches!(repair, Repair::GiveBack { role: QueueRole::Producer, .. }));
    let text = last.damage[0].remark.to_string();
    assert!(text.contains("by p,") && text.contains("since 1970-01-12T13:46:40Z"), "{text}");
    assert!(repair.still_fits(&seen));
    assert!(!repair.still_fits(&ObservedQueue { length: 4, ..seen.clone() }));
    let other = Role { id: Some("q".to_owned()), busy: true };
    assert!(!repair.still_fits(&ObservedQueue { producer: other, ..seen }));
}

#[test]
fn a_connected_client_that_waits_for_room_or_data_keeps_its_role() {
    for seen in [ObservedQueue { not_full: 0, ..produced(3, 3) }, consumed(3, 0)] {
        let mut doctor = doctor();
        for hour in 0..1000 {
            let diagnosis = doctor.look(look(hour * 3600, &seen, &[1]));
            assert!(diagnosis.damage.is_empty(), "{diagnosis:?}");
        }
        // The role may be released once the client is gone.
        let diagnosis = doctor.look(look(1000 * 3600, &seen, &[]));
        assert_eq!(reasons(&diagnosis), ["RoleStuck"]);
        assert!(is_mended(&diagnosis));
    }
}

#[test]
fn a_client_that_could_continue_and_does_not_is_named_and_keeps_its_role() {
    for seen in [produced(10, 3), consumed(10, 3), consumed(0, 0).into_closed()] {
        let mut doctor = doctor();
        assert!(doctor.look(look(0, &seen, &[1])).damage.is_empty());
        assert!(doctor.look(look(29, &seen, &[1])).damage.is_empty());
        for second in [30, 86_400, 10_000_000] {
            let diagnosis = doctor.look(look(second, &seen, &[1, 2]));
            assert_eq!(reasons(&diagnosis), ["RoleStuck"]);
            let Remedy::Wait(against) = &diagnosis.damage[0].remedy else {
                panic!("{diagnosis:?}")
            };
            assert_eq!(*against, Against::Connected(vec![connection(1)]));
            assert!(against.to_string().contains("10.0.0.1:4242"), "{against}");
        }
    }
}

impl ObservedQueue {
    fn into_closed(self) -> Self {
        Self { closed: true, closed_tokens: 2, ..self }
    }
}

#[test]
fn any_change_except_in_the_other_role_restarts_the_evidence() {
    let seen = produced(10, 3);
    let moved = [
        ObservedQueue { length: 2, ..seen.clone() },
        ObservedQueue { produced_messages: 11, ..seen.clone() },
        ObservedQueue { consumed_messages: 8, ..seen.clone() },
        ObservedQueue { bound: Some(9), ..seen.clone() },
        ObservedQueue { producer: Role { id: Some("q".to_owned()), busy: true }, ..seen.clone() },
        seen.clone().into_closed(),
        used(10, 3),
    ];
    for moved in moved {
        let mut doctor = doctor();
        doctor.look(look(0, &seen, &[]));
        doctor.look(look(40, &moved, &[9]));
        // Also if it looks as before: its holder may be another one.
        let diagnosis = doctor.look(look(50, &seen, &[9]));
        assert!(!is_mended(&diagnosis), "{moved:?}");
        assert!(!is_mended(&doctor.look(look(100, &seen, &[9]))), "{moved:?}");
    }
    let mut doctor = doctor();
    doctor.look(look(0, &seen, &[]));
    let both =
        ObservedQueue { consumer: consumed(10, 3).consumer, consumer_free: 0, ..seen.clone() };
    doctor.look(look(40, &both, &[9]));
    assert!(is_mended(&doctor.look(look(50, &seen, &[9]))));
}

#[test]
fn connections_of_ours_of_other_databases_and_those_that_listen_don_t_count() {
    let (mut doctor, seen) = (doctor(), produced(10, 3));
    let own = Connection { name: "lockkeeper/operator".to_owned(), ..connection(1) };
    let elsewhere = Connection { database: 0, ..connection(2) };
    let replica = Connection { only_listens: true, ..connection(3) };
    let all = listed(&[own, elsewhere, replica]);
    doctor.look(look_with(0, &seen, &all));
    assert!(is_mended(&doctor.look(look_with(30, &seen, &all))));
    // Only the prefix of a name counts.
    let mut doctor = Doctor::new(IDLE, DATABASE);
    let named = Connection { name: "my-lockkeeper/".to_owned(), ..connection(1) };
    let all = listed(&[named]);
    doctor.look(look_with(0, &seen, &all));
    assert!(!is_mended(&doctor.look(look_with(30, &seen, &all))));
}

#[test]
fn without_the_permissions_no_role_is_released_and_the_reason_is_reported() {
    let seen = produced(10, 3);
    for (guarded, against, part) in [
        (Guarded::Forbidden, Against::NotTold, "CLIENT LIST"),
        (Guarded::NotYet, Against::NotWatched, "the limit of queues"),
    ] {
        let mut doctor = doctor();
        doctor.look(look_with(0, &seen, &guarded));
        let diagnosis = doctor.look(look_with(1_000_000, &seen, &guarded));
        assert!(against.to_string().contains(part), "{against}");
        assert_eq!(diagnosis.damage[0].remedy, Remedy::Wait(against));
    }
}

#[test]
fn connections_listed_before_the_guard_was_set_show_nothing() {
    let (mut doctor, seen) = (doctor(), produced(10, 3));
    let early = Guarded::Untouched { guard: 1, connections: None };
    doctor.look(look_with(0, &seen, &early));
    assert!(!is_mended(&doctor.look(look_with(100, &seen, &early))));
    // A client that is connected now may have the role, however long it has been taken.
    assert!(!is_mended(&doctor.look(look(200, &seen, &[5]))));
    assert!(!is_mended(&doctor.look(look(300, &seen, &[5]))));
    assert!(is_mended(&doctor.look(look(400, &seen, &[]))));
}

#[test]
fn evidence_starts_over_when_the_keys_were_touched_or_not_watched_for_a_while() {
    let seen = produced(10, 3);
    let mut interrupted = doctor();
    interrupted.look(look(0, &seen, &[1]));
    interrupted.look(look_with(40, &seen, &Guarded::Touched));
    // The active holder has another connection now, and the keys look as before.
    let again = |connections: &[u64]| Guarded::Untouched {
        guard: 2,
        connections: Some(connections.iter().map(|&id| connection(id)).collect()),
    };
    for second in [50, 100, 8000] {
        assert!(!is_mended(&interrupted.look(look_with(second, &seen, &again(&[7])))));
    }
    assert!(is_mended(&interrupted.look(look_with(8001, &seen, &again(&[])))));
    // The same if only the guard is another one, for example after a restart of the
    // server.
    let mut restarted = doctor();
    restarted.look(look(0, &seen, &[]));
    for second in [40, 80, 8000] {
        assert!(!is_mended(&restarted.look(look_with(second, &seen, &again(&[7])))));
    }
    // The time counts from the guard on, too.
    let mut late = doctor();
    late.look(look(0, &seen, &[]));
    assert!(!is_mended(&late.look(look_with(1000, &seen, &again(&[])))));
    assert!(!is_mended(&late.look(look_with(1029, &seen, &again(&[])))));
    assert!(is_mended(&late.look(look_with(1030, &seen, &again(&[])))));
}

#[test]
fn only_what_may_be_repaired_is_guarded_and_lists_connections() {
    let waiting = consumed(3, 0);
    let resting = consumed(3, 1);
    let role = [Subject::Role(QueueRole::Consumer)];
    let after_one_look = |seen: &ObservedQueue, effort| {
        let mut doctor = doctor();
        doctor.look(Look { guarded: Vec::new(), ..look(0, seen, &[]) });
        doctor.to_guard(seen, effort)
    };
    assert_eq!(after_one_look(&waiting, Effort::Report), []);
    assert_eq!(after_one_look(&waiting, Effort::Repair), role);
    assert_eq!(after_one_look(&resting, Effort::Report), role);
    assert_eq!(after_one_look(&used(3, 1), Effort::Full), [], "no role is taken");
    assert_eq!(doctor().to_guard(&waiting, Effort::Repair), [], "seen once it shows nothing");
    assert_eq!(doctor().to_guard(&waiting, Effort::Full), role);
}

#[test]
fn a_half_creation_is_finished_on_the_same_evidence() {
    let seen = ObservedQueue { bound: Some(3), producer_free: 1, ..ObservedQueue::default() };
    let seen = ObservedQueue { consumer: Role { id: None, busy: true }, ..seen };
    let mut doctor = doctor();
    let first = doctor.look(look(0, &seen, &[1]));
    assert!(first.damage.is_empty() && first.unsure);
    let second = doctor.look(look(100, &seen, &[1]));
    assert_eq!(reasons(&second), ["HalfCreated"], "and no role is stuck");
    assert!(!is_mended(&second));
    let third = doctor.look(look(101, &seen, &[]));
    assert!(matches!(&third.damage[0].remedy, Remedy::Mend(Repair::FinishCreation { .. })));
}

fn left(keys: &[&str], length: u64) -> ObservedQueue {
    let leftovers: Vec<String> = keys.iter().map(|&key| key.to_owned()).collect();
    let closed = keys.contains(&":closed");
    ObservedQueue {
        leftovers,
        length,
        closed,
        closed_tokens: u64::from(closed),
        ..ObservedQueue::default()
    }
}

#[test]
fn elements_are_removed_only_if_a_deletion_has_begun_for_certain() {
    let all = [DATA_LABEL, ":closed", ":consumer", ":producer_free"];
    let with_tokens = |tokens| ObservedQueue { closed_tokens: tokens, ..left(&all, 3) };
    let begun = [
        // Two of the close and two of the deletion; a client has taken one.
        with_tokens(4),
        with_tokens(3),
        left(&[":producer_free", ":consumer_free", ":not_full"], 0),
        left(&[":closed", ":consumer"], 0),
    ];
    for seen in begun {
        let mut doctor = doctor();
        assert!(doctor.look(look(0, &seen, &[])).unsure);
        let diagnosis = doctor.look(look(30, &seen, &[]));
        assert_eq!(reasons(&diagnosis), ["Residue"]);
        let remedy = &diagnosis.damage[0].remedy;
        assert!(matches!(remedy, Remedy::Mend(Repair::FinishDeletion { .. })), "{seen:?}");
    }
    let ambiguous = [
        // Closed, or open and partially deleted.
        with_tokens(2),
        with_tokens(1),
        left(&[DATA_LABEL, ":producer"], 3),
        left(&[DATA_LABEL, ":consumer_free"], 3),
        // As after an eviction.
        left(&[DATA_LABEL, ":stats:produced_messages"], 3),
        left(&[DATA_LABEL], 3),
    ];
    for seen in ambiguous {
        let mut doctor = doctor();
        doctor.look(look(0, &seen, &[]));
        let diagnosis = doctor.look(look(1_000_000, &seen, &[]));
        assert_eq!(reasons(&diagnosis), ["Residue"]);
        assert!(matches!(diagnosis.damage[0].remedy, Remedy::Leave(_)), "{seen:?}");
        assert_eq!(doctor.to_guard(&seen, Effort::Full), []);
        // The user has requested the deletion, elements included.
        doctor.expect_deletion();
        assert!(is_mended(&doctor.look(look(1_000_001, &seen, &[]))));
    }
}

#[test]
fn a_token_is_lost_only_where_no_client_can_hold_it() {
    let idle = ObservedQueue { not_full: 0, ..used(10, 3) };
    assert_eq!(symptoms(&idle), [Remark::LostToken]);
    assert_eq!(symptoms(&ObservedQueue { not_full: 0, ..produced(10, 3) }), []);
    assert_eq!(symptoms(&ObservedQueue { not_full: 0, ..used(10, 10) }), []);
    assert_eq!(symptoms(&idle.into_closed()), []);
    let created_just_now = ObservedQueue { not_full: 0, ..fresh(10) };
    assert!(!symptoms(&created_just_now).contains(&Remark::LostToken));
}

#[test]
fn surplus_tokens_are_believed_when_seen_twice_and_at_work_only_when_nothing_moves() {
    let surplus = ObservedQueue { producer_free: 2, not_full: 3, ..used(10, 3) };
    let expected = [
        Remark::SurplusToken { key: ":not_full", count: 3 },
        Remark::SurplusToken { key: ":producer_free", count: 2 },
    ];
    assert_eq!(symptoms(&surplus), expected);
    let mut doctor = doctor();
    let first = doctor.look(look(0, &surplus, &[]));
    assert!(first.damage.is_empty() && first.unsure);
    let second = doctor.look(look(1, &surplus, &[1]));
    assert!(second.damage.iter().all(|f| f.remedy == Remedy::Mend(Repair::SettleTokens)));
    assert_eq!(second.damage.len(), 2);
    let mut doctor = Doctor::new(IDLE, DATABASE);
    for n in 1..5 {
        let busy = ObservedQueue { not_full: 2, ..produced(10, n) };
        assert!(doctor.look(look(n, &busy, &[1])).damage.is_empty());
    }
}

#[test]
fn a_token_of_a_full_queue_and_of_an_overfilled_one_is_taken_away() {
    let full = ObservedQueue { not_full: 1, ..used(3, 3) };
    assert_eq!(symptoms(&full), [Remark::SurplusToken { key: ":not_full", count: 1 }]);
    let mut doctor = doctor();
    let over = ObservedQueue { not_full: 1, ..used(3, 4) };
    let diagnosis = doctor.look(look(0, &over, &[]));
    assert_eq!(reasons(&diagnosis), ["Overfilled"]);
    assert!(is_mended(&diagnosis));
    assert!(!is_mended(&doctor.look(look(1, &used(3, 4), &[]))), "its elements stay");
    let busy = ObservedQueue { not_full: 1, ..produced(3, 4) };
    assert!(!is_mended(&doctor.look(look(2, &busy, &[]))), "the token may be in use");
}

#[test]
fn counter_drift_is_reported_while_no_client_works_and_never_corrected() {
    let off = ObservedQueue { produced_messages: 3, consumed_messages: 5, ..used(0, 4) };
    assert_eq!(Diagnosis::drift(&off), Some(-6));
    assert_eq!(symptoms(&off), [Remark::CounterDrift { by: -6 }]);
    let busy = ObservedQueue { produced_messages: 3, ..consumed(0, 4) };
    assert_eq!(Diagnosis::drift(&busy), None);
    let mut doctor = doctor();
    doctor.look(look(0, &off, &[]));
    let diagnosis = doctor.look(look(100, &off, &[]));
    assert_eq!(reasons(&diagnosis), ["CounterDrift"]);
    assert!(!is_mended(&diagnosis));
    let extreme = ObservedQueue { produced_messages: u64::MAX, ..used(0, 0) };
    assert_eq!(Diagnosis::drift(&extreme), Some(i64::MAX));
}
