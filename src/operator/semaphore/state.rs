//! The observation of a Semaphore by a reconcile, and the state that is kept between two
//! reconciles.

use std::time::{Duration, Instant};

use lockkeeper_api::Semaphore;
use lockkeeper_plan::semaphore::Observed;
use lockkeeper_semaphore::{Broker, Holders, Risks};

use super::holding::Holding;
use crate::operator::fetch::Connected;
use crate::operator::kind::StateOf;

/// State that is kept only for Semaphores.
#[derive(Default)]
pub struct State {
    /// Time and result of the last sweep.
    pub swept: Option<(Instant, Observed)>,
    /// The highest slot that may have been created since the last status write. Needed if
    /// another process's status replaces that write.
    pub reaches: u32,
    /// What the last sweep found that makes the broker unsafe for the lock.
    pub risks: Option<Risks>,
    /// The last broker that answered, for a cleanup after its Secret is gone.
    pub broker: Option<Connected<Broker>>,
    /// The holders with the time since when they hold, and the last handled revocation
    /// request.
    pub holding: Holding,
}

pub type SemaphoreState = StateOf<Semaphore>;

/// The lock on its broker, as observed by a reconcile.
pub struct Observation {
    /// The slots or tokens, and which of them are held.
    pub seen: Observed,
    /// The high-water mark. `None` for tokens.
    pub mark: Option<u32>,
    /// Number of waiters, if known.
    pub waiting: Option<u32>,
    /// The holders. `None` if a step before failed, or the process is stopping.
    pub holders: Option<Holders>,
    /// What the broker does to clients that hold a token for long.
    pub hold_limit: Option<&'static str>,
    /// What makes the broker unsafe for the lock, if known.
    pub risks: Option<Risks>,
    /// Time until the next observation, because of a holder that is to be revoked.
    pub revoke_again: Option<Duration>,
}

impl Observation {
    /// Creates an observation of slots or tokens alone.
    pub fn new(seen: Observed, mark: Option<u32>) -> Self {
        Self {
            seen,
            mark,
            waiting: None,
            holders: None,
            hold_limit: None,
            risks: None,
            revoke_again: None,
        }
    }
}

/// Interval of observations while data about a new holder is incomplete. The management
/// API provides it up to 6 s late.
pub const FACTS_INTERVAL: Duration = Duration::from_secs(1);
