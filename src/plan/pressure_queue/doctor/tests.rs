//! Tests of the diagnosis: what is damage, and what may be mended when.

mod model;

use super::super::tests::{fresh, used};
use super::*;
use crate::plan::pressure_queue::{DATA_LABEL, Role};

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

/// A look at this second, at which these connections were there.
fn look(second: u64, seen: &QueueSeen, connections: &[u64]) -> Look {
    Look {
        at: Duration::from_secs(second),
        time: Timestamp::from_second(1_000_000 + i64::try_from(second).unwrap()).unwrap(),
        run_id: Some("a".to_owned()),
        seen: seen.clone(),
        connections: Connections::Listed(connections.iter().map(|&id| connection(id)).collect()),
    }
}

fn doctor() -> Doctor {
    Doctor::new(IDLE, DATABASE)
}

/// A queue whose producer role is taken.
fn produced(bound: u64, length: u64) -> QueueSeen {
    let producer = Role { id: Some("p".to_owned()), busy: true };
    QueueSeen { producer, producer_free: 0, ..used(bound, length) }
}

fn consumed(bound: u64, length: u64) -> QueueSeen {
    let consumer = Role { id: Some("c".to_owned()), busy: true };
    QueueSeen { consumer, consumer_free: 0, ..used(bound, length) }
}

fn reasons(diagnosis: &Diagnosis) -> Vec<&'static str> {
    diagnosis.damage.iter().map(|finding| finding.remark.reason()).collect()
}

fn is_mended(diagnosis: &Diagnosis) -> bool {
    diagnosis.damage.iter().any(|finding| matches!(finding.remedy, Remedy::Mend(_)))
}

#[test]
fn a_role_is_given_back_once_it_was_quiet_and_everybody_who_was_there_is_gone() {
    let (mut doctor, seen) = (doctor(), produced(10, 3));
    let first = doctor.look(look(0, &seen, &[1, 2]));
    assert!(first.damage.is_empty(), "one look shows nothing: {first:?}");
    assert_eq!(first.at_work.len(), 1);
    // Whoever came later can't have the role.
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
    assert!(!repair.still_fits(&QueueSeen { length: 4, ..seen.clone() }));
    let other = Role { id: Some("q".to_owned()), busy: true };
    assert!(!repair.still_fits(&QueueSeen { producer: other, ..seen }));
}

#[test]
fn a_living_client_that_waits_for_room_or_data_keeps_its_role_for_ever() {
    for seen in [QueueSeen { not_full: 0, ..produced(3, 3) }, consumed(3, 0)] {
        let mut doctor = doctor();
        for hour in 0..1000 {
            let diagnosis = doctor.look(look(hour * 3600, &seen, &[1]));
            assert!(diagnosis.damage.is_empty(), "{diagnosis:?}");
        }
        // The role is free to be mended when the client is gone.
        let diagnosis = doctor.look(look(1000 * 3600, &seen, &[]));
        assert_eq!(reasons(&diagnosis), ["RoleStuck"]);
        assert!(is_mended(&diagnosis));
    }
}

#[test]
fn a_client_that_could_go_on_and_does_not_is_named_and_keeps_its_role() {
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

impl QueueSeen {
    fn into_closed(self) -> Self {
        Self { closed: true, closed_tokens: 2, ..self }
    }
}

#[test]
fn whatever_moves_begins_the_evidence_anew_but_the_other_role_may_come_and_go() {
    let seen = produced(10, 3);
    let moved = [
        QueueSeen { length: 2, ..seen.clone() },
        QueueSeen { produced_messages: 11, ..seen.clone() },
        QueueSeen { consumed_messages: 8, ..seen.clone() },
        QueueSeen { bound: Some(9), ..seen.clone() },
        QueueSeen { producer: Role { id: Some("q".to_owned()), busy: true }, ..seen.clone() },
        seen.clone().into_closed(),
        used(10, 3),
    ];
    for moved in moved {
        let mut doctor = doctor();
        doctor.look(look(0, &seen, &[]));
        doctor.look(look(40, &moved, &[9]));
        // Also when it is as before again: its holder may be another one.
        let diagnosis = doctor.look(look(50, &seen, &[9]));
        assert!(!is_mended(&diagnosis), "{moved:?}");
        assert!(!is_mended(&doctor.look(look(100, &seen, &[9]))), "{moved:?}");
    }
    let mut doctor = doctor();
    doctor.look(look(0, &seen, &[]));
    let both = QueueSeen { consumer: consumed(10, 3).consumer, consumer_free: 0, ..seen.clone() };
    doctor.look(look(40, &both, &[9]));
    assert!(is_mended(&doctor.look(look(50, &seen, &[9]))));
}

#[test]
fn connections_of_ours_of_other_databases_and_those_that_listen_don_t_count() {
    let (mut doctor, seen) = (doctor(), produced(10, 3));
    let own = Connection { name: "lockkeeper/operator".to_owned(), ..connection(1) };
    let elsewhere = Connection { database: 0, ..connection(2) };
    let replica = Connection { only_listens: true, ..connection(3) };
    let all = Connections::Listed(vec![own, elsewhere, replica]);
    doctor.look(Look { connections: all.clone(), ..look(0, &seen, &[]) });
    assert!(is_mended(&doctor.look(Look { connections: all, ..look(30, &seen, &[]) })));
    // Only the beginning of a name counts.
    let mut doctor = Doctor::new(IDLE, DATABASE);
    let named = Connection { name: "my-lockkeeper/".to_owned(), ..connection(1) };
    let all = Connections::Listed(vec![named]);
    doctor.look(Look { connections: all.clone(), ..look(0, &seen, &[]) });
    assert!(!is_mended(&doctor.look(Look { connections: all, ..look(30, &seen, &[]) })));
}

#[test]
fn without_client_list_or_run_id_nothing_is_given_back_and_that_is_said() {
    let seen = produced(10, 3);
    let forbidden =
        |second| Look { connections: Connections::Forbidden, ..look(second, &seen, &[]) };
    let nameless = |second| Look { run_id: None, ..look(second, &seen, &[]) };
    let looks: [&dyn Fn(u64) -> Look; 2] = [&forbidden, &nameless];
    for look in looks {
        let mut doctor = doctor();
        doctor.look(look(0));
        let diagnosis = doctor.look(look(1_000_000));
        assert_eq!(diagnosis.damage[0].remedy, Remedy::Wait(Against::NotTold));
        assert!(Against::NotTold.to_string().contains("CLIENT LIST"));
    }
}

#[test]
fn connections_that_were_not_asked_for_yet_show_nothing() {
    let (mut doctor, seen) = (doctor(), produced(10, 3));
    let blind = |second| Look {
        connections: Connections::NotAsked,
        run_id: None,
        ..look(second, &seen, &[])
    };
    assert!(!doctor.needs_connections(&seen));
    doctor.look(blind(0));
    assert!(doctor.needs_connections(&seen));
    assert!(!is_mended(&doctor.look(blind(100))));
    // Who is there now may have the role, however long it is taken.
    assert!(!is_mended(&doctor.look(look(200, &seen, &[5]))));
    assert!(!is_mended(&doctor.look(look(300, &seen, &[5]))));
    assert!(is_mended(&doctor.look(look(400, &seen, &[]))));
    assert!(!doctor.needs_connections(&used(10, 3)), "nobody works on it");
}

#[test]
fn a_restart_of_the_server_begins_the_evidence_anew() {
    let (mut doctor, seen) = (doctor(), produced(10, 3));
    doctor.look(look(0, &seen, &[1]));
    // The living holder is back, with a number of the new server's.
    let restarted = |second| Look { run_id: Some("b".to_owned()), ..look(second, &seen, &[7]) };
    for second in [40, 80, 8000] {
        assert!(!is_mended(&doctor.look(restarted(second))));
    }
}

#[test]
fn a_half_creation_is_finished_on_the_same_evidence() {
    let seen = QueueSeen { bound: Some(3), producer_free: 1, ..QueueSeen::default() };
    let seen = QueueSeen { consumer: Role { id: None, busy: true }, ..seen };
    let mut doctor = doctor();
    let first = doctor.look(look(0, &seen, &[1]));
    assert!(first.damage.is_empty() && first.unsure);
    let second = doctor.look(look(100, &seen, &[1]));
    assert_eq!(reasons(&second), ["HalfCreated"], "and no role is stuck");
    assert!(!is_mended(&second));
    let third = doctor.look(look(101, &seen, &[]));
    assert!(matches!(&third.damage[0].remedy, Remedy::Mend(Repair::FinishCreation { .. })));
}

fn left(keys: &[&str], length: u64) -> QueueSeen {
    let leftovers: Vec<String> = keys.iter().map(|&key| key.to_owned()).collect();
    let closed = keys.contains(&":closed");
    QueueSeen {
        leftovers,
        length,
        closed,
        closed_tokens: u64::from(closed),
        ..QueueSeen::default()
    }
}

#[test]
fn a_deletion_is_finished_only_where_the_keys_show_that_it_had_begun() {
    let begun = [
        left(&[DATA_LABEL, ":closed", ":consumer"], 3),
        left(&[DATA_LABEL, ":stats:produced_messages"], 3),
        left(&[":producer_free", ":consumer_free", ":not_full"], 0),
    ];
    for seen in begun {
        let mut doctor = doctor();
        assert!(doctor.look(look(0, &seen, &[])).unsure);
        let diagnosis = doctor.look(look(30, &seen, &[]));
        assert_eq!(reasons(&diagnosis), ["Residue"]);
        let remedy = &diagnosis.damage[0].remedy;
        assert!(matches!(remedy, Remedy::Mend(Repair::FinishDeletion { .. })), "{seen:?}");
    }
    for role in [":producer", ":consumer", ":producer_free", ":consumer_free"] {
        let mut doctor = doctor();
        let seen = left(&[DATA_LABEL, role], 3);
        doctor.look(look(0, &seen, &[]));
        let diagnosis = doctor.look(look(1_000_000, &seen, &[]));
        assert_eq!(reasons(&diagnosis), ["Residue"]);
        assert!(matches!(diagnosis.damage[0].remedy, Remedy::Leave(_)), "data without a :bound");
    }
}

#[test]
fn a_token_is_lost_only_where_nobody_can_hold_it() {
    let idle = QueueSeen { not_full: 0, ..used(10, 3) };
    assert_eq!(symptoms(&idle), [Remark::LostToken]);
    assert_eq!(symptoms(&QueueSeen { not_full: 0, ..produced(10, 3) }), []);
    assert_eq!(symptoms(&QueueSeen { not_full: 0, ..used(10, 10) }), []);
    assert_eq!(symptoms(&idle.into_closed()), []);
    let created_just_now = QueueSeen { not_full: 0, ..fresh(10) };
    assert!(!symptoms(&created_just_now).contains(&Remark::LostToken));
}

#[test]
fn surplus_tokens_are_believed_when_seen_twice_and_at_work_only_when_nothing_moves() {
    let surplus = QueueSeen { producer_free: 2, not_full: 3, ..used(10, 3) };
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
        let busy = QueueSeen { not_full: 2, ..produced(10, n) };
        assert!(doctor.look(look(n, &busy, &[1])).damage.is_empty());
    }
}

#[test]
fn a_token_of_a_full_queue_and_of_an_overfilled_one_is_taken_away() {
    let full = QueueSeen { not_full: 1, ..used(3, 3) };
    assert_eq!(symptoms(&full), [Remark::SurplusToken { key: ":not_full", count: 1 }]);
    let mut doctor = doctor();
    let over = QueueSeen { not_full: 1, ..used(3, 4) };
    let diagnosis = doctor.look(look(0, &over, &[]));
    assert_eq!(reasons(&diagnosis), ["Overfilled"]);
    assert!(is_mended(&diagnosis));
    assert!(!is_mended(&doctor.look(look(1, &used(3, 4), &[]))), "its elements stay");
    let busy = QueueSeen { not_full: 1, ..produced(3, 4) };
    assert!(!is_mended(&doctor.look(look(2, &busy, &[]))), "the token may be in use");
}

#[test]
fn counters_that_don_t_add_up_are_named_while_nobody_works_and_never_corrected() {
    let off = QueueSeen { produced_messages: 3, consumed_messages: 5, ..used(0, 4) };
    assert_eq!(Diagnosis::drift(&off), Some(-6));
    assert_eq!(symptoms(&off), [Remark::CounterDrift { by: -6 }]);
    let busy = QueueSeen { produced_messages: 3, ..consumed(0, 4) };
    assert_eq!(Diagnosis::drift(&busy), None);
    let mut doctor = doctor();
    doctor.look(look(0, &off, &[]));
    let diagnosis = doctor.look(look(100, &off, &[]));
    assert_eq!(reasons(&diagnosis), ["CounterDrift"]);
    assert!(!is_mended(&diagnosis));
    let extreme = QueueSeen { produced_messages: u64::MAX, ..used(0, 0) };
    assert_eq!(Diagnosis::drift(&extreme), Some(i64::MAX));
}
