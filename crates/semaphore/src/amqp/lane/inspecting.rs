//! Inspects whether queues are as Lockkeeper declares them, without declaring missing
//! ones. See `slots` for slot queues. The caller interprets the result.

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;

use super::records::record_arguments;
use super::{Lane, Refused, bare_arguments, classic_arguments, short};
use crate::error::BrokerError;

impl Lane {
    /// Inspects the holder queue `C[i]` of that name. `None` if it is missing.
    ///
    /// # Errors
    ///
    /// As for the other queues in this module, [`BrokerError::IncompatibleQueue`] if the
    /// queue differs from the declared properties, or belongs to another connection.
    pub async fn inspect_holder_queue(
        &mut self,
        name: &str,
    ) -> Result<Option<lapin::Queue>, BrokerError> {
        self.inspect(name, QueueDeclareOptions::durable(), bare_arguments()).await
    }

    /// Inspects the record queue of that name. `None` if it is missing.
    pub async fn inspect_record(
        &mut self,
        name: &str,
    ) -> Result<Option<lapin::Queue>, BrokerError> {
        self.inspect(name, QueueDeclareOptions::durable(), record_arguments()).await
    }

    /// Inspects the wait queue of that name. `None` if it is missing.
    pub async fn inspect_wait_queue(
        &mut self,
        name: &str,
    ) -> Result<Option<lapin::Queue>, BrokerError> {
        self.inspect(name, QueueDeclareOptions::durable(), classic_arguments()).await
    }

    /// Sends a passive declare followed by the declare that compares arguments. If the
    /// queue is missing, the former closes the channel, and the broker ignores everything
    /// sent after it.
    pub(super) async fn inspect(
        &mut self,
        name: &str,
        options: QueueDeclareOptions,
        arguments: FieldTable,
    ) -> Result<Option<lapin::Queue>, BrokerError> {
        let queue = [name.to_owned()];
        self.check_answered(&queue)?;
        let channel = self.channel().await?;
        self.count_declares(2);
        let passive = QueueDeclareOptions::default().passive();
        let exists = channel.queue_declare(short(name)?, passive, FieldTable::default());
        let arguments = self.conn.features.arguments(arguments);
        let same = channel.queue_declare(short(name)?, options, arguments);
        let both = async { Ok(futures::join!(exists, same)) };
        let (exists, same) = match self.answer_of_queues("to queue.declare", &queue, both).await? {
            Ok(answers) => answers,
            Err(refused) => return Err(refused.error),
        };
        if let Err(error) = exists {
            return match self.refused(&error, name)? {
                Refused { code: 404, .. } => Ok(None),
                refused => Err(refused.error),
            };
        }
        match same {
            Ok(queue) => Ok(Some(queue)),
            Err(error) => Err(self.refused(&error, name)?.error),
        }
    }
}
