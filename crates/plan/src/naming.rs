//! The names of a lock or a queue on its server, and which names are rejected. Only this
//! module maps a slot number to a queue name or a part of a pressure queue to a Redis
//! key. This file is about locks; see `queue` for queues.

mod queue;
mod rules;
mod unit;

use std::fmt;

pub use self::queue::{DEFAULT_PREFIX, KEY_SUFFIXES, QueueName};
use self::rules::check_common;
pub use self::rules::{MAX_NAME_BYTES, NameError};
pub use self::unit::Unit;

/// Maximum number of slots of a semaphore.
pub const MAX_SLOTS: u32 = 10_000;

/// How a semaphore's queues are named, and whether they survive a restart of the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Profile {
    /// The source document's: `N-i-A`, durable.
    #[default]
    Guideline,
    /// That of the library amqp-locks-python: `N-A-i`, not durable. It has neither slot
    /// records nor a wait queue.
    AmqpLocksPython,
}

/// The type of the queue that contains the tokens, in protocol Token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QueueType {
    /// As the clients of the RabbitMQ blog declare it: durable, without arguments.
    #[default]
    Classic,
    /// Replicated, with a delivery count per token (fencing). The declares of those
    /// clients are refused.
    Quorum,
}

/// How a holder holds a slot, and which queues show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// By an exclusive queue `B[i]` (source document "persistent semaphore").
    ExclusiveQueue(Profile),
    /// By an exclusive consumer of a queue `C[i]`. The broker notifies the holder of its
    /// loss.
    ExclusiveConsumer,
    /// By an unacknowledged message (RabbitMQ blog, "Distributed Semaphores with
    /// RabbitMQ"). The lock has tokens instead of slots, and the broker delivers them to
    /// the waiters.
    Token(QueueType),
    /// A true mutex: one exclusive queue with the lock's name, which the holder declares
    /// (source document "distributed locks"). It has no slots, and no administrator.
    TrueMutex,
}

impl Default for Protocol {
    fn default() -> Self {
        Self::ExclusiveQueue(Profile::Guideline)
    }
}

impl Protocol {
    /// Whether the protocol has numbered slots, each with queues of its own.
    #[must_use]
    pub fn has_slots(self) -> bool {
        self.unit() == Unit::Slot
    }

    /// Returns what clients of such a lock hold.
    #[must_use]
    pub fn unit(self) -> Unit {
        match self {
            Self::ExclusiveQueue(_) | Self::ExclusiveConsumer => Unit::Slot,
            Self::Token(_) => Unit::Token,
            Self::TrueMutex => Unit::Mutex,
        }
    }
}

/// A semaphore's name on the broker: `N` of the amqp-locks guideline's "persistent semaphore",
/// and the protocol. All queue names of the semaphore are derived from it. Names that
/// could be mistaken for a part of another semaphore are rejected.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockName {
    name: String,
    protocol: Protocol,
}

impl LockName {
    /// Checks the naming rules. The protocol is [`Protocol::default`].
    ///
    /// # Errors
    ///
    /// [`NameError`]: the rule that the name breaks.
    pub fn new(name: impl Into<String>) -> Result<Self, NameError> {
        let name = name.into();
        check_common(&name)?;
        if name.starts_with("amq.") {
            return Err(NameError::new(&name, "names that start with amq. are the broker's own"));
        }
        if let Some(rule) = collides_with_a_part(&name) {
            return Err(NameError::new(&name, rule));
        }
        Ok(Self { name, protocol: Protocol::default() })
    }

    /// Returns the same name with another protocol.
    #[must_use]
    pub fn with_protocol(self, protocol: Protocol) -> Self {
        Self { protocol, ..self }
    }

    /// Returns the same name with protocol `ExclusiveQueue` and another profile.
    #[must_use]
    pub fn with_profile(self, profile: Profile) -> Self {
        self.with_protocol(Protocol::ExclusiveQueue(profile))
    }

    /// Returns the name as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// Returns the protocol.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns the naming profile.
    #[must_use]
    pub fn profile(&self) -> Profile {
        match self.protocol {
            Protocol::ExclusiveQueue(profile) => profile,
            Protocol::ExclusiveConsumer | Protocol::Token(_) | Protocol::TrueMutex => {
                Profile::Guideline
            }
        }
    }

    /// Whether the lock has numbered slots, each with queues of its own.
    #[must_use]
    pub fn has_slots(&self) -> bool {
        self.protocol.has_slots()
    }

    /// Returns what clients of the lock hold.
    #[must_use]
    pub fn unit(&self) -> Unit {
        self.protocol.unit()
    }

    /// Returns the slot queue `A[i]`, `N-i-A`. While it exists, slot `i` (from 1) may be
    /// taken.
    #[must_use]
    pub fn slot_queue(&self, slot: u32) -> String {
        self.part(slot, 'A')
    }

    /// Returns the queue by which slot `i` is held. `B[i]`, `N-i-B`, is exclusive to the
    /// connection that holds it. In protocol `ExclusiveConsumer` it is `C[i]`, `N-i-C`:
    /// the administrator declares it, and its only consumer holds the slot. A true mutex
    /// is held by the queue `N`.
    #[must_use]
    pub fn holder_queue(&self, slot: u32) -> String {
        if self.protocol == Protocol::TrueMutex {
            return self.name.clone();
        }
        self.part(slot, self.holder_part())
    }

    fn holder_part(&self) -> char {
        if self.protocol == Protocol::ExclusiveConsumer { 'C' } else { 'B' }
    }

    /// Returns the token queue, `N.semaphore`, which contains one message per permitted
    /// holder. Only in protocol Token.
    #[must_use]
    pub fn token_queue(&self) -> String {
        format!("{}.semaphore", self.name)
    }

    /// Returns the queue by which the holder of a token identifies itself, `N-<token>-B`.
    /// It is exclusive to its connection. Only in protocol Token.
    #[must_use]
    pub fn announcement(&self, token: u64) -> String {
        format!("{}-{token}-B", self.name)
    }

    /// Returns the queue that shows whether two addresses lead to one broker,
    /// `N-probe-<token>`. It is exclusive and short-lived.
    #[must_use]
    pub fn probe_queue(&self, token: u128) -> String {
        format!("{}-probe-{token:032x}", self.name)
    }

    /// Returns the slot record `F[i]`, `N-i-F`. It contains one message, the record of
    /// slot `i`'s last holder, and exists only with fencing or a lock delay. Not in
    /// profile `AmqpLocksPython` and protocol Token.
    #[must_use]
    pub fn record_queue(&self, slot: u32) -> Option<String> {
        self.has_more_than_slots().then(|| self.part(slot, 'F'))
    }

    /// Returns the wait queue `N-W`. Clients that wait for a slot or a true mutex consume
    /// from it. Not in profile `AmqpLocksPython`, and not in protocol Token, where the
    /// broker itself queues the waiters.
    #[must_use]
    pub fn wait_queue(&self) -> Option<String> {
        let is_mutex = self.protocol == Protocol::TrueMutex;
        (is_mutex || self.has_more_than_slots()).then(|| format!("{}-W", self.name))
    }

    fn has_more_than_slots(&self) -> bool {
        self.has_slots() && self.profile() == Profile::Guideline
    }

    /// Returns the admin mutex: the exclusive queue `N`, in every protocol. It is a true
    /// mutex, and the only queue of one that is held.
    #[must_use]
    pub fn admin_mutex(&self) -> &str {
        &self.name
    }

    fn part(&self, slot: u32, part: char) -> String {
        match self.profile() {
            Profile::Guideline => format!("{}-{slot}-{part}", self.name),
            Profile::AmqpLocksPython => format!("{}-{part}-{slot}", self.name),
        }
    }

    /// Returns the slot number if `queue` is one of this semaphore's slot queues.
    #[must_use]
    pub fn slot_of_slot_queue(&self, queue: &str) -> Option<u32> {
        self.slot_of(queue, 'A')
    }

    /// Returns the slot number if `queue` is one of this semaphore's holder queues.
    #[must_use]
    pub fn slot_of_holder_queue(&self, queue: &str) -> Option<u32> {
        self.slot_of(queue, self.holder_part())
    }

    fn slot_of(&self, queue: &str, part: char) -> Option<u32> {
        let rest = queue.strip_prefix(&self.name)?.strip_prefix('-')?;
        let number = match self.profile() {
            Profile::Guideline => rest.strip_suffix(part)?.strip_suffix('-')?,
            Profile::AmqpLocksPython => rest.strip_prefix(part)?.strip_prefix('-')?,
        };
        let slot = number.parse().ok().filter(|&slot| slot > 0)?;
        // "007" and "+7" parse too, but are not slot numbers.
        (number == u32::to_string(&slot)).then_some(slot)
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

fn collides_with_a_part(name: &str) -> Option<&'static str> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let parts: Vec<&str> = name.rsplitn(3, '-').collect();
    match parts.as_slice() {
        ["A" | "B" | "C" | "F", number, _] if is_number(number) => {
            Some("names that end in -<n>-A, -<n>-B, -<n>-C or -<n>-F are those of a slot's queues")
        }
        [number, "A" | "B", _] if is_number(number) => {
            Some("names that end in -A-<n> or -B-<n> are those of a slot's queues")
        }
        ["W", ..] if parts.len() > 1 => Some("names that end in -W are those of wait queues"),
        _ if name.ends_with(".semaphore") => {
            Some("names that end in .semaphore are those of token queues")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
