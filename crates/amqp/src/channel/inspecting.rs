//! Inspects whether a queue has the expected properties, without declaring a missing one.
//! The caller interprets the result.

use futures::TryFutureExt;
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;

use super::together::in_order;
use super::{Channel, Refused, short};
use crate::error::AmqpError;

impl Channel {
    /// Inspects the queue of that name. `None` if it is missing. Sends a passive declare
    /// followed by the declare that compares arguments. If the queue is missing, the former
    /// closes the channel, and the broker ignores everything sent after it.
    ///
    /// # Errors
    ///
    /// [`AmqpError::IncompatibleQueue`] if the queue differs from these properties, or belongs
    /// to another connection.
    pub async fn inspect(
        &mut self,
        name: &str,
        options: QueueDeclareOptions,
        arguments: FieldTable,
    ) -> Result<Option<lapin::Queue>, AmqpError> {
        let queue = [name.to_owned()];
        self.check_answered(&queue)?;
        let raw = self.raw().await?;
        self.count_declares(2);
        let passive = QueueDeclareOptions::default().passive();
        let exists = raw.queue_declare(short(name)?, passive, FieldTable::default());
        let arguments = self.connection.features.arguments(arguments);
        let same = raw.queue_declare(short(name)?, options, arguments);
        let exists = exists.map_err(|error| (true, error));
        let both = in_order(exists, same.map_err(|error| (false, error)));
        let both = async { Ok(both.await) };
        match self.answer_of_queues("to queue.declare", &queue, both).await? {
            Ok(Ok((_, queue))) => Ok(Some(queue)),
            Ok(Err((is_passive, error))) => match self.refused(&error, name)? {
                Refused { code: 404, .. } if is_passive => Ok(None),
                refused => Err(refused.error),
            },
            Err(refused) => Err(refused.error),
        }
    }
}
