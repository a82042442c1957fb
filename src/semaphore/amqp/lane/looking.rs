//! Inspects queues on a channel by passive declares: whether they exist, which connection
//! owns them, and how many consumers they have. Changes and publishes nothing. The caller
//! interprets the result.

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;

use super::{Declared, Lane, MAX_DECLARES, Refused, Standing, short, together};
use crate::semaphore::error::BrokerError;

impl Lane {
    /// Inspects `name` by a passive declare. `None` if it doesn't exist.
    pub async fn look(&mut self, name: &str) -> Result<Option<Declared>, BrokerError> {
        match self.look_at(&[name.to_owned()]).await? {
            Ok(_) => Ok(Some(Declared::Ok)),
            Err(Refused { code: 405, error }) => Ok(Some(Declared::Locked(error.to_string()))),
            Err(Refused { code: 404, .. }) => Ok(None),
            Err(refused) => Err(refused.error),
        }
    }

    /// Inspects all of these queues by passive declares sent together. Returns the
    /// broker's answer for each, or its first refusal. A queue whose node is down is an
    /// error.
    pub async fn look_at(
        &mut self,
        names: &[String],
    ) -> Result<Result<Vec<lapin::Queue>, Refused>, BrokerError> {
        let Some(first) = names.first() else { return Ok(Ok(Vec::new())) };
        let channel = self.channel().await?;
        self.count_declares(u32::try_from(names.len()).unwrap_or(MAX_DECLARES));
        let mut looks = Vec::with_capacity(names.len());
        for name in names {
            let passive = QueueDeclareOptions::default().passive();
            looks.push(channel.queue_declare(short(name)?, passive, FieldTable::default()));
        }
        match self.answer("to queue.declare (passive)", first, together(looks)).await? {
            Err(Refused { code: 404, error: error @ BrokerError::NodeDown { .. } }) => Err(error),
            answer => Ok(answer),
        }
    }

    /// Whether this connection still owns `holder` and whether `slot` exists, by passive
    /// declares sent together. This is the only proof of ownership: a publish would show
    /// only that some queue of that name exists.
    pub async fn verify(&mut self, holder: &str, slot: &str) -> Result<Standing, BrokerError> {
        let channel = self.channel().await?;
        self.declares += 2;
        let passive = QueueDeclareOptions::default().passive();
        let ours = channel.queue_declare(short(holder)?, passive, FieldTable::default());
        let exists = channel.queue_declare(short(slot)?, passive, FieldTable::default());
        // In this order: a refusal closes the channel, so the more important request must
        // have been answered before.
        let both = async { Ok(futures::join!(ours, exists)) };
        let (ours, exists) = match self.answer("to queue.declare (passive)", holder, both).await? {
            Ok(answers) => answers,
            Err(refused) => return Err(refused.error),
        };
        if let Err(error) = ours {
            let refused = self.refused(&error, holder)?;
            return match refused.code {
                404 | 405 => Ok(Standing::Gone),
                _ => Err(refused.error),
            };
        }
        let Err(error) = exists else { return Ok(Standing::Held) };
        match self.refused(&error, slot)? {
            Refused { code: 404, error: error @ BrokerError::NodeDown { .. } } => Err(error),
            Refused { code: 404, .. } => Ok(Standing::WithoutSlot),
            // The slot exists, but may not be inspected.
            Refused { code: 405, .. } => Ok(Standing::Held),
            refused => Err(refused.error),
        }
    }

    /// Returns the number of consumers of the queue `name`. `None` if it is missing or
    /// exclusive to another connection.
    pub async fn consumers(&mut self, name: &str) -> Result<Option<u32>, BrokerError> {
        let counts = self.consumers_of(&[name.to_owned()]).await?;
        Ok(counts.and_then(|counts| counts.first().copied()))
    }

    /// Returns the number of consumers of each queue, by passive declares sent together.
    /// `None` if one of them is missing or exclusive to another connection.
    pub async fn consumers_of(
        &mut self,
        names: &[String],
    ) -> Result<Option<Vec<u32>>, BrokerError> {
        match self.look_at(names).await? {
            Ok(queues) => Ok(Some(queues.iter().map(lapin::Queue::consumer_count).collect())),
            Err(Refused { code: 404 | 405, .. }) => Ok(None),
            Err(refused) => Err(refused.error),
        }
    }

    /// Returns the number of ready messages of each queue, by passive declares sent
    /// together. `None` if one of them is missing or exclusive to another connection.
    pub async fn messages_of(&mut self, names: &[String]) -> Result<Option<Vec<u32>>, BrokerError> {
        match self.look_at(names).await? {
            Ok(queues) => Ok(Some(queues.iter().map(lapin::Queue::message_count).collect())),
            Err(Refused { code: 404 | 405, .. }) => Ok(None),
            Err(refused) => Err(refused.error),
        }
    }

    /// Whether all of these queues exist, by passive declares sent together. A publish
    /// would find the record queues full, or add a message to them.
    pub async fn all_exist(&mut self, names: &[String]) -> Result<bool, BrokerError> {
        Ok(self.consumers_of(names).await?.is_some())
    }
}
