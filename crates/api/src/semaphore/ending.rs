//! Settings of a Semaphore's spec for holders that delay a change: a lowered slot count,
//! or the deletion of the resource.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Limits how long draining holders may keep their slots.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// Time that a draining holder may keep its slot before the operator revokes it, as
    /// `lockkeeper revoke` does. `0s` to `720h`. The time starts when this operator
    /// process first observes the holder as draining, so it starts again after a restart.
    /// A holder whose connection also has other slots keeps its slot. Requires `adminUri`
    /// in the Secret, except with protocol `ExclusiveConsumer`. Not supported with
    /// protocol `Token`. Setting or shortening the value, and lowering `slots` while it
    /// is set, requires permission to create `semaphores/revoke`. Unset: no limit.
    /// Example: `10m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 20))]
    pub revoke_after: Option<String>,
}

/// Condition that delays deletion of the resource.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, schemars::JsonSchema)]
pub enum SemaphoreGuard {
    /// Delete immediately.
    None,
    /// Wait until no slot is held.
    Unused,
}

pub(super) fn unguarded() -> SemaphoreGuard {
    SemaphoreGuard::None
}
