//! A channel to do one operation after the other on, with a time limit on each:
//! declare, look, delete. Channels that the broker closed (405, 406: that is how
//! AMQP says no) are replaced, healthy ones are used again. What to declare and
//! when is decided by others.

mod holders;
mod looking;
mod records;
mod waiting;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lapin::Channel;
use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::connect::Conn;
use super::error::{BrokerError, refusal_code};
use crate::plan::naming::Profile;

/// Healthy channels kept open for the next use; more are closed.
const MAX_IDLE: usize = 64;

/// Declares after which a channel is closed and not used again: lapin keeps
/// every declared queue's name and arguments in its channel for as long as that
/// lives (for the recovery we never use), which would grow without end.
const MAX_DECLARES: u32 = 512;

/// How a declare ended that the broker answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Declared {
    /// The queue exists as asked.
    Ok,
    /// 405: it is exclusive to another connection, or ours would be exclusive
    /// and it isn't. The text is the broker's.
    Locked(String),
}

/// What a connection that declared `B[i]` finds when it looks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// `B[i]` is ours and `A[i]` exists.
    Held,
    /// `B[i]` is ours, `A[i]` is gone: the slot drains.
    WithoutSlot,
    /// `B[i]` is gone, or another's.
    Gone,
}

/// Channels of one connection that wait for their next use.
#[derive(Default)]
pub(super) struct IdleLanes(Mutex<Vec<(Channel, u32)>>);

/// A channel in use. On drop it goes back to the idle ones if it is healthy and
/// no operation was given up on it.
pub(super) struct Lane {
    conn: Arc<Conn>,
    channel: Option<Channel>,
    declares: u32,
    /// An operation is under way: if its future is dropped, its answer is still
    /// to come, and the channel must not be used again.
    busy: bool,
    /// Only this channel will do: no other is opened in its place.
    pinned: bool,
    limit: Duration,
}

impl Lane {
    /// A channel on `conn`, an idle one if there is one.
    pub async fn take(conn: &Arc<Conn>) -> Result<Self, BrokerError> {
        let mut lane = Self::closed(conn);
        while let Some((channel, declares)) = lane.conn.idle.pop() {
            if channel.status().connected() {
                (lane.channel, lane.declares) = (Some(channel), declares);
                return Ok(lane);
            }
        }
        lane.open().await?;
        Ok(lane)
    }

    /// A channel that nobody used before, and nobody uses after.
    pub async fn fresh(conn: &Arc<Conn>) -> Result<Self, BrokerError> {
        let mut lane = Self::closed(conn);
        lane.open().await?;
        lane.pin();
        Ok(lane)
    }

    fn closed(conn: &Arc<Conn>) -> Self {
        Self {
            conn: Arc::clone(conn),
            channel: None,
            declares: 0,
            busy: false,
            pinned: false,
            limit: conn.operation_timeout,
        }
    }

    /// Answers are waited for until then, rather than as long as usual: for whoever
    /// knows better how long there is time.
    pub fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// From here on only the channel of now is used, because something is on it.
    pub fn pin(&mut self) {
        self.pinned = true;
    }

    /// Nothing is on it any more.
    pub fn unpin(&mut self) {
        self.pinned = false;
    }

    /// The channel of now.
    pub fn current(&self) -> Option<Channel> {
        self.channel.clone()
    }

    /// Takes note of declares that are about to be sent.
    pub fn count_declares(&mut self, declares: u32) {
        self.declares = self.declares.saturating_add(declares);
    }

    /// The connection that this channel is on.
    pub fn conn(&self) -> &Arc<Conn> {
        &self.conn
    }

    async fn open(&mut self) -> Result<Channel, BrokerError> {
        let limit = self.limit;
        let opened = tokio::time::timeout(limit, self.conn.lapin().create_channel()).await;
        let channel = match opened {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => return Err(BrokerError::operating(&error, "")),
            Err(_) => return Err(self.no_answer("to a new channel", limit)),
        };
        self.channel = Some(channel.clone());
        self.declares = 0;
        Ok(channel)
    }

    /// The channel, opened if there is none that can be used.
    pub async fn channel(&mut self) -> Result<Channel, BrokerError> {
        match &self.channel {
            Some(channel)
                if channel.status().connected()
                    && (self.pinned || self.declares < MAX_DECLARES) =>
            {
                Ok(channel.clone())
            }
            _ if self.pinned => {
                Err(BrokerError::ConnectionLost { why: "its channel was closed".to_owned() })
            }
            _ => self.open().await,
        }
    }

    fn no_answer(&self, what: &'static str, after: Duration) -> BrokerError {
        // Whether it was done is unknown, and on this connection it stays so.
        let blocked = self.conn.is_blocked();
        self.conn.fail(if blocked {
            BrokerError::Blocked
        } else {
            BrokerError::Timeout { what, after }
        })
    }

    /// Waits for an operation's answer; the error is lapin's where the broker
    /// refused, so that the caller can tell the refusals apart.
    pub async fn answer<T>(
        &mut self,
        what: &'static str,
        queue: &str,
        operation: impl Future<Output = Result<T, lapin::Error>>,
    ) -> Result<Result<T, Refused>, BrokerError> {
        self.busy = true;
        let limit = self.limit;
        let answer = tokio::time::timeout(limit, operation).await;
        self.busy = false;
        match answer {
            Ok(Ok(value)) => Ok(Ok(value)),
            Ok(Err(error)) => Ok(Err(self.refused(&error, queue)?)),
            Err(_) => {
                self.channel = None;
                Err(self.no_answer(what, limit))
            }
        }
    }

    /// Sorts an error into a refusal, which closed this channel only, and what
    /// the connection doesn't survive.
    pub fn refused(&mut self, error: &lapin::Error, queue: &str) -> Result<Refused, BrokerError> {
        self.channel = None;
        let code = refusal_code(error);
        let error = BrokerError::operating(error, queue);
        if let Some(code @ 403..=406) = code {
            return Ok(Refused { code, error });
        }
        Err(if error.is_fatal_for_connection() { self.conn.fail(error) } else { error })
    }

    /// Declares the slot queue `name` as `profile` has it. One that exists with
    /// other arguments is [`BrokerError::IncompatibleQueue`].
    pub async fn declare_slot(&mut self, name: &str, profile: Profile) -> Result<(), BrokerError> {
        let (options, arguments) = slot_queue(profile);
        self.declare(name, options, arguments).await
    }

    /// Declares a queue. One that exists with other arguments is
    /// [`BrokerError::IncompatibleQueue`].
    pub async fn declare(
        &mut self,
        name: &str,
        options: QueueDeclareOptions,
        arguments: FieldTable,
    ) -> Result<(), BrokerError> {
        let channel = self.channel().await?;
        self.declares += 1;
        let declaring = channel.queue_declare(short(name)?, options, arguments);
        self.answer("to queue.declare", name, declaring).await?.map_err(|r| r.error).map(|_| ())
    }

    /// Declares slot queues that exist again, sent together, so that one with
    /// other arguments is found; which one is not told.
    pub async fn check_slots(
        &mut self,
        names: &[String],
        profile: Profile,
    ) -> Result<(), BrokerError> {
        let Some(first) = names.first() else { return Ok(()) };
        let channel = self.channel().await?;
        self.declares += u32::try_from(names.len()).unwrap_or(MAX_DECLARES);
        let mut declares = Vec::with_capacity(names.len());
        for name in names {
            let (options, arguments) = slot_queue(profile);
            declares.push(channel.queue_declare(short(name)?, options, arguments));
        }
        let all = together(declares);
        self.answer("to queue.declare", first, all).await?.map_err(|r| r.error).map(|_| ())
    }

    /// Deletes the queue `name`, whatever its arguments, and waits for the
    /// delete-ok. One that is exclusive to another connection is
    /// [`BrokerError::IncompatibleQueue`] and stays.
    pub async fn delete(&mut self, name: &str) -> Result<(), BrokerError> {
        let channel = self.channel().await?;
        let deleting = channel.queue_delete(short(name)?, QueueDeleteOptions::default());
        self.answer("to queue.delete", name, deleting).await?.map_err(|r| r.error).map(|_| ())
    }

    /// Asks the broker to delete a queue that is missing as far as we can see:
    /// a no-op, except that a queue whose node is down answers
    /// [`BrokerError::NodeDown`].
    pub async fn delete_missing(&mut self, names: &[String]) -> Result<(), BrokerError> {
        let Some(last) = names.last() else { return Ok(()) };
        let channel = self.channel().await?;
        let mut deletes = Vec::with_capacity(names.len());
        for name in names {
            // if-unused and if-empty, should it exist after all.
            let options = QueueDeleteOptions { if_unused: true, if_empty: true, nowait: false };
            deletes.push(channel.queue_delete(short(name)?, options));
        }
        let all = together(deletes);
        self.answer("to queue.delete", last, all).await?.map_err(|r| r.error).map(|_| ())
    }

    /// Declares `name` exclusive to this connection.
    pub async fn declare_exclusive(
        &mut self,
        name: &str,
        arguments: FieldTable,
    ) -> Result<Declared, BrokerError> {
        let channel = self.channel().await?;
        self.declares += 1;
        let declaring =
            channel.queue_declare(short(name)?, QueueDeclareOptions::exclusive(), arguments);
        match self.answer("to queue.declare", name, declaring).await? {
            Ok(_) => Ok(Declared::Ok),
            Err(Refused { code: 405, error }) => Ok(Declared::Locked(error.to_string())),
            Err(refused) => Err(refused.error),
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Some(channel) = self.channel.take()
            && !self.busy
            && !self.pinned
            && self.declares < MAX_DECLARES
            && channel.status().connected()
            && self.conn.is_usable()
        {
            self.conn.idle.push(channel, self.declares);
        }
    }
}

impl IdleLanes {
    fn pop(&self) -> Option<(Channel, u32)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn push(&self, channel: Channel, declares: u32) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push((channel, declares));
        }
    }
}

/// Waits for operations that are sent together on one channel: their answers, or the
/// error of the first that failed. That one was refused; those after it, which may
/// come to nothing sooner, only found the channel closing.
async fn together<T>(
    operations: impl IntoIterator<Item = impl Future<Output = Result<T, lapin::Error>>>,
) -> Result<Vec<T>, lapin::Error> {
    futures::future::join_all(operations).await.into_iter().collect()
}

/// A refusal that closed only the channel.
pub(super) struct Refused {
    /// The reply code, 403 to 406.
    pub code: u16,
    pub error: BrokerError,
}

/// How `A[i]` is declared.
fn slot_queue(profile: Profile) -> (QueueDeclareOptions, FieldTable) {
    match profile {
        Profile::Guideline => (QueueDeclareOptions::durable(), bare_arguments()),
        // Exactly so, or that library's declares are refused.
        Profile::AmqpLocksPython => (QueueDeclareOptions::default(), exclusive_arguments()),
    }
}

/// The type is named, or a virtual host whose default is quorum makes each queue
/// a Raft group.
fn classic_arguments() -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
    arguments
}

/// The arguments of the admin mutex and, before a holder's facts, of `B[i]`.
pub(super) fn exclusive_arguments() -> FieldTable {
    let mut arguments = FieldTable::default();
    exclusive(&mut arguments);
    arguments
}

/// Adds those to a holder's facts.
pub(super) fn exclusive(arguments: &mut FieldTable) {
    // Nobody publishes here but probes; without this they would pile up.
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(0));
}

/// The arguments of `A[i]` and `C[i]`: what is published there, and nobody consumes
/// at once, is gone.
pub(super) fn bare_arguments() -> FieldTable {
    let mut arguments = classic_arguments();
    exclusive(&mut arguments);
    arguments
}

/// A queue name for the wire: at most 255 bytes, which `LockName` sees to.
pub(super) fn short(name: &str) -> Result<ShortString, BrokerError> {
    ShortString::try_new(name)
        .map_err(|_| BrokerError::Protocol { why: "a queue name over 255 bytes".to_owned() })
}
