//! The store: one database of one Redis server, and the administration of its queues. See
//! [`lockkeeper_plan::pressure_queue`] for the decisions.

mod deletion;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_plan::connection::RedisSettings;
use lockkeeper_plan::naming::QueueName;
use lockkeeper_plan::pressure_queue::{Applied, ObservedQueue, QueueEffect};
use redis::{FromRedisValue, Pipeline, RedisError};
use tokio::time::Instant;

pub use self::deletion::{Deletion, Holder, Removed, TakenRoles};
pub(super) use self::deletion::{Start, Step};
use super::connection::{Connection, ConnectionPool, StoreOptions};
use super::doctor_state::DoctorState;
use super::reply::{Observation, Verdict, queue_seen};
use super::scripts::{Call, Script};
use super::{StoreError, scripts};

/// One database of one Redis server. Cheap to clone. The clones share one connection,
/// which is opened on first use and reopened after a loss.
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_client::pressure::{Deletion, QueueEffect, TakenRoles};
/// use lockkeeper_client::{QueueName, RedisSettings, Store, StoreOptions};
///
/// let settings = RedisSettings::from_url("redis://:secret@redis:6379/0")?;
/// let store = Store::new(settings, StoreOptions::new("queue-admin"));
/// let frames = QueueName::new("__pressure__", "frames")?;
///
/// store.apply(&frames, &QueueEffect::Create { bound: 10 }).await?;
/// store.apply(&frames, &QueueEffect::SetBound { bound: 50 }).await?;
/// let seen = store.observe(&frames).await?;
/// println!("{} of {:?} elements", seen.length, seen.bound);
/// while store.delete(&frames, TakenRoles::Wait).await? != Deletion::Gone {
///     tokio::time::sleep(std::time::Duration::from_millis(100)).await;
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
///
/// Every method may be dropped at any time. A change in progress may then have happened
/// or not. Each change may be repeated.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    pool: ConnectionPool,
    /// Queues in deletion with a role that is neither free nor was ever taken, and since
    /// when that is known.
    nameless: Mutex<HashMap<QueueName, Instant>>,
    doctors: DoctorState,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(self.0.pool.settings()).finish()
    }
}

impl Store {
    /// Creates a store for this server and database. Does no I/O.
    #[must_use]
    pub fn new(settings: RedisSettings, options: StoreOptions) -> Self {
        let pool = ConnectionPool::new(settings, options);
        let (nameless, doctors) = Default::default();
        Self(Arc::new(Inner { pool, nameless, doctors }))
    }

    /// Runs a command that only reads, or may be repeated, on the server of the queue.
    /// Without a queue, runs it on any server of a cluster.
    pub(super) async fn command<T: FromRedisValue>(
        &self,
        queue: Option<&QueueName>,
        command: redis::Cmd,
    ) -> Result<T, StoreError> {
        let command = &command;
        let send = |mut connection| async move { command.query_async(&mut connection).await };
        self.0.pool.run(queue, true, send).await
    }

    /// Reads all keys of a queue at one moment. Changes nothing. A key of a wrong type is
    /// part of the result, not an error.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: the server can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn observe(&self, queue: &QueueName) -> Result<ObservedQueue, StoreError> {
        queue_seen(self.observation(queue).await?)
    }

    /// Returns the raw reply of `observe.lua`.
    pub(super) async fn observation(&self, queue: &QueueName) -> Result<Observation, StoreError> {
        let mut call = scripts::OBSERVE.prepare();
        call.key(scripts::keys(queue));
        let call = &call;
        let send = |mut connection| async move { call.run(&mut connection).await };
        self.0.pool.run(Some(queue), true, send).await
    }

    /// Applies one effect, in one script. See [`Applied`] for the results. May be
    /// repeated, also if an earlier answer was lost.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: the server can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn apply(
        &self,
        queue: &QueueName,
        effect: &QueueEffect,
    ) -> Result<Applied, StoreError> {
        let verdict = match effect {
            QueueEffect::Create { bound } => {
                self.change(&scripts::CREATE, queue, &bound.to_string()).await?
            }
            QueueEffect::SetBound { bound } => {
                self.change(&scripts::SET_BOUND, queue, &bound.to_string()).await?
            }
            QueueEffect::Close => {
                let client_id = self.0.pool.options().client_id.clone();
                self.change(&scripts::CLOSE, queue, &client_id).await?
            }
        };
        applied(verdict, queue)
    }

    /// Gives a queue that lost its `:bound` this one, 0 for none, with all that is left of
    /// the queue. Creates the queue if no key is left. A closed queue stays closed, and a
    /// role that is not free stays taken: see [`Self::doctor`].
    ///
    /// # Errors
    ///
    /// [`StoreError`]: the server can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn adopt(&self, queue: &QueueName, bound: u64) -> Result<Applied, StoreError> {
        let mut call = scripts::CREATE.prepare();
        call.key(scripts::keys(queue)).arg(bound).arg("adopt");
        applied(self.ask(queue, &call).await?, queue)
    }

    /// Returns the settings of the store.
    pub(super) fn settings(&self) -> &RedisSettings {
        self.0.pool.settings()
    }

    /// Returns the number of the attempt that opened the current connection, if there is
    /// one.
    pub(super) fn attempt(&self, queue: &QueueName) -> Option<u64> {
        self.0.pool.attempt(queue)
    }

    /// Opens another connection to the queue's server, for commands that are answered
    /// within `patience`.
    pub(super) async fn open_waiting(
        &self,
        queue: &QueueName,
        patience: Duration,
    ) -> Result<Connection, StoreError> {
        self.0.pool.open(queue, patience).await
    }

    /// Opens another connection to the queue's server, with the same response timeout as
    /// the shared one.
    pub(super) async fn open_own(&self, queue: &QueueName) -> Result<Connection, StoreError> {
        self.0.pool.open(queue, self.0.pool.options().response_timeout).await
    }

    /// Returns the state shared by the doctors of this store.
    pub(super) fn shared(&self) -> &DoctorState {
        &self.0.doctors
    }

    /// Returns when no byte has flowed to or from the queue's server for this long,
    /// counted from now at the earliest. Cancel safe.
    pub(super) async fn silence(&self, queue: &QueueName, limit: Duration) {
        self.0.pool.silence(queue, limit).await;
    }

    /// Whether the queue's server has been silent for longer than it may take to answer.
    pub(super) fn is_silent(&self, queue: &QueueName) -> bool {
        self.0.pool.is_silent(queue)
    }

    /// Runs a script on a queue that changes nothing.
    pub(super) async fn read(&self, queue: &QueueName, call: &Call) -> Result<Verdict, StoreError> {
        let send = |mut connection| async move { call.run(&mut connection).await };
        self.0.pool.run(Some(queue), true, send).await
    }

    /// Runs a script on a queue whose answer exists nowhere else, once. The answer is
    /// awaited until the connection ends.
    pub(super) async fn take(&self, queue: &QueueName, call: &Call) -> Result<Verdict, StoreError> {
        let send =
            |connection: Connection| async move { call.run(&mut connection.patient()).await };
        self.0.pool.run(Some(queue), false, send).await
    }

    /// Runs a script on a queue, once. Whether it happened is unknown after
    /// [`StoreError::Unanswered`].
    pub(super) async fn ask(&self, queue: &QueueName, call: &Call) -> Result<Verdict, StoreError> {
        let send = |mut connection| async move { call.run(&mut connection).await };
        self.0.pool.run(Some(queue), false, send).await
    }

    /// Runs a transaction on a queue whose last command is a script, once. Whether it
    /// happened is unknown after [`StoreError::Unanswered`].
    pub(super) async fn transact(
        &self,
        queue: &QueueName,
        transaction: &Pipeline,
    ) -> Result<Verdict, StoreError> {
        let send = |mut connection| async move {
            transaction.query_async(&mut connection).await.map_err(first_refusal)
        };
        self.0.pool.run(Some(queue), false, send).await.map(|(verdict,)| verdict)
    }

    /// Runs a script that changes something, once. After [`StoreError::Unanswered`] the
    /// outcome is unknown. The caller reports the result and must then observe again.
    async fn change(
        &self,
        script: &'static Script,
        queue: &QueueName,
        argument: &str,
    ) -> Result<Verdict, StoreError> {
        let mut call = script.prepare();
        call.key(scripts::keys(queue)).arg(argument);
        self.ask(queue, &call).await
    }
}

fn applied(verdict: Verdict, queue: &QueueName) -> Result<Applied, StoreError> {
    match verdict.word.as_str() {
        "done" => Ok(Applied::Done),
        "already" => Ok(Applied::AlreadySo),
        "absent" => Ok(Applied::Absent),
        "residue" => Ok(Applied::Residue { keys: verdict.labels() }),
        "busy" => Ok(Applied::ProducerBusy { who: verdict.text(0) }),
        _ => Err(verdict.into_error(&queue.data())),
    }
}

/// Returns why a transaction was not performed: the server's answer to the first command
/// that it refused.
pub(super) fn first_refusal(error: RedisError) -> RedisError {
    let refusals = error.clone().into_server_errors();
    match refusals.as_deref().and_then(<[_]>::first) {
        Some((_, refusal)) => refusal.clone().into(),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_may_run_on_any_thread_and_debug_shows_no_password() {
        fn send<T: Send>(value: T) -> T {
            value
        }
        let settings = RedisSettings::from_url("redis://u:hush@h:1/2").unwrap();
        let store = Store::new(settings, StoreOptions::new("me"));
        let queue = QueueName::new("p", "q").unwrap();
        drop(send(store.identity()));
        drop(send(store.observe(&queue)));
        drop(send(store.apply(&queue, &QueueEffect::Close)));
        drop(send(store.delete(&queue, TakenRoles::Wait)));
        assert_eq!(format!("{store:?}"), "Store(redis://u@h:1/2)");
    }
}
