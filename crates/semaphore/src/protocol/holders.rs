//! The holders of a lock as the management API describes them. Each protocol fills the
//! list in its own way.

use std::time::Duration;

use lockkeeper_plan::semaphore::Holder;

use crate::management::ManagementError;

/// Maximum time that an observation waits for facts.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// Minimum time between two requests for facts that are missing.
pub const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Maximum number of owners requested in one observation of one lock, and concurrently.
pub const MAX_OWNERS: usize = 50;
pub const OWNERS_AT_ONCE: usize = 8;

/// Time after which an unused lock is dropped from the cache.
pub const FORGET: Duration = Duration::from_secs(600);

/// The holders of a lock's slots, and how reliable the information is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// The holders, in ascending order of slots.
    pub list: Vec<Holder>,
    /// True if facts are missing that will soon be available. The management API lists a
    /// connection only after some seconds.
    pub incomplete: bool,
    /// The error of the management API, if it returned no facts.
    pub management_error: Option<ManagementError>,
}
