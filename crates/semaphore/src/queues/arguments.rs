//! The arguments of a lock's queues. They never change: a declare with other arguments is
//! refused. See docs/protocols for the reasons.

use lapin::types::{AMQPValue, FieldTable};

/// The type is explicit. Otherwise a virtual host whose default is quorum would make each
/// queue a Raft group.
pub fn classic_arguments() -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
    arguments
}

/// Returns the arguments of the admin mutex and, together with a holder's facts, of
/// `B[i]`.
pub fn exclusive_arguments() -> FieldTable {
    let mut arguments = FieldTable::default();
    exclusive(&mut arguments);
    arguments
}

/// Adds these arguments to a holder's facts.
pub fn exclusive(arguments: &mut FieldTable) {
    // Only probes publish to this queue. Without this argument they would pile up.
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(0));
}

/// Returns the arguments of `A[i]` and `C[i]`. A message that no consumer takes
/// immediately is dropped.
pub fn bare_arguments() -> FieldTable {
    let mut arguments = classic_arguments();
    exclusive(&mut arguments);
    arguments
}
