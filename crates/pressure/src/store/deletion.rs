//! The deletion of a queue, step by step. See `delete.lua` for the steps.

use std::sync::PoisonError;

use lockkeeper_plan::naming::QueueName;
use tokio::time::Instant;

use super::Store;
use crate::{StoreError, scripts};

/// The holder of a role that is not free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The holder's id, if it set one.
    pub id: Option<String>,
}

/// The progress of a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// No key of the queue is left.
    Gone,
    /// The deletion has started, and completes when these roles are released: call again.
    /// A client that it woke needs milliseconds. A client that died with its role never
    /// releases it.
    WaitingFor {
        /// The producer, if it holds its role.
        producer: Option<Holder>,
        /// The consumer, if it holds its role.
        consumer: Option<Holder>,
    },
    /// Not started, because the queue has elements ([`Store::delete_if_empty`] only).
    NotEmpty {
        /// Number of elements.
        length: u64,
    },
}

/// What a deletion removed in its last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Number of elements in the queue.
    pub elements: u64,
    /// Number of elements in flight.
    pub in_flight: u64,
}

/// How a deletion treats roles that clients hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TakenRoles {
    /// Waits until their holders have released them.
    #[default]
    Wait,
    /// Wakes waiting clients and removes every key immediately. Use it for roles whose
    /// holders are dead. A living holder would leave keys behind (delete again), or wait on
    /// a key that is gone.
    Ignore,
}

/// When a deletion starts. It continues in any case once it has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Immediately.
    Ordinary,
    /// While both roles are free.
    IfFree,
    /// While each role is free, or held by a client that waits and that the start wakes.
    IfPassing,
    /// While the queue has no elements.
    IfEmpty,
    /// Immediately, and without waiting for roles.
    Force,
}

impl Start {
    /// Returns the mode of `delete.lua`.
    fn mode(self) -> &'static str {
        match self {
            Self::Ordinary => "ordinary",
            Self::IfFree => "if-free",
            Self::IfPassing => "if-passing",
            Self::IfEmpty => "if-empty",
            Self::Force => "force",
        }
    }
}

/// The result of one step of a deletion.
pub(crate) struct Step {
    pub deletion: Deletion,
    pub removed: Removed,
    /// Whether the deletion has started, now or before.
    pub has_started: bool,
}

impl Store {
    /// Advances the deletion of a queue with its data by one step. Call it until it
    /// returns [`Deletion::Gone`], on this store or another one: the keys themselves show
    /// the progress. A queue without any key counts as gone.
    ///
    /// The first step hides the queue from new clients and wakes waiting ones. A producer
    /// that waited for room puts its element according to the protocol, reports success
    /// and releases its role. The element is deleted with the queue. The last step
    /// requires that both roles are free at the same moment, because a holder will still
    /// write keys.
    ///
    /// A role that is neither free nor was ever taken belongs to a partially created
    /// queue, or to another client's abandoned deletion. It counts as gone once it was
    /// observed so for [`StoreOptions::nameless_role_grace`](crate::StoreOptions::nameless_role_grace).
    ///
    /// One race can't be avoided: a client checks `:bound` just before the last step and
    /// starts to wait for a role just after it. It then waits until the next queue of
    /// that name is created.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: the server can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn delete(
        &self,
        queue: &QueueName,
        taken: TakenRoles,
    ) -> Result<Deletion, StoreError> {
        let start = match taken {
            TakenRoles::Wait => Start::Ordinary,
            TakenRoles::Ignore => Start::Force,
        };
        Ok(self.delete_step(queue, start).await?.deletion)
    }

    /// Like [`Self::delete`] with [`TakenRoles::Wait`], but does not start while the queue has
    /// elements. The check is part of the first step, so that no element can arrive in
    /// between. A deletion that has started continues in any case.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: the server can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn delete_if_empty(&self, queue: &QueueName) -> Result<Deletion, StoreError> {
        Ok(self.delete_step(queue, Start::IfEmpty).await?.deletion)
    }

    /// Advances a deletion by one step.
    pub(crate) async fn delete_step(
        &self,
        queue: &QueueName,
        start: Start,
    ) -> Result<Step, StoreError> {
        let is_nameless = start != Start::Force && self.is_nameless_for_long(queue);
        let mode = if is_nameless { "nameless" } else { start.mode() };
        let mut verdict = self.change(&scripts::DELETE, queue, mode).await?;
        if verdict.word == "begun" {
            // Redis serves waiting clients between two scripts, never within one.
            verdict = self.change(&scripts::DELETE, queue, mode).await?;
        }
        let states = (verdict.text(0), verdict.text(2));
        let is_nameless = verdict.word == "waiting"
            && [&states.0, &states.1].iter().any(|state| state.as_deref() == Some("nameless"));
        self.remember_nameless(queue, is_nameless);
        let number = |index| verdict.number(index).unwrap_or_default();
        let mut removed = Removed::default();
        let deletion = match verdict.word.as_str() {
            "gone" => {
                removed = Removed { elements: number(0), in_flight: number(1) };
                Deletion::Gone
            }
            "not-empty" => Deletion::NotEmpty { length: number(0) },
            "waiting" | "busy" => {
                let holder = |state: Option<String>, id| {
                    (state.as_deref() != Some("free")).then_some(Holder { id })
                };
                Deletion::WaitingFor {
                    producer: holder(states.0, verdict.text(1)),
                    consumer: holder(states.1, verdict.text(3)),
                }
            }
            _ => return Err(verdict.into_error(&queue.data())),
        };
        let has_started = matches!(verdict.word.as_str(), "gone" | "waiting");
        Ok(Step { deletion, removed, has_started })
    }

    fn is_nameless_for_long(&self, queue: &QueueName) -> bool {
        let nameless = self.0.nameless.lock().unwrap_or_else(PoisonError::into_inner);
        nameless
            .get(queue)
            .is_some_and(|since| since.elapsed() >= self.0.pool.options().nameless_role_grace)
    }

    fn remember_nameless(&self, queue: &QueueName, is_nameless: bool) {
        let mut nameless = self.0.nameless.lock().unwrap_or_else(PoisonError::into_inner);
        if is_nameless {
            nameless.entry(queue.clone()).or_insert_with(Instant::now);
        } else {
            nameless.remove(queue);
        }
    }
}
