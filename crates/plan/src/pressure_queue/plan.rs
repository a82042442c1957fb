//! Decides what happens to a pressure queue. Inputs are the desired state, the observed
//! keys in Redis and the last status. Outputs are effects to apply and conditions to
//! report.

use super::{
    Applied, DesiredQueue, DesiredState, ObservedQueue, PreviousStatus, QueueEffect, Remark,
};
use crate::difference::Difference;

/// The planned effects and conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueuePlan {
    /// Effects, applied in this order.
    pub effects: Vec<QueueEffect>,
    /// Conditions, reported whether or not the effects succeed.
    pub remarks: Vec<Remark>,
}

impl QueuePlan {
    /// Whether the queue cannot be changed until a user or a client acts.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.remarks.iter().any(Remark::blocks)
    }

    /// Lists the differences that the effects remove.
    #[must_use]
    pub fn differences(&self, seen: &ObservedQueue) -> Vec<Difference> {
        let difference = |effect: &QueueEffect| match effect {
            QueueEffect::Create { bound } => Difference::added("bound", *bound),
            QueueEffect::SetBound { bound } => Difference::new("bound", seen.bound, *bound),
            QueueEffect::Close => Difference::new("state", seen.bound.map(|_| "Open"), "Closed"),
        };
        self.effects.iter().map(difference).collect()
    }

    /// Updates the conditions after an effect.
    pub fn record(&mut self, effect: &QueueEffect, applied: &Applied) {
        let is_busy = matches!(applied, Applied::ProducerBusy { .. });
        if is_busy || *effect == QueueEffect::Close {
            self.remarks.retain(|remark| !matches!(remark, Remark::WaitingForProducer { .. }));
        }
        match applied {
            Applied::ProducerBusy { who } => {
                self.remarks.push(Remark::WaitingForProducer { who: who.clone() });
            }
            Applied::Residue { keys } => self.remarks.push(Remark::Residue { keys: keys.clone() }),
            // If another client was faster, the next observation shows the result.
            Applied::Done | Applied::AlreadySo | Applied::Absent => {}
        }
    }
}

/// Plans the next effects. The function is total and pure. The rules are those of the
/// source document "pressure 0.15". Where it does not specify a case, these rules apply:
///
/// * An existing queue is adopted with its data.
/// * Data is never removed.
/// * An action that a client is allowed to take (close, delete) is not drift.
#[must_use]
pub fn plan(desired: &DesiredQueue, seen: &ObservedQueue, past: &PreviousStatus) -> QueuePlan {
    if !seen.wrong_types.is_empty() {
        // The keys contain foreign data, which any change could destroy.
        let remarks =
            seen.wrong_types.iter().map(|key| Remark::WrongType { key: key.clone() }).collect();
        return QueuePlan { effects: Vec::new(), remarks };
    }
    match seen.bound {
        None => plan_absent(desired, seen, *past),
        Some(bound) => plan_existing(desired, seen, *past, bound),
    }
}

fn plan_absent(desired: &DesiredQueue, seen: &ObservedQueue, past: PreviousStatus) -> QueuePlan {
    let wants_closed = desired.state == DesiredState::Closed;
    if !seen.leftovers.is_empty() {
        let residue = Remark::Residue { keys: seen.leftovers.clone() };
        return QueuePlan { effects: Vec::new(), remarks: vec![residue] };
    }
    // A queue that existed is not created again just to be closed.
    if past.existed && (past.closed || wants_closed) {
        return QueuePlan { effects: Vec::new(), remarks: vec![Remark::Completed] };
    }
    let mut effects = vec![QueueEffect::Create { bound: desired.bound }];
    if wants_closed {
        effects.push(QueueEffect::Close);
    }
    let remarks = if past.existed { vec![Remark::Recreated] } else { Vec::new() };
    QueuePlan { effects, remarks }
}

fn plan_existing(
    desired: &DesiredQueue,
    seen: &ObservedQueue,
    past: PreviousStatus,
    bound: u64,
) -> QueuePlan {
    let mut plan = QueuePlan::default();
    let missing = seen.never_written();
    if !missing.is_empty() {
        // Its creator may be active right now, and would overwrite every change.
        plan.remarks.push(Remark::HalfCreated { missing });
        return plan;
    }
    if bound != desired.bound {
        plan.effects.push(QueueEffect::SetBound { bound: desired.bound });
    }
    match (desired.state, seen.closed) {
        (DesiredState::Closed, false) => {
            plan.effects.push(QueueEffect::Close);
            if seen.producer.busy {
                let who = seen.producer.id.clone();
                plan.remarks.push(Remark::WaitingForProducer { who });
            }
        }
        (DesiredState::Open, true) => plan.remarks.push(Remark::ClosedByClient),
        (DesiredState::Open, false) | (DesiredState::Closed, true) => {}
    }
    if past.existed && past.closed && !seen.closed && desired.state == DesiredState::Open {
        plan.remarks.push(Remark::Reopened);
    }
    if desired.bound > 0 && seen.length > desired.bound {
        plan.remarks.push(Remark::Overfilled { length: seen.length, bound: desired.bound });
    }
    plan
}
