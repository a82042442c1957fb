//! Inspects queues on a channel by passive declares: whether they exist, which connection
//! owns them, and how many consumers they have. Changes and publishes nothing. The caller
//! interprets the result. See `unanswered` for queues that do not answer.

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;

use super::together::together;
use super::{Channel, Declared, Refused};
use crate::error::AmqpError;

impl Channel {
    /// Inspects `name` by a passive declare. `None` if it doesn't exist. A queue whose node
    /// is down, or that does not answer, results in [`AmqpError::NodeDown`].
    pub async fn look(&mut self, name: &str) -> Result<Option<Declared>, AmqpError> {
        match self.look_at(&[name.to_owned()]).await? {
            Ok(_) => Ok(Some(Declared::Ok)),
            Err(Refused { code: 405, .. }) => Ok(Some(Declared::Locked)),
            Err(Refused { code: 404, .. }) => Ok(None),
            Err(refused) => Err(refused.error),
        }
    }

    /// Inspects all of these queues by passive declares sent together. Returns the
    /// broker's answer for each, or its first refusal. A queue whose node is down, or that
    /// does not answer, results in [`AmqpError::NodeDown`].
    pub async fn look_at(
        &mut self,
        names: &[String],
    ) -> Result<Result<Vec<lapin::Queue>, Refused>, AmqpError> {
        if names.is_empty() {
            return Ok(Ok(Vec::new()));
        }
        self.check_answered(names)?;
        let raw = self.raw().await?;
        self.count_declares(names.len());
        let passive = QueueDeclareOptions::default().passive();
        let look = |name| raw.queue_declare(name, passive, FieldTable::default());
        let what = "to queue.declare (passive)";
        self.answer_of_queues(what, names, together(names, look)?).await
    }

    /// Returns the number of consumers of the queue `name`. `None` if it is missing or
    /// exclusive to another connection.
    pub async fn consumers(&mut self, name: &str) -> Result<Option<u32>, AmqpError> {
        let counts = self.consumers_of(&[name.to_owned()]).await?;
        Ok(counts.and_then(|counts| counts.first().copied()))
    }

    /// Returns the number of consumers of each queue, by passive declares sent together.
    /// `None` if one of them is missing or exclusive to another connection.
    pub async fn consumers_of(&mut self, names: &[String]) -> Result<Option<Vec<u32>>, AmqpError> {
        match self.look_at(names).await? {
            Ok(queues) => Ok(Some(queues.iter().map(lapin::Queue::consumer_count).collect())),
            Err(Refused { code: 404 | 405, .. }) => Ok(None),
            Err(refused) => Err(refused.error),
        }
    }

    /// Returns the number of ready messages of each queue, by passive declares sent
    /// together. `None` if one of them is missing or exclusive to another connection.
    pub async fn messages_of(&mut self, names: &[String]) -> Result<Option<Vec<u32>>, AmqpError> {
        match self.look_at(names).await? {
            Ok(queues) => Ok(Some(queues.iter().map(lapin::Queue::message_count).collect())),
            Err(Refused { code: 404 | 405, .. }) => Ok(None),
            Err(refused) => Err(refused.error),
        }
    }

    /// Whether all of these queues exist, by passive declares sent together. A publish
    /// would find the record queues full, or add a message to them.
    pub async fn all_exist(&mut self, names: &[String]) -> Result<bool, AmqpError> {
        Ok(self.consumers_of(names).await?.is_some())
    }
}
