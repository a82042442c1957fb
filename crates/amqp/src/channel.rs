//! A pooled channel that runs operations one after the other, each with a time limit:
//! declare, inspect, delete. Channels that the broker closed (405, 406: AMQP's way to refuse)
//! are replaced, and healthy ones are reused. The caller decides which operation to run.

mod inspecting;
mod leaving;
mod looking;
pub mod together;

use std::sync::Arc;
use std::time::Duration;

use lapin::options::{BasicQosOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{FieldTable, ShortString};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use super::connection::Connection;
use crate::error::{AmqpError, refusal_code};

/// Number of declares after which a channel is retired. lapin keeps the name and
/// arguments of every declared queue as long as the channel exists (for its recovery,
/// which is not used). This would grow without limit.
const MAX_DECLARES: u32 = 512;

/// The result of a declare that the broker answered.
#[derive(Debug, PartialEq, Eq)]
pub enum Declared {
    /// The queue exists with the requested properties.
    Ok,
    /// 405: the queue is exclusive to another connection, or the declare is exclusive and
    /// the queue isn't.
    Locked,
}

/// A channel in use. On drop, it returns to the idle channels if it is healthy and no
/// operation on it was abandoned.
pub struct Channel {
    connection: Arc<Connection>,
    raw: Option<lapin::Channel>,
    declares: u32,
    /// An operation is in progress. If its future is dropped, its answer is still
    /// pending, and the channel must not be reused.
    busy: bool,
    /// If true, no other channel is opened to replace this one.
    pinned: bool,
    limit: Duration,
}

impl Channel {
    /// Takes an idle channel of `connection`, or opens one.
    pub async fn take(connection: &Arc<Connection>) -> Result<Self, AmqpError> {
        let mut channel = Self::closed(connection);
        while let Some((raw, declares)) = channel.connection.idle.pop() {
            if raw.status().connected() {
                (channel.raw, channel.declares) = (Some(raw), declares);
                return Ok(channel);
            }
        }
        channel.open().await?;
        Ok(channel)
    }

    /// Opens a channel that was not used before and is not reused after.
    pub async fn fresh(connection: &Arc<Connection>) -> Result<Self, AmqpError> {
        let mut channel = Self::closed(connection);
        channel.open().await?;
        channel.pin();
        Ok(channel)
    }

    fn closed(connection: &Arc<Connection>) -> Self {
        Self {
            connection: Arc::clone(connection),
            raw: None,
            declares: 0,
            busy: false,
            pinned: false,
            limit: connection.operation_timeout,
        }
    }

    /// Replaces the usual time limit for answers, for a caller that knows better how much
    /// time is left.
    pub fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// From now on, uses only the current channel, because it carries state.
    pub fn pin(&mut self) {
        self.pinned = true;
    }

    /// Ends the restriction of [`Channel::pin`].
    pub fn unpin(&mut self) {
        self.pinned = false;
    }

    /// Whether [`Channel::pin`] applies.
    pub fn is_pinned(&self) -> bool {
        self.pinned
    }

    /// Whether its current channel is open.
    pub fn is_open(&self) -> bool {
        self.raw.as_ref().is_some_and(|raw| raw.status().connected())
    }

    /// Takes the current channel away. The next operation uses another one.
    pub fn give_up(&mut self) -> Option<lapin::Channel> {
        self.raw.take()
    }

    /// Returns the current channel.
    pub fn current(&self) -> Option<lapin::Channel> {
        self.raw.clone()
    }

    /// Counts declares that are about to be sent.
    pub fn count_declares(&mut self, declares: usize) {
        let declares = u32::try_from(declares).unwrap_or(MAX_DECLARES);
        self.declares = self.declares.saturating_add(declares);
    }

    /// Returns the connection of this channel.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    async fn open(&mut self) -> Result<lapin::Channel, AmqpError> {
        let limit = self.limit;
        let opened = tokio::time::timeout(limit, self.connection.open_channel()).await;
        let raw = match opened {
            Ok(Ok(raw)) => raw,
            Ok(Err(error)) => return Err(self.connection.unopened(&error)),
            Err(_) => return Err(self.no_answer("to a new channel", limit)),
        };
        self.raw = Some(raw.clone());
        self.declares = 0;
        Ok(raw)
    }

    /// Returns the channel, and opens one if there is none that can be used.
    pub async fn raw(&mut self) -> Result<lapin::Channel, AmqpError> {
        match &self.raw {
            Some(raw)
                if raw.status().connected() && (self.pinned || self.declares < MAX_DECLARES) =>
            {
                Ok(raw.clone())
            }
            _ if self.pinned => {
                Err(AmqpError::ConnectionLost { why: "its channel was closed".to_owned() })
            }
            _ => self.open().await,
        }
    }

    fn no_answer(&self, what: &'static str, after: Duration) -> AmqpError {
        // Whether the operation was performed is unknown, and can't be determined on this
        // connection.
        let blocked = self.connection.is_blocked();
        self.connection.fail(if blocked {
            AmqpError::Blocked
        } else {
            AmqpError::Timeout { what, after }
        })
    }

    /// Waits for an operation's answer. A refusal is returned as lapin's error, so that
    /// the caller can distinguish refusals.
    pub async fn answer<T>(
        &mut self,
        what: &'static str,
        queue: &str,
        operation: impl Future<Output = Result<T, lapin::Error>>,
    ) -> Result<Result<T, Refused>, AmqpError> {
        match self.answer_in_time(queue, operation).await {
            Some(answer) => answer,
            None => Err(self.unanswered(what)),
        }
    }

    /// Ends the connection, because an operation was not answered in time.
    pub fn unanswered(&mut self, what: &'static str) -> AmqpError {
        self.raw = None;
        self.no_answer(what, self.limit)
    }

    /// Waits for the answer to a declare of an exclusive queue, like [`Channel::answer`].
    /// Without an answer in time, the connection ends, but only once the broker has
    /// answered, or the same time has passed again (hazard A49).
    pub async fn answer_to_claim<T>(
        &mut self,
        queue: &str,
        operation: impl Future<Output = Result<T, lapin::Error>>,
    ) -> Result<Result<T, Refused>, AmqpError> {
        match self.answer_in_time(queue, operation).await {
            Some(answer) => answer,
            None => {
                if let Some(raw) = self.raw.take() {
                    close_when_answered(&self.connection.abandoned, raw, self.limit);
                }
                let what = "to queue.declare";
                Err(self
                    .connection
                    .fail_when_answered(AmqpError::Timeout { what, after: self.limit }))
            }
        }
    }

    /// Waits for an operation's answer. `None` if there is none in time.
    pub async fn answer_in_time<T>(
        &mut self,
        queue: &str,
        operation: impl Future<Output = Result<T, lapin::Error>>,
    ) -> Option<Result<Result<T, Refused>, AmqpError>> {
        self.busy = true;
        let answer = tokio::time::timeout(self.limit, operation).await;
        self.busy = false;
        Some(self.answered(queue, answer.ok()?))
    }

    /// Distinguishes a refusal from an error of the connection.
    fn answered<T>(
        &mut self,
        queue: &str,
        answer: Result<T, lapin::Error>,
    ) -> Result<Result<T, Refused>, AmqpError> {
        match answer {
            Ok(value) => Ok(Ok(value)),
            Err(error) => self.refused(&error, queue).map(Err),
        }
    }

    /// Classifies an error as a refusal, which closed only this channel, or as fatal for
    /// the connection.
    ///
    /// # Errors
    ///
    /// [`AmqpError::NodeDown`] also has the code 404, but is no refusal: nothing is known
    /// of the queue. Otherwise, the error of the connection.
    pub fn refused(&mut self, error: &lapin::Error, queue: &str) -> Result<Refused, AmqpError> {
        self.raw = None;
        let code = refusal_code(error);
        let error = AmqpError::operating(error, queue);
        match code {
            Some(404) if matches!(error, AmqpError::NodeDown { .. }) => {}
            Some(code @ 403..=406) => return Ok(Refused { code, error }),
            // The same as a 405 of RabbitMQ, except that it ended the connection.
            Some(530) if matches!(error, AmqpError::IncompatibleQueue { .. }) => {
                self.connection.kill();
                return Ok(Refused { code: 405, error });
            }
            _ => {}
        }
        Err(self.connection.found(error))
    }

    /// Declares a queue. An existing queue with other arguments results in
    /// [`AmqpError::IncompatibleQueue`].
    pub async fn declare(
        &mut self,
        name: &str,
        options: QueueDeclareOptions,
        arguments: FieldTable,
    ) -> Result<(), AmqpError> {
        let raw = self.raw().await?;
        self.declares += 1;
        let arguments = self.connection.features.arguments(arguments);
        let declaring = raw.queue_declare(short(name)?, options, arguments);
        self.answer("to queue.declare", name, declaring).await?.map_err(|r| r.error).map(|_| ())
    }

    /// Deletes the queue `name` with any arguments, and waits for delete-ok. A queue that
    /// is exclusive to another connection results in [`AmqpError::IncompatibleQueue`]
    /// and stays.
    pub async fn delete(&mut self, name: &str) -> Result<(), AmqpError> {
        let raw = self.raw().await?;
        let deleting = raw.queue_delete(short(name)?, QueueDeleteOptions::default());
        match self.answer("to queue.delete", name, deleting).await? {
            Ok(_) => Ok(()),
            Err(Refused { code: 404, .. })
                if self.connection.features.reports_missing_at_delete() =>
            {
                Ok(())
            }
            Err(refused) => Err(refused.error),
        }
    }

    /// Declares `name` exclusive to this connection.
    pub async fn declare_exclusive(
        &mut self,
        name: &str,
        arguments: FieldTable,
    ) -> Result<Declared, AmqpError> {
        let raw = self.raw().await?;
        self.declares += 1;
        let arguments = self.connection.features.exclusive_arguments(arguments);
        let declaring =
            raw.queue_declare(short(name)?, QueueDeclareOptions::exclusive(), arguments);
        match self.answer_to_claim(name, declaring).await? {
            Ok(_) => Ok(Declared::Ok),
            Err(Refused { code: 405, .. }) => Ok(Declared::Locked),
            Err(refused) => Err(refused.error),
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let Some(raw) = self.raw.take() else { return };
        if !raw.status().connected() || !self.connection.is_usable() {
            return;
        }
        if self.busy {
            close_when_answered(&self.connection.abandoned, raw, self.limit);
        } else if !self.pinned && self.declares < MAX_DECLARES {
            self.connection.idle.push(raw, self.declares);
        }
    }
}

/// Closes the channel of an abandoned operation, but not before the broker has answered. A
/// refusal closes the channel too. If both sides close it at once, lapin 4.12 closes the
/// connection and everything held on it: it finds the channel closed when it is about to
/// confirm the broker's close (hazard A48).
fn close_when_answered(abandoned: &TaskTracker, raw: lapin::Channel, limit: Duration) {
    let Ok(runtime) = Handle::try_current() else { return };
    let closing = async move {
        // Answered after the abandoned operation, and without an effect on this channel.
        let after = raw.basic_qos(0, BasicQosOptions::default());
        let _ = tokio::time::timeout(limit, after).await;
    };
    abandoned.spawn_on(closing, &runtime);
}

/// A refusal that closed only the channel.
pub struct Refused {
    /// The reply code, 403 to 406.
    pub code: u16,
    /// The same as an error.
    pub error: AmqpError,
}

/// Converts a queue name for the wire. Its maximum is 255 bytes.
pub fn short(name: &str) -> Result<ShortString, AmqpError> {
    ShortString::try_new(name)
        .map_err(|_| AmqpError::Protocol { why: "a queue name over 255 bytes".to_owned() })
}
