//! Finds out which protocol the queues of a lock's name belong to. The protocols with
//! numbered slots share the slot queues `A[i]`, and hold a slot by a queue of their own.
//! Tokens have another queue. Clients of two protocols would hold the lock at the same time
//! without noticing.

use std::collections::BTreeSet;

use lockkeeper_amqp::probe::{ProbeContext, Prober};
use lockkeeper_plan::naming::{LockName, Profile, Protocol};
use lockkeeper_plan::semaphore::DEFAULT_OVERSHOOT;

use crate::error::BrokerError;
use crate::session::access::Access;

const QUEUE: Protocol = Protocol::ExclusiveQueue(Profile::Guideline);
const PYTHON: Protocol = Protocol::ExclusiveQueue(Profile::AmqpLocksPython);

/// Number of slots that are probed where it is unknown how many there may be.
const WINDOW: u32 = DEFAULT_OVERSHOOT;

/// Whether a lock exists on the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Presence {
    /// No queue of the lock exists.
    Absent,
    /// No queue of the lock exists except the admin mutex: an administrator creates or
    /// removes it right now, or a client holds the true mutex of that name.
    Changing,
    /// The lock exists, and has no slot that a client may take.
    Closed,
    /// The lock exists.
    Open,
}

/// Queues of slots, of whatever protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// `N-i-A`, of both protocols with the names of the guideline.
    Slot,
    /// `N-i-B`, of `ExclusiveQueue`.
    Queue,
    /// `N-i-C`, of `ExclusiveConsumer`.
    Consumer,
    /// `N-A-1` of profile `AmqpLocksPython`.
    Python,
}

use Part::{Consumer, Python, Queue, Slot};

impl Part {
    fn name(self, lock: &LockName, slot: u32) -> String {
        let of = |protocol| lock.clone().with_protocol(protocol);
        match self {
            Slot => of(QUEUE).slot_queue(slot),
            Queue => of(QUEUE).holder_queue(slot),
            Consumer => of(Protocol::ExclusiveConsumer).holder_queue(slot),
            Python => of(PYTHON).slot_queue(1),
        }
    }
}

/// The lowest slot that has a queue of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Marks {
    slot: Option<u32>,
    queue: Option<u32>,
    consumer: Option<u32>,
    python: Option<u32>,
}

impl Marks {
    /// Returns the queue that belongs to another protocol, its slot, and that protocol.
    fn foreign(&self, own: Protocol) -> Option<(Part, u32, &'static str)> {
        let consumer = self.consumer.map(|slot| (Consumer, slot, "ExclusiveConsumer"));
        let queue = self.queue.map(|slot| (Queue, slot, "ExclusiveQueue"));
        // `ExclusiveConsumer` declares `C[i]` before `A[i]`, and deletes it after `A[i]`.
        let slot = self.slot.filter(|_| self.consumer.is_none());
        let slot = slot.map(|slot| (Slot, slot, "ExclusiveQueue"));
        let python =
            self.python.map(|slot| (Python, slot, "ExclusiveQueue with profile AmqpLocksPython"));
        match own {
            // The other profile is no other protocol: it has queues of its own.
            Protocol::ExclusiveQueue(_) => consumer,
            Protocol::ExclusiveConsumer => queue.or(slot).or(python),
            Protocol::Token(_) => consumer.or(slot).or(queue).or(python),
            Protocol::TrueMutex => None,
        }
    }
}

/// The lock's name, as one protocol sees it.
struct Names<'a> {
    context: ProbeContext<'a>,
    lock: &'a LockName,
}

impl Names<'_> {
    /// Probes these queues of these slots, in one batch.
    async fn marks(
        &self,
        parts: &[Part],
        slots: impl Iterator<Item = u32> + Clone,
    ) -> Result<Marks, BrokerError> {
        let mut asked = Vec::new();
        for &part in parts {
            let slots = slots.clone().filter(|slot| part != Python || *slot == 1);
            asked.extend(slots.map(|slot| (part, slot)));
        }
        let names: Vec<String> =
            asked.iter().map(|(part, slot)| part.name(self.lock, *slot)).collect();
        let exist = self.context.prober.exist(&names).await?;
        let first = |part| {
            let mut found = asked.iter().zip(&exist).filter(|((of, _), is)| *of == part && **is);
            found.next().map(|((_, slot), _)| *slot)
        };
        Ok(Marks {
            slot: first(Slot),
            queue: first(Queue),
            consumer: first(Consumer),
            python: first(Python),
        })
    }

    async fn exists(&self, queue: &str) -> Result<bool, BrokerError> {
        Ok(self.context.connection.publisher().await?.look(queue).await?.is_some())
    }

    /// Whether the token queue exists. Not by a publish, which would be a token.
    async fn has_tokens(&self) -> Result<bool, BrokerError> {
        self.exists(&self.lock.token_queue()).await
    }

    async fn has_wait_queue(&self) -> Result<bool, BrokerError> {
        match self.lock.clone().with_protocol(QUEUE).wait_queue() {
            Some(queue) => self.exists(&queue).await,
            None => Ok(false),
        }
    }

    fn of_tokens(&self) -> BrokerError {
        BrokerError::ProtocolMismatch { queue: self.lock.token_queue(), protocol: "Token" }
    }

    /// The error for a lock with 0 slots.
    fn of_closed_slots(&self) -> BrokerError {
        let queue = self.lock.clone().with_protocol(QUEUE).wait_queue().unwrap_or_default();
        BrokerError::ProtocolMismatch { queue, protocol: "ExclusiveQueue or ExclusiveConsumer" }
    }

    /// Returns an error if a queue belongs to another protocol. That `C[i]` is missing is
    /// asked again: its node may be down, or an administrator may be at work.
    async fn refuse(&self, marks: &Marks) -> Result<(), BrokerError> {
        let Some((part, slot, protocol)) = marks.foreign(self.lock.protocol()) else {
            return Ok(());
        };
        let queue = part.name(self.lock, slot);
        if part == Slot && self.lock.protocol() == Protocol::ExclusiveConsumer {
            let holders = Consumer.name(self.lock, slot);
            if self.exists(&holders).await? || !self.exists(&queue).await? {
                return Ok(());
            }
        }
        Err(BrokerError::ProtocolMismatch { queue, protocol })
    }
}

/// Verifies that this slot, which a client takes, belongs to no other protocol. With
/// protocol `ExclusiveQueue`, it may not have the holder queue of `ExclusiveConsumer`. With
/// `ExclusiveConsumer`, it may not be held by a `B[i]`. One probe. Cancel safe.
pub async fn check_slot(prober: &Prober, lock: &LockName, slot: u32) -> Result<(), BrokerError> {
    let part = match lock.protocol() {
        QUEUE => Consumer,
        Protocol::ExclusiveConsumer => Queue,
        // Their slot queues differ from those of the other protocols.
        PYTHON | Protocol::Token(_) | Protocol::TrueMutex => return Ok(()),
    };
    let queue = part.name(lock, slot);
    if !prober.exist(std::slice::from_ref(&queue)).await?.contains(&true) {
        return Ok(());
    }
    let protocol = if part == Consumer { "ExclusiveConsumer" } else { "ExclusiveQueue" };
    Err(BrokerError::ProtocolMismatch { queue, protocol })
}

/// Returns whether the lock exists, without the admin mutex. `slot` is 1, or a slot that
/// was not found as expected. Cancel safe.
///
/// # Errors
///
/// [`BrokerError::ProtocolMismatch`] if the lock is one of another protocol.
pub async fn find(
    context: ProbeContext<'_>,
    lock: &LockName,
    slot: u32,
) -> Result<Presence, BrokerError> {
    let (own, names) = (lock.protocol(), Names { context, lock });
    let is_token = match own {
        Protocol::TrueMutex => return Ok(Presence::Open),
        Protocol::Token(_) if names.has_tokens().await? => return Ok(Presence::Open),
        Protocol::Token(_) => true,
        Protocol::ExclusiveQueue(_) | Protocol::ExclusiveConsumer => false,
    };
    let all = [Slot, Queue, Consumer, Python];
    let marks = match own {
        Protocol::ExclusiveQueue(_) => names.marks(&all, 1..=1).await?,
        // Publishes nothing to the holders of a healthy lock.
        Protocol::ExclusiveConsumer
            if names.exists(&Consumer.name(lock, slot)).await?
                && names.exists(&Slot.name(lock, slot)).await? =>
        {
            let slot = Some(slot);
            Marks { slot, consumer: slot, ..names.marks(&[Queue, Python], 1..=1).await? }
        }
        _ => names.marks(&all, 1..=WINDOW).await?,
    };
    if marks.foreign(own).is_some() {
        if names.exists(lock.admin_mutex()).await? {
            // Perhaps another protocol's administrator removes it, or this one's creates it.
            return Ok(Presence::Changing);
        }
        names.refuse(&marks).await?;
    }
    let slot = if own == PYTHON { marks.python } else { marks.slot };
    if slot.is_some() {
        return Ok(Presence::Open);
    }
    if !is_token && names.has_tokens().await? {
        return Err(names.of_tokens());
    }
    // Also held slots of a lock that was removed.
    let has_holders = marks.queue.or(marks.consumer).is_some();
    Ok(if own != PYTHON && (has_holders || names.has_wait_queue().await?) {
        if is_token {
            return Err(names.of_closed_slots());
        }
        Presence::Closed
    } else if names.exists(lock.admin_mutex()).await? {
        Presence::Changing
    } else {
        Presence::Absent
    })
}

/// Verifies that a lock that is about to be changed, or was observed, is not one of another
/// protocol, not even in part. `existing` are its slot queues, and `to` the highest slot
/// that has or will have a queue.
///
/// # Errors
///
/// [`BrokerError::ProtocolMismatch`], with the queue that proves it.
pub async fn check(
    access: &Access,
    lock: &LockName,
    existing: &BTreeSet<u32>,
    to: u32,
) -> Result<(), BrokerError> {
    if lock.protocol() == Protocol::TrueMutex {
        return Ok(());
    }
    let names = Names { context: access.probe_context(), lock };
    let marks = marks_around(access, &names, existing, to).await?;
    names.refuse(&marks).await?;
    match lock.protocol() {
        Protocol::Token(_) if names.has_wait_queue().await? => Err(names.of_closed_slots()),
        Protocol::Token(_) => Ok(()),
        _ if names.has_tokens().await? => Err(names.of_tokens()),
        _ => Ok(()),
    }
}

/// The same for a lock that is about to be removed. Its own part is removed even if there
/// is another one of another protocol, which stays. A lock without a part of its own is not
/// touched.
pub async fn check_removal(
    access: &Access,
    lock: &LockName,
    existing: &BTreeSet<u32>,
    to: u32,
) -> Result<(), BrokerError> {
    let own = lock.protocol();
    let names = Names { context: access.probe_context(), lock };
    if matches!(own, Protocol::Token(_)) && names.has_tokens().await? {
        return Ok(());
    }
    let marks = marks_around(access, &names, existing, to).await?;
    let is_own = match own {
        // These belong to the other protocol: its holders would lose their slot queues.
        QUEUE => !existing.is_empty() && marks.consumer.is_none(),
        Protocol::ExclusiveConsumer => marks.consumer.is_some(),
        PYTHON => !existing.is_empty(),
        Protocol::Token(_) | Protocol::TrueMutex => false,
    };
    if is_own {
        return Ok(());
    }
    names.refuse(&marks).await?;
    match own {
        Protocol::Token(_) if names.has_wait_queue().await? => Err(names.of_closed_slots()),
        Protocol::Token(_) => Ok(()),
        _ if names.has_tokens().await? && !names.has_wait_queue().await? => Err(names.of_tokens()),
        _ => Ok(()),
    }
}

/// Probes what can belong to another protocol. Publishes nothing to the holders of a healthy
/// lock, who would verify their slots.
async fn marks_around(
    access: &Access,
    names: &Names<'_>,
    existing: &BTreeSet<u32>,
    to: u32,
) -> Result<Marks, BrokerError> {
    let slot = existing.first().copied();
    let to = to.max(1);
    Ok(match names.lock.protocol() {
        QUEUE => Marks { slot, ..names.marks(&[Consumer, Python], 1..=to).await? },
        Protocol::ExclusiveConsumer => {
            let holders: Vec<String> =
                existing.iter().map(|slot| Consumer.name(names.lock, *slot)).collect();
            let is_whole = slot.is_some() && access.all_exist(&holders).await?;
            let parts = if is_whole { &[Queue, Python][..] } else { &[Queue, Python, Consumer] };
            let marks = names.marks(parts, 1..=to).await?;
            Marks { slot, consumer: marks.consumer.or(slot.filter(|_| is_whole)), ..marks }
        }
        PYTHON => names.marks(&[Consumer], 1..=WINDOW).await?,
        Protocol::Token(_) => {
            // Who administers tokens publishes nothing but tokens, as long as nothing shows
            // slots.
            let listed = match &access.management {
                Some(management) => access.listing.recent(management).await,
                None => None,
            };
            let shows = listed.is_some_and(|listed| listed.shows_another_protocol(names.lock));
            if shows || names.exists(&Slot.name(names.lock, 1)).await? {
                names.marks(&[Slot, Queue, Consumer, Python], 1..=WINDOW).await?
            } else {
                Marks::default()
            }
        }
        Protocol::TrueMutex => Marks::default(),
    })
}

#[cfg(test)]
mod tests {
    use lockkeeper_plan::naming::QueueType;

    use super::*;

    #[test]
    fn the_queues_of_a_name_show_which_protocol_they_belong_to() {
        let none = Marks::default();
        let queue = Marks { slot: Some(1), ..none };
        let held = Marks { queue: Some(2), ..queue };
        let drained = Marks { queue: Some(3), ..none };
        let consumer = Marks { slot: Some(1), consumer: Some(1), ..none };
        let left = Marks { consumer: Some(2), ..none };
        let both = Marks { queue: Some(1), ..consumer };
        let python = Marks { python: Some(1), ..none };
        let of = |marks: Marks, own| marks.foreign(own).map(|(part, slot, _)| (part, slot));
        for (marks, by_queue, by_consumer, by_token) in [
            (none, None, None, None),
            (queue, None, Some((Slot, 1)), Some((Slot, 1))),
            (held, None, Some((Queue, 2)), Some((Slot, 1))),
            (drained, None, Some((Queue, 3)), Some((Queue, 3))),
            (consumer, Some((Consumer, 1)), None, Some((Consumer, 1))),
            (left, Some((Consumer, 2)), None, Some((Consumer, 2))),
            (both, Some((Consumer, 1)), Some((Queue, 1)), Some((Consumer, 1))),
            (python, None, Some((Python, 1)), Some((Python, 1))),
        ] {
            assert_eq!(of(marks, QUEUE), by_queue, "{marks:?}");
            assert_eq!(of(marks, PYTHON), by_queue, "{marks:?}");
            assert_eq!(of(marks, Protocol::ExclusiveConsumer), by_consumer, "{marks:?}");
            assert_eq!(of(marks, Protocol::Token(QueueType::Classic)), by_token, "{marks:?}");
            assert_eq!(of(marks, Protocol::TrueMutex), None);
        }
    }
}
