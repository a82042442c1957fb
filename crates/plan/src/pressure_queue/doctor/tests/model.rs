//! Random series of observations of clients that take roles, work and die. None may ever
//! release a living client's role.

use proptest::prelude::*;

use super::super::super::tests::any_seen;
use super::*;

/// A step of the model.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A client connects.
    Connect,
    /// The n-th connection is closed, whatever its client holds.
    Cut(usize),
    /// The n-th client takes the producer role, if it is free.
    Take(usize),
    /// The role's holder, if alive, puts an element and releases the role.
    Put,
    /// The role's holder, if alive, releases the role and takes it again under the same
    /// id, over a new connection.
    TryAgain,
    /// Time passes and the queue is observed. The list of connections may be an old one.
    Look(u64, bool),
}

/// The model of the server, which records whether the watched keys were touched.
#[derive(Default)]
struct Server {
    guard: Option<u64>,
    is_touched: bool,
    guards_set: u64,
}

impl Server {
    /// An observation, taken as `QueueDoctor` takes it.
    fn look(
        &mut self,
        doctor: &Doctor,
        second: u64,
        seen: &ObservedQueue,
        list: Option<&[u64]>,
    ) -> Look {
        if doctor.to_guard(seen, Effort::Repair).is_empty() {
            self.guard = None;
            return Look { guarded: Vec::new(), ..look(second, seen, &[]) };
        }
        if self.guard.is_none() {
            self.guards_set += 1;
            (self.guard, self.is_touched) = (Some(self.guards_set), false);
        }
        let guarded = if self.is_touched && list.is_some() {
            self.guard = None;
            Guarded::Touched
        } else {
            let connections = list.map(|all| all.iter().map(|&id| connection(id)).collect());
            Guarded::Untouched { guard: self.guards_set, connections }
        };
        look_with(second, seen, &guarded)
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => Just(Step::Connect),
        2 => (0..6_usize).prop_map(Step::Cut),
        2 => (0..6_usize).prop_map(Step::Take),
        1 => Just(Step::Put),
        2 => Just(Step::TryAgain),
        5 => (0..40_u64, any::<bool>()).prop_map(|(pause, is_new)| Step::Look(pause, is_new)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn roles_of_connected_clients_are_never_released_and_of_dead_ones_always(
        steps in proptest::collection::vec(any_step(), 1..60),
    ) {
        let (mut doctor, mut server) = (doctor(), Server::default());
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
                    server.is_touched = true;
                }
                Step::Put if holder.is_some_and(|id| connected.contains(&id)) => {
                    holder = None;
                    seen.producer.busy = false;
                    (seen.producer_free, seen.length) = (1, seen.length + 1);
                    seen.produced_messages += 1;
                    server.is_touched = true;
                }
                Step::TryAgain if holder.is_some_and(|id| connected.contains(&id)) => {
                    connected.retain(|id| Some(*id) != holder);
                    last += 1;
                    connected.push(last);
                    holder = Some(last);
                    server.is_touched = true;
                }
                Step::Look(pause, is_new) => {
                    second += pause;
                    let list = is_new.then_some(connected.as_slice());
                    let diagnosis = doctor.look(server.look(&doctor, second, &seen, list));
                    // The transaction of a repair fails if the keys were touched.
                    if is_mended(&diagnosis) && !server.is_touched {
                        let id = holder.expect("a role that is taken");
                        prop_assert!(!connected.contains(&id), "{id} lives: {diagnosis:?}");
                    }
                }
                _ => {}
            }
        }
        // Finally all clients disconnect, and then the role is free again.
        second += 1000;
        let mut diagnosis = Diagnosis::default();
        for later in 0..4 {
            let look = server.look(&doctor, second + later * 1000, &seen, Some(&[]));
            diagnosis = doctor.look(look);
        }
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
    fn a_first_look_repairs_nothing_except_a_token_of_an_overfilled_queue(seen in any_seen()) {
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
