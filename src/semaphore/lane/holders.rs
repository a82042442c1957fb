//! Holder queues `C[i]` on a channel: made, and removed while nobody holds by them.
//! When to do which is decided by others.

use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};

use super::{Lane, Refused, bare_arguments, short, together};
use crate::semaphore::error::BrokerError;

impl Lane {
    /// Declares the holder queue `name`. One that exists with other arguments, or of
    /// another type, is [`BrokerError::IncompatibleQueue`].
    pub async fn declare_holder_queue(&mut self, name: &str) -> Result<(), BrokerError> {
        self.declare(name, QueueDeclareOptions::durable(), bare_arguments()).await
    }

    /// Deletes those of these that nobody consumes from, sent together; missing ones
    /// are no error. `false` if one has a consumer: then some were not asked for.
    pub async fn delete_unused_all(&mut self, names: &[String]) -> Result<bool, BrokerError> {
        let Some(last) = names.last() else { return Ok(true) };
        let channel = self.channel().await?;
        let mut deletes = Vec::with_capacity(names.len());
        for name in names {
            let options = QueueDeleteOptions { if_unused: true, if_empty: false, nowait: false };
            deletes.push(channel.queue_delete(short(name)?, options));
        }
        let all = together(deletes);
        match self.answer("to queue.delete", last, all).await? {
            Ok(_) => Ok(true),
            Err(Refused { code: 406, .. }) => Ok(false),
            Err(refused) => Err(refused.error),
        }
    }

    /// The same with one; `false` if it has a consumer, and is left.
    pub async fn delete_unused(&mut self, name: &str) -> Result<bool, BrokerError> {
        self.delete_unused_all(&[name.to_owned()]).await
    }
}
