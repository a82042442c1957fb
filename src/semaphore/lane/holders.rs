//! Holder queues `C[i]` on a channel: made, looked at, and removed while nobody holds
//! by them, many at once. When to do which is decided by others.

use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;

use super::{Lane, MAX_DECLARES, Refused, bare_arguments, short, together};
use crate::semaphore::error::BrokerError;

impl Lane {
    /// Declares these, sent together. One that exists with other arguments, or of
    /// another type, is [`BrokerError::IncompatibleQueue`].
    pub async fn declare_holder_queues(&mut self, names: &[String]) -> Result<(), BrokerError> {
        let Some(first) = names.first() else { return Ok(()) };
        let channel = self.channel().await?;
        self.declares += u32::try_from(names.len()).unwrap_or(MAX_DECLARES);
        let mut declares = Vec::with_capacity(names.len());
        for name in names {
            let options = QueueDeclareOptions::durable();
            declares.push(channel.queue_declare(short(name)?, options, bare_arguments()));
        }
        let all = together(declares);
        self.answer("to queue.declare", first, all).await?.map_err(|r| r.error).map(|_| ())
    }

    /// How many consumers each of these has, by passive declares sent together;
    /// `None` if one of them is missing.
    pub async fn consumers_of(
        &mut self,
        names: &[String],
    ) -> Result<Option<Vec<u32>>, BrokerError> {
        let Some(first) = names.first() else { return Ok(Some(Vec::new())) };
        let channel = self.channel().await?;
        self.declares += u32::try_from(names.len()).unwrap_or(MAX_DECLARES);
        let mut looks = Vec::with_capacity(names.len());
        for name in names {
            let passive = QueueDeclareOptions::default().passive();
            looks.push(channel.queue_declare(short(name)?, passive, FieldTable::default()));
        }
        let all = together(looks);
        match self.answer("to queue.declare (passive)", first, all).await? {
            Ok(queues) => Ok(Some(queues.iter().map(lapin::Queue::consumer_count).collect())),
            Err(Refused { code: 404, error: error @ BrokerError::NodeDown { .. } }) => Err(error),
            Err(Refused { code: 404, .. }) => Ok(None),
            Err(refused) => Err(refused.error),
        }
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
