//! What a Semaphore's spec may say of holders that stand in the way: of a smaller
//! count, and of its own deletion.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// What becomes of holders above the wanted count.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// How long a holder may keep a slot above the wanted count; then the operator takes it away,
    /// as `lockkeeper revoke` does: it needs the broker's administrator for that (adminUri of the
    /// Secret), but with protocol ExclusiveConsumer. A holder whose connection has other slots too
    /// keeps its slot. Counted from when this operator first saw it above the count, so anew after
    /// a restart. 0s to 720h. Not possible with protocol Token, where nobody in particular is above
    /// the count. Absent: for as long as the holder wants. Example: 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 2, max = 20),
        regex(pattern = r"^([0-9]{1,4}h)?([0-9]{1,4}m)?([0-9]{1,4}s)?([0-9]{1,7}ms)?$")
    )]
    pub revoke_after: Option<String>,
}

/// What the resource's deletion waits for.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, schemars::JsonSchema)]
pub enum SemaphoreGuard {
    /// Nothing.
    None,
    /// That nobody holds a slot.
    Unused,
}

pub(super) fn unguarded() -> SemaphoreGuard {
    SemaphoreGuard::None
}
