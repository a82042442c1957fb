//! Queues that clients consume from, on a channel: the wait queue made, and messages
//! sent to them. Never probed by publishing: that would wake somebody. When to do which
//! is decided by others.

use lapin::BasicProperties;
use lapin::options::{BasicPublishOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};

use super::{Lane, classic_arguments, short};
use crate::semaphore::error::{BrokerError, refusal_code};
use crate::semaphore::protocol::Waiters;

/// How long a wake-up that nobody takes lives, in milliseconds: whoever comes
/// later looks for itself first.
const WAKE_UP_LIVES: &str = "1000";

impl Lane {
    /// Declares the wait queue `name`. One that exists with other arguments is
    /// [`BrokerError::IncompatibleQueue`].
    pub async fn declare_wait_queue(&mut self, name: &str) -> Result<(), BrokerError> {
        self.declare(name, QueueDeclareOptions::durable(), classic_arguments()).await
    }

    /// Does `one` thing to `queue`, and then looks how many consume from `wait_queue`,
    /// sent together.
    pub async fn do_and_count<T>(
        &mut self,
        one: impl Future<Output = Result<T, lapin::Error>>,
        queue: &str,
        wait_queue: Option<&str>,
    ) -> Result<Waiters, BrokerError> {
        let channel = self.channel().await?;
        let count = async {
            let Some(name) = wait_queue else { return Ok(Waiters::Unknown) };
            let passive = QueueDeclareOptions::default().passive();
            let looking = channel.queue_declare(short(name)?, passive, FieldTable::default());
            Ok(looking.await.map_or_else(
                |error| match refusal_code(&error) {
                    Some(404) => Waiters::NoQueue,
                    _ => Waiters::Unknown,
                },
                |queue| Waiters::Count(queue.consumer_count()),
            ))
        };
        self.declares += 1;
        let both = async {
            let (done, count) = futures::join!(one, count);
            done.map(|_| count)
        };
        self.answer("to giving back", queue, both).await?.map_err(|refused| refused.error)?
    }

    /// Sends `count` wake-ups to the wait queue `name`, which may name the `slot`
    /// that became free. They are lost without a word if it is missing: waiters
    /// look for themselves from time to time.
    pub async fn wake(
        &mut self,
        name: &str,
        count: u32,
        slot: Option<u32>,
    ) -> Result<(), BrokerError> {
        let slot = slot.map(|slot| slot.to_string());
        self.send(name, &[], count, slot.as_deref()).await
    }

    /// Sends `count` messages to the consumers of the queue `name`, which are gone if
    /// nobody takes them within a second; `about` is their correlation id.
    pub async fn send(
        &mut self,
        name: &str,
        body: &[u8],
        count: u32,
        about: Option<&str>,
    ) -> Result<(), BrokerError> {
        let channel = self.channel().await?;
        let name = short(name)?;
        let mut properties = BasicProperties::default().with_expiration(WAKE_UP_LIVES.into());
        if let Some(about) = about {
            properties = properties.with_correlation_id(short(about)?);
        }
        let publishing = async {
            for _ in 0..count {
                let properties = properties.clone();
                let options = BasicPublishOptions::default();
                let exchange = ShortString::default();
                channel.basic_publish(exchange, name.clone(), options, body, properties).await?;
            }
            Ok(())
        };
        self.answer("to a message", name.as_str(), publishing).await?.map_err(|r| r.error)
    }
}
