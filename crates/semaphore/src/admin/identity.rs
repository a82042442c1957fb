//! Finds out whether two addresses lead to the same broker.

use std::time::Duration;

use lapin::types::{AMQPValue, FieldTable};
use lockkeeper_amqp::channel::{Channel, Declared};
use lockkeeper_plan::naming::LockName;

use super::broker::Broker;
use crate::error::BrokerError;
use crate::queues::arguments::exclusive_arguments;

/// Time after which the broker deletes a probe queue that was not deleted before.
const PROBE_EXPIRES_MILLIS: i32 = 60_000;

/// Number of checks for a probe queue, and the pause before each further one. Another
/// node of the broker may see the queue slightly later.
const LOOKS: u32 = 3;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

impl Broker {
    /// Whether `other` manages this lock in the same virtual host of the same broker, at
    /// any address. Connects to both if necessary.
    ///
    /// Declares a queue with a random name that begins with the lock's name over `other`,
    /// and looks for it over `self`. The server behind `other` can therefore not
    /// impersonate this one. Only a login with permission to declare the lock's queues
    /// here can pass.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any time. The probe queue then expires after a
    /// minute, or is deleted with the connection.
    ///
    /// # Errors
    ///
    /// [`BrokerError`]: the broker can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn is_same_as(&self, other: &Self, lock: &LockName) -> Result<bool, BrokerError> {
        let [ours, theirs] = [self, other].map(|broker| &broker.handle().access.settings().vhost);
        if ours != theirs {
            return Ok(false);
        }
        let name = lock.probe_queue(rand::random());
        let mut channel = Channel::take(&other.handle().access.admin_of(lock).get().await?).await?;
        if let Declared::Locked = channel.declare_exclusive(&name, Self::probe_arguments()).await? {
            return Ok(false);
        }
        let seen = self.sees(&name).await;
        // If this fails, the queue expires.
        let _ = channel.delete(&name).await;
        seen
    }

    /// Arguments of a probe queue.
    pub(super) fn probe_arguments() -> FieldTable {
        let mut arguments = exclusive_arguments();
        arguments.insert("x-expires".into(), AMQPValue::LongInt(PROBE_EXPIRES_MILLIS));
        arguments
    }

    /// Whether a queue is visible over this broker's own connection.
    pub(super) async fn sees(&self, queue: &str) -> Result<bool, BrokerError> {
        let names = [queue.to_owned()];
        for look in 0..LOOKS {
            if look > 0 {
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
            if self.handle().access.any_exists(&names).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
