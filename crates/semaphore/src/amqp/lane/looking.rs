//! Inspects queues on a channel by passive declares: whether they exist, which connection
//! owns them, and how many consumers they have. Changes and publishes nothing. The caller
//! interprets the result. See `unanswered` for queues that do not answer.

use std::pin::pin;
use std::slice;
use std::time::Duration;

use futures::future::{Either, select};
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;

use super::{Declared, Lane, MAX_DECLARES, Refused, Standing, short, together};
use crate::error::BrokerError;

/// How long a holder waits for the answer about its slot queue after the one about its
/// holder queue, which is the proof that it holds the slot.
const FOR_THE_SLOT: Duration = Duration::from_secs(1);

impl Lane {
    /// Inspects `name` by a passive declare. `None` if it doesn't exist. A queue whose node
    /// is down, or that does not answer, results in [`BrokerError::NodeDown`].
    pub async fn look(&mut self, name: &str) -> Result<Option<Declared>, BrokerError> {
        match self.look_at(&[name.to_owned()]).await? {
            Ok(_) => Ok(Some(Declared::Ok)),
            Err(Refused { code: 405, error }) => Ok(Some(Declared::Locked(error.to_string()))),
            Err(Refused { code: 404, .. }) => Ok(None),
            Err(refused) => Err(refused.error),
        }
    }

    /// Inspects all of these queues by passive declares sent together. Returns the
    /// broker's answer for each, or its first refusal. A queue whose node is down, or that
    /// does not answer, results in [`BrokerError::NodeDown`].
    pub async fn look_at(
        &mut self,
        names: &[String],
    ) -> Result<Result<Vec<lapin::Queue>, Refused>, BrokerError> {
        if names.is_empty() {
            return Ok(Ok(Vec::new()));
        }
        self.check_answered(names)?;
        let channel = self.channel().await?;
        self.count_declares(u32::try_from(names.len()).unwrap_or(MAX_DECLARES));
        let mut looks = Vec::with_capacity(names.len());
        for name in names {
            let passive = QueueDeclareOptions::default().passive();
            looks.push(channel.queue_declare(short(name)?, passive, FieldTable::default()));
        }
        let what = "to queue.declare (passive)";
        self.answer_of_queues(what, names, together(looks)).await
    }

    /// Whether this connection still owns `holder` and whether `slot` exists, by passive
    /// declares sent together. This is the only proof of ownership: a publish would show
    /// only that some queue of that name exists. Where nothing is known of the slot, because
    /// its node is down, the slot counts as existing.
    pub async fn verify(&mut self, holder: &str, slot: &str) -> Result<Standing, BrokerError> {
        let channel = self.channel().await?;
        self.declares += 2;
        let passive = QueueDeclareOptions::default().passive();
        let ours = channel.queue_declare(short(holder)?, passive, FieldTable::default());
        let exists = channel.queue_declare(short(slot)?, passive, FieldTable::default());
        // In this order: a refusal closes the channel, so the more important request must
        // have been answered before.
        let both = async {
            Ok(match select(pin!(ours), pin!(exists)).await {
                Either::Left((ours, exists)) => {
                    (ours, tokio::time::timeout(FOR_THE_SLOT, exists).await.ok())
                }
                Either::Right((exists, ours)) => (ours.await, Some(exists)),
            })
        };
        let (ours, exists) = match self.answer("to queue.declare (passive)", holder, both).await? {
            Ok(answers) => answers,
            Err(refused) => return Err(refused.error),
        };
        match (ours, exists) {
            (Ok(_), Some(Ok(_))) => Ok(Standing::Held),
            (Ok(_), Some(Err(error))) => self.standing_with(&error, slot),
            (Ok(_), None) => {
                self.leave_unanswered(&[slot.to_owned()]);
                Ok(Standing::Held)
            }
            (Err(error), _) => match self.refused(&error, holder)? {
                Refused { code: 404 | 405, .. } => Ok(Standing::Gone),
                refused => Err(refused.error),
            },
        }
    }

    /// Returns the standing of a holder whose slot queue could not be inspected.
    fn standing_with(&mut self, error: &lapin::Error, slot: &str) -> Result<Standing, BrokerError> {
        match self.refused(error, slot) {
            // The slot exists, but its node is down, or it may not be inspected.
            Err(BrokerError::NodeDown { .. }) | Ok(Refused { code: 405, .. }) => Ok(Standing::Held),
            Ok(Refused { code: 404, .. }) => Ok(Standing::WithoutSlot),
            Ok(Refused { error, .. }) | Err(error) => Err(error),
        }
    }

    /// Whether the slot queue of a holder exists, by a passive declare. Where nothing is
    /// known of it within a moment, because its node is down, it counts as existing.
    pub async fn slot_exists(&mut self, slot: &str) -> Result<bool, BrokerError> {
        let channel = self.channel().await?;
        self.count_declares(1);
        let passive = QueueDeclareOptions::default().passive();
        let looking = channel.queue_declare(short(slot)?, passive, FieldTable::default());
        let looking = async { Ok(tokio::time::timeout(FOR_THE_SLOT, looking).await) };
        match self.answer("to queue.declare (passive)", slot, looking).await? {
            Ok(Ok(Ok(_))) => Ok(true),
            Ok(Ok(Err(error))) => Ok(self.standing_with(&error, slot)? == Standing::Held),
            Ok(Err(_)) => {
                self.leave_unanswered(slice::from_ref(&slot.to_owned()));
                Ok(true)
            }
            Err(refused) => Err(refused.error),
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
