//! The observation of a `PressureQueue` by a reconcile, and the state that is kept between
//! two reconciles.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper_api::PressureQueue;
use lockkeeper_api::conditions::ConditionUpdate;
use lockkeeper_plan::pressure_queue::doctor::Finding;
use lockkeeper_plan::pressure_queue::{ObservedQueue, Remark};
use lockkeeper_pressure::{QueueDoctor, Store};

use crate::operator::fetch::Connected;
use crate::operator::kind::StateOf;

/// State that is kept only for `PressureQueue`s.
#[derive(Default)]
pub struct State {
    /// Remarks of the last observation that must be confirmed by the next one.
    pub suspected: Vec<Remark>,
    /// Keeps observations of the queue while it may be damaged.
    pub doctor: Option<QueueDoctor>,
    /// Number of observations since the start.
    pub looks: u32,
    /// The damage for which events were published. `None` after a start.
    pub told: Option<BTreeSet<String>>,
    /// The last store that answered, for a cleanup after its Secret is gone.
    pub store: Option<Connected<Store>>,
}

pub type QueueState = StateOf<PressureQueue>;

/// Interval of observations while a change waits for a client, or a remark for its
/// confirmation.
pub const SOON: Duration = Duration::from_secs(1);

/// The queue on its server, as observed by a reconcile.
pub struct Observation {
    /// The queue, as last read.
    pub seen: ObservedQueue,
    /// Confirmed remarks.
    pub remarks: Vec<Remark>,
    /// Remarks that must be observed again to be confirmed.
    pub unconfirmed: Vec<Remark>,
    /// `None` if a step before failed.
    pub diagnosed: Option<Diagnosed>,
}

/// The doctor's findings.
pub struct Diagnosed {
    /// Damage of the queue.
    pub damage: Vec<Finding>,
    /// Whether the damage is repaired as far as the spec allows.
    pub is_mended: bool,
    /// The previous condition Damaged, until the damage can be observed again.
    pub kept: Option<ConditionUpdate>,
    /// Whether the diagnosis needs another observation soon.
    pub is_unsure: bool,
}

impl Observation {
    /// Creates an observation of the keys alone.
    pub fn new(seen: ObservedQueue) -> Self {
        Self { seen, remarks: Vec::new(), unconfirmed: Vec::new(), diagnosed: None }
    }
}
