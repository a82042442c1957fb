//! The status of a `PressureQueue`, computed from an observation. See
//! `status_writer` for when it is written.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use lockkeeper_api::conditions::{ConditionUpdate, OVERFILLED, WAITING_FOR_ROLE, reason};
use lockkeeper_api::pressure_queue::RoleStatus;
use lockkeeper_api::validate;
use lockkeeper_api::{PressureQueue, PressureQueueStatus};
use lockkeeper_plan::clean_text;
use lockkeeper_plan::pressure_queue::{Remark, Role};

use super::doctor;
use super::state::Observation;
use crate::operator::kind::ReportedStatus;
use crate::operator::outcome::Outcome;

/// Maximum length of a client's name in a table. Fits the names of a pod, process and
/// thread.
const SUMMARY_BYTES: usize = 40;

impl ReportedStatus for PressureQueueStatus {
    fn conditions(&self) -> &Vec<Condition> {
        &self.conditions
    }
    fn set_backends(&mut self, connected: Option<String>, reached: Option<String>) {
        self.backend = connected;
        self.reached_backend = reached;
    }
    fn complete(&mut self, generation: Option<i64>, conditions: Vec<Condition>) {
        self.observed_generation = generation;
        self.conditions = conditions;
    }
    fn without_counters(&self) -> Self {
        Self {
            produced_messages: None,
            produced_bytes: None,
            consumed_messages: None,
            consumed_bytes: None,
            ..self.clone()
        }
    }
    fn backend(&self) -> Option<&str> {
        self.backend.as_deref()
    }
    fn reached_backend(&self) -> Option<&str> {
        self.reached_backend.as_deref()
    }
}

/// Returns the outcome. One remark determines Ready; the others only extend its message.
pub(super) fn outcome(found: &Observation) -> Outcome {
    for remark in &found.remarks {
        let message = remark.to_string();
        match remark {
            Remark::Completed => {
                return Outcome::Ready { reason: reason::COMPLETED, message };
            }
            Remark::WaitingForProducer { .. } => {
                return Outcome::Working { reason: WAITING_FOR_ROLE, message };
            }
            remark if remark.blocks() => {
                return Outcome::Blocked { reason: remark.reason(), message };
            }
            _ => {}
        }
    }
    if found.seen.bound.is_none() {
        let message = "The queue is not there yet; looking again".to_owned();
        return Outcome::Working { reason: reason::CONFIRMING, message };
    }
    if found.unconfirmed.iter().any(|remark| matches!(remark, Remark::HalfCreated { .. })) {
        let message = "The queue is half created; checking again whether its creator continues";
        return Outcome::Working { reason: reason::CONFIRMING, message: message.to_owned() };
    }
    let more: Vec<String> = found
        .remarks
        .iter()
        .filter(|remark| !matches!(remark, Remark::Recreated))
        .map(|remark| format!("; {remark}"))
        .collect();
    Outcome::Ready {
        reason: reason::IN_SYNC,
        message: format!("The queue is as desired{}", more.concat()),
    }
}

/// Returns the remark that the bound waits for its producer, if any.
pub(super) fn waits_for(remarks: &[Remark]) -> Option<&Remark> {
    remarks.iter().find(|remark| matches!(remark, Remark::WaitingForProducer { .. }))
}

/// Returns the status and the conditions. `observation` is `None` if the server did not
/// answer. A closed queue stays closed, so that much remains true of the last status.
pub(super) fn describe(
    queue: &PressureQueue,
    old: &PressureQueueStatus,
    observation: Option<&Observation>,
) -> (PressureQueueStatus, Vec<ConditionUpdate>) {
    let mut status = PressureQueueStatus {
        queue_name: Some(validate::queue_name(queue)),
        closed: old.closed,
        ..PressureQueueStatus::default()
    };
    let Some(Observation { seen, remarks, diagnosed, .. }) = observation else {
        return (status, Vec::new());
    };
    let mut said = Vec::new();
    if seen.bound.is_some() {
        status.length = Some(to_i64(seen.length));
        status.in_flight = Some(to_i64(seen.in_flight));
        status.bound = seen.bound.map(to_i64);
        status.closed = Some(seen.closed);
        status.producer = Some(role(&seen.producer));
        status.consumer = Some(role(&seen.consumer));
        status.produced_messages = Some(to_i64(seen.produced_messages));
        status.produced_bytes = Some(to_i64(seen.produced_bytes));
        status.consumed_messages = Some(to_i64(seen.consumed_messages));
        status.consumed_bytes = Some(to_i64(seen.consumed_bytes));
        said.push(match waits_for(remarks) {
            Some(remark) => {
                ConditionUpdate::new(WAITING_FOR_ROLE, true, reason::ROLE_BUSY, remark.to_string())
            }
            None => ConditionUpdate::new(
                WAITING_FOR_ROLE,
                false,
                reason::NOT_WAITING,
                "No role is awaited",
            ),
        });
        let overfilled = remarks.iter().find(|r| matches!(r, Remark::Overfilled { .. }));
        said.push(match overfilled {
            Some(remark) => {
                ConditionUpdate::new(OVERFILLED, true, reason::OVER_BOUND, remark.to_string())
            }
            None => {
                let message = "The queue is not longer than its bound";
                ConditionUpdate::new(OVERFILLED, false, reason::WITHIN_BOUND, message)
            }
        });
    }
    said.extend(match diagnosed {
        Some(diagnosed) => doctor::condition(diagnosed, seen),
        None => doctor::kept(old),
    });
    (status, said)
}

fn role(role: &Role) -> RoleStatus {
    let summary = role.id.as_deref().map(|id| clean_text(id, SUMMARY_BYTES));
    RoleStatus { id: role.id.clone(), summary, busy: role.busy }
}

fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
