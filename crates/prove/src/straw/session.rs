//! A connection of a straw client, with the broker's answers as values. See `queue`, `consumer`
//! and `token` for the requests.

use std::future::pending;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ErrorKind, Event};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Heartbeat interval that is requested unless the URL sets one, in seconds.
const HEARTBEAT: u16 = 10;

/// Interval at which a channel is polled for being open.
const LOOK: Duration = Duration::from_millis(20);

/// Time limit for the closing handshake, and for the refusal after it closed a channel.
const LIMIT: Duration = Duration::from_secs(1);

/// The broker's answer to a request that it may refuse without closing the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The request was executed.
    Ok {
        /// Declare: the number of ready messages.
        messages: u32,
        /// Declare: the number of consumers.
        consumers: u32,
    },
    /// 404: the queue does not exist.
    Missing,
    /// 405, or 403 to a consume: another connection owns the queue.
    Taken,
    /// 406: the queue is in use, not empty, or of another kind.
    Refused,
}

impl Answer {
    /// Returns whether the request was executed.
    pub fn is_ok(self) -> bool {
        matches!(self, Self::Ok { .. })
    }

    /// Converts a refusal. Returns any other error unchanged.
    pub fn of(error: lapin::Error) -> Result<Self, lapin::Error> {
        let ErrorKind::ProtocolError(refusal) = error.kind() else { return Err(error) };
        match refusal.kind() {
            AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => Ok(Self::Missing),
            AMQPErrorKind::Soft(AMQPSoftError::RESOURCELOCKED) => Ok(Self::Taken),
            AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED)
                if refusal.get_message().as_str().contains("exclusive use") =>
            {
                Ok(Self::Taken)
            }
            AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) => Ok(Self::Refused),
            _ => Err(error),
        }
    }
}

/// One of the two channels of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// The channel of the hold.
    Hold,
    /// The other channel, which a refusal may close.
    Side,
}

/// A connection with up to two channels. A refusal closes a channel; a new one is opened at the
/// next use. The connection is never reopened.
pub struct Session {
    connection: Connection,
    ended: watch::Receiver<Option<String>>,
    hold: Option<Channel>,
    side: Option<Channel>,
}

impl Session {
    /// Opens a connection.
    pub async fn open(url: &str) -> Result<Self, lapin::Error> {
        let mut url = url.to_owned();
        if !url.contains("heartbeat=") {
            let mark = if url.contains('?') { '&' } else { '?' };
            url = format!("{url}{mark}heartbeat={HEARTBEAT}");
        }
        let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
        let mut events = Box::pin(connection.events_listener());
        let (sender, ended) = watch::channel(None);
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                // A refusal, which closes a channel, is also reported as an event.
                if let Event::Error(error) = event
                    && !error.is_amqp_soft_error()
                {
                    sender.send_replace(Some(error.to_string()));
                }
            }
        });
        Ok(Self { connection, ended, hold: None, side: None })
    }

    /// Returns whether the connection is open.
    pub fn is_open(&self) -> bool {
        self.connection.status().connected() && self.ended.borrow().is_none()
    }

    /// Returns whether the channel of the hold was opened and is still open.
    pub fn holds(&self) -> bool {
        self.is_open() && self.hold.as_ref().is_some_and(|hold| hold.status().connected())
    }

    /// Resolves with the reason when the connection has ended. Cancel safe.
    pub async fn ended(&mut self) -> String {
        match self.ended.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => "the connection ended".to_owned(),
        }
    }

    /// Returns the time for which one proof is valid: docs/protocols/persistent-semaphore.md,
    /// "Deadline".
    pub fn valid(&self) -> Duration {
        let heartbeat = Duration::from_secs(self.connection.configuration().heartbeat().into());
        let margin = Duration::from_millis(500).min(heartbeat / 4);
        (heartbeat * 2).mul_f64(0.98).saturating_sub(margin)
    }

    /// Closes the connection in its own task, because lapin does not finish closing if the
    /// connection ends during it. The caller need not wait for the task.
    pub fn close(self) -> JoinHandle<()> {
        tokio::spawn(async move {
            let _ = timeout(LIMIT, self.connection.close(200, "".into())).await;
        })
    }

    /// Returns a channel. Opens a new one if there is no open channel.
    pub async fn channel(&mut self, on: On) -> Result<Channel, lapin::Error> {
        let kept = match on {
            On::Hold => &mut self.hold,
            On::Side => &mut self.side,
        };
        match kept {
            Some(channel) if channel.status().connected() => Ok(channel.clone()),
            _ => {
                let opened = self.connection.create_channel();
                Ok(kept.insert(unless(&self.ended, pending(), opened).await?).clone())
            }
        }
    }

    /// Sends a request on a channel, and waits for the answer or the end of the channel.
    pub async fn ask<T>(
        &mut self,
        on: On,
        request: impl AsyncFnOnce(&Channel) -> Result<T, lapin::Error>,
    ) -> Result<T, lapin::Error> {
        let channel = self.channel(on).await?;
        unless(&self.ended, closed(&channel), request(&channel)).await
    }

    /// Probes whether a queue exists and is not exclusive to another connection.
    pub async fn look(&mut self, on: On, queue: &str) -> Result<Answer, lapin::Error> {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        self.declare(on, queue, passive, FieldTable::default()).await
    }

    /// Declares a queue.
    pub async fn declare(
        &mut self,
        on: On,
        queue: &str,
        options: QueueDeclareOptions,
        arguments: FieldTable,
    ) -> Result<Answer, lapin::Error> {
        let declare =
            async |channel: &Channel| channel.queue_declare(queue.into(), options, arguments).await;
        match self.ask(on, declare).await {
            Ok(queue) => Ok(Answer::Ok {
                messages: queue.message_count(),
                consumers: queue.consumer_count(),
            }),
            Err(error) => Answer::of(error),
        }
    }

    /// Declares a queue that only this connection may use: B, or the admin mutex.
    pub async fn declare_exclusive(&mut self, on: On, queue: &str) -> Result<Answer, lapin::Error> {
        let exclusive = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongInt(0));
        self.declare(on, queue, exclusive, arguments).await
    }

    /// Declares a queue of a slot: A or C.
    pub async fn declare_slot(&mut self, on: On, queue: &str) -> Result<Answer, lapin::Error> {
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongInt(0));
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
        self.declare(on, queue, durable, arguments).await
    }

    /// Deletes a queue and waits for the confirmation.
    pub async fn delete(
        &mut self,
        on: On,
        queue: &str,
        options: QueueDeleteOptions,
    ) -> Result<Answer, lapin::Error> {
        let delete = async |channel: &Channel| channel.queue_delete(queue.into(), options).await;
        match self.ask(on, delete).await {
            Ok(messages) => Ok(Answer::Ok { messages, consumers: 0 }),
            Err(error) => Answer::of(error),
        }
    }
}

/// Waits for an answer, or for the end of the connection or the channel. lapin does not always
/// fail a request that is pending at that time.
async fn unless<T>(
    ended: &watch::Receiver<Option<String>>,
    closed: impl Future<Output = ()>,
    answer: impl Future<Output = Result<T, lapin::Error>>,
) -> Result<T, lapin::Error> {
    let mut ended = ended.clone();
    let mut answer = pin!(answer);
    let why = tokio::select! {
        // A refusal that has arrived takes precedence.
        biased;
        answer = &mut answer => return answer,
        why = ended.wait_for(Option::is_some) => why.ok().and_then(|why| why.clone()),
        // lapin closes a channel before it passes on the refusal that closed it.
        () = closed => match timeout(LIMIT, &mut answer).await {
            Ok(answer) => return answer,
            Err(_) => None,
        },
    };
    let why = why.unwrap_or_else(|| "the channel ended".to_owned());
    Err(ErrorKind::IOError(Arc::new(io::Error::other(why))).into())
}

/// Resolves when the channel is no longer open. lapin has no event for this.
async fn closed(channel: &Channel) {
    while channel.status().connected() || channel.status().closing() {
        tokio::time::sleep(LOOK).await;
    }
}

/// Retries within this time, with random pauses up to a limit that doubles from 100 ms to 2 s.
pub async fn polled<T>(
    wait: Duration,
    mut attempt: impl AsyncFnMut() -> Result<Option<T>, lapin::Error>,
) -> Result<Option<T>, lapin::Error> {
    let until = Instant::now() + wait;
    let mut pause = Duration::from_millis(100);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match attempt().await? {
            None if !left.is_zero() => {}
            tried => return Ok(tried),
        }
        tokio::time::sleep(pause.mul_f64(rand::random()).min(left)).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// Returns a text that is unique among all clients.
pub fn new_id() -> String {
    format!("{:016x}", rand::random::<u64>())
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn a_refusal_that_arrives_after_it_closed_its_channel_is_the_answer() {
        let (_sender, ended) = watch::channel(None);
        let answer = async {
            yield_now().await;
            Ok(405)
        };
        assert_eq!(unless(&ended, ready(()), answer).await.unwrap(), 405);
    }
}
