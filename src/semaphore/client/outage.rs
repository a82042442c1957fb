//! Waits for a slot during an outage of the broker: which errors an acquisition survives,
//! and how often it retries. See `lock` for the steps of one acquisition.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::error::AcquireError;
use super::lock::Lock;
use super::options::AcquireOptions;
use super::permit::Permit;
use crate::clock::Moment;
use crate::semaphore::error::BrokerError;
use crate::semaphore::management::{Management, nodes};
use crate::semaphore::protocol::interface::Wait;
use crate::semaphore::protocol::{self, Claiming};

/// First and longest pause before a retry. The second half of each is random, so that the
/// waiters of a broker don't reconnect all together.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// After this time of waiting without an error, the next error starts a new outage.
const CALM: Duration = Duration::from_secs(30);

impl Lock {
    /// Acquires a slot. While waiting, survives broker restarts, closed connections and
    /// failovers.
    ///
    /// Nothing is held across an outage: a slot whose connection was lost is lost.
    pub(super) async fn acquire_through_outages(
        &self,
        options: &AcquireOptions,
        wait: Wait,
    ) -> Result<Permit, AcquireError> {
        let mut pause = PAUSES.0;
        loop {
            let began = Moment::now();
            let acquired = match protocol::claiming(self.name()) {
                Claiming::Slot(how) => self.acquire_slot(how, options, wait).await,
                Claiming::Token => self.acquire_token(options, wait).await,
            };
            let error = match acquired {
                Err(AcquireError::Broker(error)) if self.survives(&error, wait) => error,
                Err(AcquireError::Broker(error)) => {
                    return Err(AcquireError::Broker(self.name_node(error).await));
                }
                acquired => return acquired,
            };
            if began.elapsed() > CALM {
                pause = PAUSES.0;
            }
            let left = wait.until().map_or(pause, Moment::left);
            if left.is_zero() {
                let error = self.name_node(error).await;
                return Err(AcquireError::Unavailable { lock: self.name().to_string(), error });
            }
            tracing::debug!(%error, lock = %self.name(), "The broker is away: trying again");
            tokio::time::sleep(rand::random_range(pause / 2..=pause).min(left)).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Names the node in an error about a node that is down, if the settings have a
    /// management API.
    async fn name_node(&self, error: BrokerError) -> BrokerError {
        if !matches!(error, BrokerError::NodeDown { .. }) {
            return error;
        }
        let management = Management::new(&self.shared().endpoint.settings);
        nodes::name_in(error, management.as_ref()).await
    }

    /// Whether waiting continues after this error. A client that was never connected is
    /// more likely to have the wrong address.
    fn survives(&self, error: &BrokerError, wait: Wait) -> bool {
        let passes = matches!(
            error,
            BrokerError::Unreachable { .. }
                | BrokerError::ConnectionLost { .. }
                | BrokerError::Timeout { .. }
                | BrokerError::NodeDown { .. }
                | BrokerError::Blocked
        );
        passes && wait != Wait::No && self.shared().endpoint.connected.load(Ordering::Acquire)
    }
}
