//! The store: one database of one Redis server, and what an administrator does
//! to the queues in it. Which of these to do is decided elsewhere.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Pipeline, RedisError, Script, ScriptInvocation};
use tokio::time::Instant;

use super::connection::{Link, StoreOptions};
use super::reply::{Observation, StoreIdentity, Verdict, queue_seen};
use super::{StoreError, scripts};
use crate::plan::connection::RedisSettings;
use crate::plan::naming::QueueName;
use crate::plan::pressure_queue::{QueueEffect, QueueSeen};

/// One database of one Redis server. Cheap to clone; the clones share one
/// connection, which is opened when it is first needed and again after it
/// broke.
///
/// # Cancel safety
///
/// Every method may be dropped at any moment. A change that was under way may
/// then have happened or not; each of them may be repeated.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    link: Link,
    /// Queues being deleted in which a role is neither free nor was ever taken,
    /// and since when we know.
    nameless: Mutex<HashMap<QueueName, Instant>>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(self.0.link.settings()).finish()
    }
}

/// What became of an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It was carried out.
    Done,
    /// There was nothing left to do.
    AlreadySo,
    /// The queue does not exist (any more): observe again.
    Absent,
    /// Not created, because keys of an unfinished deletion are there.
    Residue {
        /// Suffixes of the keys.
        keys: Vec<String>,
    },
    /// Not closed, because a producer holds its role. Nothing was changed.
    ProducerBusy {
        /// The producer, if it said who it is.
        who: Option<String>,
    },
}

/// A role that is not free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Who took it, if it said so.
    pub id: Option<String>,
}

/// How far a deletion is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// Nothing of the queue is left.
    Gone,
    /// The deletion has begun, and ends when these roles are given back; call
    /// again. A client that was woken by it needs milliseconds; one that died
    /// with its role never gives it back.
    WaitingFor {
        /// The producer, if it holds its role.
        producer: Option<Holder>,
        /// The consumer, if it holds its role.
        consumer: Option<Holder>,
    },
    /// Not begun, because the queue has elements
    /// ([`Store::delete_if_empty`] only).
    NotEmpty {
        /// How many.
        length: u64,
    },
}

impl Store {
    /// A store at this server and database. Does no I/O.
    #[must_use]
    pub fn new(settings: RedisSettings, options: StoreOptions) -> Self {
        let link = Link::new(settings, options);
        Self(Arc::new(Inner { link, nameless: Mutex::default() }))
    }

    /// Which server this is. Where the ACL forbids `INFO` the identity is empty,
    /// and that is no error.
    pub async fn identity(&self) -> Result<StoreIdentity, StoreError> {
        self.identity_of(None).await
    }

    /// Whether both are the same database of the same server process, at whatever address;
    /// where the ACL forbids `INFO`, it is not known to be. Cancel safe.
    pub async fn is_same_as(&self, other: &Self) -> Result<bool, StoreError> {
        if self.settings().database != other.settings().database {
            return Ok(false);
        }
        let (ours, theirs) = futures::try_join!(self.identity(), other.identity())?;
        Ok(ours.run_id.is_some() && ours.run_id == theirs.run_id)
    }

    /// Which server has the queue; without a queue, any of a cluster.
    pub(super) async fn identity_of(
        &self,
        queue: Option<&QueueName>,
    ) -> Result<StoreIdentity, StoreError> {
        match self.command(queue, redis::cmd("INFO")).await {
            Ok::<String, _>(info) => Ok(StoreIdentity::from_info(&info)),
            Err(StoreError::PermissionDenied { .. } | StoreError::Protocol { .. }) => {
                Ok(StoreIdentity::default())
            }
            Err(err) => Err(err),
        }
    }

    /// Runs a command that only reads, on the server that has the queue; without a
    /// queue, on any of a cluster.
    pub(super) async fn command<T: FromRedisValue>(
        &self,
        queue: Option<&QueueName>,
        command: redis::Cmd,
    ) -> Result<T, StoreError> {
        let command = &command;
        let send = |mut connection| async move { command.query_async(&mut connection).await };
        self.0.link.run(queue, true, send).await
    }

    /// Reads all of a queue at one moment. Changes nothing; a key of a wrong
    /// type is part of the answer, not an error.
    pub async fn observe(&self, queue: &QueueName) -> Result<QueueSeen, StoreError> {
        queue_seen(self.observation(queue).await?)
    }

    /// What `observe.lua` replies, as it came.
    pub(super) async fn observation(&self, queue: &QueueName) -> Result<Observation, StoreError> {
        let mut call = scripts::OBSERVE.prepare_invoke();
        call.key(scripts::keys(queue));
        let call = &call;
        let send = |mut connection| async move { call.invoke_async(&mut connection).await };
        self.0.link.run(Some(queue), true, send).await
    }

    /// Carries one effect out, in one script; see [`Applied`] for what can come
    /// of it. May be repeated, also when an earlier answer was lost.
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
                let client_id = self.0.link.options().client_id.clone();
                self.change(&scripts::CLOSE, queue, &client_id).await?
            }
        };
        match verdict.word.as_str() {
            "done" => Ok(Applied::Done),
            "already" => Ok(Applied::AlreadySo),
            "absent" => Ok(Applied::Absent),
            "residue" => Ok(Applied::Residue { keys: verdict.labels() }),
            "busy" => Ok(Applied::ProducerBusy { who: verdict.text(0) }),
            _ => Err(verdict.into_error(&queue.data())),
        }
    }

    /// Takes the deletion of a queue with its data one step further; to be
    /// called until it is [`Deletion::Gone`], by this store or another one: the
    /// keys themselves tell how far it is. A queue of which nothing exists is
    /// gone.
    ///
    /// The first step makes the queue unknown to new clients and wakes those
    /// that wait. A producer that waited for room puts its element as the
    /// protocol says, reports success and gives its role back; the element goes
    /// with the queue. The last step comes when both roles are free at the same
    /// moment: whoever holds one will still write keys.
    ///
    /// A role that is not free although nobody ever took it is that of a queue
    /// half created, or of another client's deletion that was given up. It
    /// counts as gone once it was seen so for
    /// [`StoreOptions::nameless_role_grace`].
    ///
    /// `force` wakes who waits, and removes every key at once, whoever works on
    /// the queue: for roles whose holders are dead. A living one would leave keys
    /// behind (call again), or sleep on a key that is gone.
    ///
    /// What no deletion can help: a client that checked `:bound` just before and
    /// starts to wait for a role just after the last step sleeps, and wakes in
    /// the next queue of that name.
    pub async fn delete(&self, queue: &QueueName, force: bool) -> Result<Deletion, StoreError> {
        self.delete_step(queue, if force { "force" } else { "ordinary" }).await
    }

    /// As [`Self::delete`] without force, but does not begin while the queue has
    /// elements; in the same step, so that no element falls between the check
    /// and the deletion. A deletion that has begun is carried on in any case.
    pub async fn delete_if_empty(&self, queue: &QueueName) -> Result<Deletion, StoreError> {
        self.delete_step(queue, "if-empty").await
    }

    async fn delete_step(&self, queue: &QueueName, mode: &str) -> Result<Deletion, StoreError> {
        let mode =
            if mode != "force" && self.is_nameless_for_long(queue) { "nameless" } else { mode };
        let mut verdict = self.change(&scripts::DELETE, queue, mode).await?;
        if verdict.word == "begun" {
            // Redis serves those who wait between two scripts, never within one.
            verdict = self.change(&scripts::DELETE, queue, mode).await?;
        }
        let states = (verdict.text(0), verdict.text(2));
        let is_nameless = verdict.word == "waiting"
            && [&states.0, &states.1].iter().any(|state| state.as_deref() == Some("nameless"));
        self.remember_nameless(queue, is_nameless);
        match verdict.word.as_str() {
            "gone" => Ok(Deletion::Gone),
            "not-empty" => Ok(Deletion::NotEmpty { length: verdict.number(0).unwrap_or_default() }),
            "waiting" => {
                let holder = |state: Option<String>, id| {
                    (state.as_deref() != Some("free")).then_some(Holder { id })
                };
                Ok(Deletion::WaitingFor {
                    producer: holder(states.0, verdict.text(1)),
                    consumer: holder(states.1, verdict.text(3)),
                })
            }
            _ => Err(verdict.into_error(&queue.data())),
        }
    }

    fn is_nameless_for_long(&self, queue: &QueueName) -> bool {
        let nameless = self.0.nameless.lock().unwrap_or_else(PoisonError::into_inner);
        nameless
            .get(queue)
            .is_some_and(|since| since.elapsed() >= self.0.link.options().nameless_role_grace)
    }

    fn remember_nameless(&self, queue: &QueueName, is_nameless: bool) {
        let mut nameless = self.0.nameless.lock().unwrap_or_else(PoisonError::into_inner);
        if is_nameless {
            nameless.entry(queue.clone()).or_insert_with(Instant::now);
        } else {
            nameless.remove(queue);
        }
    }

    /// Where the store is.
    pub(super) fn settings(&self) -> &RedisSettings {
        self.0.link.settings()
    }

    /// The number of the attempt that made the connection that is open, if any.
    pub(super) fn attempt(&self, queue: &QueueName) -> Option<u64> {
        self.0.link.attempt(queue)
    }

    /// Another connection to the queue's server, for commands that are answered
    /// after `patience` at the latest.
    pub(super) async fn open_waiting(
        &self,
        queue: &QueueName,
        patience: Duration,
    ) -> Result<MultiplexedConnection, StoreError> {
        self.0.link.open(queue, patience).await
    }

    /// Runs a queue's script, once: whether it happened is unknown after a failure
    /// of the connection.
    pub(super) async fn ask(
        &self,
        queue: &QueueName,
        call: &ScriptInvocation<'_>,
    ) -> Result<Verdict, StoreError> {
        let send = |mut connection| async move { call.invoke_async(&mut connection).await };
        self.0.link.run(Some(queue), false, send).await
    }

    /// Runs a transaction on a queue whose last command is a script, once: whether
    /// it happened is unknown after a failure of the connection.
    pub(super) async fn transact(
        &self,
        queue: &QueueName,
        transaction: &Pipeline,
    ) -> Result<Verdict, StoreError> {
        let send = |mut connection| async move {
            transaction.query_async(&mut connection).await.map_err(first_refusal)
        };
        self.0.link.run(Some(queue), false, send).await.map(|(verdict,)| verdict)
    }

    /// Runs a script that changes something, once: whether it happened is
    /// unknown after a failure of the connection, and the caller, who reports
    /// what was done, observes again.
    async fn change(
        &self,
        script: &Script,
        queue: &QueueName,
        argument: &str,
    ) -> Result<Verdict, StoreError> {
        let mut call = script.prepare_invoke();
        call.key(scripts::keys(queue)).arg(argument);
        self.ask(queue, &call).await
    }
}

/// Why a transaction was not carried out: what the server said to the first of its
/// commands that it refused.
fn first_refusal(error: RedisError) -> RedisError {
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
        drop(send(store.delete(&queue, false)));
        assert_eq!(format!("{store:?}"), "Store(redis://u@h:1/2)");
    }
}
