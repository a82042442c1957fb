//! What a reconcile of a Semaphore remembers between two runs, and finds in one.

use std::time::{Duration, Instant};

use super::holding::Holding;
use crate::api::Semaphore;
use crate::operator::fetch::Connected;
use crate::operator::kind::StateOf;
use crate::operator::outcome::Note;
use crate::plan::naming::Unit;
use crate::plan::semaphore::Observed;
use crate::semaphore::{Broker, Holders};

/// State that is kept only for Semaphores.
#[derive(Default)]
pub struct State {
    /// Time and result of the last sweep.
    pub swept: Option<(Instant, Observed)>,
    /// The highest slot that may have been created since the last status write. Needed if
    /// another process's status replaces that write.
    pub reaches: u32,
    /// The last broker that answered, for a cleanup after its Secret is gone.
    pub broker: Option<Connected<Broker>>,
    /// The holders with the time since when they hold, and the last handled revocation
    /// request.
    pub holding: Holding,
}

pub type SemaphoreState = StateOf<Semaphore>;

/// Results of the steps that were completed.
#[derive(Default)]
pub struct Findings {
    pub name: String,
    /// As written in the spec.
    pub revoke_after: Option<String>,
    pub lock: String,
    pub backend: Option<String>,
    /// The broker of the last successful login.
    pub reached_backend: Option<String>,
    pub reached: bool,
    pub slots: u32,
    pub unit: Unit,
    pub seen: Option<Observed>,
    pub holders: Option<Holders>,
    /// Number of waiters, if known.
    pub waiting: Option<u32>,
    /// Whether waiters were notified of slots that a change added.
    pub woken: bool,
    /// The high-water mark. `None` for tokens, and until it is known.
    pub mark: Option<u32>,
    /// What the broker does to clients that hold a token for long.
    pub hold_limit: Option<&'static str>,
    pub notes: Vec<Note>,
    /// Time until the next observation, because of a holder that is to be revoked.
    pub revoke_again: Option<Duration>,
}

/// Interval of observations while data about a new holder is incomplete. The management
/// API provides it up to 6 s late.
pub const FACTS_INTERVAL: Duration = Duration::from_secs(1);
