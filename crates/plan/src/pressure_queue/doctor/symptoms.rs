//! Symptoms of a queue in one observation of its keys. See `doctor` for what follows from them
//! over several observations.

use crate::pressure_queue::{ObservedQueue, Remark};

/// Returns symptoms in the keys alone. Some of them may be a client's operation in
/// progress.
#[must_use]
pub fn symptoms(seen: &ObservedQueue) -> Vec<Remark> {
    if !seen.wrong_types.is_empty() {
        return seen.wrong_types.iter().map(|key| Remark::WrongType { key: key.clone() }).collect();
    }
    let Some(bound) = seen.bound else {
        let keys = seen.leftovers.clone();
        return if keys.is_empty() { Vec::new() } else { vec![Remark::Residue { keys }] };
    };
    let mut remarks = Vec::new();
    let missing = seen.never_written();
    let is_whole = missing.is_empty();
    if !is_whole {
        remarks.push(Remark::HalfCreated { missing });
    }
    if bound > 0 && seen.length > bound {
        remarks.push(Remark::Overfilled { length: seen.length, bound });
    }
    let has_room = seen.has_room(bound);
    // While a role is taken, its client may have the token.
    if is_whole && seen.is_idle() && seen.not_full == 0 && !seen.closed && has_room {
        remarks.push(Remark::LostToken);
    }
    let is_token_wrong = seen.is_idle() && bound == seen.length && !has_room && seen.not_full == 1;
    for (key, count) in [
        (":not_full", seen.not_full),
        (":producer_free", seen.producer_free),
        (":consumer_free", seen.consumer_free),
    ] {
        if count > 1 || key == ":not_full" && is_token_wrong {
            remarks.push(Remark::SurplusToken { key, count });
        }
    }
    // While a role is taken, the counters may legitimately differ.
    if seen.is_idle() && seen.drift() != 0 {
        remarks.push(Remark::CounterDrift { by: seen.drift() });
    }
    remarks
}

/// Whether a symptom may appear for an instant during any foreign client's operation, and
/// must be confirmed by a second observation.
#[must_use]
pub fn needs_second_look(remark: &Remark) -> bool {
    match remark {
        Remark::HalfCreated { .. }
        | Remark::Residue { .. }
        | Remark::SurplusToken { .. }
        | Remark::CounterDrift { .. }
        | Remark::RoleStuck { .. }
        | Remark::LostToken => true,
        Remark::Recreated
        | Remark::Completed
        | Remark::Overfilled { .. }
        | Remark::WaitingForProducer { .. }
        | Remark::ClosedByClient
        | Remark::Reopened
        | Remark::LeasesEnded { .. }
        | Remark::WrongType { .. } => false,
    }
}

/// Whether two remarks are about the same symptom, maybe with other numbers.
pub(super) fn is_same(one: &Remark, other: &Remark) -> bool {
    match (one, other) {
        (Remark::SurplusToken { key: a, .. }, Remark::SurplusToken { key: b, .. }) => a == b,
        _ => std::mem::discriminant(one) == std::mem::discriminant(other),
    }
}
