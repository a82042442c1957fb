//! Tries the permissions of a client, without taking a slot. See `docs/permissions.md` for what
//! each protocol needs.

use lapin::options::BasicGetOptions;
use lockkeeper_amqp::channel::{Channel, Declared, short};
use lockkeeper_plan::naming::LockName;

use super::broker::Broker;
use crate::error::BrokerError;

impl Broker {
    /// Tries what the user of this broker needs to hold the lock: declares an exclusive queue
    /// with a random name that begins with the lock's, probes for it, reads from it, and deletes
    /// it. Takes no slot, and leaves nothing. In protocol Token clients need only to read the
    /// lock's own queue, which this does not touch, so an error may be about a permission that they do not need.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any time. The queue then expires after a minute, or is
    /// deleted with the connection.
    ///
    /// # Errors
    ///
    /// [`BrokerError::AccessRefused`] names the permission that is missing. Otherwise the broker
    /// can't be reached, does not answer in time, or rejects the request.
    pub async fn try_permissions(&self, lock: &LockName) -> Result<(), BrokerError> {
        let name = lock.probe_queue(rand::random());
        let connection = self.handle().access.admin_of(lock).get().await?;
        let mut channel = Channel::take(&connection).await?;
        if let Declared::Locked = channel.declare_exclusive(&name, Self::probe_arguments()).await? {
            return Ok(());
        }
        let tried = match self.sees(&name).await {
            Ok(_) => read_from(&mut channel, &name).await,
            Err(error) => Err(error),
        };
        // If this fails, the queue expires.
        let _ = channel.delete(&name).await;
        tried
    }
}

async fn read_from(channel: &mut Channel, queue: &str) -> Result<(), BrokerError> {
    let raw = channel.raw().await?;
    let get = raw.basic_get(short(queue)?, BasicGetOptions::default());
    let got = channel.answer("to basic.get", queue, get).await?;
    got.map(drop).map_err(|refused| BrokerError::from(refused.error))
}
