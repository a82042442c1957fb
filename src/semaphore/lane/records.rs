//! Slot records on a channel: their queues made and deleted, many at once, and first
//! records put into them. What a record says is [`crate::plan::record`]'s, and only a
//! slot's holder replaces it.

use futures::future::try_join_all;
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Confirmation};

use super::{Lane, MAX_DECLARES, classic_arguments, short, together};
use crate::semaphore::error::BrokerError;

/// Kept on disk, as its queue is.
const PERSISTENT: u8 = 2;

impl Lane {
    /// Declares the record queues `names`, sent together; returns which of them
    /// hold no record. One that exists with other arguments is
    /// [`BrokerError::IncompatibleQueue`], and which one is not told.
    pub async fn declare_records(&mut self, names: &[String]) -> Result<Vec<String>, BrokerError> {
        let Some(first) = names.first() else { return Ok(Vec::new()) };
        let channel = self.channel().await?;
        self.declares += u32::try_from(names.len()).unwrap_or(MAX_DECLARES);
        let mut declares = Vec::with_capacity(names.len());
        for name in names {
            let options = QueueDeclareOptions::durable();
            declares.push(channel.queue_declare(short(name)?, options, record_arguments()));
        }
        let all = together(declares);
        let queues =
            self.answer("to queue.declare", first, all).await?.map_err(|refused| refused.error)?;
        let empty = names.iter().zip(queues).filter(|(_, queue)| queue.message_count() == 0);
        Ok(empty.map(|(name, _)| name.clone()).collect())
    }

    /// Puts a first record into each queue, unless one is there by now, and waits
    /// until the broker has them.
    pub async fn seed(&mut self, names: &[String], record: &[u8]) -> Result<(), BrokerError> {
        let Some(first) = names.first() else { return Ok(()) };
        // A channel of its own: who takes it next must not get confirms.
        let channel = self.open().await?;
        let names = names.iter().map(|name| short(name)).collect::<Result<Vec<_>, _>>()?;
        let publishing = async {
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            let mut confirms = Vec::with_capacity(names.len());
            for name in names {
                let properties = BasicProperties::default()
                    .with_delivery_mode(PERSISTENT)
                    .with_content_type("application/json".into());
                let (exchange, options) = (ShortString::default(), BasicPublishOptions::default());
                confirms.push(
                    channel.basic_publish(exchange, name, options, record, properties).await?,
                );
            }
            try_join_all(confirms).await
        };
        let answer = self.answer("to slot records", first, publishing).await;
        self.channel = None;
        let confirms = answer?.map_err(|refused| refused.error)?;
        // A nack says that there is one: the queue takes no second.
        if confirms.contains(&Confirmation::NotRequested) {
            return Err(BrokerError::Protocol { why: "a record without confirm".to_owned() });
        }
        Ok(())
    }

    /// Deletes queues whatever they hold, sent together and done in this order;
    /// missing ones are no error.
    pub async fn delete_all(&mut self, names: &[String]) -> Result<(), BrokerError> {
        let Some(first) = names.first() else { return Ok(()) };
        let channel = self.channel().await?;
        let mut deletes = Vec::with_capacity(names.len());
        for name in names {
            deletes.push(channel.queue_delete(short(name)?, QueueDeleteOptions::default()));
        }
        let all = together(deletes);
        self.answer("to queue.delete", first, all).await?.map_err(|r| r.error).map(|_| ())
    }
}

/// The arguments of `F[i]`: one message, and a second is refused rather than
/// displacing the first, so that not even a client's probe can.
fn record_arguments() -> FieldTable {
    let mut arguments = classic_arguments();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(1));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    arguments
}
