//! Random series of looks at clients that take roles, work and die: none ever lets
//! a living client's role be given back.

use proptest::prelude::*;

use super::super::super::tests::any_seen;
use super::*;

/// What a step of the model does.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Somebody connects.
    Connect,
    /// The n-th connection is cut, whatever its client holds.
    Cut(usize),
    /// The n-th client takes the producer role, if it is free.
    Take(usize),
    /// The role's holder, if it lives, puts an element and gives the role back.
    Put,
    /// Time passes and the doctor looks.
    Look(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => Just(Step::Connect),
        2 => (0..6_usize).prop_map(Step::Cut),
        2 => (0..6_usize).prop_map(Step::Take),
        1 => Just(Step::Put),
        5 => (0..40_u64).prop_map(Step::Look),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_living_client_s_role_is_ever_given_back_and_a_dead_one_s_always_is(
        steps in proptest::collection::vec(any_step(), 1..60),
    ) {
        let mut doctor = doctor();
        let (mut connected, mut last, mut second) = (vec![1, 2], 2, 0);
        let mut holder: Option<u64> = None;
        let mut seen = used(0, 0);
        for step in steps {
            match step {
                Step::Connect => {
                    last += 1;
                    connected.push(last);
                }
                Step::Cut(n) if n < connected.len() => _ = connected.remove(n),
                Step::Take(n) if n < connected.len() && holder.is_none() => {
                    holder = Some(connected[n]);
                    let id = Some(format!("client {}", connected[n]));
                    seen.producer = Role { id, busy: true };
                    seen.producer_free = 0;
                }
                Step::Put if holder.is_some_and(|id| connected.contains(&id)) => {
                    holder = None;
                    seen.producer.busy = false;
                    (seen.producer_free, seen.length) = (1, seen.length + 1);
                    seen.produced_messages += 1;
                }
                Step::Look(pause) => {
                    second += pause;
                    let diagnosis = doctor.look(look(second, &seen, &connected));
                    if is_mended(&diagnosis) {
                        let id = holder.expect("a role that is taken");
                        prop_assert!(!connected.contains(&id), "{id} lives: {diagnosis:?}");
                    }
                }
                _ => {}
            }
        }
        // In the end all who are connected go, and then the role is free again.
        second += 1000;
        doctor.look(look(second, &seen, &[]));
        let diagnosis = doctor.look(look(second + 1000, &seen, &[]));
        prop_assert_eq!(is_mended(&diagnosis), holder.is_some());
    }

    #[test]
    fn a_diagnosis_has_a_text_and_a_symptom_a_name_for_every_queue(
        seen in any_seen(), other in any_seen(),
    ) {
        let mut doctor = doctor();
        for (second, seen) in [(0, &seen), (100, &other), (200, &other)] {
            let diagnosis = doctor.look(look(second, seen, &[]));
            for finding in [&diagnosis.damage, &diagnosis.at_work, &diagnosis.waiting].into_iter().flatten() {
                prop_assert!(finding.remark.to_string().len() > 20);
                prop_assert!(finding.remark.reason().chars().all(char::is_alphanumeric));
            }
        }
    }

    #[test]
    fn nothing_is_mended_at_a_first_look_but_a_token_of_an_overfilled_queue(seen in any_seen()) {
        let diagnosis = doctor().look(look(1_000_000, &seen, &[]));
        for finding in diagnosis.damage {
            prop_assert!(
                matches!(finding.remark, Remark::Overfilled { .. })
                    || !matches!(finding.remedy, Remedy::Mend(_)),
                "{finding:?}"
            );
        }
    }
}
